"""Rows for a flow that applies changes by key: their order, and what undoes a rollback."""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from harness.auto_cdc.model import ModelPipeline
from harness.nodes import diverge
from headwater.errors import NotesError, OptionError
from headwater.protocol.dcp.position import Position
from headwater.spark import undo
from headwater.spark.history import BranchHistory
from headwater.spark.offsets import Offset
from headwater.spark.planner import Range, plan, settled
from headwater.spark.planning import Planning
from headwater.spark.reader import read
from headwater.spark.settings import parse
from headwater.spark.undo import read_undoing
from headwater.testing.node import Node, node
from tests.spark.fakes import FakeClient, FakeVbucket


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as running:
        yield running


@pytest.fixture
def tables(bucket: Node, tmp_path: Path) -> ModelPipeline:
    return ModelPipeline(bucket.url, str(tmp_path / "undo"))


def put(bucket: Node, **values: str) -> None:
    with bucket.client() as client:
        client.set_many(values.items())


def delivered(bucket: Node, tables: ModelPipeline, **values: str) -> Callable[[], None]:
    """Return a function that stores documents and brings them to the tables."""

    def store() -> None:
        put(bucket, **values)
        tables.update()

    return store


def test_a_document_of_a_lost_branch_is_deleted_and_one_that_it_overwrote_is_there_again(
    bucket: Node, tables: ModelPipeline
) -> None:
    def lost() -> None:
        put(bucket, kept="lost", new="lost")
        with bucket.client() as client:
            client.delete("removed")
        tables.update()

    put(bucket, kept="a", removed="b", same="c")
    tables.update()
    diverge(bucket, lost=lost)
    tables.update(repeats=True)
    assert tables.scd1() == {"kept": "a", "removed": "b", "same": "c"}
    history = tables.scd2()
    assert [value for value, _, _ in history["kept"]] == ["a", "lost", "a"]
    assert [value for value, _, _ in history["removed"]] == ["b", "b"]
    assert [value for value, _, _ in history["same"]] == ["c"]
    [(value, _, end)] = history["new"]
    assert (value, end[0]) == ("lost", 1)


def test_a_version_that_was_delivered_and_still_stands_does_not_come_again(bucket: Node, tables: ModelPipeline) -> None:
    put(bucket, **{f"k{number}": "a" for number in range(40)})
    tables.update()
    diverge(bucket, lost=delivered(bucket, tables, **{f"l{number}": "b" for number in range(40)}))
    tables.update()
    assert all(len(events) == 1 for key, events in tables.events.items() if key.startswith("k"))
    assert all(len(events) == 2 for key, events in tables.events.items() if key.startswith("l"))


def test_a_second_failover_is_undone_though_the_first_one_was_never_read(bucket: Node, tables: ModelPipeline) -> None:
    put(bucket, a="1")
    tables.update()
    diverge(bucket, lost=delivered(bucket, tables, a="2", b="2"))
    diverge(bucket, lost=lambda: put(bucket, a="3", c="3"))
    put(bucket, d="4")
    tables.update()
    assert tables.scd1() == {"a": "1", "d": "4"}
    assert "c" not in tables.events


