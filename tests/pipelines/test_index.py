"""A full-text index of a real node's documents: whatever happens, what is found is what the bucket has."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.nodes import diverge
from headwater import failpoints
from headwater.client import connect
from headwater.errors import DataLoss, LedgerError, OptionError, SearchRefused
from headwater.pipelines.failures import MirrorFailed
from headwater.pipelines.fulltext import KeptAside, kept_aside, open_for_reading, path_of, search
from headwater.pipelines.index import IndexSink
from headwater.pipelines.jobs import IndexProgress, TextIndex
from headwater.pipelines.opensearch import BulkCounts, Item, SearchClient, SearchServer, version
from headwater.pipelines.texts import TextRules
from headwater.spark.planning import Planning
from headwater.spark.settings import parse
from headwater.testing.node import Node, node
from tests.battery import few_of
from tests.client.test_made_anew import make, make_anew, url
from tests.pipelines.buckets import create
from tests.pipelines.search_server import SearchIndex, search_server
from tests.pipelines.support import KEEP_TOMBSTONES, compact, documents, missed

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as running:
        yield running


@pytest.fixture
def server() -> Iterator[tuple[SearchServer, SearchIndex]]:
    with search_server() as (url, held):
        yield SearchServer(url), held


def go(bucket: Node, place: Path, **more: Any) -> IndexProgress:
    asked: dict[str, Any] = {"engine": "local", "workers": 0, "once": True, "retry_seconds": 0.0, "others": "text"}
    if (server := more.pop("server", None)) is not None:
        more["opensearch"] = server.url
    return TextIndex(bucket.url, place, **(asked | more)).run()


def held(place: Path) -> dict[bytes, bytes]:
    """The documents of the index itself, and the index of words checked against them."""
    with closing(open_for_reading(path_of(place))) as database:
        rows = {row["key"]: row["body"].encode() for row in database.execute("SELECT key, body FROM documents")}
    for key, body in rows.items():
        assert key in {hit.key for hit in search(place, body.decode(), limit=1000)}
    return rows


def served(found: SearchIndex) -> dict[bytes, bytes]:
    return {name.encode(): document["body"].encode() for name, document in found.documents.items()}


def write(bucket: Node, name: str) -> None:
    """Overwrite some documents, remove some, add some."""
    with bucket.client() as client:
        assert client.set_many((f"a{i}", f"{name} over") for i in range(20)) == {}
        client.delete_many([f"a{i}" for i in range(20, 30)])
        assert client.set_many((f"{name}{i}", f"{name} new") for i in range(10)) == {}


def begin(bucket: Node) -> None:
    with bucket.client() as client:
        assert client.set_many((f"a{i}", "kept") for i in range(40)) == {}


def test_the_index_follows_stores_overwrites_deletions_and_expirations(bucket: Node, tmp_path: Path) -> None:
    begin(bucket)
    assert go(bucket, tmp_path).indexed == 40
    write(bucket, "two")
    told = go(bucket, tmp_path)
    assert (told.indexed, told.removed, told.rollbacks) == (30, 10, 0)
    assert held(tmp_path) == documents(bucket)
    assert go(bucket, tmp_path).batches == 0
    assert list((tmp_path / "_staged").iterdir()) == []


def test_what_a_failover_took_back_goes_and_what_it_had_overwritten_comes_back(bucket: Node, tmp_path: Path) -> None:
    begin(bucket)
    go(bucket, tmp_path)

    def lost() -> None:
        write(bucket, "lost")
        go(bucket, tmp_path)
        assert held(tmp_path) == documents(bucket)

    diverge(bucket, lost=lost)
    write(bucket, "won")
    assert go(bucket, tmp_path).rollbacks == 4
    assert held(tmp_path) == documents(bucket)
    assert search(tmp_path, "lost", limit=100) == []


def test_after_a_rollback_with_a_limit_an_index_lacks_no_document_that_was_there_all_the_time(
    bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {f"d{i}".encode() for i in range(40)}
    with bucket.client() as client:
        client.set_many((name, "red") for name in names)
    go(bucket, tmp_path)

    def lost() -> None:
        write(bucket, "lost")
        go(bucket, tmp_path)

    diverge(bucket, lost=lost)
    with bucket.client() as client:
        for value in ("green", "blue", "grey"):
            client.set_many((name, value) for name in names)
    compact(bucket, 4, KEEP_TOMBSTONES)
    states: list[set[bytes]] = []
    monkeypatch.setitem(failpoints.ACTIONS, "look", lambda name: states.append(set(held(tmp_path))))
    with failpoints.armed("ledger.after_commit=look"):
        assert go(bucket, tmp_path, reading={"maxChangesPerTrigger": "4"}).rollbacks == 4
    assert held(tmp_path) == documents(bucket)
    assert states and all(names <= state for state in states)


def test_deletions_that_were_purged_unread_are_told_and_their_documents_are_found_no_more(
    bucket: Node, tmp_path: Path
) -> None:
    begin(bucket)
    assert go(bucket, tmp_path).data_loss == []
    purged = missed(bucket)
    with pytest.raises(DataLoss) as caught:
        go(bucket, tmp_path, reading={"failOnDataLoss": "true"})
    assert caught.value.purged == purged and b"a0" in held(tmp_path)
    told = go(bucket, tmp_path)
    assert told.data_loss == sorted(purged) and purged and told.to_json()["data_loss"] == told.data_loss
    assert held(tmp_path) == documents(bucket)
    assert go(bucket, tmp_path).data_loss == []


def test_json_is_found_by_its_fields_and_what_is_none_is_kept_aside_by_choice(bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        client.set("a", '{"title": "red", "note": "blue"}')
        client.set("b", b"\xff\xfe")
        client.set("c", "plain")
    told = go(bucket, tmp_path, fields=["title"], others="quarantine")
    assert (told.indexed, told.aside) == (1, 2)
    assert [hit.key for hit in search(tmp_path, "red")] == [b"a"] and search(tmp_path, "blue") == []
    assert [each.key for each in kept_aside(tmp_path)] == [b"b", b"c"]
    with bucket.client() as client:
        client.set("b", '{"title": "green"}')
        client.delete("c")
    go(bucket, tmp_path, fields=["title"], others="quarantine")
    assert kept_aside(tmp_path) == [] and [hit.key for hit in search(tmp_path, "green")] == [b"b"]
    with pytest.raises(LedgerError, match="it was made with fields"):
        go(bucket, tmp_path)


SCRIPT = """
import sys
from headwater import failpoints
from headwater.pipelines.jobs import TextIndex
from headwater.pipelines.opensearch import BulkCounts, Item, SearchClient
failpoints.arm(sys.argv[3])
TextIndex(sys.argv[1], sys.argv[2], engine="local", workers=0, once=True, others="text",
      opensearch=dict(enumerate(sys.argv)).get(4), reading={"maxChangesPerTrigger": "10"}).run()
