package headwater;

import static com.couchbase.client.java.kv.GetOptions.getOptions;
import static com.couchbase.client.java.kv.MutateInOptions.mutateInOptions;
import static com.couchbase.client.java.kv.RemoveOptions.removeOptions;
import static com.couchbase.client.java.kv.ReplaceOptions.replaceOptions;
import static com.couchbase.client.java.kv.ScanOptions.scanOptions;
import static com.couchbase.client.java.kv.UpsertOptions.upsertOptions;
import static com.couchbase.client.java.kv.IncrementOptions.incrementOptions;
import static com.couchbase.client.java.kv.DecrementOptions.decrementOptions;

import com.couchbase.client.core.env.Authenticator;
import com.couchbase.client.core.env.CertificateAuthenticator;
import com.couchbase.client.core.env.PasswordAuthenticator;
import com.couchbase.client.core.error.CasMismatchException;
import com.couchbase.client.core.error.CollectionExistsException;
import com.couchbase.client.core.error.CollectionNotFoundException;
import com.couchbase.client.core.error.DocumentExistsException;
import com.couchbase.client.core.error.DocumentNotFoundException;
import com.couchbase.client.core.error.ScopeExistsException;
import com.couchbase.client.core.error.ScopeNotFoundException;
import com.couchbase.client.core.error.subdoc.PathExistsException;
import com.couchbase.client.core.error.subdoc.PathMismatchException;
import com.couchbase.client.core.error.subdoc.PathNotFoundException;
import com.couchbase.client.core.msg.kv.DurabilityLevel;
import com.couchbase.client.core.service.ServiceType;
import com.couchbase.client.java.Bucket;
import com.couchbase.client.java.Cluster;
import com.couchbase.client.java.ClusterOptions;
import com.couchbase.client.java.Collection;
import com.couchbase.client.java.codec.RawBinaryTranscoder;
import com.couchbase.client.java.diagnostics.WaitUntilReadyOptions;
import com.couchbase.client.java.env.ClusterEnvironment;
import com.couchbase.client.java.json.JsonArray;
import com.couchbase.client.java.json.JsonObject;
import com.couchbase.client.java.kv.GetResult;
import com.couchbase.client.java.kv.LookupInResult;
import com.couchbase.client.java.kv.LookupInSpec;
import com.couchbase.client.java.kv.MutateInSpec;
import com.couchbase.client.java.kv.MutationResult;
import com.couchbase.client.java.kv.ScanType;
import com.couchbase.client.java.kv.StoreSemantics;
import com.couchbase.client.java.manager.collection.CollectionManager;
import com.couchbase.client.java.manager.collection.CreateCollectionSettings;
import com.couchbase.client.java.manager.collection.UpdateCollectionSettings;
import com.couchbase.client.java.transactions.TransactionGetResult;
import com.couchbase.client.java.transactions.error.TransactionFailedException;
import java.io.FileInputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.PrivateKey;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.security.spec.PKCS8EncodedKeySpec;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;

/** What an application does with Couchbase's Java SDK; see tests/interop/sdk_story.py, which tells and checks it. */
public final class Documents {
    private static final int NUMBER = 500;
    private static final Duration HOUR = Duration.ofHours(1);

    private Documents() {
    }

    public static void main(String[] arguments) throws Exception {
        ClusterEnvironment environment = environment(arguments);
        ClusterOptions options = ClusterOptions.clusterOptions(login(arguments)).environment(environment);
        Cluster cluster = Cluster.connect(arguments[0], options);
        Bucket bucket = cluster.bucket("default");
        bucket.waitUntilReady(Duration.ofMinutes(1),
            WaitUntilReadyOptions.waitUntilReadyOptions().serviceTypes(ServiceType.KV));
        CollectionManager manager = bucket.collections();
        manager.createScope("market");
        manager.createCollection("market", "fruit");
        manager.createCollection("market", "passing", CreateCollectionSettings.createCollectionSettings().maxExpiry(HOUR));
        manager.createCollection("market", "gone");
        System.out.println("ready");
        while (System.in.read() != '\n') {
            // until the line is whole
        }
        Collection plain = bucket.defaultCollection();
        Collection fruit = bucket.scope("market").collection("fruit");
        many("_default._default", plain);
        many("market.fruit", fruit);
        single(plain, fruit);
        parts(fruit);
        durable(fruit);
        transactions(cluster, fruit);
        collections(bucket, manager);
        System.out.println("done");
        cluster.disconnect();
        environment.shutdown();
        System.exit(0);
    }

