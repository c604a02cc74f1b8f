//! What an application does with Couchbase's Rust SDK; see tests/interop/sdk_story.py, which tells the story and checks it.

use std::collections::BTreeSet;
use std::env;
use std::error::Error as AnyError;
use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::time::Duration;

use couchbase::authenticator::{Authenticator, CertificateAuthenticator, PasswordAuthenticator};
use couchbase::bucket::Bucket;
use couchbase::cluster::Cluster;
use couchbase::collection::Collection;
use couchbase::durability_level::DurabilityLevel;
use couchbase::error::{Error, ErrorKind};
use couchbase::management::collections::collection_manager::CollectionManager;
use couchbase::management::collections::collection_settings::{
    CreateCollectionSettings, MaxExpiryValue, UpdateCollectionSettings,
};
use couchbase::options::cluster_options::{ClusterOptions, TlsOptions};
use couchbase::options::diagnostic_options::WaitUntilReadyOptions;
use couchbase::options::kv_binary_options::{DecrementOptions, IncrementOptions};
use couchbase::options::kv_options::{
    GetOptions, MutateInOptions, RemoveOptions, ReplaceOptions, StoreSemantics, UpsertOptions,
};
use couchbase::service_type::ServiceType;
use couchbase::subdoc::lookup_in_specs::{GetSpecOptions, LookupInSpec};
use couchbase::subdoc::mutate_in_specs::{MutateInSpec, UpsertSpecOptions};
use couchbase::transcoding::raw_binary;
use serde_json::{json, Value};
use tokio::time::timeout;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

const NUMBER: usize = 500;
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

type Done = Result<(), Box<dyn AnyError>>;

fn passed(name: &str) {
    println!("check {name}");
}

fn base64(data: &[u8]) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in data.chunks(3) {
        let bits = three
            .iter()
            .fold(0u32, |bits, byte| bits << 8 | u32::from(*byte))
            << (8 * (3 - three.len()));
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place) & 63) as usize] as char;
            text.push(if place > three.len() { '=' } else { letter });
        }
    }
    text
}

fn refused<T: Debug>(result: Result<T, Error>, wanted: ErrorKind, name: &str) {
    let error = result.expect_err(name);
    assert_eq!(*error.kind(), wanted, "{name}: {error}");
}

/// What the SDK tries again until it is stopped, as there is no time-out among its options.
async fn never<T: Debug>(trying: impl Future<Output = Result<T, Error>>, name: &str) {
    if let Ok(Ok(found)) = timeout(Duration::from_secs(3), trying).await {
        panic!("{name}: {found:?}");
    }
}

async fn connect(arguments: &[String]) -> Result<Cluster, Box<dyn AnyError>> {
    let mut authenticator: Authenticator =
        PasswordAuthenticator::new(&arguments[1], &arguments[2]).into();
    if let [certificate, key] = &arguments[4.min(arguments.len())..] {
        let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<_, _>>()?;
        authenticator =
            CertificateAuthenticator::new(chain, PrivateKeyDer::from_pem_file(key)?).into();
    }
    let mut options = ClusterOptions::new(authenticator);
    if let Some(trust_store) = arguments.get(3) {
        let trusted = CertificateDer::pem_file_iter(trust_store)?.collect::<Result<Vec<_>, _>>()?;
        options = options.tls_options(TlsOptions::new().add_ca_certificates(trusted));
    }
    Ok(timeout(MINUTE, Cluster::connect(&arguments[0], options)).await??)
}

