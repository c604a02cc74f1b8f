"""Batches against a table, by hand and at random: what a reader sees is what the changes say."""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headwater.errors import InvariantBroken, TableChanged, TableError
from headwater.lake import checkpoints, lineage
from headwater.lake.commit import BatchCommit, Record, commit, record_of
from headwater.lake.folds import commit as fold_in
from headwater.lake.folds import fold, optimize
from headwater.lake.log import FOLDER, TableLog, removal
from headwater.lake.store import TableStore
from headwater.lake.upkeep import checkpoint
from headwater.lake.vacuum import vacuum
from headwater.lake.vectors import rows_of
from tests.lake.support import Table, held, restore, row_ids


def test_a_batch_that_was_planned_from_another_record_is_refused(tmp_path: Path) -> None:
    table = Table(tmp_path)
    before = table.record.digest
    table.take(("a", 0, 1, "v"), fresh=[0])
    with pytest.raises(TableChanged, match="the table is at batch 1 by now and this one was planned from another"):
        table.commit(table.write([("a", 0, 1, "v")]), after=before)
    assert table.held() == {"a": "v"}


def test_a_batch_that_breaks_an_invariant_is_not_committed(
    tmp_path: Path, broken_invariants: list[InvariantBroken]
) -> None:
    table = Table(tmp_path)
    written = table.write([("a", 0, 1, "v")])
    path = written.files[0]["path"]
    written.dead[path] = rows_of(np.array([7]))
    version = table.log.state.version
    with pytest.raises(InvariantBroken, match=f"row 7 of {path} is dead, it has 1"):
        table.commit(written)
    assert table.log.refresh().version == version and table.held() == {}
    broken_invariants.clear()


def test_of_two_mirrors_of_one_table_the_second_to_commit_is_refused(tmp_path: Path) -> None:
    first, second = Table(tmp_path), Table(tmp_path)
    ones, twos = first.write([("a", 0, 1, "v")]), second.write([("a", 0, 1, "v")])
    after = second.record.digest
    first.commit(ones)
    with pytest.raises(TableChanged):
        second.commit(twos, after=after)
    assert held(tmp_path) == {"a": "v"}