    private static ClusterEnvironment environment(String[] arguments) {
        Duration minute = Duration.ofMinutes(1);
        ClusterEnvironment.Builder builder = ClusterEnvironment.builder().timeoutConfig(
            timeouts -> timeouts.connectTimeout(minute).kvTimeout(minute).managementTimeout(minute));
        if (arguments.length > 3) {
            builder.securityConfig(security -> security.enableTls(true).trustCertificate(Path.of(arguments[3])));
        }
        return builder.build();
    }

    private static Authenticator login(String[] arguments) throws Exception {
        if (arguments.length < 6) {
            return PasswordAuthenticator.create(arguments[1], arguments[2]);
        }
        String pem = Files.readString(Path.of(arguments[5])).replaceAll("-----[A-Z ]+-----|\\s", "");
        PKCS8EncodedKeySpec encoded = new PKCS8EncodedKeySpec(Base64.getDecoder().decode(pem));
        List<X509Certificate> chain = new ArrayList<>();
        try (FileInputStream file = new FileInputStream(arguments[4])) {
            CertificateFactory.getInstance("X.509").generateCertificates(file).forEach(
                certificate -> chain.add((X509Certificate) certificate));
        }
        PrivateKey key = KeyFactory.getInstance(chain.get(0).getPublicKey().getAlgorithm()).generatePrivate(encoded);
        return CertificateAuthenticator.fromKey(key, null, chain);
    }

    private static void passed(String name) {
        System.out.println("check " + name);
    }

    private static void ok(boolean holds, String name) {
        if (!holds) {
            throw new AssertionError("not so: " + name);
        }
    }

    private static void refused(Class<? extends Throwable> kind, Runnable work) {
        try {
            work.run();
        } catch (RuntimeException error) {
            if (kind.isInstance(error)) {
                return;
            }
            throw error;
        }
        throw new AssertionError("not refused; wanted " + kind);
    }

    private static void many(String name, Collection documents) {
        for (int n = 0; n < NUMBER; n++) {
            byte[] content = documents.get("ours-" + n).contentAsObject().toBytes();
            System.out.println("read " + name + " ours-" + n + ' ' + Base64.getEncoder().encodeToString(content));
        }
        for (int n = 0; n < NUMBER; n++) {
            documents.upsert("theirs-" + n, JsonObject.create().put("n", n).put("in", name));
            if (n % 10 == 0) {
                documents.remove("theirs-" + n);
            }
        }
    }

    private static JsonObject number(int n) {
        return JsonObject.create().put("n", n);
    }

    private static void single(Collection plain, Collection fruit) {
        refused(DocumentNotFoundException.class, () -> plain.get("nobody"));
        refused(DocumentNotFoundException.class, () -> plain.replace("nobody", 1));
        ok(!plain.exists("nobody").exists(), "missing");
        passed("missing");

        MutationResult first = plain.insert("apple", number(1));
        refused(DocumentExistsException.class, () -> plain.insert("apple", number(1)));
        ok(plain.exists("apple").exists(), "exists");
        passed("exists");

        plain.replace("apple", number(2), replaceOptions().cas(first.cas()));
        refused(CasMismatchException.class, () -> plain.replace("apple", number(9), replaceOptions().cas(first.cas())));
        refused(CasMismatchException.class, () -> plain.remove("apple", removeOptions().cas(first.cas())));
        passed("cas");

        GetResult locked = plain.getAndLock("apple", Duration.ofSeconds(30));
        refused(RuntimeException.class,
            () -> plain.upsert("apple", 9, upsertOptions().timeout(Duration.ofSeconds(1))));
        plain.replace("apple", number(3), replaceOptions().cas(locked.cas()));
        locked = plain.getAndLock("apple", Duration.ofSeconds(30));
        plain.unlock("apple", locked.cas());
        passed("locked");

        JsonObject lime = JsonObject.create().put("a", JsonObject.create().put("b", 1)).put("c", 2).put("d", 3);
        fruit.upsert("lime", lime, upsertOptions().expiry(HOUR));
        ok(left(fruit, "lime", 1), "expiry");
        fruit.touch("lime", HOUR.multipliedBy(2));
        ok(left(fruit, "lime", 2), "touch");
        fruit.replace("lime", lime, replaceOptions().preserveExpiry(true));
        ok(left(fruit, "lime", 2), "preserve");
        passed("expiry");

        ok(plain.binary().increment("visits", incrementOptions().initial(10)).content() == 10, "initial");
        ok(plain.binary().increment("visits", incrementOptions().delta(7)).content() == 17, "increment");
        ok(plain.binary().decrement("visits", decrementOptions().delta(2)).content() == 15, "decrement");
        passed("counter");

        fruit.upsert("line", "b".getBytes(), upsertOptions().transcoder(RawBinaryTranscoder.INSTANCE));
        fruit.binary().append("line", "c".getBytes());
        fruit.binary().prepend("line", "a".getBytes());
        GetResult line = fruit.get("line", getOptions().transcoder(RawBinaryTranscoder.INSTANCE));
        ok(new String(line.contentAs(byte[].class)).equals("abc"), "append");
        passed("binary");

        JsonObject projected = fruit.get("lime", getOptions().project("a.b", "c")).contentAsObject();
        ok(projected.getObject("a").getInt("b") == 1 && projected.getInt("c") == 2, "projection");
        ok(!projected.containsKey("d"), "projection");
        passed("projection");
    }