#[tokio::main]
async fn main() -> Done {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let cluster = connect(&arguments).await?;
    let bucket = cluster.bucket("default");
    let services = WaitUntilReadyOptions::new().service_types(vec![ServiceType::KV]);
    timeout(MINUTE, bucket.wait_until_ready(services)).await??;
    let manager = bucket.collections();
    manager.create_scope("market", None).await?;
    manager
        .create_collection("market", "fruit", None, None)
        .await?;
    let hour = CreateCollectionSettings::new().max_expiry(MaxExpiryValue::Seconds(HOUR));
    manager
        .create_collection("market", "passing", hour, None)
        .await?;
    manager
        .create_collection("market", "gone", None, None)
        .await?;
    println!("ready");
    io::stdin().read_line(&mut String::new())?;

    let plain = bucket.default_collection();
    let fruit = bucket.scope("market").collection("fruit");
    many("_default._default", &plain).await?;
    many("market.fruit", &fruit).await?;
    single(&plain, &fruit).await?;
    expiries(&fruit).await?;
    numbers_and_bytes(&plain, &fruit).await?;
    parts(&fruit).await?;
    paths(&fruit).await?;
    durable(&fruit).await?;
    collections(&bucket, &manager).await?;
    println!("done");
    Ok(())
}

/// Reads what is ours to read, stores and removes.
async fn many(name: &str, documents: &Collection) -> Done {
    for n in 0..NUMBER {
        let key = format!("ours-{n}");
        let found: Value = documents.get(&key, None).await?.content_as()?;
        println!("read {name} {key} {}", base64(&serde_json::to_vec(&found)?));
    }
    for n in 0..NUMBER {
        let key = format!("theirs-{n}");
        documents
            .upsert(&key, json!({"n": n, "in": name}), None)
            .await?;
        if n % 10 == 0 {
            documents.remove(&key, None).await?;
        }
    }
    Ok(())
}

async fn single(plain: &Collection, fruit: &Collection) -> Done {
    refused(
        plain.get("nobody", None).await,
        ErrorKind::DocumentNotFound,
        "get",
    );
    refused(
        plain.replace("nobody", 1, None).await,
        ErrorKind::DocumentNotFound,
        "replace",
    );
    // Its other SDKs answer false where the key never was, too.
    refused(
        plain.exists("nobody", None).await,
        ErrorKind::DocumentNotFound,
        "exists",
    );
    assert!(!plain.exists("theirs-0", None).await?.exists());
    passed("missing");

    let first = plain.insert("apple", json!({"n": 1}), None).await?;
    refused(
        plain.insert("apple", json!({"n": 1}), None).await,
        ErrorKind::DocumentExists,
        "insert",
    );
    assert!(plain.exists("apple", None).await?.exists());
    passed("exists");

    let by_first = ReplaceOptions::new().cas(first.cas());
    plain
        .replace("apple", json!({"n": 2}), by_first.clone())
        .await?;
    refused(
        plain.replace("apple", json!({"n": 9}), by_first).await,
        ErrorKind::CasMismatch,
        "replace",
    );
    let by_first = RemoveOptions::new().cas(first.cas());
    refused(
        plain.remove("apple", by_first).await,
        ErrorKind::CasMismatch,
        "remove",
    );
    passed("cas");

    let locked = plain
        .get_and_lock("apple", Duration::from_secs(30), None)
        .await?;
    never(plain.upsert("apple", 9, None), "a locked document is kept").await;
    plain
        .replace(
            "apple",
            json!({"n": 3}),
            ReplaceOptions::new().cas(locked.cas()),
        )
        .await?;
    let locked = plain
        .get_and_lock("apple", Duration::from_secs(30), None)
        .await?;
    plain.unlock("apple", locked.cas(), None).await?;
    passed("locked");

    fruit.upsert("lime", lime(), None).await?;
    let few = GetOptions::new().projections(vec!["a.b".into(), "c".into()]);
    let found: Value = fruit.get("lime", few).await?.content_as()?;
    assert_eq!(found, json!({"a": {"b": 1}, "c": 2}));
    passed("projection");
    Ok(())
}

fn lime() -> Value {
    json!({"a": {"b": 1}, "c": 2, "d": 3})
}

async fn left(documents: &Collection, key: &str) -> Result<Duration, Box<dyn AnyError>> {
    let found = documents.get(key, GetOptions::new().expiry(true)).await?;
    let ends = std::time::SystemTime::from(*found.expiry_time().ok_or("no expiry")?);
    Ok(ends.duration_since(std::time::SystemTime::now())?)
}

