"""Removals: who follows a log keeps none, a checkpoint the last of each file, and a vacuum finds what it needs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.lake import checkpoints, removals
from headwater.lake.folds import optimize
from headwater.lake.log import FOLDER, TableLog, data_file, identity
from headwater.lake.store import TableStore
from headwater.lake.upkeep import checkpoint
from headwater.lake.vacuum import DAY, vacuum
from tests.lake.support import Table, restore

F, G = "ab^-aqEH.-t@S}K{vb[*k^", "cd^-aqEH.-t@S}K{vb[*k^"


def removed(path: str, at: int, vector: str = "", offset: int | None = None) -> dict[str, Any]:
    """A `remove` action; a vector in a file has an offset, another one stands in the log."""
    told: dict[str, Any] = {"path": path, "deletionTimestamp": at}
    if vector:
        where = {"storageType": "i"} if offset is None else {"storageType": "u", "offset": offset}
        told["deletionVector"] = {"pathOrInlineDv": vector, "sizeInBytes": 1, "cardinality": 1} | where
    return told


def kept(*actions: dict[str, Any], live: tuple[dict[str, Any], ...] = (), oldest: int = 0) -> list[tuple[str, int]]:
    table = checkpoints.removals(TableStore("."), [], actions)
    files = {add["path"]: data_file(add | {"size": 1}) for add in live}
    return [(row["path"], row["deletionTimestamp"]) for row in removals.of_checkpoint(table, files, oldest).to_pylist()]


def test_of_a_file_that_is_gone_the_last_removal_is_kept_until_it_expires() -> None:
    both = removed("a", 1), removed("a", 5, "inline"), removed("b", 3)
    assert kept(*both) == [("b", 3), ("a", 5)]
    assert kept(*both, oldest=4) == [("a", 5)]


def test_that_a_live_file_had_another_vector_in_the_log_says_nothing() -> None:
    assert kept(removed("a", 1), removed("a", 2, "inline"), live=({"path": "a"},)) == []


def test_of_each_file_of_vectors_the_last_removal_is_kept() -> None:
    live = ({"path": "a"}, {"path": "b"})
    told = removed("a", 1, F, 1), removed("b", 2, F, 30), removed("a", 3, G, 1)
    assert kept(*told, live=live) == [("b", 2), ("a", 3)]


def test_what_a_restore_brought_back_was_never_removed() -> None:
    back = removed("a", 1, F, 1)
    assert kept(back, live=({"path": "a", "deletionVector": back["deletionVector"]},)) == []
    assert kept(back, live=({"path": "a"},)) == [("a", 1)]


def test_an_offset_that_is_null_is_none(tmp_path: Path) -> None:
    """So some writers have it, of a vector that stands in the log."""
    back = removed("a", 1, "inline")
    vector = back["deletionVector"] | {"offset": None}
    assert kept(back, live=({"path": "a", "deletionVector": vector},)) == []
    null, none = ({"path": "a", "deletionVector": each} for each in (vector, back["deletionVector"]))
    assert identity(null) == identity(none)


def test_a_checkpoint_carries_on_what_the_one_before_it_had(tmp_path: Path) -> None:
    table = Table(tmp_path)
    for n in range(4):
        table.take((f"k{n}", 0, n + 1, "v"), ("same", 0, 100 + n, "v"))
    optimize(table.log, table.indexes, everything=True)
    checkpoint(table.log)
    first = table.log.count_removals()
    table.take(("k1", 0, 200, "w"))
    optimize(table.log, table.indexes, everything=True)
    checkpoint(table.log)
    whole = TableLog(TableStore(tmp_path), removals=True)
    whole.refresh()
    gone = {path.name for path in tmp_path.glob("*.parquet")} - {file.path for file in whole.state.files.values()}
    assert sorted(whole.removals().column("path").to_pylist()) == sorted(gone)
    assert first and whole.count_removals() == len(gone) == 6


def test_a_checkpoint_of_another_writer_with_columns_of_its_own_is_read(tmp_path: Path) -> None:
    table = Table(tmp_path)
    path = f"{FOLDER}/{0:020}.checkpoint.parquet"
    row = {"path": "x", "deletionTimestamp": 5, "dataChange": False, "tags": "theirs"}
    actions = [{"remove": None}, {"remove": row}]
    pq.write_table(pa.Table.from_pylist(actions), tmp_path / path)
    (found,) = checkpoints.removals(table.store, [path], [removed("y", 6)]).to_pylist()[:1]
    assert (found["path"], found["deletionTimestamp"], found["size"]) == ("x", 5, None)
    assert checkpoints.count_removals(table.store, [path]) == 1


def test_who_starts_looks_at_the_last_checkpoint_and_not_through_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a mirror that runs for weeks that has millions of commits."""
    table = Table(tmp_path)
    for n in range(3):
        table.take((f"k{n}", 0, n + 1, "v"))
    checkpoint(table.log)
    table.take(("later", 0, 9, "v"))
    listed: list[str] = []
    monkeypatch.setattr(TableStore, "list", lambda store, folder="": listed.append(folder))
    again = TableLog(TableStore(tmp_path))
    assert (again.refresh().version, again.checkpointed) == (4, 3)
    checkpoint(again)
    assert listed == []