    private static boolean left(Collection documents, String key, int hours) {
        Instant ends = documents.get(key, getOptions().withExpiry(true)).expiryTime().orElseThrow();
        long minutes = Duration.between(Instant.now(), ends).toMinutes();
        return Math.abs(minutes - 60L * hours) < 10;
    }

    private static void parts(Collection fruit) {
        fruit.upsert("parts", JsonObject.create().put("name", "plum").put("tags", JsonArray.from("a"))
            .put("stock", JsonObject.create().put("n", 4)));
        LookupInResult found = fruit.lookupIn("parts", List.of(LookupInSpec.get("name"), LookupInSpec.exists("none"),
            LookupInSpec.count("tags"), LookupInSpec.get("$document.CAS").xattr()));
        ok(found.contentAs(0, String.class).equals("plum") && !found.exists(1), "lookup");
        ok(found.contentAs(2, Integer.class) == 1 && found.contentAs(3, String.class).length() == 18, "lookup");
        passed("lookup");

        long counted = fruit.mutateIn("parts", List.of(
            MutateInSpec.upsert("owner.id", "me").xattr().createPath(),
            MutateInSpec.upsert("stock.place.row", 7).createPath(),
            MutateInSpec.arrayAppend("tags", List.of("b")),
            MutateInSpec.arrayAddUnique("tags", "c"),
            MutateInSpec.increment("stock.n", 38),
            MutateInSpec.remove("name"))).contentAs(4, Long.class);
        ok(counted == 42, "mutate");
        passed("mutate");

        LookupInResult owner = fruit.lookupIn("parts", List.of(LookupInSpec.get("owner").xattr()));
        ok(owner.contentAsObject(0).getString("id").equals("me"), "attributes");
        passed("attributes");

        refused(PathNotFoundException.class, () -> fruit.mutateIn("parts", List.of(MutateInSpec.replace("none", 1))));
        refused(PathMismatchException.class,
            () -> fruit.mutateIn("parts", List.of(MutateInSpec.arrayAppend("stock", List.of(1)))));
        refused(PathExistsException.class, () -> fruit.mutateIn("parts", List.of(MutateInSpec.insert("tags", 1))));
        refused(DocumentNotFoundException.class, () -> fruit.mutateIn("nobody", List.of(MutateInSpec.upsert("a", 1))));
        LookupInResult missing = fruit.lookupIn("parts", List.of(LookupInSpec.get("none")));
        refused(PathNotFoundException.class, () -> missing.contentAs(0, String.class));
        passed("paths");

        List<MutateInSpec> many = new ArrayList<>();
        for (int n = 0; n < 16; n++) {
            many.add(MutateInSpec.upsert("p" + n, n));
        }
        fruit.mutateIn("many", many, mutateInOptions().storeSemantics(StoreSemantics.UPSERT));
        many.add(MutateInSpec.upsert("p16", 16));
        refused(RuntimeException.class, () -> fruit.mutateIn("many", many));
        passed("sixteen");
    }