"""


def killed(bucket: Node, place: Path, point: str, *server: str) -> None:
    line = [sys.executable, "-c", SCRIPT, bucket.url, str(place), f"{point}=kill@2", *server]
    done = subprocess.run(line, cwd=ROOT, env=os.environ, check=False, timeout=240)
    assert done.returncode == -9


@pytest.mark.parametrize(
    "point", few_of(["index.read", "ledger.before_commit", "ledger.after_commit"], "ledger.after_commit")
)
def test_an_index_that_is_killed_goes_on_without_losing_or_inventing(point: str, bucket: Node, tmp_path: Path) -> None:
    begin(bucket)
    write(bucket, "two")
    killed(bucket, tmp_path, point)
    assert len(held(tmp_path)) < len(documents(bucket))
    go(bucket, tmp_path)
    assert held(tmp_path) == documents(bucket)
    assert list((tmp_path / "_staged").iterdir()) == []


def test_a_server_is_level_after_a_kill_between_it_and_our_record_and_repeats_change_nothing(
    bucket: Node, tmp_path: Path, server: tuple[SearchServer, SearchIndex]
) -> None:
    where, found = server
    begin(bucket)
    write(bucket, "two")
    killed(bucket, tmp_path, "index.sent", where.url)
    before = len(found.applied)
    told = go(bucket, tmp_path, server=where)
    assert told.behind > 0  # the batch that was sent already
    assert served(found) == documents(bucket)
    assert len(found.applied) > before and len(set(found.applied)) == len(found.applied)


def test_a_failover_after_such_a_kill_takes_back_what_only_the_server_had_heard_of(
    bucket: Node, tmp_path: Path, server: tuple[SearchServer, SearchIndex]
) -> None:
    where, found = server
    begin(bucket)
    go(bucket, tmp_path, server=where)

    def lost() -> None:
        write(bucket, "lost")
        killed(bucket, tmp_path, "index.sent", where.url)

    diverge(bucket, lost=lost)
    write(bucket, "won")
    go(bucket, tmp_path, server=where)
    go(bucket, tmp_path, server=where)
    assert served(found) == documents(bucket)


def test_a_failover_is_undone_at_a_server_and_a_second_one_too(
    bucket: Node, tmp_path: Path, server: tuple[SearchServer, SearchIndex]
) -> None:
    where, found = server
    begin(bucket)
    go(bucket, tmp_path, server=where)
    for name in ("lost", "again"):

        def lost(name: str = name) -> None:
            write(bucket, name)
            go(bucket, tmp_path, server=where)

        diverge(bucket, lost=lost)
        write(bucket, "won")
        found.busy = 5
        assert go(bucket, tmp_path, server=where, retry_seconds=30.0).rollbacks == 4
        assert served(found) == documents(bucket)
    assert {version >> 44 for _, version, _ in found.applied} == {0, 1, 2}


@pytest.mark.parametrize("engine", ["file", "server"])
def test_an_index_has_the_documents_of_a_bucket_that_was_made_anew_with_more_vbuckets(
    engine: str, bucket: Node, tmp_path: Path, server: tuple[SearchServer, SearchIndex]
) -> None:
    """Half of the keys have another vbucket then, whose seqnos are below those under which the server has them: it took
    the new documents for older ones, and the rest of the old vbucket was removed."""
    where, found = server
    address, more = url(bucket), {"opensearch": where.url} if engine == "server" else {}
    make(bucket, 4)
    for vbuckets, word, count in ((4, "old", 40), (8, "new", 30)):
        if vbuckets > 4:
            make_anew(bucket, vbuckets)
        with connect(address) as client:
            for number in range(vbuckets, 9):
                assert client.set_many((f"a{i}", f"{word} {number}") for i in range(count)) == {}
        TextIndex(
            address, tmp_path, engine="local", workers=0, once=True, retry_seconds=0.0, others="text", **more
        ).run()
    expected = {f"a{i}".encode(): b"new 8" for i in range(30)}
    assert (served(found) if engine == "server" else held(tmp_path)) == expected


def test_what_an_earlier_attempt_sends_late_brings_no_deleted_document_back_into_an_index_made_by_hand(
    bucket: Node, tmp_path: Path, server: tuple[SearchServer, SearchIndex]
) -> None:
    where, found = server
    found.uuid = "made by hand"
    begin(bucket)
    go(bucket, tmp_path, server=where)
    late = {name: (found.versions[name], document) for name, document in found.documents.items()}
    with bucket.client() as client:
        for key in list(documents(bucket)):
            client.delete(key)
    go(bucket, tmp_path, server=where)
    found.forget()
    with closing(SearchClient(where)) as client:
        client.bulk(Item(name.encode(), number, document) for name, (number, document) in late.items())
    assert served(found) == documents(bucket) == {}


@pytest.mark.parametrize("is_begun", [False, True], ids=["at rest", "amid a batch"])
def test_a_folder_that_was_put_back_to_an_older_state_brings_its_server_level_all_the_same(
    is_begun: bool, bucket: Node, tmp_path: Path, server: tuple[SearchServer, SearchIndex]
) -> None:
    """After the failover the server has a generation that the older folder does not know: whatever came under the one
    before was refused as older, and documents of the lost branch stayed."""
    where, found = server
    begin(bucket)
    go(bucket, tmp_path / "now", server=where)
    if is_begun:
        write(bucket, "begun")
        killed(bucket, tmp_path / "now", "index.sent", where.url)
    shutil.copytree(tmp_path / "now", tmp_path / "older")

    def lost() -> None:
        write(bucket, "lost")
        go(bucket, tmp_path / "now", server=where)

    diverge(bucket, lost=lost)
    go(bucket, tmp_path / "now", server=where)
    write(bucket, "won")
    go(bucket, tmp_path / "older", server=where)
    assert served(found) == documents(bucket)
    write(bucket, "after")
    go(bucket, tmp_path / "older", server=where)
    assert served(found) == documents(bucket)


def test_documents_of_a_lost_branch_go_that_only_a_younger_folder_knew_of(
    bucket: Node, tmp_path: Path, server: tuple[SearchServer, SearchIndex]
) -> None:
    where, found = server
    begin(bucket)
    go(bucket, tmp_path / "now", server=where)
    shutil.copytree(tmp_path / "now", tmp_path / "older")

    def lost() -> None:
        write(bucket, "lost")
        go(bucket, tmp_path / "now", server=where)

    diverge(bucket, lost=lost)
    told = go(bucket, tmp_path / "older", server=where)
    assert served(found) == documents(bucket)
    assert told.rollbacks > 0 and told.data_loss == []
    assert go(bucket, tmp_path / "older", server=where).rollbacks == 0


def test_a_document_that_a_task_of_a_lost_branch_sends_late_is_gone_after_the_next_start(
    bucket: Node, tmp_path: Path, server: tuple[SearchServer, SearchIndex]
) -> None:
    """The index never had its key, so nothing refuses it; and the vbucket is not read anew any more."""
    where, found = server
    begin(bucket)
    go(bucket, tmp_path, server=where)

    def lost() -> None:
        write(bucket, "lost")
        go(bucket, tmp_path, server=where)

    diverge(bucket, lost=lost)
    go(bucket, tmp_path, server=where)
    vb = next(document["vbucket"] for document in found.documents.values())
    document = {"vbucket": vb, "seqno": 1, "generation": 0, "expiry": 0, "name": "late", "body": "lost"}
    with closing(SearchClient(where)) as client:
        client.bulk([Item(b"late", version(0, 1), document)])
    go(bucket, tmp_path, server=where)
    assert served(found) == documents(bucket)
    assert go(bucket, tmp_path, server=where).rollbacks == 0


def test_an_index_that_is_removed_while_a_batch_is_sent_is_not_taken_for_whole(
    bucket: Node, tmp_path: Path, server: tuple[SearchServer, SearchIndex], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server makes another one of the first document that comes: all batches before are missing there."""
    where, found = server
    begin(bucket)
    go(bucket, tmp_path, server=where)
    bulk = SearchClient.bulk

    def removed(self: SearchClient, items: Iterable[Item]) -> BulkCounts:
        monkeypatch.undo()
        found.remove()
        return bulk(self, items)

    write(bucket, "two")
    monkeypatch.setattr(SearchClient, "bulk", removed)
    for _ in range(2):
        with pytest.raises(SearchRefused, match="another index is called orders by now"):
            go(bucket, tmp_path, server=where)
    found.remove()
    go(bucket, tmp_path / "anew", server=where)
    assert served(found) == documents(bucket)