def test_who_starts_reads_no_row_of_the_removals_not_even_as_nulls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a week of small batches there are hundreds of thousands, and a start wants none of them."""
    table = Table(tmp_path)
    table.take(("a", 0, 1, "v"))
    state = table.log.state
    gone = checkpoints.removals(table.store, [], [removed(f"gone-{n}", n) for n in range(1000)])
    checkpoints.write(table.store, FOLDER, state.version, state.actions(), gone)
    rows: list[int] = []

    class Counted(pq.ParquetFile):
        def read(self, *args: Any, **options: Any) -> pa.Table:
            return self._counted(super().read(*args, **options))

        def read_row_groups(self, *args: Any, **options: Any) -> pa.Table:
            return self._counted(super().read_row_groups(*args, **options))

        def _counted(self, read: pa.Table) -> pa.Table:
            rows.append(read.num_rows)
            return read

    monkeypatch.setattr(pq, "ParquetFile", Counted)
    again = TableLog(TableStore(tmp_path))
    assert list(again.refresh().files) == list(state.files)
    assert sum(rows) == len(list(state.actions()))
    assert again.count_removals() == 1000


def test_actions_among_removals_are_read_as_well(tmp_path: Path) -> None:
    """Another writer puts them anywhere, and may leave out how many nulls there are."""
    table = Table(tmp_path)
    table.take(("a", 0, 1, "v"))
    state = table.log.state
    gone = checkpoints.removals(table.store, [], [removed(f"gone-{n}", n) for n in range(10)])
    path = tmp_path / checkpoints.write(table.store, FOLDER, state.version, state.actions(), gone)
    whole = pq.read_table(path)
    for counts in (True, False):
        pq.write_table(whole.take(list(range(len(whole)))[::-1]), path, row_group_size=3, write_statistics=counts)
        assert list(TableLog(TableStore(tmp_path)).refresh().files) == list(state.files)


@pytest.mark.parametrize("content", ["", "[]", '{"version": 99}', '{"version": "x"}', '{"version": 1}'])
def test_a_note_of_the_last_checkpoint_that_says_nothing_true_is_passed_over(content: str, tmp_path: Path) -> None:
    table = Table(tmp_path)
    for n in range(2):
        table.take((f"k{n}", 0, n + 1, "v"))
        checkpoint(table.log)
    (tmp_path / FOLDER / "_last_checkpoint").write_text(content)
    (tmp_path / FOLDER / f"{1:020}.json").unlink()  # with a clean-up the commits after it would be gone, too
    again = TableLog(TableStore(tmp_path))
    assert (list(again.refresh().files), again.checkpointed) == (list(table.log.state.files), 2)


def test_a_file_that_came_back_and_went_again_stays_for_its_time(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.take(("a", 0, 1, "v"), ("b", 0, 2, "v"), fresh=[0])
    (first,) = table.log.state.files.values()
    optimize(table.log, table.indexes, everything=True)
    restore(table.log, 1)
    optimize(table.log, table.indexes, everything=True)
    checkpoint(table.log)
    then = time.time() + 30 * DAY
    assert first.path not in vacuum(table.log, 40 * DAY, then)
    assert first.path in vacuum(table.log, 20 * DAY, then)
