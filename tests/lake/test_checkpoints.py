import errno
import io
import json
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import CorruptStore
from headwater.lake import checkpoints
from headwater.lake.log import FOLDER, TableLog
from headwater.lake.store import TableStore
from headwater.lake.upkeep import checkpoint
from headwater.pipelines.failures import passes
from tests.lake.support import Table, held


def test_the_state_is_the_same_with_and_without_the_commits_before_it(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.take(*[(f"k{n}", 0, n + 1, "v") for n in range(3000)], fresh=[0])
    table.take(*[(f"k{n}", 0, n + 5000, "w") for n in range(0, 3000, 2)])
    whole = table.log.state
    checkpoints.write(table.store, FOLDER, whole.version, whole.actions())
    for old in list((tmp_path / FOLDER).glob("*.json")):
        old.unlink()
    table.take(("k1", 0, 9000, "x"))
    again = TableLog(TableStore(tmp_path))
    state = again.refresh()
    assert (state.version, state.transactions, state.records) == (3, whole.transactions, whole.records)
    assert {file.add["path"]: (file.rows, file.vbuckets, file.vector) for file in state.files.values()} == {
        file.add["path"]: (file.rows, file.vbuckets, file.vector) for file in table.log.state.files.values()
    }
    assert (state.protocol, state.metadata) == (whole.protocol, whole.metadata)
    assert held(tmp_path) == {f"k{n}": "w" if n % 2 == 0 else "v" for n in range(3000)} | {"k1": "x"}


def test_a_log_without_its_beginning_and_without_a_checkpoint_is_told(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.take(("a", 0, 1, "v"))
    (tmp_path / FOLDER / f"{0:020d}.json").unlink()
    with pytest.raises(CorruptStore, match="no checkpoint is before it"):
        TableLog(TableStore(tmp_path)).refresh()


def test_arrow_has_no_file_of_pythons_left_when_a_checkpoint_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads let go of one that is open at any time, and abort a process that is ending."""
    table = Table(tmp_path)
    table.take(("a", 0, 1, "v"))
    checkpoints.write(table.store, FOLDER, table.log.state.version, table.log.state.actions())
    read: list[io.BytesIO] = []

    def opened(store: TableStore, path: str) -> io.BytesIO:
        read.append(io.BytesIO(store.read(path)))
        return read[-1]

    monkeypatch.setattr(TableStore, "opened", opened)
    assert TableLog(TableStore(tmp_path)).refresh().files
    assert [item.closed for item in read] == [True]


def checkpoint_that_is_cut(table: Table, place: Path) -> None:
    path = checkpoints.write(table.store, FOLDER, table.log.state.version, table.log.state.actions())
    (place / path).write_bytes((place / path).read_bytes()[:-20])


def test_a_checkpoint_that_is_cut_costs_nothing_while_the_commits_are_there(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.take(("a", 0, 1, "v"))
    checkpoint_that_is_cut(table, tmp_path)
    again = TableLog(TableStore(tmp_path))
    assert (again.refresh().version, again.checkpointed, again.state.files) == (1, -1, table.log.state.files)


def test_the_checkpoint_before_one_that_is_cut_counts(tmp_path: Path) -> None:
    table = Table(tmp_path)
    checkpoints.write(table.store, FOLDER, 0, table.log.state.actions())
    (tmp_path / FOLDER / f"{0:020d}.json").unlink()
    table.take(("a", 0, 1, "v"))
    checkpoint_that_is_cut(table, tmp_path)
    again = TableLog(TableStore(tmp_path))
    assert (again.refresh().version, again.checkpointed, again.state.files) == (1, 0, table.log.state.files)


def test_a_checkpoint_that_is_cut_is_told_where_the_commits_before_it_are_gone(tmp_path: Path) -> None:
    table = Table(tmp_path)
    checkpoint_that_is_cut(table, tmp_path)
    (tmp_path / FOLDER / f"{0:020d}.json").unlink()
    with pytest.raises(CorruptStore, match="not a checkpoint"):
        TableLog(TableStore(tmp_path)).refresh()


def test_a_mount_that_does_not_answer_while_a_checkpoint_is_read_is_an_outage_and_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged one ends a mirror for good; this one can be read a moment later."""
    table = Table(tmp_path)
    table.take(("k", 0, 1, "v"), fresh=[0])
    checkpoint(table.log)
    table.store.remove(f"{FOLDER}/{0:020d}.json")

    def stale(self: TableStore, path: str) -> Any:
        raise OSError(errno.ESTALE, "Stale file handle", path)

    monkeypatch.setattr(TableStore, "opened", stale)
    with pytest.raises(OSError, match="Stale file handle") as lost:
        TableLog(TableStore(tmp_path)).refresh()
    assert passes(lost.value)
    monkeypatch.undo()
    assert TableLog(TableStore(tmp_path)).refresh().version == 1


def test_the_newest_checkpoint_with_all_its_parts_counts(tmp_path: Path) -> None:
    table = Table(tmp_path)
    path = checkpoints.write(table.store, FOLDER, 0, table.log.state.actions())
    assert json.loads((tmp_path / FOLDER / "_last_checkpoint").read_text())["version"] == 0
    content = (tmp_path / path).read_bytes()
    for part in (1, 2):
        (tmp_path / FOLDER / f"{3:020d}.checkpoint.{part:010d}.{3:010d}.parquet").write_bytes(content)
    found = checkpoints.newest(table.store, FOLDER)
    assert found is not None and found[0] == 0