async fn expiries(fruit: &Collection) -> Done {
    fruit
        .upsert("lime", lime(), UpsertOptions::new().expiry(HOUR))
        .await?;
    assert!(left(fruit, "lime").await?.abs_diff(HOUR) < 10 * MINUTE);
    fruit.touch("lime", 2 * HOUR, None).await?;
    assert!(left(fruit, "lime").await?.abs_diff(2 * HOUR) < 10 * MINUTE);
    fruit
        .replace("lime", lime(), ReplaceOptions::new().preserve_expiry(true))
        .await?;
    assert!(left(fruit, "lime").await?.abs_diff(2 * HOUR) < 10 * MINUTE);
    passed("expiry");
    Ok(())
}

async fn numbers_and_bytes(plain: &Collection, fruit: &Collection) -> Done {
    let counters = plain.binary();
    let initial = IncrementOptions::new().initial(10).delta(1);
    assert_eq!(counters.increment("visits", initial).await?.content(), 10);
    assert_eq!(
        counters
            .increment("visits", IncrementOptions::new().delta(7))
            .await?
            .content(),
        17
    );
    assert_eq!(
        counters
            .decrement("visits", DecrementOptions::new().delta(2))
            .await?
            .content(),
        15
    );
    passed("counter");

    let (bytes, flags) = raw_binary::encode(b"b")?;
    fruit.upsert_raw("line", bytes, flags, None).await?;
    fruit.binary().append("line", b"c", None).await?;
    fruit.binary().prepend("line", b"a", None).await?;
    let found = fruit.get("line", None).await?;
    let (bytes, flags) = found.content_as_raw();
    assert_eq!(raw_binary::decode(bytes, flags)?, b"abc");
    passed("binary");
    Ok(())
}

async fn parts(fruit: &Collection) -> Done {
    fruit
        .upsert(
            "parts",
            json!({"name": "plum", "tags": ["a"], "stock": {"n": 4}}),
            None,
        )
        .await?;
    let attribute = GetSpecOptions::new().xattr(true);
    let specs = [
        LookupInSpec::get("name", None),
        LookupInSpec::exists("none", None),
        LookupInSpec::count("tags", None),
        LookupInSpec::get("$document.CAS", attribute.clone()),
    ];
    let found = fruit.lookup_in("parts", &specs, None).await?;
    assert_eq!(found.content_as::<String>(0)?, "plum");
    assert!(!found.exists(1)? && found.content_as::<u32>(2)? == 1);
    assert_eq!(found.content_as::<String>(3)?.len(), 18);
    passed("lookup");

    let path = UpsertSpecOptions::new().create_path(true);
    let specs = [
        MutateInSpec::upsert("owner.id", "me", path.clone().xattr(true))?,
        MutateInSpec::upsert("stock.place.row", 7, path)?,
        MutateInSpec::array_append("tags", &["b"], None)?,
        MutateInSpec::array_add_unique("tags", "c", None)?,
        MutateInSpec::increment("stock.n", 38, None)?,
        MutateInSpec::remove("name", None),
    ];
    let changed = fruit.mutate_in("parts", &specs, None).await?;
    assert_eq!(changed.content_as::<u32>(4)?, 42);
    passed("mutate");

    let found = fruit
        .lookup_in("parts", &[LookupInSpec::get("owner", attribute)], None)
        .await?;
    assert_eq!(found.content_as::<Value>(0)?, json!({"id": "me"}));
    passed("attributes");
    Ok(())
}

