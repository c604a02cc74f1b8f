"""Documents of collections by key, one by one and many at once, over both clients, at a real node."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from headwater import testing
from headwater.accounts.roles import read_grants
from headwater.accounts.users import Account
from headwater.client import Write, aio
from headwater.client import bulk as bulk_writes
from headwater.errors import CollectionMadeAnew, KeyNotFound, OptionError, UnknownCollection, UnknownScope
from headwater.node.users.file import UsersFile
from headwater.testing.node import Node
from headwater.transport.backoff import Backoff
from tests.node.aware import Aware, manifest

A, B, AGAIN, A_THIRD, A_FOURTH = 8, 9, 10, 11, 12
NOT_FOUND = 0x80


@pytest.fixture(scope="module")
def node():
    with testing.node(vbuckets=8) as running:
        becomes(running, 1, a=A, b=B)
        yield running


def becomes(node: Node, uid: int, **collections: int) -> None:
    with Aware(node.port) as client:
        assert client.becomes(manifest(uid, **collections)) == 0


def test_a_key_is_another_document_in_each_collection(driver, node) -> None:
    bucket = driver.connect(f"{node.address}/default")
    a, b = bucket.collection("shop.a"), bucket.scope("shop").collection("b")
    bucket.set("k", "plain")
    a.set("k", "of a")
    b.set("k", "of b")
    assert [each.get("k").value for each in (bucket, a, b)] == [b"plain", b"of a", b"of b"]
    assert bucket.collection("_default._default").get("k").value == b"plain"
    assert a.get("k").key == b"k"
    a.delete("k")
    with pytest.raises(KeyNotFound):
        a.get("k")
    assert a.get_meta("k").deleted and not b.get_meta("k").deleted


def test_every_operation_is_of_the_collection(driver, node) -> None:
    bucket = driver.connect(f"{node.address}/default")
    a = bucket.collection("shop.a")
    a.add("ops", "1")
    assert a.incr("ops", 41) == 42 and a.decr("ops") == 41
    a.replace("ops", "x")
    a.append("ops", "y")
    a.prepend("ops", "w")
    a.touch("ops", 3600)
    assert a.gat("ops", 0).value == b"wxy"
    assert a.observe("ops").state == 1
    a.set_json("json", {"a": 1})
    assert a.get("json").json() == {"a": 1}
    assert bucket.get_many(["ops", "json"]) == {}
    assert a.delete_many(["ops", "json"]) == {}


def test_durable_documents_are_of_the_collection_as_well(driver, node) -> None:
    bucket = driver.connect(f"{node.address}/default")
    a = bucket.collection("shop.a")
    a.set("durable", "one", durability="majority")
    assert a.set_many({"durable-1": "x", "durable-2": "y"}, durability="persist-to-majority") == {}
    assert [a.get(key).text for key in ("durable", "durable-1", "durable-2")] == ["one", "x", "y"]
    assert bucket.get_many(["durable", "durable-1"]) == {}
    assert a.delete_many(["durable", "durable-1", "durable-2"], durability="majority") == {}


def test_many_at_once_are_stored_read_and_deleted_in_their_collection(driver, node) -> None:
    bucket = driver.connect(f"{node.address}/default")
    a = bucket.collection("shop.a")
    documents = {b"many-%d" % i: b"x" * (i % 300) for i in range(3000)}
    assert a.set_many(documents) == {}
    assert {key: each.value for key, each in a.get_many(documents).items()} == documents
    assert bucket.get_many(documents) == {}
    assert a.write_many([Write("many-0", "new"), Write("many-1", None), Write("none", None)]).keys() == {2}
    assert a.get("many-0").value == b"new"
    assert a.delete_many(documents).keys() == {b"many-1"}
    assert a.get_many(documents) == {}


@pytest.mark.parametrize(("name", "error"), [("shop.none", UnknownCollection), ("sea.shells", UnknownScope)])
def test_a_collection_that_is_not_there_is_told_by_name(driver, node, name: str, error: type[Exception]) -> None:
    bucket = driver.connect(f"{node.address}/default")
    for asked in (lambda of: of.get("k"), lambda of: of.set_many({"k": "v"}), lambda of: of.get_many(["k"])):
        with pytest.raises(error, match="there is no"):
            asked(bucket.collection(name))
    with pytest.raises(OptionError, match="with one dot"):
        bucket.collection("orders")


def test_an_id_is_looked_up_anew_when_the_collection_was_made_again(driver) -> None:
    with testing.node(vbuckets=8) as node:
        becomes(node, 1, a=A, b=B)
        bucket = driver.connect(f"{node.address}/default")
        single, many, bulk = (bucket.collection("shop.a") for _ in range(3))
        for each in (single, many, bulk):
            each.set("k", "before")
        becomes(node, 2, b=B)
        for each in (single, many):
            with pytest.raises(UnknownCollection, match=r"no collection shop\.a"):
                each.set("k", "nowhere")
        assert isinstance(bulk.set_many({"k": "nowhere"})[b"k"], UnknownCollection)
        becomes(node, 3, a=AGAIN, b=B)
        assert bulk.set_many({f"k{i}": "after" for i in range(2000)}) == {}
        with pytest.raises(KeyNotFound):
            single.get("k")
        many.set("k", "after")
        assert single.get("k").value == b"after" and len(many.get_many(f"k{i}" for i in range(2000))) == 2000
        assert bucket.manifest().collection("shop", "a").id == AGAIN


def test_many_writes_end_when_their_collection_is_made_again_in_the_middle(
    driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents of before go with their collection, so a write that said nothing would have lost them."""
    monkeypatch.setattr(bulk_writes, "CHUNKS_AHEAD", 0)
    with testing.node(vbuckets=8) as node:
        becomes(node, 1, a=A, b=B)

        def interrupted() -> Iterator[tuple[str, bytes]]:
            for i in range(200):
                if i == 100:
                    becomes(node, 2, b=B)
                    becomes(node, 3, a=AGAIN, b=B)
                yield f"k{i}", bytes(8192)

        documents = driver.connect(f"{node.address}/default").collection("shop.a")
        with pytest.raises(CollectionMadeAnew, match=r"shop\.a was dropped and made again: it had id 0x8, and has 0xa"):
            documents.set_many(interrupted())
        assert documents.set_many((f"k{i}", "v") for i in range(200)) == {}
        assert len(documents.get_many(f"k{i}" for i in range(200))) == 200


