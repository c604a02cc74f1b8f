"""The vacuum: what no version within the retention needs is removed, and nothing else."""

import math
import os
import time
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import TableAway
from headwater.lake import upkeep
from headwater.lake.folds import FAN, optimize
from headwater.lake.log import FOLDER, TableLog, removal
from headwater.lake.store import TableStore
from headwater.lake.vacuum import DAY, seconds_of, vacuum
from tests.lake.support import Table, aged, expected, set_properties, small_files

KEPT = {"enableExpiredLogCleanup": "False", "requireCheckpointProtectionBeforeVersion": "4"}


def test_a_vacuum_that_finds_another_table_in_the_place_of_its_own_stops(tmp_path: Path) -> None:
    place = tmp_path / "t"
    table = small_files(place, 3)
    upkeep.checkpoint(table.log)
    aged(place, 40)
    table.take(("later", 0, 900, "v"))

    def made_anew(done: int, total: int) -> None:
        if not done:
            place.rename(tmp_path / "aside")
            small_files(place, 3)

    with pytest.raises(TableAway, match="another table lies here"):
        vacuum(table.log, tell=made_anew)
    assert set(Table(place).held()) == expected(3)


def test_a_vacuum_removes_no_commit_of_the_table_that_takes_the_place_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, remove = tmp_path / "t", TableStore.remove
    table = small_files(place, 3)
    upkeep.checkpoint(table.log)
    aged(place, 40)
    table.take(("later", 0, 900, "v"))

    def removed(store: TableStore, path: str, *more: Any) -> None:
        if path.startswith(FOLDER) and not (tmp_path / "aside").exists():
            place.rename(tmp_path / "aside")
            small_files(place, 3)
        remove(store, path, *more)

    monkeypatch.setattr(TableStore, "remove", removed)
    with pytest.raises(TableAway, match="another table lies here"):
        vacuum(table.log)
    assert set(Table(place).held()) == expected(3)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("interval 7 days", 7 * DAY),
        ("2 hours", 7200.0),
        ("INTERVAL 30 days 12 hours", 30.5 * DAY),
        ("interval 4 weeks 2 days", 30 * DAY),
        ("interval 1 week 500 milliseconds", 7 * DAY + 0.5),
        (None, 5.0),
        ("soon", math.inf),
        ("interval 3 fortnights", math.inf),
        ("interval -1 days", math.inf),
        ("", math.inf),
    ],
)
def test_intervals_are_read(text: str | None, seconds: float) -> None:
    assert seconds_of(text, 5.0) == seconds


def test_vacuum_removes_what_no_version_within_the_retention_needs(tmp_path: Path) -> None:
    table = small_files(tmp_path, FAN)
    table.write([("orphan", 0, 5000, "of an attempt")])
    (tmp_path / ".headwater-half").write_bytes(b"x")
    (tmp_path / "_checkpoint").mkdir()
    (tmp_path / "_checkpoint" / "metadata").write_text("kept")
    optimize(table.log, table.indexes)
    assert vacuum(table.log) == []
    aged(tmp_path, 8)
    os.utime(tmp_path / FOLDER / f"{table.log.state.version:020}.json")
    later = time.time() + 8 * DAY
    told = vacuum(table.log, now=later, dry=True)
    assert sorted(vacuum(table.log, now=later)) == sorted(told)
    assert len(list(tmp_path.glob("*.parquet"))) == len(list(tmp_path.glob("_index/*"))) == 1
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.endswith(".parquet")) == [
        "_checkpoint",
        FOLDER,
        "_index",
    ]
    assert set(table.held()) == expected(FAN)


def test_a_file_of_a_batch_that_is_under_way_stays_also_under_a_clock_that_is_a_year_off(tmp_path: Path) -> None:
    table = small_files(tmp_path, 2)
    aged(tmp_path, 3)
    written = table.write([("k", 0, 5000, "of a batch that is under way")])
    assert vacuum(TableLog(TableStore(tmp_path)), now=time.time() + 400 * DAY) == []
    table.commit(written)
    assert "k" in table.held()


