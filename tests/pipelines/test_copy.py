"""Bucket to bucket inside a real Spark, between real nodes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from harness.nodes import cluster, diverge, keep, leave, put, return_to
from headwater.client import WriteWithMeta
from headwater.errors import ConnectionLost, HeadwaterError, OptionError
from headwater.pipelines import copy as copying_module
from headwater.pipelines.attempts import Attempts
from headwater.pipelines.beside import FileBeside
from headwater.pipelines.carried import FILE, Carried, CarriedCollections, CarriedFile, as_source
from headwater.pipelines.copy import _Batches, _claim
from headwater.pipelines.jobs import BucketCopy, CopyProgress
from headwater.pipelines.target_histories import FILE as HISTORIES
from headwater.pipelines.target_histories import TargetHistories
from headwater.spark.schema import types
from headwater.spark.settings import parse, parse_write
from headwater.testing.node import Node, node
from headwater.wire.manifest import EMPTY
from tests.client.seeds import Knowing, two_that_know
from tests.pipelines.buckets import create, state, state_by_collection
from tests.pipelines.support import documents, missed


@pytest.fixture
def pair() -> Iterator[tuple[Node, Node]]:
    with node(vbuckets=4) as source, node(vbuckets=4) as target:
        yield source, target


def go(spark: Any, pair: tuple[Node, Node], place: Path, **more: Any) -> CopyProgress:
    asked: dict[str, Any] = {"once": True, "retry_seconds": 0.0} | more
    return BucketCopy(pair[0].url, pair[1].url, place / "checkpoint", spark=spark, **asked).run()


@pytest.mark.spark
def test_a_copy_whose_target_dies_goes_on_and_keeps_revision_cas_and_expiry(
    spark: Any, pair: tuple[Node, Node], tmp_path: Path
) -> None:
    source, target = pair
    with source.client() as client:
        client.set_many((f"k{i}", f"{i}") for i in range(200))
        client.set_many(((f"k{i}", f"again {i}") for i in range(50)), flags=7, expiry=4_102_444_800)
        client.delete_many(f"k{i}" for i in range(40, 60))
    with target.client() as client:
        assert client.write_many([WriteWithMeta("k100", "theirs, later", 0, 0, cas=2**62, rev_seqno=9)]) == {}
        client.set("theirs", "alone")
    target.kill()
    short = {"writing": {"retrySeconds": "0.5"}, "reading": {"maxChangesPerTrigger": "90"}}
    with pytest.raises(HeadwaterError, match=str(target.port)):
        go(spark, pair, tmp_path, **short)
    target.restart()
    told = go(spark, pair, tmp_path, **short)
    assert told.stored + told.deleted + told.behind >= 200 and told.batches >= 3 and told.rollbacks == 0
    held, expected = state(target), state(source)
    assert (held.pop(b"k100")[1], held.pop(b"theirs")[1]) == (b"theirs, later", b"alone")
    assert expected.pop(b"k100")[1] == b"100"
    assert held == expected
    assert go(spark, pair, tmp_path).batches == 0


@pytest.mark.spark
def test_what_a_failover_takes_back_is_taken_back_at_the_target(
    spark: Any, pair: tuple[Node, Node], tmp_path: Path
) -> None:
    source, target = pair

    def lost() -> None:
        with source.client() as client:
            for _ in range(3):  # revisions that beat all that comes after
                client.set_many((f"k{i}", "lost") for i in range(30))
            client.delete_many(f"k{i}" for i in range(10))
            client.set_many((f"lost{i}", "lost") for i in range(10))
        go(spark, pair, tmp_path)
        assert state(target) == state(source)

    with source.client() as client:
        client.set_many((f"k{i}", "kept") for i in range(40))
    diverge(source, lost=lost)
    with source.client() as client:
        client.set("k3", "after")
        client.set("lost4", "after")
    told = go(spark, pair, tmp_path)
    assert told.rollbacks == 4 and told.restored > 0
    held = state(target)
    assert {key: held[key] for key in state(source)} == state(source)
    assert {key for key, told in held.items() if told[0] == "Mutation"} == set(state(source))
    with source.client() as client:
        client.set("lost5", "new")
    go(spark, pair, tmp_path)
    assert state(target)[b"lost5"] == state(source)[b"lost5"]


@pytest.mark.battery
@pytest.mark.spark
def test_documents_keep_their_collections_and_those_are_made_and_dropped_on_the_way(
    spark: Any, pair: tuple[Node, Node], tmp_path: Path
) -> None:
    source, target = pair
    patient: dict[str, Any] = {"dropped": "drop", "retry_seconds": 240.0}  # workers of Spark that are late come again
    create(target, "theirs.alone", "shop.carts")
    create(source, "shop.orders", "shop.carts")

    def write(value: str, *paths: str) -> None:
        with source.client() as client:
            for path in paths:
                assert client.collection(path).set_many((f"k{i}", f"{path} {value}") for i in range(10)) == {}

    def level() -> None:
        kept = {name: told for name, told in state_by_collection(target).items() if not name[0].startswith("theirs")}
        assert kept == state_by_collection(source)

    write("one", "_default._default", "shop.orders", "shop.carts")
    assert go(spark, pair, tmp_path, **patient).stored == 30
    level()

    def lost() -> None:
        write("lost", "shop.orders", "shop.orders", "_default._default")
        go(spark, pair, tmp_path, **patient)

    diverge(source, lost=lost)
    create(source, "shop.late", drop=["shop.carts"])
    write("two", "shop.late")
    told = go(spark, pair, tmp_path, **patient)
    assert told.rollbacks == 4 and told.restored == 20
    with target.client() as client:
        there = {f"{scope.name}.{collection.name}" for scope, collection in client.manifest().each_collection()}
    assert there == {"_default._default", "theirs.alone", "shop.orders", "shop.late"}
    level()
    assert go(spark, pair, tmp_path, **patient).batches == 0


@pytest.mark.spark
def test_what_a_failover_takes_back_at_the_target_is_copied_again_and_nothing_of_others_removed(
    spark: Any, pair: tuple[Node, Node], tmp_path: Path
) -> None:
    source, target = pair
    with source.client() as client:
        client.set_many((f"k{i}", "first") for i in range(40))
    with target.client() as client:
        client.set_many((f"theirs{i}", "v") for i in range(10))
    go(spark, pair, tmp_path)

    def lost() -> None:
        with source.client() as client:
            client.set_many((f"k{i}", "second") for i in range(20))
            client.delete_many(f"k{i}" for i in range(5))
        assert go(spark, pair, tmp_path).restored == 0

    diverge(target, lost=lost)
    assert documents(target)[b"k0"] == b"first"
    told = go(spark, pair, tmp_path)  # nothing has changed at the source
    assert told.batches == 0 and told.restored >= 20
    held = documents(target)
    assert {key: held.pop(key) for key in documents(source)} == documents(source)
    assert held == {b"theirs%d" % i: b"v" for i in range(10)}
    assert go(spark, pair, tmp_path).restored == 0


class Session:
    """A session that does a task's part here."""

    def createDataFrame(self, rows: list[tuple[int, int]], _: str) -> Frame:
        return Frame.of(pa.RecordBatch.from_pylist([{"vbucket": vb, "end": end} for vb, end in rows]))


