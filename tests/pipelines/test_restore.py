"""A copy whose source was rolled back, without Spark, between real nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headwater.client import WriteWithMeta
from headwater.errors import BucketMadeAnew, CollectionMadeAnew, NoAccess, RollbackRequired
from headwater.pipelines import restore as restoring
from headwater.pipelines.restore import RestoreCounts, restore, send_again
from headwater.spark.settings import parse, parse_write
from headwater.testing.node import Node, node
from tests.client.test_made_anew import make, make_anew, url
from tests.node.kv.test_rights_in_places import PASSWORD, give
from tests.pipelines.buckets import create, state, state_by_collection
from tests.pipelines.support import becomes, documents


@pytest.fixture(params=[4, 8], ids=["the same vbuckets", "other vbuckets"])
def pair(request: Any) -> Iterator[tuple[Node, Node]]:
    with node(vbuckets=4) as source, node(vbuckets=request.param) as target:
        yield source, target


def go(source: Node, target: Node, ends: dict[int, int]) -> RestoreCounts:
    reading = parse({"url": source.url, "retrySeconds": "5", "xattrs": "true"})
    return restore(reading, parse_write({"url": target.url, "withMeta": "true", "retrySeconds": "5"}), ends)


def seqnos(bucket: Node) -> dict[int, int]:
    with bucket.client() as client:
        return client.seqnos()


def test_the_copy_becomes_what_the_source_is_whatever_its_revisions_say(pair: tuple[Node, Node]) -> None:
    source, target = pair
    with source.client() as client:
        client.set_many((f"k{i}", f"{i}") for i in range(40))
        client.delete_many(f"k{i}" for i in range(5))
        client.set("k6", "expires", expiry=4_102_444_800, flags=9)
    lost = [WriteWithMeta(f"k{i}", "lost", 0, 0, cas=2**62, rev_seqno=99) for i in range(3, 12)]
    lost += [WriteWithMeta(f"lost{i}", "lost", 0, 0, cas=2**62, rev_seqno=99) for i in range(10)]
    lost += [WriteWithMeta("lost and deleted", None, 0, 1_700_000_000, cas=2**62, rev_seqno=99)]
    with target.client() as client:
        assert client.write_many(lost) == {}
    told = go(source, target, seqnos(source))
    assert told == RestoreCounts(forced=40, removed=11)
    held = state(target)
    assert {key: held[key] for key in state(source)} == state(source)
    assert {held[key][0] for key in held.keys() - state(source).keys()} == {"Deletion"}
    assert go(source, target, seqnos(source)) == RestoreCounts()  # a second time changes nothing


def test_the_targets_own_records_of_transactions_stay(pair: tuple[Node, Node]) -> None:
    """Such records are not copied, so none at the target is the source's."""
    source, target = pair
    for each in pair:
        with each.client() as client:
            client.set_many((f"_txn:atr-{n}", each.address) for n in range(8))
    assert go(source, target, seqnos(source)) == RestoreCounts()
    with target.client() as client:
        assert client.get("_txn:atr-3").value == target.address.encode()


def test_what_the_source_writes_next_wins_against_what_was_removed(pair: tuple[Node, Node]) -> None:
    source, target = pair
    with target.client() as client:
        assert client.write_many([WriteWithMeta("k", "lost", 0, 0, cas=2**62, rev_seqno=99)]) == {}
    assert go(source, target, seqnos(source)) == RestoreCounts(removed=1)
    with source.client() as client:
        cas = client.set("k", "new")
    with target.client() as client:
        assert client.write_many([WriteWithMeta("k", "new", 0, 0, cas=cas, rev_seqno=1)]) == {}


def test_the_copy_becomes_what_the_source_was_at_the_end_and_no_later(pair: tuple[Node, Node]) -> None:
    source, target = pair
    with source.client() as client:
        client.set_many((f"k{i}", "old") for i in range(20))
        ends = client.seqnos()
        client.set_many((f"k{i}", "new") for i in range(10))
    go(source, target, ends)
    assert {key: told[1] for key, told in state(target).items()} == {b"k%d" % i: b"old" for i in range(20)}


def test_a_source_that_has_less_than_the_copy_by_now_is_not_waited_for(pair: tuple[Node, Node]) -> None:
    """After a second failover it may be long until a vbucket comes to the end that was planned, if ever."""
    source, target = pair
    with source.client() as client:
        client.set_many((f"k{i}", "kept") for i in range(20))
    with target.client() as client:
        client.set_many((f"k{i}", "lost") for i in range(30))
    go(source, target, {vb: seqno + 100 for vb, seqno in seqnos(source).items()})
    assert documents(target) == documents(source)