def test_many_writes_end_though_a_read_of_their_source_has_looked_the_new_collection_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The source of the items reads the same collection, so that it meets the refusal first."""
    monkeypatch.setattr(bulk_writes, "CHUNKS_AHEAD", 0)
    with testing.node(vbuckets=8) as node, node.client() as client:
        becomes(node, 1, a=A, b=B)
        documents = client.collection("shop.a")

        def read_and_copied() -> Iterator[tuple[str, bytes]]:
            for i in range(200):
                if i == 100:
                    becomes(node, 2, b=B)
                    becomes(node, 3, a=AGAIN, b=B)
                documents.get(f"source-{i}", None)
                yield f"k{i}", bytes(8192)

        with pytest.raises(CollectionMadeAnew, match=r"shop\.a was dropped and made again: it had id 0x8, and has 0xa"):
            documents.set_many(read_and_copied())


def test_many_writes_end_though_another_task_has_looked_the_new_collection_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_writes, "CHUNKS_AHEAD", 0)
    monkeypatch.setattr(bulk_writes, "for_requests", lambda: Backoff(0.2, 0.2))  # the other task is first
    with testing.node(vbuckets=8) as node:
        becomes(node, 1, a=A, b=B)

        def interrupted() -> Iterator[tuple[str, bytes]]:
            for i in range(200):
                if i == 100:
                    becomes(node, 2, a=AGAIN, b=B)
                yield f"k{i}", bytes(8192)

        async def story() -> None:
            async with aio.connect(f"{node.address}/default") as client:
                documents = client.collection("shop.a")
                many = asyncio.create_task(documents.set_many(interrupted()))
                while documents.collection_id != AGAIN:
                    await documents.get("x", None)
                    await asyncio.sleep(0)
                with pytest.raises(CollectionMadeAnew, match="it had id 0x8, and has 0xa"):
                    await many

        asyncio.run(story())


def test_every_one_of_many_tasks_finds_the_collection_that_was_made_again() -> None:
    with testing.node(vbuckets=8) as node:
        becomes(node, 1, a=A, b=B)

        async def story() -> None:
            async with aio.connect(f"{node.address}/default") as client:
                documents = client.collection("shop.a")
                await documents.set("x", "1")
                becomes(node, 2, a=AGAIN, b=B)
                await asyncio.gather(*(documents.set(f"k{i}", "v") for i in range(16)))
                assert len(await documents.get_many(f"k{i}" for i in range(16))) == 16
                becomes(node, 3, a=A_THIRD, b=B)
                vbuckets = range(client.map.vbuckets)
                pages = await asyncio.gather(*(documents.keys_of_vbucket(vb) for vb in vbuckets))
                assert [page.keys for page in pages] == [[]] * len(vbuckets)
                becomes(node, 4, a=A_FOURTH, b=B)
                states = await asyncio.gather(*(documents.observe(f"k{i}") for i in range(16)))
                assert {state.state for state in states} == {NOT_FOUND}

        asyncio.run(story())


def test_threads_share_collections_of_one_client(node) -> None:
    with node.client() as bucket:
        collections = [bucket.collection("shop.a"), bucket.collection("shop.b")]
        failed: list[Exception] = []

        def work(number: int) -> None:
            try:
                for i in range(100):
                    mine = collections[(number + i) % 2]
                    mine.set(f"t{number}-{i}", str(i))
                    assert mine.get(f"t{number}-{i}").value == str(i).encode()
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []


def test_who_may_read_one_collection_only_finds_it_by_its_name(driver) -> None:
    """A node shows such a user the scopes in which he has rights, of which the default one may be none."""
    roles = {"root": "administer", "part": "read[default:shop:a],write[default:shop:a],stream[default:shop:a]"}
    with testing.node(vbuckets=4) as node:
        becomes(node, 1, a=A, b=B)
        node.stop()
        UsersFile(node.data).save({name: Account.create("s3cret", read_grants(role)) for name, role in roles.items()})
        node.start()
        bucket = driver.connect(node.url, "part", "s3cret")
        bucket.collection("shop.a").set("k", "of a")
        assert bucket.collection("shop.a").get("k").value == b"of a"
        assert [scope.name for scope in bucket.manifest().scopes] == ["shop"]
        with pytest.raises(UnknownCollection):
            bucket.collection("shop.b").get("k")
        with pytest.raises(UnknownScope):
            bucket.collection("_default._default2").get("k")
