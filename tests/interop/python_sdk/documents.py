"""An application with Couchbase's Python SDK; see tests/interop/sdk_story.py, which tells and checks it."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from couchbase import exceptions, subdocument
from couchbase.auth import CertificateAuthenticator, PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.durability import Durability, ServerDurability
from couchbase.kv_range_scan import PrefixScan
from couchbase.management.collections import CreateCollectionSettings, UpdateCollectionSettings
from couchbase.options import (
    ClusterOptions,
    ClusterTimeoutOptions,
    DecrementOptions,
    DeltaValue,
    GetOptions,
    IncrementOptions,
    MutateInOptions,
    RemoveOptions,
    ReplaceOptions,
    ScanOptions,
    SignedInt64,
    UpsertOptions,
)
from couchbase.subdocument import StoreSemantics
from couchbase.transcoder import RawBinaryTranscoder

NUMBER = 500
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
RAW = RawBinaryTranscoder()


def connect(address: str, user: str, password: str, *files: str) -> Cluster:
    """By password, over TLS with the trust store alone, or with certificate and key behind it."""
    if len(files) == 3:
        login = CertificateAuthenticator(trust_store_path=files[0], cert_path=files[1], key_path=files[2])
    else:
        login = PasswordAuthenticator(user, password, *files)
    patient = ClusterTimeoutOptions(
        bootstrap_timeout=MINUTE, connect_timeout=MINUTE, kv_timeout=MINUTE, management_timeout=MINUTE
    )
    return Cluster.connect(address, ClusterOptions(login, timeout_options=patient))


def say(*words: str) -> None:
    print(*words, flush=True)


def passed(name: str) -> None:
    say("check", name)


def refused(kind: type[BaseException], work: Callable[..., Any], *arguments: Any) -> None:
    try:
        work(*arguments)
    except kind:
        return
    raise AssertionError(f"not refused; wanted {kind}")


def main() -> None:
    cluster = connect(*sys.argv[1:])
    bucket = cluster.bucket("default")
    manager = bucket.collections()
    manager.create_scope("market")
    manager.create_collection("market", "fruit")
    manager.create_collection("market", "passing", CreateCollectionSettings(max_expiry=HOUR))
    manager.create_collection("market", "gone")
    say("ready")
    sys.stdin.readline()
    plain, fruit = bucket.default_collection(), bucket.scope("market").collection("fruit")
    many("_default._default", plain)
    many("market.fruit", fruit)
    single(plain, fruit)
    parts(fruit)
    durable(fruit)
    transactions(cluster, fruit)
    collections(bucket, manager)
    say("done")
    cluster.close()


def many(name: str, documents: Any) -> None:
    for n in range(NUMBER):
        content = json.dumps(documents.get(f"ours-{n}").content_as[dict])
        say("read", name, f"ours-{n}", base64.b64encode(content.encode()).decode())
    for n in range(NUMBER):
        documents.upsert(f"theirs-{n}", {"n": n, "in": name})
        if n % 10 == 0:
            documents.remove(f"theirs-{n}")


def single(plain: Any, fruit: Any) -> None:
    refused(exceptions.DocumentNotFoundException, plain.get, "nobody")
    refused(exceptions.DocumentNotFoundException, plain.replace, "nobody", 1)
    assert not plain.exists("nobody").exists
    passed("missing")

    first = plain.insert("apple", {"n": 1})
    refused(exceptions.DocumentExistsException, plain.insert, "apple", {"n": 1})
    assert plain.exists("apple").exists
    passed("exists")

    plain.replace("apple", {"n": 2}, ReplaceOptions(cas=first.cas))
    refused(exceptions.CasMismatchException, plain.replace, "apple", {"n": 9}, ReplaceOptions(cas=first.cas))
    refused(exceptions.CasMismatchException, plain.remove, "apple", RemoveOptions(cas=first.cas))
    passed("cas")

    locked = plain.get_and_lock("apple", timedelta(seconds=30))
    impatient = UpsertOptions(timeout=timedelta(seconds=1))
    refused(exceptions.CouchbaseException, plain.upsert, "apple", 9, impatient)
    plain.replace("apple", {"n": 3}, ReplaceOptions(cas=locked.cas))
    locked = plain.get_and_lock("apple", timedelta(seconds=30))
    plain.unlock("apple", locked.cas)
    passed("locked")

    lime = {"a": {"b": 1}, "c": 2, "d": 3}
    fruit.upsert("lime", lime, UpsertOptions(expiry=HOUR))
    assert left(fruit, "lime", 1)
    fruit.touch("lime", 2 * HOUR)
    assert left(fruit, "lime", 2)
    fruit.replace("lime", lime, ReplaceOptions(preserve_expiry=True))
    assert left(fruit, "lime", 2)
    passed("expiry")

    counters = plain.binary()
    assert counters.increment("visits", IncrementOptions(initial=SignedInt64(10))).content == 10
    assert counters.increment("visits", IncrementOptions(delta=DeltaValue(7))).content == 17
    assert counters.decrement("visits", DecrementOptions(delta=DeltaValue(2))).content == 15
    passed("counter")

    fruit.upsert("line", b"b", UpsertOptions(transcoder=RAW))
    fruit.binary().append("line", b"c")
    fruit.binary().prepend("line", b"a")
    assert fruit.get("line", GetOptions(transcoder=RAW)).value == b"abc"
    passed("binary")

    projected = fruit.get("lime", GetOptions(project=["a.b", "c"]))
    assert projected.content_as[dict] == {"a": {"b": 1}, "c": 2}
    passed("projection")


def left(documents: Any, key: str, hours: int) -> bool:
    ends = documents.get(key, GetOptions(with_expiry=True)).expiry_time
    return abs(ends.timestamp() - time.time() - 3600 * hours) < 600


def parts(fruit: Any) -> None:
    fruit.upsert("parts", {"name": "plum", "tags": ["a"], "stock": {"n": 4}})
    found = fruit.lookup_in(
        "parts",
        [
            subdocument.get("name"),
            subdocument.exists("none"),
            subdocument.count("tags"),
            subdocument.get("$document.CAS", xattr=True),
        ],
    )
    assert (found.content_as[str](0), found.exists(1), found.content_as[int](2)) == ("plum", False, 1)
    assert len(found.content_as[str](3)) == 18
    passed("lookup")

    changed = fruit.mutate_in(
        "parts",
        [
            subdocument.upsert("owner.id", "me", xattr=True, create_parents=True),
            subdocument.upsert("stock.place.row", 7, create_parents=True),
            subdocument.array_append("tags", "b"),
            subdocument.array_addunique("tags", "c"),
            subdocument.increment("stock.n", 38),
            subdocument.remove("name"),
        ],
    )
    assert changed.content_as[int](4) == 42
    passed("mutate")

    owner = fruit.lookup_in("parts", [subdocument.get("owner", xattr=True)])
    assert owner.content_as[dict](0) == {"id": "me"}
    passed("attributes")

    refused(exceptions.PathNotFoundException, fruit.mutate_in, "parts", [subdocument.replace("none", 1)])
    refused(exceptions.PathMismatchException, fruit.mutate_in, "parts", [subdocument.array_append("stock", 1)])
    refused(exceptions.PathExistsException, fruit.mutate_in, "parts", [subdocument.insert("tags", 1)])
    refused(exceptions.DocumentNotFoundException, fruit.mutate_in, "nobody", [subdocument.upsert("a", 1)])
    missing = fruit.lookup_in("parts", [subdocument.get("none")])
    refused(exceptions.PathNotFoundException, missing.content_as[str], 0)
    passed("paths")

    sixteen = [subdocument.upsert(f"p{n}", n) for n in range(16)]
    upsert = MutateInOptions(store_semantics=StoreSemantics.UPSERT)
    fruit.mutate_in("many", sixteen, upsert)
    seventeen = [*sixteen, subdocument.upsert("p16", 16)]
    refused(exceptions.CouchbaseException, fruit.mutate_in, "many", seventeen, upsert)
    passed("sixteen")


def durable(fruit: Any) -> None:
    levels = Durability.MAJORITY, Durability.MAJORITY_AND_PERSIST_TO_ACTIVE, Durability.PERSIST_TO_MAJORITY
    for n, level in enumerate(levels, 1):
        fruit.upsert("durable", {"n": n}, UpsertOptions(durability=ServerDurability(level)))
        fruit.upsert("passed", {"n": n}, UpsertOptions(durability=ServerDurability(level)))
        fruit.remove("passed", RemoveOptions(durability=ServerDurability(level)))
    majority = MutateInOptions(durability=ServerDurability(Durability.MAJORITY))
    fruit.mutate_in("durable", [subdocument.increment("n", 1)], majority)
    assert fruit.get("durable").content_as[dict] == {"n": 4} and not fruit.exists("passed").exists
    passed("durable")

    keys = [each.id for each in fruit.scan(PrefixScan("theirs-"), ScanOptions(ids_only=True))]
    assert sorted(keys) == sorted(f"theirs-{n}" for n in range(NUMBER) if n % 10)
    found = {each.id: each.content_as[dict]["n"] for each in fruit.scan(PrefixScan("ours-1"))}
    assert found == {f"ours-{n}": n for n in range(NUMBER) if str(n).startswith("1")}
    passed("scanned")


def transactions(cluster: Cluster, fruit: Any) -> None:
    def opened(attempt: Any) -> None:
        attempt.insert(fruit, "bank-a", {"n": 10})
        attempt.insert(fruit, "bank-b", {"n": 0})

    def moved(attempt: Any) -> None:
        one, other = attempt.get(fruit, "bank-a"), attempt.get(fruit, "bank-b")
        attempt.replace(one, {"n": 7})
        attempt.replace(other, {"n": 3})

    def broken(attempt: Any) -> None:
        attempt.replace(attempt.get(fruit, "bank-a"), {"n": -1})
        attempt.insert(fruit, "bank-c", {"n": 1})
        raise KeyError("the application's own")

    def closed(attempt: Any) -> None:
        attempt.remove(attempt.get(fruit, "bank-b"))

    cluster.transactions.run(opened)
    cluster.transactions.run(moved)
    assert [fruit.get(f"bank-{each}").content_as[dict] for each in "ab"] == [{"n": 7}, {"n": 3}]
    refused(exceptions.TransactionFailed, cluster.transactions.run, broken)
    assert fruit.get("bank-a").content_as[dict] == {"n": 7} and not fruit.exists("bank-c").exists
    cluster.transactions.run(closed)
    assert not fruit.exists("bank-b").exists
    passed("transacted")


def collections(bucket: Any, manager: Any) -> None:
    impatient = GetOptions(timeout=timedelta(seconds=3))
    refused(exceptions.CouchbaseException, bucket.scope("market").collection("nowhere").get, "apple", impatient)
    passed("unknown")

    passing = bucket.scope("market").collection("passing")
    passing.upsert("pear", {"n": 1})
    assert left(passing, "pear", 1)
    passed("passing")

    names = {
        f"{scope.name}.{collection.name}" for scope in manager.get_all_scopes() for collection in scope.collections
    }
    assert names == {"_default._default", "market.fruit", "market.gone", "market.passing"}
    refused(exceptions.ScopeAlreadyExistsException, manager.create_scope, "market")
    refused(exceptions.CollectionAlreadyExistsException, manager.create_collection, "market", "fruit")
    refused(exceptions.ScopeNotFoundException, manager.create_collection, "nowhere", "fruit")
    passed("listed")

    shorter = UpdateCollectionSettings(max_expiry=MINUTE)
    refused(exceptions.InvalidArgumentException, manager.update_collection, "market", "passing", shorter)
    passed("altered")

    gone = bucket.scope("market").collection("gone")
    gone.upsert("pear", {"n": 1})
    manager.drop_collection("market", "gone")
    refused(exceptions.CollectionNotFoundException, manager.drop_collection, "market", "gone")
    refused(exceptions.CouchbaseException, gone.get, "pear", impatient)
    passed("dropped")


if __name__ == "__main__":
    main()
