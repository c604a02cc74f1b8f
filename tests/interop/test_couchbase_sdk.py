"""Couchbase's own Python SDK, as an application uses it, with a node started without further options."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from couchbase import exceptions, subdocument
from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.collection import Collection
from couchbase.durability import (
    ClientDurability,
    Durability,
    PersistTo,
    PersistToExtended,
    ReplicateTo,
    ServerDurability,
)
from couchbase.kv_range_scan import PrefixScan, RangeScan, SamplingScan, ScanTerm
from couchbase.management.collections import CreateCollectionSettings
from couchbase.options import (
    ClusterOptions,
    ClusterTimeoutOptions,
    DecrementOptions,
    DeltaValue,
    GetOptions,
    IncrementOptions,
    InsertOptions,
    MutateInOptions,
    RemoveOptions,
    ReplaceOptions,
    ScanOptions,
    SignedInt64,
    UpsertOptions,
)
from couchbase.subdocument import StoreSemantics
from couchbase.transcoder import RawBinaryTranscoder

from harness.nodes import until
from headwater import testing
from headwater.accounts.roles import read_grants
from headwater.accounts.users import Account
from headwater.node.users.file import UsersFile
from headwater.testing.node import Node
from tests.interop.toolchains import python_version

pytestmark = [
    pytest.mark.interop,
    pytest.mark.program("Python SDK", python_version("couchbase"), "call by call, refusals, a crash"),
]
RAW = RawBinaryTranscoder()
MINUTE = timedelta(seconds=60)
PATIENT = ClusterTimeoutOptions(
    bootstrap_timeout=MINUTE, connect_timeout=MINUTE, kv_timeout=MINUTE, management_timeout=MINUTE
)


def connect(node: Node, user: str = "Administrator", password: str = "password") -> Cluster:
    options = ClusterOptions(PasswordAuthenticator(user, password), timeout_options=PATIENT)
    return Cluster.connect(f"couchbase://{node.address}", options)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with testing.node() as node:
        yield node


@pytest.fixture(scope="module")
def cluster(node: Node) -> Iterator[Cluster]:
    cluster = connect(node)
    yield cluster
    cluster.close()


@pytest.fixture
def documents(cluster: Cluster) -> Collection:
    return cluster.bucket("default").default_collection()


def test_a_document_is_stored_read_replaced_and_removed(documents: Collection) -> None:
    stored = documents.upsert("apple", {"colour": "green"})
    found = documents.get("apple")
    assert found.content_as[dict] == {"colour": "green"} and found.cas == stored.cas
    assert documents.exists("apple").exists
    documents.replace("apple", {"colour": "red"}, ReplaceOptions(cas=found.cas))
    documents.remove("apple")
    assert not documents.exists("apple").exists
    with pytest.raises(exceptions.DocumentNotFoundException):
        documents.get("apple")


def test_refusals_are_the_errors_an_application_expects(documents: Collection) -> None:
    documents.insert("pear", 1)
    with pytest.raises(exceptions.DocumentExistsException):
        documents.insert("pear", 2)
    with pytest.raises(exceptions.CasMismatchException):
        documents.replace("pear", 2, ReplaceOptions(cas=77))
    with pytest.raises(exceptions.CasMismatchException):
        documents.remove("pear", RemoveOptions(cas=77))
    for missing in (lambda: documents.replace("none", 1), lambda: documents.remove("none")):
        with pytest.raises(exceptions.DocumentNotFoundException):
            missing()
    assert documents.get("pear").content_as[int] == 1


def test_an_expiry_is_set_kept_changed_and_told_to_streams(node: Node, documents: Collection) -> None:
    documents.insert("plum", 1, InsertOptions(expiry=timedelta(hours=1)))
    documents.replace("plum", 2, ReplaceOptions(preserve_expiry=True))
    kept = expiry_of(node, "plum")
    documents.touch("plum", timedelta(hours=2))
    assert expiry_of(node, "plum") - kept in range(3600, 3720)
    assert documents.get_and_touch("plum", timedelta(0)).content_as[int] == 2
    assert expiry_of(node, "plum") == 0


def expiry_of(node: Node, key: str) -> int:
    with node.client() as bucket, bucket.changes(until="now") as changes:
        return int([change.expiry for change in changes if getattr(change, "key", b"") == key.encode()][-1])


def test_a_locked_document_is_changed_with_the_token_only(documents: Collection) -> None:
    documents.upsert("cherry", 1)
    locked = documents.get_and_lock("cherry", timedelta(seconds=30))
    impatient = ReplaceOptions(timeout=timedelta(milliseconds=300))  # the SDK tries again until then
    with pytest.raises(exceptions.CouchbaseException):
        documents.replace("cherry", 2, impatient)
    documents.replace("cherry", 3, ReplaceOptions(cas=locked.cas))
    locked = documents.get_and_lock("cherry", timedelta(seconds=30))
    documents.unlock("cherry", locked.cas)
    documents.replace("cherry", 4)
    assert documents.get("cherry").content_as[int] == 4


def test_counters_count_and_binary_values_grow_at_both_ends(documents: Collection) -> None:
    binary = documents.binary()
    assert binary.increment("visits", IncrementOptions(initial=SignedInt64(10))).content == 10
    assert binary.increment("visits", IncrementOptions(delta=DeltaValue(5))).content == 15
    assert binary.decrement("visits", DecrementOptions(delta=DeltaValue(20))).content == 0
    documents.upsert("line", b"b", UpsertOptions(transcoder=RAW))
    binary.append("line", b"c")
    binary.prepend("line", b"a")
    assert documents.get("line", GetOptions(transcoder=RAW)).value == b"abc"


def test_many_documents_of_all_sizes_come_back_as_they_went(documents: Collection) -> None:
    stored = {f"many-{number}": {"text": "x" * (number * number)} for number in range(300)}
    stored["many-large"] = {"text": "y" * 5_000_000}
    assert documents.upsert_multi(stored).all_ok
    found = documents.get_multi(list(stored))
    assert {key: result.content_as[dict] for key, result in found.results.items()} == stored


def test_parts_of_a_document_are_looked_up_and_changed(documents: Collection) -> None:
    documents.upsert("plum", {"name": "plum", "tags": ["a"], "stock": {"n": 4}})
    found = documents.lookup_in(
        "plum",
        [
            subdocument.get("name"),
            subdocument.exists("none"),
            subdocument.count("tags"),
            subdocument.get("$document.flags", xattr=True),
        ],
    )
    assert (found.content_as[str](0), found.exists(1), found.content_as[int](2)) == ("plum", False, 1)
    with pytest.raises(exceptions.PathNotFoundException):
        documents.lookup_in("plum", [subdocument.get("none")]).content_as[str](0)
    changed = documents.mutate_in(
        "plum",
        [
            subdocument.upsert("owner.id", "me", xattr=True, create_parents=True),
            subdocument.upsert("stock.place.row", 7, create_parents=True),
            subdocument.array_append("tags", "b", "c"),
            subdocument.array_addunique("tags", "d"),
            subdocument.increment("stock.n", 38),
            subdocument.remove("name"),
        ],
    )
    assert changed.content_as[int](4) == 42
    assert documents.get("plum").content_as[dict] == {
        "tags": ["a", "b", "c", "d"],
        "stock": {"n": 42, "place": {"row": 7}},
    }
    assert documents.lookup_in("plum", [subdocument.get("owner", xattr=True)]).content_as[dict](0) == {"id": "me"}


def test_what_a_change_of_parts_refuses_is_the_error_an_application_expects(documents: Collection) -> None:
    documents.upsert("pear", {"a": 1})
    with pytest.raises(exceptions.PathExistsException):
        documents.mutate_in("pear", [subdocument.insert("a", 2)])
    with pytest.raises(exceptions.PathMismatchException):
        documents.mutate_in("pear", [subdocument.array_append("a", 2)])
    with pytest.raises(exceptions.DocumentNotFoundException):
        documents.mutate_in("no-pear", [subdocument.upsert("a", 2)])
    with pytest.raises(exceptions.CASMismatchException):
        documents.mutate_in("pear", [subdocument.upsert("a", 2)], MutateInOptions(cas=1))
    documents.mutate_in(
        "new-pear", [subdocument.upsert("a", 2)], MutateInOptions(store_semantics=StoreSemantics.INSERT)
    )
    assert documents.get("new-pear").content_as[dict] == {"a": 2}
    assert documents.get("pear").content_as[dict] == {"a": 1}


def test_a_document_is_read_with_its_expiry_and_in_part(documents: Collection) -> None:
    documents.upsert("lime", {"a": {"b": 1}, "c": 2, "d": 3}, UpsertOptions(expiry=timedelta(hours=1)))
    read = documents.get("lime", GetOptions(with_expiry=True))
    assert read.expiry_time is not None and read.content_as[dict]["d"] == 3
    assert abs(read.expiry_time.timestamp() - time.time() - 3600) < 60
    assert documents.get("lime", GetOptions(project=["a.b", "c"])).content_as[dict] == {"a": {"b": 1}, "c": 2}


def test_lists_sets_queues_and_maps_of_the_sdk_are_documents(documents: Collection) -> None:
    stack = documents.couchbase_list("a-list")
    stack.append("x")
    stack.prepend("w")
    assert list(stack) == ["w", "x"]
    names = documents.couchbase_set("a-set")
    names.add("one")
    names.add("one")
    assert names.size() == 1
    table = documents.couchbase_map("a-map")
    table.add("k", "v")
    assert table.get("k") == "v"


@pytest.mark.parametrize(
    "level", [Durability.MAJORITY, Durability.MAJORITY_AND_PERSIST_TO_ACTIVE, Durability.PERSIST_TO_MAJORITY]
)
def test_durable_writes_of_each_level(documents: Collection, level: Durability) -> None:
    durable = ServerDurability(level)
    first = documents.upsert("durable", {"n": 1}, UpsertOptions(durability=durable))
    assert documents.get("durable").cas == first.cas
    documents.mutate_in("durable", [subdocument.upsert("n", 2)], MutateInOptions(durability=durable))
    assert documents.get("durable").content_as[dict] == {"n": 2}
    documents.remove("durable", RemoveOptions(durability=durable))
    assert not documents.exists("durable").exists


def test_range_scans_prefix_scans_and_samples(documents: Collection) -> None:
    stored = {f"scan-{number:03}": number for number in range(60)}
    for key, number in stored.items():
        documents.upsert(key, number)
    found = {each.id: each.content_as[int] for each in documents.scan(PrefixScan("scan-"))}
    assert found == stored
    part = RangeScan(start=ScanTerm("scan-010"), end=ScanTerm("scan-020", exclusive=True))
    keys = [each.id for each in documents.scan(part, ScanOptions(ids_only=True))]
    assert sorted(keys) == [f"scan-{number:03}" for number in range(10, 20)]
    assert 0 < sum(1 for _ in documents.scan(SamplingScan(5, seed=7))) <= 5


def test_what_the_node_does_not_do_is_refused_at_once(documents: Collection, cluster: Cluster) -> None:
    documents.upsert("fig", {"a": 1})
    with pytest.raises(exceptions.ServiceUnavailableException):
        list(cluster.query("select 1").rows())
    assert documents.get("fig").content_as[dict] == {"a": 1}


def test_the_bucket_is_listed(cluster: Cluster) -> None:
    assert [bucket.name for bucket in cluster.buckets().get_all_buckets()] == ["default"]


def test_scopes_and_collections_are_made_used_listed_and_dropped() -> None:
    with testing.node() as node:
        cluster = connect(node)
        bucket = cluster.bucket("default")
        manager = bucket.collections()
        manager.create_scope("inventory")
        manager.create_collection("inventory", "fruit")
        manager.create_collection("inventory", "short", CreateCollectionSettings(max_expiry=timedelta(hours=1)))
        listed = {scope.name: scope for scope in manager.get_all_scopes()}
        assert sorted(collection.name for collection in listed["inventory"].collections) == ["fruit", "short"]
        fruit, default = bucket.scope("inventory").collection("fruit"), bucket.default_collection()
        fruit.upsert("apple", {"of": "fruit"})
        default.upsert("apple", {"of": "default"})
        assert fruit.get("apple").content_as[dict] == {"of": "fruit"}
        assert default.get("apple").content_as[dict] == {"of": "default"}
        short = bucket.scope("inventory").collection("short")
        short.upsert("pear", {"a": 1})
        assert short.get("pear", GetOptions(with_expiry=True)).expiryTime is not None
        fruit.mutate_in("apple", (subdocument.upsert("colour", "green"),))
        assert fruit.lookup_in("apple", (subdocument.get("colour"),)).content_as[str](0) == "green"
        assert fruit.binary().increment("count", IncrementOptions(initial=SignedInt64(5))).content == 5
        for again in (
            lambda: manager.create_scope("inventory"),
            lambda: manager.create_collection("inventory", "fruit"),
        ):
            with pytest.raises((exceptions.ScopeAlreadyExistsException, exceptions.CollectionAlreadyExistsException)):
                again()
        with pytest.raises(exceptions.ScopeNotFoundException):
            manager.create_collection("nowhere", "fruit")
        manager.drop_collection("inventory", "fruit")
        with pytest.raises(exceptions.CollectionNotFoundException):
            manager.drop_collection("inventory", "fruit")
        manager.drop_scope("inventory")
        assert [scope.name for scope in manager.get_all_scopes()] == ["_default"]
        assert default.get("apple").content_as[dict] == {"of": "default"}
        cluster.close()


def test_collections_made_by_the_command_are_found_by_name() -> None:
    with testing.node() as node:
        command = [sys.executable, "-m", "headwater", "collection", "create", "shop.orders", "--node", node.url]
        assert "shop.orders is there" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
        cluster = connect(node)
        orders = cluster.bucket("default").scope("shop").collection("orders")
        orders.upsert("one", {"n": 1})
        assert orders.get("one").content_as[dict] == {"n": 1}
        missing = cluster.bucket("default").scope("shop").collection("carts")
        with pytest.raises(exceptions.CouchbaseException):
            missing.get("one", GetOptions(timeout=timedelta(seconds=3)))
        cluster.close()


MANAGED = """
import sys
from couchbase import exceptions
from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.management.buckets import CreateBucketSettings
from couchbase.options import ClusterOptions