def rows_of(client: FakeClient, folder: Path, part: Range, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.setattr(undo, "read", partial(read, connect=lambda settings: cast("Any", client)))
    settings = parse({"url": "couchbase://127.0.0.1/default", "undoFolder": str(folder)}, streaming=True)
    positions = {0: Position(0, 0xA, 9, 9, 9)}
    batches = read_undoing(settings, ("key", "event", "sequence"), [part], positions)
    return [row for batch in batches for row in batch.to_pylist()]


def test_a_batch_that_runs_again_undoes_the_same_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = rows_of(
        FakeClient({0: FakeVbucket(((0xA, 0),), range(1, 10))}), tmp_path, Range(0, 0xA, 0, 9, 9), monkeypatch
    )
    assert [row["sequence"] for row in first] == [{"generation": 0, "seqno": seqno} for seqno in range(1, 10)]
    rolled_back = Range(0, 0xB, 6, 6, 6, rollback=True, generation=1)
    runs = [
        rows_of(FakeClient({0: FakeVbucket(((0xB, 6), (0xA, 0)), range(1, 7))}), tmp_path, rolled_back, monkeypatch)
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert [row["event"] for row in runs[0]] == ["deletion"] * 3
    assert {(row["sequence"]["generation"], row["sequence"]["seqno"]) for row in runs[0]} == {(1, 6)}


def test_what_a_forgotten_batch_had_is_deleted_if_it_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut takes the end of Spark's checkpoint: the rollback is planned again, and counted as the same one."""

    def rolled_back(seqnos: list[int], purge: int = 0) -> list[dict[str, Any]]:
        vbucket = FakeVbucket(((0xB, 6), (0xA, 0)), cast("Any", seqnos), purge)
        part = Range(0, 0xB, 6, seqnos[-1], seqnos[-1], rollback=True, generation=1)
        return rows_of(FakeClient({0: vbucket}), tmp_path, part, monkeypatch)

    rows_of(FakeClient({0: FakeVbucket(((0xA, 0),), range(1, 10))}), tmp_path, Range(0, 0xA, 0, 9, 9), monkeypatch)
    [new] = [row for row in rolled_back([*range(1, 7), 11]) if row["event"] == "mutation"]
    [gone] = [row for row in rolled_back([*range(1, 7), 13], purge=12) if row["key"] == new["key"]]
    assert gone["event"] == "deletion"
    assert (1, 11) < tuple(gone["sequence"].values()) <= (1, 13)


def test_documents_whose_deletions_were_purged_amid_a_reading_are_deleted_behind_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vbucket = FakeVbucket(((0xA, 0),), range(1, 10))
    vbucket.breaks_at, vbucket.purges_amid = 4, 6
    rows = rows_of(FakeClient({0: vbucket}), tmp_path, Range(0, 0xA, 0, 9, 9), monkeypatch)
    deleted = [row for row in rows if row["event"] == "deletion"]
    assert len(deleted) == 4
    assert {row["sequence"]["seqno"] for row in deleted} == {6}


def test_a_rollback_raises_the_generation_of_its_vbucket_for_good_if_it_is_counted() -> None:
    start = Offset({0: Position(0, 0xA, 9, 9, 9), 1: Position(1, 0xA, 9, 9, 9)}, generations={0: 4})
    histories = {0: BranchHistory(((0xB, 6), (0xA, 0)), 7), 1: BranchHistory(((0xA, 0),), 9)}
    end = plan(start, histories, counts=True)
    assert end.generations == {0: 5}
    assert Offset.from_json(end.to_json()).generations == {0: 5}
    assert settled(end, histories).generations == {0: 5}
    assert "generations" not in plan(Offset(start.positions), histories).to_json()


def test_the_folder_goes_with_streams_and_without_min_persisted() -> None:
    options = {"url": "couchbase://127.0.0.1/default", "undoFolder": "/data/undo"}
    with pytest.raises(OptionError, match="streaming read"):
        parse(options, streaming=False)
    with pytest.raises(OptionError, match="minPersisted"):
        parse({**options, "minPersisted": "majority"}, streaming=True)


@pytest.mark.parametrize("folder", ["s3a://bucket/undo", "undo", "file:///undo", "/a b"])
def test_a_folder_that_each_machine_would_have_of_its_own_is_refused(folder: str) -> None:
    with pytest.raises(
        OptionError, match=r"undoFolder.*an absolute path without spaces, of a folder that all machines"
    ):
        parse({"url": "couchbase://127.0.0.1/default", "undoFolder": folder}, streaming=True)


def test_a_version_that_only_a_failed_attempt_had_comes_where_it_stands_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt that was delivered left it out: it was replaced above the range, by a change that a failover took."""
    part, log = Range(0, 0xA, 0, 9, 9), ((0xA, 0),)
    rows_of(FakeClient({0: FakeVbucket(log, range(1, 10))}), tmp_path, part, monkeypatch)
    replaced = FakeVbucket(log, cast("Any", [1, 2, 3, 5, 6, 7, 8, 9, 12]))
    delivered = rows_of(FakeClient({0: replaced}), tmp_path, part, monkeypatch)
    assert b"k4" not in {row["key"] for row in delivered}
    back = FakeVbucket(((0xB, 6), (0xA, 0)), range(1, 7))
    rolled_back = Range(0, 0xB, 6, 6, 6, rollback=True, generation=1)
    rows = rows_of(FakeClient({0: back}), tmp_path, rolled_back, monkeypatch)
    assert {row["key"] for row in rows if row["event"] == "mutation"} == {b"k4"}
    assert {row["key"] for row in rows if row["event"] == "deletion"} == {b"k7", b"k8", b"k9"}


def test_a_folder_that_is_lost_or_anothers_ends_the_query_before_it_delivers(
    bucket: Node, tables: ModelPipeline, tmp_path: Path
) -> None:
    put(bucket, a="1")
    tables.update()
    other = ModelPipeline(bucket.url, tables.folder)
    with pytest.raises(NotesError, match="those of another query"):
        other.update()
    put(bucket, a="2")
    away = (tmp_path / "undo").rename(tmp_path / "away")
    with pytest.raises(NotesError, match="bring the folder back"):
        tables.update()
    assert tables.scd1() == {"a": "1"}
    away.rename(tmp_path / "undo")
    tables.update()
    assert tables.scd1() == {"a": "2"}


def test_a_query_that_delivered_before_it_had_a_folder_is_refused(bucket: Node, tmp_path: Path) -> None:
    put(bucket, a="1")
    options = {"url": bucket.url, "keyFormat": "string", "valueFormat": "string"}
    with closing(Planning(parse(options, streaming=True))) as planning:
        end = planning.latest(Offset().to_json(), None)
    put(bucket, a="2")
    tables = ModelPipeline(bucket.url, str(tmp_path / "undo"), _offset=end)
    with pytest.raises(NotesError, match="a rollback could not be undone"):
        tables.update()