class Frame:
    """A batch of one row, of which Spark's part is done here."""

    sparkSession = Session()  # noqa: N815 -- Spark's name

    def __init__(self, **row: Any) -> None:
        schema = pa.schema([(name, _ARROW[kind]) for name, kind in types(collections=True).items()])
        schema = schema.append(pa.field("collection_id", pa.int64()))
        self._rows = pa.RecordBatch.from_pylist([row], schema)

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> Frame:
        frame = cls()
        frame._rows = rows
        return frame

    def repartition(self, _: str) -> Frame:
        return self

    def mapInArrow(self, work: Any, _: str) -> Frame:
        self._done = [SimpleNamespace(**row) for part in work([self._rows]) for row in part.to_pylist()]
        return self

    def collect(self) -> list[SimpleNamespace]:
        return self._done


_ARROW = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string(), "binary": pa.binary()}
_ARROW |= {"timestamp": pa.timestamp("us", "UTC")}
_SCHEMA = pa.schema([(name, _ARROW[kind]) for name, kind in types().items()])
BEFORE = EMPTY.with_scope("shop", 8).with_collection("shop", "carts", None, 8)
SINCE = BEFORE.with_collection("shop", "orders", None, 9)


@contextmanager
def batches(nodes: tuple[Knowing, Knowing], target: Node, place: Path) -> Iterator[tuple[_Batches, CopyProgress]]:
    """The copying of batches, from a bucket of two nodes that are not asked twice."""
    reading = {"url": "couchbase://{}:{}".format(*nodes[0].address), "collections": "all", "retrySeconds": "0"}
    source, writes = parse(reading), parse_write({"url": target.url, "withMeta": "true"})
    attempts = Attempts(CopyProgress(), lambda done: None, stop=lambda: False, retry_seconds=0)
    carried = CarriedCollections(source, writes, Carried("all"), CarriedFile(place), "keep", lambda: None)
    there = TargetHistories(as_source(writes), FileBeside(place, HISTORIES))
    with closing(carried), closing(there):
        yield _Batches(source, writes, attempts, carried, there, restores=True, check=lambda: None), attempts.progress


