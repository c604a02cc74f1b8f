"""Couchbase's own Python SDK, as an application uses it, with a node started without further options."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from couchbase import exceptions, subdocument
from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.collection import Collection
from couchbase.durability import Durability, ServerDurability
from couchbase.options import (
    ClusterOptions,
    DecrementOptions,
    DeltaValue,
    GetOptions,
    IncrementOptions,
    InsertOptions,
    RemoveOptions,
    ReplaceOptions,
    SignedInt64,
    UpsertOptions,
)
from couchbase.transcoder import RawBinaryTranscoder

from headwater import testing
from headwater.testing.node import Node

pytestmark = pytest.mark.interop
RAW = RawBinaryTranscoder()


def connect(node: Node, user: str = "Administrator", password: str = "password") -> Cluster:
    return Cluster.connect(f"couchbase://{node.address}", ClusterOptions(PasswordAuthenticator(user, password)))


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


def test_what_the_node_does_not_do_is_refused_at_once(documents: Collection, cluster: Cluster) -> None:
    documents.upsert("fig", {"a": 1})
    durable = UpsertOptions(durability=ServerDurability(Durability.MAJORITY))
    refused: list[Any] = [
        lambda: documents.upsert("fig", 1, durable),
        lambda: documents.lookup_in("fig", [subdocument.get("a")]),
        lambda: documents.mutate_in("fig", [subdocument.upsert("a", 2)]),
        lambda: documents.get("fig", GetOptions(with_expiry=True)),
        lambda: cluster.bucket("default").scope("inventory").collection("fruit").upsert("fig", 1),
    ]
    for attempt in refused:
        with pytest.raises(exceptions.UnsupportedOperation):
            attempt()
    with pytest.raises(exceptions.ServiceUnavailableException):
        list(cluster.query("select 1").rows())
    assert documents.get("fig").content_as[dict] == {"a": 1}


def test_the_bucket_is_listed_and_collections_can_not_be_made(cluster: Cluster) -> None:
    assert [bucket.name for bucket in cluster.buckets().get_all_buckets()] == ["default"]
    with pytest.raises(exceptions.CouchbaseException):
        cluster.bucket("default").collections().create_scope("inventory")


def test_the_snippet_of_the_guide_runs() -> None:
    guide = (Path(__file__).parent.parent.parent / "docs/howto/clients.md").read_text("utf-8")
    (snippet,) = re.findall(r"^```python\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    with testing.node() as node:
        code = snippet.replace("127.0.0.1:11210", node.address)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "{'colour': 'green'}\n"), done.stderr


def test_an_application_that_goes_on_while_the_node_is_killed_loses_nothing() -> None:
    with testing.node() as node, ThreadPoolExecutor(1) as worker:
        cluster = connect(node)
        documents = cluster.bucket("default").default_collection()
        documents.upsert("before", 1)
        node.kill()
        waiting = worker.submit(documents.upsert, "meanwhile", 2, UpsertOptions(timeout=timedelta(seconds=30)))
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
    assert "SCRAM needs the password 'password'" in node.log