def test_documents_that_a_server_refuses_for_good_are_kept_aside_and_gone_from_it(
    bucket: Node, tmp_path: Path, server: tuple[SearchServer, SearchIndex]
) -> None:
    where, found = server
    with bucket.client() as client:
        client.set_many({"a": "one", "b": "two"})
        go(bucket, tmp_path, server=where)
        found.poison = "bad"
        client.set("a", "bad one")
    told = go(bucket, tmp_path, server=where)
    assert (told.aside, kept_aside(tmp_path)) == (1, [KeptAside(b"a", "400: failed to parse")])
    assert served(found) == {b"b": b"two"}
    found.login = "Basic x"
    with bucket.client() as client:
        client.set("c", "three")
    with pytest.raises(SearchRefused, match="who are you"):
        go(bucket, tmp_path, server=where)


def test_an_index_whose_mapping_takes_no_document_keeps_those_it_has(
    bucket: Node, tmp_path: Path, server: tuple[SearchServer, SearchIndex]
) -> None:
    """Each was kept aside as refused for good, and what the index had of it was deleted."""
    where, found = server
    begin(bucket)
    go(bucket, tmp_path, server=where)
    write(bucket, "two")
    found.poison = "two"
    found.refusal = "strict_dynamic_mapping_exception", "mapping set to strict, introduction of [x]"
    with pytest.raises(SearchRefused, match=r"introduction of \[x\]"):
        go(bucket, tmp_path, server=where)
    assert served(found) == {b"a%d" % i: b"kept" for i in (*range(20), *range(30, 40))}
    found.poison = ""
    assert go(bucket, tmp_path, server=where).aside == 0
    assert served(found) == documents(bucket)