async fn paths(fruit: &Collection) -> Done {
    let refusals = [
        (
            "parts",
            MutateInSpec::replace("none", 1, None)?,
            ErrorKind::PathNotFound,
        ),
        (
            "parts",
            MutateInSpec::array_append("stock", &[1], None)?,
            ErrorKind::PathMismatch,
        ),
        (
            "parts",
            MutateInSpec::insert("tags", 1, None)?,
            ErrorKind::PathExists,
        ),
        (
            "nobody",
            MutateInSpec::upsert("a", 1, None)?,
            ErrorKind::DocumentNotFound,
        ),
    ];
    for (key, spec, wanted) in refusals {
        refused(fruit.mutate_in(key, &[spec], None).await, wanted, key);
    }
    let missing = fruit
        .lookup_in("parts", &[LookupInSpec::get("none", None)], None)
        .await?;
    refused(
        missing.content_as::<Value>(0),
        ErrorKind::PathNotFound,
        "lookup",
    );
    passed("paths");

    let numbered = |n: usize| MutateInSpec::upsert(format!("p{n}"), n, None);
    let seventeen = (0..17).map(numbered).collect::<Result<Vec<_>, _>>()?;
    let upsert = MutateInOptions::new().store_semantics(StoreSemantics::Upsert);
    fruit
        .mutate_in("many", &seventeen[..16], upsert.clone())
        .await?;
    fruit
        .mutate_in("many", &seventeen, upsert)
        .await
        .expect_err("seventeen");
    passed("sixteen");
    Ok(())
}

async fn durable(fruit: &Collection) -> Done {
    let levels = [
        DurabilityLevel::MAJORITY,
        DurabilityLevel::MAJORITY_AND_PERSIST_ACTIVE,
        DurabilityLevel::PERSIST_TO_MAJORITY,
    ];
    for (n, level) in levels.into_iter().enumerate() {
        let options = UpsertOptions::new().durability_level(level.clone());
        fruit
            .upsert("durable", json!({"n": n + 1}), options.clone())
            .await?;
        fruit.upsert("passed", json!({"n": n}), options).await?;
        fruit
            .remove("passed", RemoveOptions::new().durability_level(level))
            .await?;
    }
    let majority = MutateInOptions::new().durability_level(DurabilityLevel::MAJORITY);
    fruit
        .mutate_in(
            "durable",
            &[MutateInSpec::increment("n", 1, None)?],
            majority,
        )
        .await?;
    assert_eq!(
        fruit.get("durable", None).await?.content_as::<Value>()?,
        json!({"n": 4})
    );
    assert!(!fruit.exists("passed", None).await?.exists());
    passed("durable");
    Ok(())
}

async fn collections(bucket: &Bucket, manager: &CollectionManager) -> Done {
    let nowhere = bucket.scope("market").collection("nowhere");
    never(nowhere.get("apple", None), "unknown").await;
    passed("unknown");

    let passing = bucket.scope("market").collection("passing");
    passing.upsert("pear", json!({"n": 1}), None).await?;
    assert!(left(&passing, "pear").await?.abs_diff(HOUR) < 10 * MINUTE);
    passed("passing");

    let scopes = manager.get_all_scopes(None).await?;
    let all = scopes.iter().flat_map(|scope| scope.collections());
    let names: BTreeSet<String> = all
        .map(|each| format!("{}.{}", each.scope_name(), each.name()))
        .collect();
    let wanted = [
        "_default._default",
        "market.fruit",
        "market.gone",
        "market.passing",
    ];
    assert_eq!(names, wanted.map(String::from).into());
    refused(
        manager.create_scope("market", None).await,
        ErrorKind::ScopeExists,
        "scope",
    );
    refused(
        manager
            .create_collection("market", "fruit", None, None)
            .await,
        ErrorKind::CollectionExists,
        "collection",
    );
    refused(
        manager
            .create_collection("nowhere", "fruit", None, None)
            .await,
        ErrorKind::ScopeNotFound,
        "no scope",
    );
    passed("listed");

    let shorter = UpdateCollectionSettings::new().max_expiry(MaxExpiryValue::Seconds(MINUTE));
    manager
        .update_collection("market", "passing", shorter, None)
        .await
        .expect_err("altered");
    passed("altered");

    let gone = bucket.scope("market").collection("gone");
    gone.upsert("pear", json!({"n": 1}), None).await?;
    manager.drop_collection("market", "gone", None).await?;
    refused(
        manager.drop_collection("market", "gone", None).await,
        ErrorKind::CollectionNotFound,
        "drop",
    );
    never(gone.get("pear", None), "dropped").await;
    passed("dropped");
    Ok(())
}