def test_a_file_that_was_removed_a_moment_ago_stays_however_old_it_is(tmp_path: Path) -> None:
    table = small_files(tmp_path, FAN)
    aged(tmp_path, 30)
    optimize(table.log, table.indexes)
    assert [path for path in vacuum(table.log) if not path.startswith("_index")] == []


def test_old_commits_go_once_an_old_checkpoint_has_them(tmp_path: Path) -> None:
    table = small_files(tmp_path, 3)
    upkeep.checkpoint(table.log)
    aged(tmp_path / FOLDER, 40)
    table.take(("later", 0, 900, "v"))
    removed = vacuum(table.log)
    assert removed == [f"{FOLDER}/{n:020d}.json" for n in range(3)]
    again = TableLog(TableStore(tmp_path)).refresh().files
    assert {path: file.vector for path, file in again.items()} == {
        path: file.vector for path, file in table.log.state.files.items()
    }
    assert set(table.held()) == expected(3) | {"later"}


@pytest.mark.parametrize("name", KEPT)
def test_old_commits_stay_where_the_table_says_so(name: str, tmp_path: Path) -> None:
    table = small_files(tmp_path, 3)
    upkeep.checkpoint(table.log)
    aged(tmp_path / FOLDER, 40)
    set_properties(table, **{name: KEPT[name]})
    assert vacuum(table.log) == []
    set_properties(table, enableExpiredLogCleanup="true", requireCheckpointProtectionBeforeVersion="3")
    assert len(vacuum(table.log)) == 3


def test_no_old_commit_stays_alone_below_those_that_went(tmp_path: Path) -> None:
    """One that was touched or put back: the log has no gap, and time travel goes as far back as it shows."""
    table = small_files(tmp_path, 5)
    upkeep.checkpoint(table.log)
    (tmp_path / FOLDER / f"{0:020}.{1:020}.compacted.json").write_text("{}")
    aged(tmp_path / FOLDER, 40)
    os.utime(tmp_path / FOLDER / f"{2:020}.json")
    table.take(("later", 0, 900, "v"))
    named = (f"{0:020}.{1:020}.compacted.json", f"{0:020}.json", f"{1:020}.json")
    assert vacuum(table.log) == [f"{FOLDER}/{name}" for name in named]


@pytest.mark.parametrize("parts", [1, 2])
def test_commits_stay_that_only_a_checkpoint_has_which_is_cut_or_lacks_a_part(parts: int, tmp_path: Path) -> None:
    """Spark may have died while it wrote one."""
    table = small_files(tmp_path, 3)
    name = f"{2:020d}.checkpoint.parquet" if parts == 1 else f"{2:020d}.checkpoint.{1:010d}.{2:010d}.parquet"
    (tmp_path / FOLDER / name).write_bytes(b"PAR1")
    aged(tmp_path / FOLDER, 40)
    table.take(("later", 0, 900, "v"))
    assert vacuum(table.log) == []
    assert TableLog(TableStore(tmp_path)).refresh().files.keys() == table.log.state.files.keys()


@pytest.mark.parametrize("written", ["part%201%25.parquet", "file://{place}/part%201%25.parquet"])
def test_a_file_that_the_log_names_in_its_own_way_stays(written: str, tmp_path: Path) -> None:
    """The log's paths are urls, relative or not."""
    table = small_files(tmp_path, 1)
    (file,) = table.log.state.files.values()
    (tmp_path / file.path).rename(tmp_path / "part 1%.parquet")
    path = written.format(place=tmp_path)
    assert table.log.commit([removal(file, 0), {"add": file.add | {"path": path}}], "OPTIMIZE")
    aged(tmp_path, 30)
    table.take(("later", 0, 900, "v"))
    assert [path for path in vacuum(table.log) if not path.startswith("_index")] == []
    assert (tmp_path / "part 1%.parquet").exists()