def test_changes_of_a_collection_that_only_a_node_that_does_not_answer_knows_come_again(tmp_path: Path) -> None:
    row = {"vbucket": 1, "seqno": 1, "event": "mutation", "key": b"k", "value": b"v", "cas": 7, "rev_seqno": 1}
    row |= {"flags": 0, "expiry": 0, "datatype": 0, "snapshot_start": 1, "snapshot_end": 1}
    row |= {"scope": "shop", "collection": "orders", "collection_id": 9}
    with node(vbuckets=2) as target, two_that_know(BEFORE, None) as nodes, batches(nodes, target, tmp_path) as made:
        copying, progress = made
        with pytest.raises(ConnectionLost):
            copying.take(Frame(**row), 0)
        assert progress.batches == progress.left_out == 0
        nodes[1].manifest = SINCE
        copying.take(Frame(**row), 0)
        assert (progress.stored, progress.left_out) == (1, 0)
        assert state_by_collection(target)["shop.orders", b"k"]


def test_changes_of_a_collection_that_was_dropped_are_left_out_once_all_nodes_say_so(tmp_path: Path) -> None:
    row = {"vbucket": 1, "seqno": 1, "event": "deletion", "key": b"k", "cas": 7, "rev_seqno": 1, "collection_id": 9}
    gone = SINCE.without_collection("shop", "orders")
    with node(vbuckets=2) as target, two_that_know(gone, gone) as nodes, batches(nodes, target, tmp_path) as made:
        copying, progress = made
        copying.take(Frame(**row), 0)
        assert (progress.batches, progress.left_out) == (1, 1)


@contextmanager
def plain_batches(pair: tuple[Node, Node], place: Path) -> Iterator[tuple[_Batches, CopyProgress]]:
    """The copying of batches of the default collection, with the check that a copy makes at its start."""
    source, writes = parse({"url": pair[0].url}), parse_write({"url": pair[1].url, "withMeta": "true"})
    source, writes = replace(source, xattrs=True, retry_seconds=5.0), replace(writes, retry_seconds=5.0)
    attempts = Attempts(CopyProgress(), lambda done: None, stop=lambda: False, retry_seconds=0)
    check = partial(_claim, CarriedFile(place), source, writes, 5.0)
    check()
    with closing(TargetHistories(as_source(writes), FileBeside(place, HISTORIES))) as there:
        yield _Batches(source, writes, attempts, None, there, restores=True, check=check), attempts.progress


def frame(source: Node, key: str, *more: dict[str, Any]) -> Frame:
    """The batch that brings a document of the source, behind other rows."""
    with source.client() as client:
        vbucket = client.vbucket_of(key)
        with client.changes(vbuckets=[vbucket], until="now", markers=False) as changes:
            change: Any = next(each for each in changes if getattr(each, "key", None) == key.encode())
    row = {name: getattr(change, name) for name in ("vbucket", "seqno", "key", "value", "cas", "rev_seqno")}
    row |= {"event": "mutation", "flags": 0, "expiry": 0, "datatype": 0, "snapshot_end": change.seqno}
    return Frame.of(pa.RecordBatch.from_pylist([*more, row], _SCHEMA))


def test_a_target_that_failed_over_between_two_batches_gets_back_what_it_had(
    pair: tuple[Node, Node], tmp_path: Path
) -> None:
    source, target = pair
    with source.client() as client:
        client.set_many((f"k{i}", "v") for i in range(8))
    with plain_batches(pair, tmp_path) as (copying, progress):
        kept = keep(target)
        for i in range(7):
            copying.take(frame(source, f"k{i}"), i)
        assert progress.stored == 7
        return_to(target, kept)
        assert documents(target) == {}
        with source.client() as client:
            client.set("later", "not copied yet")  # a failover of the source may take it back
        copying.take(frame(source, "k7"), 7)
        assert progress.restored == 7
    assert documents(target) == {key: value for key, value in documents(source).items() if key != b"later"}