    private static void durable(Collection fruit) {
        List<DurabilityLevel> levels = List.of(DurabilityLevel.MAJORITY,
            DurabilityLevel.MAJORITY_AND_PERSIST_TO_ACTIVE, DurabilityLevel.PERSIST_TO_MAJORITY);
        for (DurabilityLevel level : levels) {
            fruit.upsert("durable", number(levels.indexOf(level) + 1), upsertOptions().durability(level));
            fruit.upsert("passed", number(1), upsertOptions().durability(level));
            fruit.remove("passed", removeOptions().durability(level));
        }
        fruit.mutateIn("durable", List.of(MutateInSpec.increment("n", 1)),
            mutateInOptions().durability(DurabilityLevel.MAJORITY));
        ok(fruit.get("durable").contentAsObject().getInt("n") == 4 && !fruit.exists("passed").exists(), "durable");
        passed("durable");

        Set<String> keys = new TreeSet<>();
        fruit.scan(ScanType.prefixScan("theirs-"), scanOptions().idsOnly(true)).forEach(item -> keys.add(item.id()));
        ok(keys.size() == NUMBER - NUMBER / 10 && keys.contains("theirs-1") && !keys.contains("theirs-10"), "scanned");
        ok(fruit.scan(ScanType.prefixScan("ours-1")).filter(
            item -> item.id().equals("ours-" + item.contentAsObject().getInt("n"))).count() == 111, "scanned");
        passed("scanned");
    }

    private static void transactions(Cluster cluster, Collection fruit) {
        cluster.transactions().run(attempt -> {
            attempt.insert(fruit, "bank-a", number(10));
            attempt.insert(fruit, "bank-b", number(0));
        });
        cluster.transactions().run(attempt -> {
            TransactionGetResult one = attempt.get(fruit, "bank-a");
            TransactionGetResult other = attempt.get(fruit, "bank-b");
            attempt.replace(one, number(7));
            attempt.replace(other, number(3));
        });
        ok(fruit.get("bank-a").contentAsObject().getInt("n") == 7, "transacted");
        ok(fruit.get("bank-b").contentAsObject().getInt("n") == 3, "transacted");
        refused(TransactionFailedException.class, () -> cluster.transactions().run(attempt -> {
            attempt.replace(attempt.get(fruit, "bank-a"), number(-1));
            attempt.insert(fruit, "bank-c", number(1));
            throw new IllegalStateException("the application's own");
        }));
        ok(fruit.get("bank-a").contentAsObject().getInt("n") == 7 && !fruit.exists("bank-c").exists(), "rolled back");
        cluster.transactions().run(attempt -> attempt.remove(attempt.get(fruit, "bank-b")));
        ok(!fruit.exists("bank-b").exists(), "removed");
        passed("transacted");
    }

    private static void collections(Bucket bucket, CollectionManager manager) {
        Collection nowhere = bucket.scope("market").collection("nowhere");
        refused(RuntimeException.class, () -> nowhere.get("apple", getOptions().timeout(Duration.ofSeconds(3))));
        passed("unknown");

        Collection passing = bucket.scope("market").collection("passing");
        passing.upsert("pear", number(1));
        ok(left(passing, "pear", 1), "passing");
        passed("passing");

        Set<String> names = new TreeSet<>();
        manager.getAllScopes().forEach(scope -> scope.collections().forEach(
            collection -> names.add(scope.name() + '.' + collection.name())));
        ok(names.equals(Set.of("_default._default", "market.fruit", "market.gone", "market.passing")), "listed");
        refused(ScopeExistsException.class, () -> manager.createScope("market"));
        refused(CollectionExistsException.class, () -> manager.createCollection("market", "fruit"));
        refused(ScopeNotFoundException.class, () -> manager.createCollection("nowhere", "fruit"));
        passed("listed");

        refused(RuntimeException.class, () -> manager.updateCollection("market", "passing",
            UpdateCollectionSettings.updateCollectionSettings().maxExpiry(Duration.ofMinutes(1))));
        passed("altered");

        Collection gone = bucket.scope("market").collection("gone");
        gone.upsert("pear", number(1));
        manager.dropCollection("market", "gone");
        refused(CollectionNotFoundException.class, () -> manager.dropCollection("market", "gone"));
        refused(RuntimeException.class, () -> gone.get("pear", getOptions().timeout(Duration.ofSeconds(3))));
        passed("dropped");
    }
}