@pytest.mark.parametrize("is_mended", [False, True], ids=["refused again", "taken then"])
def test_a_refused_document_of_a_batch_that_is_sent_twice_is_kept_aside_or_found(
    is_mended: bool,
    bucket: Node,
    tmp_path: Path,
    server: tuple[SearchServer, SearchIndex],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server deletes in between what it had of it. Under the version of the document, that made this not newer
    when it came again: it was neither found nor kept aside."""
    where, found = server
    with bucket.client() as client:
        client.set("a", "one")
        go(bucket, tmp_path, server=where)
        client.set("a", "bad one")
    found.poison = "bad"

    def fail(name: str) -> None:
        raise OSError(name)

    monkeypatch.setitem(failpoints.ACTIONS, "fail", fail)
    with failpoints.armed("index.sent=fail"), pytest.raises(MirrorFailed, match=r"index\.sent"):
        go(bucket, tmp_path, server=where)
    assert served(found) == {}
    found.poison = "" if is_mended else "bad"
    told = go(bucket, tmp_path, server=where)
    if is_mended:
        assert served(found) == {b"a": b"bad one"}
    else:
        assert (told.aside, kept_aside(tmp_path)) == (1, [KeptAside(b"a", "400: failed to parse")])


def test_a_vbucket_that_no_task_could_read_is_read_anew_though_its_history_is_the_same(
    bucket: Node, tmp_path: Path, server: tuple[SearchServer, SearchIndex]
) -> None:
    """A node refuses it where it purged deletions since the batch was begun; the position moved past its changes."""
    where, found = server
    begin(bucket)
    sink = IndexSink(tmp_path, "default", TextRules(others="text"), where, "words")
    settings = parse({"url": bucket.url}, streaming=True)
    with closing(Planning(settings)) as planning:
        before = sink.refresh()
        end = planning.latest(dict(before.end), None)
    answers = [sink.read(task.answer()) for task in sink.tasks(end, settings, 1)]
    found.documents.clear()
    found.versions.clear()
    assert end["completeUntil"]
    sink.commit(before.digest, end, [replace(answer, unread=[0, 1, 2, 3]) for answer in answers])
    assert "completeUntil" not in sink.refresh().end, "it says no time of changes that it did not read"
    sink.close()
    assert go(bucket, tmp_path, server=where).rollbacks == 4
    assert served(found) == documents(bucket)


def test_a_task_that_wakes_up_late_changes_nothing(
    bucket: Node, tmp_path: Path, server: tuple[SearchServer, SearchIndex]
) -> None:
    where, found = server
    begin(bucket)
    go(bucket, tmp_path, server=where)
    sink = IndexSink(tmp_path, "default", TextRules(others="text"), where)
    settings = parse({"url": bucket.url}, streaming=True)
    write(bucket, "two")
    planning = Planning(settings)
    try:
        late = sink.tasks(planning.latest(dict(sink.refresh().end), None), settings, 1)
    finally:
        planning.close()
    go(bucket, tmp_path, server=where)
    with bucket.client() as client:
        client.set("a3", "three")
    go(bucket, tmp_path, server=where)
    for task in late:
        told = json.loads(task.answer())
        assert told["counts"]["indexed"] == told["counts"]["removed"] == 0
    assert served(found) == documents(bucket)


@pytest.mark.battery
@pytest.mark.spark
def test_spark_keeps_an_index_through_a_failover(spark: Any, bucket: Node, tmp_path: Path) -> None:
    begin(bucket)
    assert go(bucket, tmp_path, engine="spark", spark=spark).indexed == 40

    def lost() -> None:
        write(bucket, "lost")
        go(bucket, tmp_path, engine="spark", spark=spark)

    diverge(bucket, lost=lost)
    write(bucket, "won")
    assert go(bucket, tmp_path, engine="spark", spark=spark).rollbacks == 4
    assert held(tmp_path) == documents(bucket)


def found(place: Path, words: str, **asked: Any) -> set[tuple[Any, Any, bytes]]:
    return {(hit.scope, hit.collection, hit.key) for hit in search(place, words, limit=1000, **asked)}


def test_documents_are_found_by_their_collections_and_go_with_them(bucket: Node, tmp_path: Path) -> None:
    create(bucket, "shop.orders", "shop.carts")
    with bucket.client() as client:
        for documents in (client, client.collection("shop.orders"), client.collection("shop.carts")):
            assert documents.set_many((f"a{i}", "red wine") for i in range(8)) == {}
        client.collection("shop.orders").delete("a0")
    chosen = {"reading": {"collections": "all"}}
    assert go(bucket, tmp_path, **chosen).indexed == 23
    every = {
        (*path, b"a%d" % i)
        for path in (("_default", "_default"), ("shop", "orders"), ("shop", "carts"))
        for i in range(8)
    }
    every.remove(("shop", "orders", b"a0"))
    assert found(tmp_path, "wine") == every
    assert found(tmp_path, "wine", scope="shop") == {each for each in every if each[0] == "shop"}
    assert found(tmp_path, "wine", collections=["shop.carts"]) == {each for each in every if each[1] == "carts"}
    create(bucket, "shop.carts", drop=["shop.carts"])
    with bucket.client() as client:
        client.collection("shop.carts").set("a1", "white wine")
    assert go(bucket, tmp_path, **chosen).removed == 8
    left = {each for each in every if each[1] != "carts"}
    assert found(tmp_path, "red") == left and found(tmp_path, "wine") == {*left, ("shop", "carts", b"a1")}
    with pytest.raises(LedgerError, match="made with collections 'all'"):
        go(bucket, tmp_path)


def test_an_index_of_the_default_collection_can_not_be_asked_for_others(bucket: Node, tmp_path: Path) -> None:
    begin(bucket)
    go(bucket, tmp_path)
    assert found(tmp_path, "kept") == {(None, None, b"a%d" % i) for i in range(40)}
    with pytest.raises(OptionError, match="made without --collections"):
        search(tmp_path, "kept", scope="shop")


def test_a_server_has_documents_under_the_ids_of_their_collections_and_loses_those_that_are_gone(
    bucket: Node, tmp_path: Path, server: tuple[SearchServer, SearchIndex]
) -> None:
    where, held = server
    create(bucket, "shop.orders", "shop.carts")
    with bucket.client() as client:
        for path in ("shop.orders", "shop.carts"):
            assert client.collection(path).set_many((f"a{i}", path) for i in range(4)) == {}
    chosen = {"reading": {"scope": "shop"}, "server": where}
    assert go(bucket, tmp_path, **chosen).indexed == 8
    assert sorted(held.documents) == [f"{number}/a{i}" for number in (8, 9) for i in range(4)]
    assert (held.documents["8/a1"]["scope"], held.documents["8/a1"]["collection"]) == ("shop", "orders")
    create(bucket, drop=["shop.orders"])
    assert go(bucket, tmp_path, **chosen).removed == 4
    assert sorted(held.documents) == [f"9/a{i}" for i in range(4)]
    with closing(SearchClient(replace(where, by_collection=True))) as client:
        asked: dict[str, Any] = {"limit": 9, "any_of": False}
        hits = client.search("shop.carts", collections=["shop.carts"], **asked)
        assert {(hit.scope, hit.collection, hit.key) for hit in hits} == {
            ("shop", "carts", b"a%d" % i) for i in range(4)
        }
        assert client.search("shop.carts", collections=["shop.orders"], **asked) == []