def test_the_transaction_of_a_batch_is_in_its_commit(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.take(("a", 0, 1, "v"))
    assert (table.log.refresh().transactions, table.record.batch) == ({"app": 1}, 1)
    actions = [json.loads(line) for line in (tmp_path / FOLDER / f"{1:020d}.json").read_text().splitlines()]
    assert [next(iter(action)) for action in actions] == ["commitInfo", "txn", "domainMetadata", "add"]


def test_dead_rows_stay_dead_for_a_driver_that_begins_anew(tmp_path: Path) -> None:
    """The vectors come from the log: one who forgot them would bring the dead of earlier batches back."""
    Table(tmp_path).take(*[(f"k{n}", 0, n + 1, "v") for n in range(100)], fresh=[0])
    for n in range(5):
        Table(tmp_path).take((f"k{n}", 0, 200 + n, None))
    assert len(held(tmp_path)) == 95


def test_a_file_is_never_removed_and_added_again_with_the_same_vector(tmp_path: Path) -> None:
    """Readers take it for removed. The index knows rows that died long ago, so a lookup may find nothing new."""
    table = Table(tmp_path)
    table.take(("a", 0, 1, "v"), ("b", 0, 2, "v"), fresh=[0])
    table.take(("a", 0, 3, None))
    table.take(("a", 0, 4, None))  # finds the dead row again
    assert table.held() == {"b": "v"}
    last = [json.loads(line) for line in (tmp_path / FOLDER / f"{3:020d}.json").read_text().splitlines()]
    assert [next(iter(action)) for action in last] == ["commitInfo", "txn", "domainMetadata"]


def test_a_file_all_of_whose_rows_died_leaves_the_table(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.take(("a", 0, 1, "v"), ("b", 0, 2, "v"), fresh=[0])
    table.take(("a", 0, 3, "w"), ("b", 0, 4, "w"))
    assert (len(table.log.state.files), table.held()) == (1, {"a": "w", "b": "w"})
    table.take(("c", 0, 5, "v"), ("c", 0, 6, None))  # a new file without a living row is not even added
    assert len(table.log.state.files) == 1


def test_somebody_who_rewrote_a_file_meanwhile_makes_the_lookup_void(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.take(("a", 0, 1, "v"), ("b", 0, 2, "v"), fresh=[0])
    written = table.write([("a", 0, 3, "w")])
    other = TableLog(TableStore(tmp_path))
    other.refresh()
    (file,) = other.state.files.values()
    copy = tmp_path / "copied.parquet"
    copy.write_bytes((tmp_path / file.path).read_bytes())
    added = {"add": file.add | {"path": "copied.parquet", "dataChange": False}}
    assert other.commit([removal(file, 1, data_change=False), added], "OPTIMIZE")
    with pytest.raises(TableChanged, match="was changed by somebody else after version 1"):
        table.commit(written)
    table.take(("a", 0, 3, "w"))  # looked up anew, in an index made from the stranger's keys
    assert (table.held(), table.indexes.rebuilt) == ({"a": "w", "b": "v"}, 1)


def test_a_file_that_somebody_wrote_without_statistics_may_lose_rows(tmp_path: Path) -> None:
    """Where a file has a vector, readers must be told how many rows it has (PROTOCOL.md, "Per-file Statistics")."""
    table = Table(tmp_path)
    table.take(("a", 0, 1, "v"), ("b", 0, 2, "v"), fresh=[0])
    other = TableLog(TableStore(tmp_path))
    (file,) = other.refresh().files.values()
    (tmp_path / "copied.parquet").write_bytes((tmp_path / file.path).read_bytes())
    added = {name: told for name, told in file.add.items() if name != "stats"} | {"path": "copied.parquet"}
    assert other.commit([removal(file, 1, data_change=False), {"add": added}], "OPTIMIZE")
    table.take(("a", 0, 3, "w"))
    assert table.held() == {"a": "w", "b": "v"}
    table.take(("b", 0, 4, None))  # the last row of it
    assert (table.held(), "copied.parquet" in table.log.state.files) == ({"a": "w"}, False)


def age(place: Path) -> None:
    """Let all data be two hours older than the newest commit."""
    for path in place.glob("*.parquet"):
        os.utime(path, (time.time() - 7200, time.time() - 7200))


def test_a_batch_whose_files_were_removed_meanwhile_is_refused(tmp_path: Path) -> None:
    """A vacuum under a wrong clock takes them for those of a failed attempt; a commit would break the table."""
    table = Table(tmp_path)
    table.take(("a", 0, 1, "v"), fresh=[0])
    written = table.write([("b", 0, 2, "v")])
    age(tmp_path)
    assert len(vacuum(TableLog(TableStore(tmp_path)), now=time.time() + 400 * 86_400)) >= 1
    with pytest.raises(TableChanged, match="was removed before the batch was committed"):
        table.commit(written)
    table.take(("b", 0, 2, "v"))
    assert table.held() == {"a": "v", "b": "v"}


def test_a_fold_whose_files_were_removed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.take(("a", 0, 1, "v"), fresh=[0])
    table.take(("b", 0, 2, "v"))
    chosen = list(table.log.state.files.values())
    folded = fold(table.store, table.log.state.fields, table.indexes, chosen)
    age(tmp_path)
    vacuum(TableLog(TableStore(tmp_path)), now=time.time() + 400 * 86_400)
    assert not fold_in(table.log, folded)
    assert table.held() == {"a": "v", "b": "v"}


def test_a_lost_race_against_a_commit_that_touches_no_file_is_run_again(tmp_path: Path) -> None:
    table, other = Table(tmp_path), TableLog(TableStore(tmp_path))
    written = table.write([("a", 0, 1, "v")])
    other.refresh()
    assert other.commit([{"txn": {"appId": "other", "version": 7}}], "NOTE")
    table.commit(written)
    assert (table.held(), table.log.state.version) == ({"a": "v"}, 2)


def test_a_table_whose_property_says_so_gets_no_new_vector(tmp_path: Path) -> None:
    """Its owner prepares it for readers that know of no vectors; the feature is there still."""
    table = Table(tmp_path)
    table.take(*[(f"k{n}", 0, n + 1, "v") for n in range(4)], fresh=[0])
    table.take(("k0", 0, 10, None))
    told = table.log.state.metadata
    off = told | {"configuration": told["configuration"] | {"delta.enableDeletionVectors": "False"}}
    assert table.log.commit([{"metaData": off}], "SET TBLPROPERTIES")
    written, then = table.write([("k1", 0, 11, None)]), Record("b", {"n": 3}, 3)
    commit(table.log, BatchCommit(table.record.digest, then, ("app", 3), [written]), table.indexes)
    assert [file.vector for file in table.log.state.files.values()] == [None]
    assert table.held() == {"k2": "v", "k3": "v"}


def test_a_batch_that_was_planned_before_a_restore_is_refused(tmp_path: Path) -> None:
    """Spark leaves the record as it is, so nothing else tells that the rows are older; a batch without rows looked
    nothing up."""
    table = Table(tmp_path)
    table.take(("a", 0, 1, "v"), fresh=[0])
    table.take(("a", 0, 2, "w"))
    restore(table.log, 1)
    batch = BatchCommit(table.record.digest, Record("b", {"n": 3}, 3), ("app", 3), [])
    with pytest.raises(TableChanged, match="put the table back to an older version"):
        commit(table.log, batch)
    assert TableLog(TableStore(tmp_path)).refresh().version == 3


def test_a_restore_is_known_to_who_begins_at_a_checkpoint_behind_it(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.take(("a", 0, 1, "v"), fresh=[0])
    table.take(("b", 0, 2, "w"))
    restore(table.log, 1)
    optimize(table.log, None, everything=True)
    checkpoint(table.log)
    fresh = TableLog(TableStore(tmp_path))
    assert (fresh.refresh().version, fresh.restored) == (4, True)
    assert table.log.commit([table.record.to_action()], "READ ANEW")
    assert (fresh.refresh().version, fresh.restored) == (5, False)


def test_a_table_without_a_record_is_not_ours(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.log.state.records.clear()
    with pytest.raises(TableError, match="has no record of a mirror"):
        record_of("x", table.log.state)


VBUCKETS = 3
CHANGES = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.integers(0, VBUCKETS - 1), st.sampled_from(["x", "y", None])), max_size=8
)


class Batches(RuleBasedStateMachine):
    """Batches of one or two tasks, rollbacks, attempts that came to nothing, lost indexes, drivers that begin anew."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.place = Path(self._folder.name)
        self.table = Table(self.place)
        self.truth: dict[tuple[str, int], str] = {}
        self.seqno = 0

    def _changes(self, drawn: list[tuple[str, int, str | None]]) -> list[Any]:
        made = []
        for key, vb, value in drawn:
            self.seqno += 1
            told = None if value is None else f"{value}{self.seqno}"
            made.append((f"{key}{vb}", vb, self.seqno, told))
        return made

    def _apply(self, changes: list[Any]) -> None:
        for key, vb, _, value in changes:
            if value is None:
                self.truth.pop((key, vb), None)
            else:
                self.truth[key, vb] = value

    @rule(drawn=CHANGES, cut=st.integers(1, VBUCKETS))
    def batch(self, drawn: list[tuple[str, int, str | None]], cut: int) -> None:
        changes = self._changes(drawn)
        halves = [[c for c in changes if c[1] < cut], [c for c in changes if c[1] >= cut]]
        self.table.commit(*[self.table.write(half) for half in halves])
        self._apply(changes)

    @rule(drawn=CHANGES)
    def an_attempt_that_is_not_committed(self, drawn: list[tuple[str, int, str | None]]) -> None:
        self.table.write(self._changes(drawn))

    @rule(drawn=CHANGES, vb=st.integers(0, VBUCKETS - 1))
    def roll_back(self, drawn: list[tuple[str, int, str | None]], vb: int) -> None:
        changes = self._changes([(key, vb, value) for key, _, value in drawn])
        self.table.take(*changes, replaced=[vb])
        self.truth = {key: value for key, value in self.truth.items() if key[1] != vb}
        self._apply(changes)

    @rule()
    def lose_the_indexes(self) -> None:
        for index in self.place.glob("_index/*"):
            index.unlink()
        self.table = Table(self.place)

    @rule()
    def begin_anew(self) -> None:
        self.table = Table(self.place)

    @rule(files=st.integers(1, 4), drawn=CHANGES)
    def fold_while_a_batch_is_written(self, files: int, drawn: list[tuple[str, int, str | None]]) -> None:
        chosen = list(self.table.log.refresh().files.values())[:files]
        if chosen:
            state = self.table.log.state
            folded = fold(self.table.store, state.fields, self.table.indexes, chosen, columns=state.id_columns)
            changes = self._changes(drawn)
            self.table.take(*changes)
            self._apply(changes)
            fold_in(self.table.log, folded)

    @rule()
    def checkpoint(self) -> None:
        state = self.table.log.refresh()
        checkpoints.write(self.table.store, FOLDER, state.version, state.actions())

    @invariant()
    def a_reader_sees_the_truth(self) -> None:
        assert held(self.place) == {key: value for (key, _), value in self.truth.items()}

    def teardown(self) -> None:
        self._folder.cleanup()


class BatchesWithIds(Batches):
    """The same with a table whose rows keep their ids, from a version on that may have rows already."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: dict[str, int] | None = None
        self.owners: dict[int, str] = {}

    @rule()
    def begin(self) -> None:
        lineage.begin(self.table.log)
        self.ids = self.ids or {}

    @invariant()
    def a_key_keeps_its_id_while_it_is_there_and_gets_a_new_one_after_that(self) -> None:
        if self.ids is None:
            return
        now = {key: number for key, (number, _) in row_ids(self.place).items()}
        assert {key: now[key] for key in self.ids.keys() & now.keys()} == {
            key: number for key, number in self.ids.items() if key in now
        }
        new = {number: key for key, number in now.items() if key not in self.ids}
        assert not new.keys() & self.owners.keys(), "an id is given out twice"
        self.owners |= new
        self.ids = now


TestBatches = Batches.TestCase
TestBatches.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
TestBatchesWithIds = BatchesWithIds.TestCase
TestBatchesWithIds.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