def test_a_target_that_fails_over_while_a_batch_is_written_gets_the_batch_again(
    pair: tuple[Node, Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = pair
    with source.client() as client:
        client.set_many((f"k{i}", "v") for i in range(2))
    kept = [keep(target)]
    writing = copying_module._writing

    def failing_over(*given: Any) -> Any:
        def task(batches: Any) -> Iterator[Any]:
            yield from writing(*given)(batches)
            if kept:
                return_to(target, kept.pop())

        return task

    monkeypatch.setattr(copying_module, "_writing", failing_over)
    with plain_batches(pair, tmp_path) as (copying, progress):
        copying.take(frame(source, "k0"), 0)
    assert (progress.batches, progress.stored) == (1, 1) and documents(target) == {b"k0": b"v"}


def test_what_was_forced_is_forced_again_where_the_target_has_lost_it(pair: tuple[Node, Node], tmp_path: Path) -> None:
    """By the conflict rule what the source had lost would stay: its revision is the higher one."""
    source, target = pair
    with source.client() as client:
        client.set("k", "kept")
        vbucket = client.vbucket_of("k")
    with target.client() as client:
        assert client.write_many([WriteWithMeta("k", "lost", 0, 0, cas=2**62, rev_seqno=9)]) == {}
    rollback = {"vbucket": vbucket, "seqno": 0, "event": "rollback", "snapshot_end": 0}
    with plain_batches(pair, tmp_path) as (copying, _):
        kept = keep(target)
        copying.take(frame(source, "k", rollback), 0)
        assert documents(target) == {b"k": b"kept"}
        return_to(target, kept)
        assert documents(target) == {b"k": b"lost"}
    with plain_batches(pair, tmp_path) as (copying, _):
        copying.begin(Session())  # type: ignore[arg-type]
    assert documents(target) == {b"k": b"kept"}


def test_a_former_owner_of_the_source_that_was_cut_off_is_not_what_the_target_is_made_equal_to(
    tmp_path: Path,
) -> None:
    with cluster(2, 4) as source, node(vbuckets=4) as target:
        first, second = source.nodes
        put(first, 1, "k0", b"kept")
        source.follow(1, 1)
        leave(second, first.address)
        put(first, 1, "k0", b"lost")
        with target.client() as client:
            assert client.write_many([WriteWithMeta("k0", "lost", 0, 0, cas=2**62, rev_seqno=9)]) == {}
            assert client.vbucket_of("k0") == 1
        source.fail_over(1, 1)
        source.publish(1)  # the first one hears nothing of it
        rollback = {"vbucket": 1, "seqno": 1, "event": "rollback", "snapshot_end": 1}
        with plain_batches((first, target), tmp_path) as (copying, progress):
            copying.take(Frame.of(pa.RecordBatch.from_pylist([rollback], _SCHEMA)), 0)
        assert progress.restored == 1 and documents(target) == {b"k0": b"kept"}


def test_a_target_that_was_made_anew_between_two_batches_ends_the_copy(pair: tuple[Node, Node], tmp_path: Path) -> None:
    source, target = pair
    with source.client() as client:
        client.set_many((f"k{i}", "v") for i in range(2))
    with plain_batches(pair, tmp_path) as (copying, _):
        copying.take(frame(source, "k0"), 0)
        target.stop()
        shutil.rmtree(target.data)
        target.restart()
        with pytest.raises(OptionError, match="the bucket was made anew"):
            copying.take(frame(source, "k1"), 1)
    assert documents(target) == {}


@pytest.mark.spark
@pytest.mark.battery
def test_deletions_that_were_purged_before_they_were_copied_are_told_and_made_up_for(
    spark: Any, pair: tuple[Node, Node], tmp_path: Path
) -> None:
    source, target = pair
    with source.client() as client:
        assert client.set_many((f"a{i}", "v") for i in range(40)) == {}
    assert go(spark, pair, tmp_path).data_loss == []
    purged = missed(source)
    with pytest.raises(HeadwaterError, match="data loss: deletions were purged"):
        go(spark, pair, tmp_path, reading={"failOnDataLoss": "true"})
    assert b"a0" in documents(target)
    told = go(spark, pair, tmp_path)
    assert told.data_loss == sorted(purged) != [] and told.restored >= 30
    assert documents(target) == documents(source)
    assert go(spark, pair, tmp_path).data_loss == []


@pytest.mark.spark
def test_what_a_copy_carries_is_kept_beside_a_checkpoint_that_spark_alone_can_reach(spark: Any, tmp_path: Path) -> None:
    place = CarriedFile(f"file:{tmp_path}/far", spark)
    place.file._folder = None  # as one on an object store
    assert place.load() is None
    place.save(Carried("all", manifest_uid=3, known={"shop.orders": 8}))
    assert place.load() == Carried("all", manifest_uid=3, known={"shop.orders": 8})
    (tmp_path / "far" / "offsets").mkdir()
    (tmp_path / "far" / FILE).unlink()
    assert place.load() == Carried()


def test_an_option_that_makes_no_sense_is_refused_before_spark_is_asked(tmp_path: Path) -> None:
    url = "couchbase://127.0.0.1:1/default"
    with pytest.raises(OptionError, match="another bucket than the source"):
        BucketCopy(url, url, tmp_path).run()
    with pytest.raises(OptionError, match="restore, keep, fail"):
        BucketCopy(url, url + "2", tmp_path, rollback="undo").run()