cluster = Cluster.connect(sys.argv[1], ClusterOptions(PasswordAuthenticator("ann", "secret")))
bucket, users, buckets = cluster.bucket("default"), cluster.users(), cluster.buckets()


def outcome(work):
    try:
        return work()
    except Exception as error:
        name = type(error).__name__
        return f"{name} {error.error_code}" if name == "CouchbaseException" else name


told = cluster.cluster_info()
print("nodes:", [(node["status"], node["services"]) for node in told.nodes])
print("version:", told.server_version)
print("users:", [user.user.username for user in users.get_all_users()], users.get_user("ann").user.username)
print("roles:", [role.role.name for role in users.get_roles()], users.get_all_groups())
print("scopes:", [scope.name for scope in bucket.collections().get_all_scopes()])
print("create scope:", outcome(lambda: bucket.collections().create_scope("inventory")))
print("create collection:", outcome(lambda: bucket.collections().create_collection("_default", "fruit")))
print("drop scope:", outcome(lambda: bucket.collections().drop_scope("missing")))
print("flush:", outcome(lambda: buckets.flush_bucket("default")))
other = CreateBucketSettings(name="other", ram_quota_mb=100)
print("create bucket:", outcome(lambda: buckets.create_bucket(other)))
print("create bucket again:", outcome(lambda: buckets.create_bucket(other)))
print("buckets:", [each.name for each in buckets.get_all_buckets()], buckets.get_bucket("other").name)
print("drop bucket:", outcome(lambda: buckets.drop_bucket("other")), outcome(lambda: buckets.drop_bucket("other")))
cluster.close()
"""


def test_management_calls_are_answered_or_refused_by_their_right_names_and_the_interpreter_lives() -> None:
    """In a process of its own: the SDK's core aborts the interpreter on a page that lacks what it reads."""
    with testing.node(user="ann", environment={"HEADWATER_PASSWORD": "secret"}) as node:
        done = subprocess.run(
            [sys.executable, "-c", MANAGED, f"couchbase://{node.address}"],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert dict(line.split(": ", 1) for line in done.stdout.splitlines()) == {
        "nodes": "[('healthy', ['kv'])]",
        "version": "7.6.0-0000",
        "users": "['ann'] ann",
        "roles": (
            "['data_reader', 'data_writer', 'data_dcp_reader', 'replication_target', 'data_monitoring', 'admin'] []"
        ),
        "scopes": "['_default']",
        "create scope": "None",
        "create collection": "None",
        "drop scope": "ScopeNotFoundException",
        "flush": "CouchbaseException 607",  # bucket_not_flushable, which the SDK's Python half has no class for
        "create bucket": "None",
        "create bucket again": "BucketAlreadyExistsException",
        "buckets": "['default', 'other'] other",
        "drop bucket": "None BucketDoesNotExistException",
    }


def test_two_buckets_of_a_node_are_two_and_each_user_has_his_own() -> None:
    """One Cluster object with both buckets open, scopes in one of them, and a user with a role in one collection."""
    with testing.node() as node:
        command = [sys.executable, "-m", "headwater", "bucket", "create", "orders", "--node", node.url]
        assert "orders is there" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
        cluster = connect(node)
        default, orders = (cluster.bucket(name) for name in ("default", "orders"))
        manager = orders.collections()
        manager.create_scope("shop")
        for name in ("carts", "bills"):
            manager.create_collection("shop", name)
        default.default_collection().upsert("apple", "of default")
        orders.default_collection().upsert("apple", "of orders")
        for name in ("carts", "bills"):
            orders.scope("shop").collection(name).upsert("apple", f"of {name}")
        assert default.default_collection().get("apple").value == "of default"
        assert orders.default_collection().get("apple").value == "of orders"
        assert [scope.name for scope in default.collections().get_all_scopes()] == ["_default"]
        cluster.close()
        with UsersFile(node.data).editing() as accounts:
            accounts["bob"] = Account.create("s3cret", read_grants("read[orders:shop:carts],write[orders:shop:carts]"))
        until(lambda: _is_let_in(node), "the node has taken the user up")
        cluster = connect(node, "bob", "s3cret")
        shop = cluster.bucket("orders").scope("shop")
        assert shop.collection("carts").get("apple").value == "of carts" and shop.collection("carts").upsert("k", 1).cas
        quick = GetOptions(timeout=timedelta(seconds=5))
        with pytest.raises(exceptions.CouchbaseException):
            shop.collection("bills").get("apple", quick)
        with pytest.raises(exceptions.CouchbaseException):
            cluster.bucket("orders").default_collection().get("apple", quick)
        cluster.close()


def _is_let_in(node: Node) -> bool:
    """Whether bob comes in by his password: the node goes by its users."""
    try:
        connect(node, "bob", "s3cret").close()
    except exceptions.AuthenticationException:
        return False
    return True


def test_the_snippet_of_the_guide_runs_as_often_as_one_likes() -> None:
    guide = (Path(__file__).parent.parent.parent / "docs/howto/clients.md").read_text("utf-8")
    snippets = re.findall(r"^```python\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    (snippet,) = (each for each in snippets if "from couchbase" in each)
    with testing.node() as node:
        code = snippet.replace("127.0.0.1:11210", node.address)
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
            )
            assert (done.returncode, done.stdout) == (0, "{'colour': 'green'}\n"), done.stderr


def test_one_way_of_waiting_for_the_disk_works_and_the_other_is_refused_by_the_sdk_itself(
    documents: Collection,
) -> None:
    """Without replicas the SDK's core takes "at least one node" for two; nothing is sent. As the guide says."""
    active = ClientDurability(ReplicateTo.NONE, PersistToExtended.ACTIVE)
    assert documents.upsert("quince", 1, UpsertOptions(durability=active)).cas
    one = ClientDurability(ReplicateTo.NONE, PersistTo.ONE)
    with pytest.raises(exceptions.DurabilityImpossibleException):
        documents.upsert("quince", 2, UpsertOptions(durability=one))


def upsert_until_it_is_there(documents: Collection, key: str, value: int) -> None:
    """As applications do: a write that was on its way when the connection broke is cancelled: it may have come."""
    give_up = time.monotonic() + 180
    while True:
        try:
            documents.upsert(key, value, UpsertOptions(timeout=3 * MINUTE))
            return
        except exceptions.RequestCanceledException:
            assert time.monotonic() < give_up


def test_an_application_that_goes_on_while_the_node_is_killed_loses_nothing() -> None:
    with testing.node() as node, ThreadPoolExecutor(1) as worker:
        cluster = connect(node)
        documents = cluster.bucket("default").default_collection()
        documents.upsert("before", 1)
        node.kill()
        waiting = worker.submit(upsert_until_it_is_there, documents, "meanwhile", 2)
        node.restart()
        waiting.result()
        assert [documents.get(key).value for key in ("before", "meanwhile")] == [1, 2]
        cluster.close()


def test_a_node_with_users_lets_in_who_knows_the_password() -> None:
    with testing.node(user="ann", environment={"HEADWATER_PASSWORD": "secret, or = not"}) as node:
        with pytest.raises(exceptions.AuthenticationException):
            connect(node, "ann", "wrong")
        cluster = connect(node, "ann", "secret, or = not")
        assert cluster.bucket("default").default_collection().upsert("key", 1).cas
        cluster.close()


def test_the_sdk_wants_the_password_that_the_documentation_tells(node: Node) -> None:
    with pytest.raises(exceptions.AuthenticationException):
        connect(node, "anybody", "something else")
    until(lambda: "SCRAM needs the password 'password'" in node.log, "it is told")