def test_a_failover_in_the_middle_of_a_comparison_begins_it_anew(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = pair
    with source.client() as client:
        client.set_many((f"k{i}", "v") for i in range(20))
    refusals = [RollbackRequired(2, 9, 4, "")]

    def differing(*given: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return whole(*given)

    whole = restoring._differing
    monkeypatch.setattr(restoring, "_differing", differing)
    assert go(source, target, seqnos(source)) == RestoreCounts(forced=20)
    assert refusals == [] and documents(target) == documents(source)


def test_large_documents_are_not_held_by_the_thousand() -> None:
    writes = [("a", WriteWithMeta(f"k{i}", b"v" * (6 << 20), 0, 0, cas=1, rev_seqno=1)) for i in range(7)]
    writes += [("b", WriteWithMeta(f"k{i}", None, 0, 0, cas=1, rev_seqno=1)) for i in range(5)]
    groups = [(path, len(group)) for path, group in restoring._chunks(writes)]
    assert groups == [("a", 3), ("a", 3), ("a", 1), ("b", 5)]


def test_what_is_sent_again_takes_nothing_from_what_is_newer_or_of_others(pair: tuple[Node, Node]) -> None:
    source, target = pair
    with source.client() as client:
        client.set_many((f"k{i}", "v") for i in range(20))
        client.delete_many(["k0", "k1"])
        keys = ["later", *(f"k{i}" for i in range(20))]
        elsewhere = {key.encode() for key in keys if client.vbucket_of(key) == 3}
    newer = next(key for key in sorted(documents(source)) if key not in elsewhere)
    with target.client() as client:
        assert client.write_many([WriteWithMeta("k1", "stale", 0, 0, cas=1, rev_seqno=1)]) == {}
        assert client.write_many([WriteWithMeta(newer, "newer", 0, 0, cas=2**62, rev_seqno=9)]) == {}
        client.set("theirs", "v")
    reading = parse({"url": source.url, "retrySeconds": "5", "xattrs": "true"})
    writing = parse_write({"url": target.url, "withMeta": "true", "retrySeconds": "5"})
    ends = {vb: seqno for vb, seqno in seqnos(source).items() if vb != 3}
    with source.client() as client:
        client.set_many((key, "not copied yet") for key in documents(source) if key not in elsewhere | {newer})
        client.set("later", "not copied yet")
    send_again(reading, writing, ends)
    assert b"not copied yet" not in documents(target).values()  # a failover of the source may take it back
    with source.client() as client:
        ends = {vb: seqno for vb, seqno in client.seqnos().items() if vb != 3}
    assert send_again(reading, writing, ends) >= 17 - len(elsewhere)
    expected = {key: value for key, value in documents(source).items() if key not in elsewhere}
    expected |= {newer: b"newer", b"theirs": b"v"} | ({b"k1": b"stale"} if b"k1" in elsewhere else {})
    assert documents(target) == expected
    assert send_again(reading, writing, ends) == 0


def test_other_vbuckets_are_left_alone(pair: tuple[Node, Node]) -> None:
    source, target = pair
    with target.client() as client:
        client.set_many((f"k{i}", "theirs") for i in range(40))
    with source.client() as client:
        mine = {f"k{i}".encode() for i in range(40) if client.vbucket_of(f"k{i}") == 2}
    assert go(source, target, {2: 0}) == RestoreCounts(removed=len(mine))
    assert {key for key, told in state(target).items() if told[0] == "Mutation"} == {
        b"k%d" % i for i in range(40)
    } - mine


def test_each_collection_of_the_copy_becomes_that_of_the_source_and_others_are_left_alone(
    pair: tuple[Node, Node],
) -> None:
    source, target = pair
    create(source, "shop.carts", "shop.orders", "shop.new")
    create(target, "theirs.alone", "shop.orders", "shop.carts")  # other ids than at the source
    with source.client() as client:
        for path in ("shop.orders", "shop.carts"):
            assert client.collection(path).set_many((f"k{i}", path) for i in range(12)) == {}
        client.set("plain", "v")
    lost = [WriteWithMeta(f"k{i}", "lost", 0, 0, cas=2**62, rev_seqno=99) for i in range(6, 18)]
    with target.client() as client:
        for path in ("shop.orders", "shop.carts", "theirs.alone"):
            assert client.collection(path).write_many(lost) == {}
    with source.client() as client:
        ends = client.seqnos("all")
    reading = parse({"url": source.url, "retrySeconds": "5", "xattrs": "true", "collections": "all"})
    writing = parse_write({"url": target.url, "withMeta": "true", "retrySeconds": "5"})
    assert restore(reading, writing, ends) == RestoreCounts(forced=25, removed=12)
    held, expected = state_by_collection(target), state_by_collection(source)
    assert {place: held[place] for place in expected} == expected
    others = {place: told[0] for place, told in held.items() if place not in expected}
    assert {kind for (path, _), kind in others.items() if path != "theirs.alone"} == {"Deletion"}
    assert [kind for (path, _), kind in others.items() if path == "theirs.alone"] == ["Mutation"] * 12
    assert restore(reading, writing, ends) == RestoreCounts()


def test_nothing_is_called_level_by_a_user_who_is_shown_a_part_of_the_source() -> None:
    with node(vbuckets=1, environment={"HEADWATER_ADMINISTRATORS": ""}) as source, node(vbuckets=1) as target:
        create(source, "shop.orders", "shop.carts")
        create(target, "shop.orders", "shop.carts")
        with target.client() as client:
            client.collection("shop.carts").set("lost", "v")
        give(source, {"copier": "stream[default:shop:orders]", "root": "administer"})
        login = {"user": "copier", "password": PASSWORD, "retrySeconds": "5"}
        reading = parse({"url": source.url, "xattrs": "true", "collections": "all"} | login)
        writing = parse_write({"url": target.url, "withMeta": "true", "retrySeconds": "5"})
        with pytest.raises(NoAccess, match="a collection is not shown"):
            restore(reading, writing, {0: 2})


def between_chunks(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Two documents go out in each call, and `change` comes between the first call and the second."""
    whole = restoring._chunks

    def interrupted(writes: Any) -> Iterator[Any]:
        for place, chunk in enumerate(whole(writes)):
            if place == 1:
                change()
            yield chunk

    monkeypatch.setattr(restoring, "ROWS_PER_CALL", 2)
    monkeypatch.setattr(restoring, "_chunks", interrupted)


@pytest.mark.parametrize("repair", [restore, send_again])
def test_a_repair_whose_collection_is_made_again_between_two_calls_ends(
    repair: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collection that the first call wrote into takes its documents with it."""
    with node(vbuckets=1) as source, node(vbuckets=1) as target:
        create(source, "shop.a")
        with source.client() as client:
            client.collection("shop.a").set_many((f"k{i}", "v") for i in range(6))
            ends = client.seqnos("all")
        becomes(target, 1, a=8, b=9)
        between_chunks(monkeypatch, lambda: becomes(target, 2, a=10, b=9))
        reading = parse({"url": source.url, "retrySeconds": "5", "xattrs": "true", "collections": "shop.a"})
        writing = parse_write({"url": target.url, "withMeta": "true", "retrySeconds": "5"})
        with pytest.raises(CollectionMadeAnew, match=r"shop\.a .* had id 0x8, and has 0xa"):
            repair(reading, writing, ends)


def test_a_repair_whose_collection_is_made_again_behind_the_comparison_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The six documents that were right, and are not written again, have gone with the collection."""
    with node(vbuckets=1) as source, node(vbuckets=1) as target:
        create(source, "shop.a")
        becomes(target, 1, a=8, b=9)
        reading = parse({"url": source.url, "retrySeconds": "5", "xattrs": "true", "collections": "shop.a"})
        writing = parse_write({"url": target.url, "withMeta": "true", "retrySeconds": "5"})
        with source.client() as client:
            place = client.collection("shop.a")
            place.set_many((f"k{i}", "v") for i in range(6))
            assert restore(reading, writing, client.seqnos("all")) == RestoreCounts(forced=6)
            place.set("late", "v")
            ends = client.seqnos("all")
        compare = restoring._copy_documents

        def late(*arguments: Any) -> Any:
            held = compare(*arguments)
            becomes(target, 2, a=10, b=9)
            return held

        monkeypatch.setattr(restoring, "_copy_documents", late)
        with pytest.raises(CollectionMadeAnew, match=r"shop\.a .* had id 0x8, and has 0xa"):
            restore(reading, writing, ends)


@pytest.mark.parametrize("collection", [{}, {"collections": "shop.a"}], ids=["default", "shop.a"])
@pytest.mark.parametrize("repair", [restore, send_again])
def test_a_repair_whose_bucket_is_made_again_between_two_calls_ends(
    repair: Callable[..., object], collection: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with node(vbuckets=4) as source, node(vbuckets=4) as target:
        create(source, "shop.a")
        with source.client() as client:
            place = client.collection("shop.a") if collection else client
            place.set_many((f"k{i}", "v") for i in range(6))
            ends = client.seqnos("all")
        make(target, 8, "a")
        between_chunks(monkeypatch, lambda: make_anew(target, 8, "a"))
        reading = parse({"url": source.url, "retrySeconds": "5", "xattrs": "true"} | collection)
        writing = parse_write({"url": url(target), "withMeta": "true", "retrySeconds": "5"})
        with pytest.raises(BucketMadeAnew, match="was dropped and made again"):
            repair(reading, writing, ends)
