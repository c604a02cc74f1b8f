"""Folding, rewriting, checkpoints, vacuum: the table is the same before and after, for whoever reads or writes it."""

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.errors import TableAway, TableChanged
from headwater.lake import upkeep
from headwater.lake.index import Indexes
from headwater.lake.log import FOLDER, Action, TableLog, TableState, data_file, removal
from headwater.lake.store import TableStore
from headwater.lake.upkeep import (
    DAY,
    FAN,
    Maintenance,
    choose,
    commit,
    describe,
    fold,
    optimize,
    seconds_of,
    tier_of,
    vacuum,
)
from tests.lake.support import SEED, Table, restore


def small_files(place: Path, count: int) -> Table:
    table = Table(place)
    for n in range(count):
        table.take(*[(f"k{n}-{i}", 0, 10 * n + i, "v") for i in range(5)], (f"k{n - 1}-0", 0, 10 * n + 9, None))
    return table


def expected(count: int) -> set[str]:
    return {f"k{n}-{i}" for n in range(count) for i in range(5) if i or n == count - 1}


def test_a_full_tier_of_small_files_becomes_one(tmp_path: Path) -> None:
    table = small_files(tmp_path, FAN)
    assert len(choose(table.log.state)) == FAN
    assert optimize(table.log, table.indexes) == FAN
    (file,) = table.log.state.files.values()
    assert (file.rows, file.vector, choose(table.log.state)) == (len(expected(FAN)), None, [])
    assert set(table.held()) == expected(FAN)
    table.take(("k3-1", 0, 1000, "new"), ("k4-1", 0, 1001, None))  # through the index that the fold wrote
    assert table.indexes.rebuilt == 0
    assert table.held()["k3-1"] == "new" and set(table.held()) == expected(FAN) - {"k4-1"}


def test_rows_that_die_while_their_files_are_folded_stay_dead(tmp_path: Path) -> None:
    table = small_files(tmp_path, FAN)
    folded = fold(table.store, table.log.state.fields, table.indexes, choose(table.log.state))
    table.take(("k2-2", 0, 1000, None), ("k5-3", 0, 1001, "new"), ("k0-1", 0, 1002, None))
    assert commit(table.log, folded)
    assert set(table.held()) == expected(FAN) - {"k2-2", "k0-1"}
    assert table.held()["k5-3"] == "new"
    table.take(("k5-3", 0, 1003, None))
    assert "k5-3" not in table.held()


def set_properties(table: Table, **properties: str) -> None:
    told = table.log.state.metadata
    named = {f"delta.{name}": text for name, text in properties.items()}
    changed = told | {"configuration": told["configuration"] | named}
    assert table.log.commit([{"metaData": changed}], "SET TBLPROPERTIES")


def test_a_fold_that_began_before_rows_came_back_to_life_is_not_committed(tmp_path: Path) -> None:
    table = small_files(tmp_path, 2)
    whole = table.log.state.version
    table.take(("k0-1", 0, 1000, None), ("k1-1", 0, 1001, None))
    folded = fold(table.store, table.log.state.fields, table.indexes, list(table.log.state.files.values()))
    restore(table.log, whole)
    assert not commit(table.log, folded)
    assert set(table.held()) == expected(2)


def test_a_fold_writes_no_vector_where_the_table_wants_none_any_more(tmp_path: Path) -> None:
    table = small_files(tmp_path, 2)
    folded = fold(table.store, table.log.state.fields, table.indexes, list(table.log.state.files.values()))
    table.take(("k0-1", 0, 1000, None))
    set_properties(table, enableDeletionVectors="false")
    assert not commit(table.log, folded)


def test_a_fold_whose_source_is_gone_leaves_out_its_rows(tmp_path: Path) -> None:
    table = small_files(tmp_path, FAN)
    files = choose(table.log.state)
    folded = fold(table.store, table.log.state.fields, table.indexes, files)
    table.take(*[(f"k3-{i}", 0, 2000 + i, None) for i in range(5)])  # all rows of one of them die
    assert commit(table.log, folded)
    assert len(table.log.state.files) == 1
    assert set(table.held()) == expected(FAN) - {f"k3-{i}" for i in range(5)}


def test_a_fold_whose_source_another_fold_moved_leaves_its_rows_where_they_are(tmp_path: Path) -> None:
    table = small_files(tmp_path, FAN)
    files = choose(table.log.state)
    folded = fold(table.store, table.log.state.fields, table.indexes, files)
    assert commit(table.log, fold(table.store, table.log.state.fields, table.indexes, files[:2]))
    assert commit(table.log, folded)
    assert len(table.log.state.files) == 2
    assert set(table.held()) == expected(FAN)


def test_a_fold_whose_sources_are_all_gone_is_not_committed(tmp_path: Path) -> None:
    table = small_files(tmp_path, FAN)
    files = choose(table.log.state)
    folded = [fold(table.store, table.log.state.fields, table.indexes, files) for _ in range(2)]
    assert [commit(table.log, each) for each in folded] == [True, False]
    assert set(table.held()) == expected(FAN)


def test_a_key_that_each_batch_overwrites_keeps_no_fold_away(tmp_path: Path) -> None:
    """The newest file has its row, so it is a source of each fold, and dead when that is committed."""
    table = small_files(tmp_path, FAN)
    for seqno in range(1000, 1003):
        folded = fold(table.store, table.log.state.fields, table.indexes, list(table.log.state.files.values()))
        table.take(("hot", 0, seqno, f"{seqno}"))
        assert commit(table.log, folded)
    assert table.held()["hot"] == "1002"
    assert set(table.held()) == expected(FAN) | {"hot"}
    assert len(table.log.state.files) == 2


def lose_an_answer(monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    """Let the name of one commit be given, and say that it was taken: a network file system that asks again when the
    answer was lost does so, and so do the libraries of object stores."""
    link, lost = os.link, []

    def linked(source: str, target: str, **folders: int) -> None:
        link(source, target, **folders)
        folder = Path(f"/proc/self/fd/{folders['src_dir_fd']}") if folders else Path()
        if not lost and f'"{operation}"' in (folder / source).read_text():
            lost.append(target)
            raise FileExistsError(17, "File exists", target)

    monkeypatch.setattr(os, "link", linked)


def test_a_fold_whose_answer_was_lost_keeps_the_files_that_the_table_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = small_files(tmp_path, FAN)
    lose_an_answer(monkeypatch, "OPTIMIZE")
    maintenance = Maintenance(table.log, SEED)
    maintenance.step()
    maintenance.close(finish=True)
    assert maintenance.problem == ""
    assert len(table.log.state.files) == 1
    assert set(table.held()) == expected(FAN)


@pytest.mark.parametrize("away", [FOLDER, ""])
def test_upkeep_of_a_table_whose_log_is_away_touches_nothing(away: str, tmp_path: Path) -> None:
    """A vacuum would find that no version needs any file; a checkpoint would begin a log."""
    place = tmp_path / "t"
    table = small_files(place, 2)
    age(place, 30)
    Path(place, away).rename(tmp_path / "away")
    before = sorted(tmp_path.rglob("*"))
    for log in (table.log, TableLog(TableStore(place))):
        for work in (vacuum, upkeep.checkpoint):
            with pytest.raises(TableAway, match="the table that was here is away"):
                work(log)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_vacuum_that_finds_another_table_in_the_place_of_its_own_stops(tmp_path: Path) -> None:
    place = tmp_path / "t"
    table = small_files(place, 3)
    upkeep.checkpoint(table.log)
    age(place, 40)
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
    age(place, 40)
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


@pytest.mark.parametrize("batches", [1, 5])
def test_a_checkpoint_does_not_land_in_the_log_of_the_table_that_takes_the_place_of_its_own(
    batches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another mirror puts the table away, and begins the next one, while the checkpoint is written."""
    place, actions = tmp_path / "t", TableState.actions
    table = small_files(place, 3)

    def while_written(state: TableState) -> Iterator[Action]:
        yield from actions(state)
        place.rename(tmp_path / "aside")
        small_files(place, batches)

    monkeypatch.setattr(TableState, "actions", while_written)
    with pytest.raises(TableAway, match="another table lies here"):
        upkeep.checkpoint(table.log)
    assert not list((place / FOLDER).glob("*checkpoint*"))
    new = TableLog(TableStore(place))
    assert new.refresh().id != table.log.state.id
    assert set(Table(place).held()) == expected(batches)


def test_a_lookup_that_was_made_before_a_fold_is_made_again(tmp_path: Path) -> None:
    table = small_files(tmp_path, FAN)
    written = table.write([("k2-2", 0, 1000, None)])
    optimize(table.log, table.indexes)
    with pytest.raises(TableChanged):
        table.commit(written)
    table.take(("k2-2", 0, 1000, None))
    assert set(table.held()) == expected(FAN) - {"k2-2"}


def test_a_file_that_is_mostly_dead_is_rewritten(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.take(*[(f"k{i}", 0, i + 1, "v") for i in range(10)], fresh=[0])
    table.take(*[(f"k{i}", 0, 100 + i, None) for i in range(6)])
    assert optimize(table.log, table.indexes) == 1
    (file,) = table.log.state.files.values()
    assert (file.rows, file.vector, len(table.held())) == (4, None, 4)


def test_files_of_before_a_column_was_added_are_folded_with_nulls(tmp_path: Path) -> None:
    table = small_files(tmp_path, FAN)
    state = table.log.state
    more = [*state.fields, {"name": "new", "type": "string", "nullable": True, "metadata": {}}]
    folded = fold(table.store, more, table.indexes, choose(state))
    read = pq.read_table(tmp_path / folded.files[0].path)
    assert read.column("new").null_count == read.num_rows == len(expected(FAN))


def test_a_fold_reads_a_row_group_at_a_time(tmp_path: Path) -> None:
    """However large its rows are: Arrow would fill a batch of 65,536 rows from as many groups as it takes."""
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"value": [bytes(1000)] * 40}), path, row_group_size=10)
    with pq.ParquetFile(path) as opened:
        assert [batch.num_rows for batch in upkeep._batches(opened)] == [10, 10, 10, 10]


def test_large_files_have_no_tier_and_the_tiers_are_eight_apart() -> None:
    def sized(size: int, dead: int = 0) -> int | None:
        vector = {"deletionVector": {"cardinality": dead}} if dead else {}
        return tier_of(data_file({"path": "x", "size": size, "stats": '{"numRecords": 100}', **vector}))

    assert [sized(size) for size in (1, 128 << 10, 1 << 20, 8 << 20, 64 << 20, 256 << 20)] == [0, 1, 2, 3, 4, None]
    assert sized(256 << 20, 90) == 3


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


def age(place: Path, days: float) -> None:
    then = time.time() - days * DAY
    for folder, _, names in os.walk(place):
        for name in names:
            os.utime(Path(folder, name), (then, then))


def test_vacuum_removes_what_no_version_within_the_retention_needs(tmp_path: Path) -> None:
    table = small_files(tmp_path, FAN)
    table.write([("orphan", 0, 5000, "of an attempt")])
    (tmp_path / ".headwater-half").write_bytes(b"x")
    (tmp_path / "_checkpoint").mkdir()
    (tmp_path / "_checkpoint" / "metadata").write_text("kept")
    optimize(table.log, table.indexes)
    assert vacuum(table.log) == []
    age(tmp_path, 8)
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
    age(tmp_path, 3)
    written = table.write([("k", 0, 5000, "of a batch that is under way")])
    assert vacuum(TableLog(TableStore(tmp_path)), now=time.time() + 400 * DAY) == []
    table.commit(written)
    assert "k" in table.held()


def test_a_file_that_was_removed_a_moment_ago_stays_however_old_it_is(tmp_path: Path) -> None:
    table = small_files(tmp_path, FAN)
    age(tmp_path, 30)
    optimize(table.log, table.indexes)
    assert [path for path in vacuum(table.log) if not path.startswith("_index")] == []


def test_old_commits_go_once_an_old_checkpoint_has_them(tmp_path: Path) -> None:
    table = small_files(tmp_path, 3)
    upkeep.checkpoint(table.log)
    age(tmp_path / FOLDER, 40)
    table.take(("later", 0, 900, "v"))
    removed = vacuum(table.log)
    assert removed == [f"{FOLDER}/{n:020d}.json" for n in range(3)]
    again = TableLog(TableStore(tmp_path)).refresh().files
    assert {path: file.vector for path, file in again.items()} == {
        path: file.vector for path, file in table.log.state.files.items()
    }
    assert set(table.held()) == expected(3) | {"later"}


KEPT = {"enableExpiredLogCleanup": "False", "requireCheckpointProtectionBeforeVersion": "4"}


@pytest.mark.parametrize("name", KEPT)
def test_old_commits_stay_where_the_table_says_so(name: str, tmp_path: Path) -> None:
    table = small_files(tmp_path, 3)
    upkeep.checkpoint(table.log)
    age(tmp_path / FOLDER, 40)
    set_properties(table, **{name: KEPT[name]})
    assert vacuum(table.log) == []
    set_properties(table, enableExpiredLogCleanup="true", requireCheckpointProtectionBeforeVersion="3")
    assert len(vacuum(table.log)) == 3


def test_no_old_commit_stays_alone_below_those_that_went(tmp_path: Path) -> None:
    """One that was touched or put back: the log has no gap, and time travel goes as far back as it shows."""
    table = small_files(tmp_path, 5)
    upkeep.checkpoint(table.log)
    (tmp_path / FOLDER / f"{0:020}.{1:020}.compacted.json").write_text("{}")
    age(tmp_path / FOLDER, 40)
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
    age(tmp_path / FOLDER, 40)
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
    age(tmp_path, 30)
    table.take(("later", 0, 900, "v"))
    assert [path for path in vacuum(table.log) if not path.startswith("_index")] == []
    assert (tmp_path / "part 1%.parquet").exists()


def test_a_checkpoint_forgets_removals_that_have_expired(tmp_path: Path) -> None:
    table = small_files(tmp_path, FAN)
    assert table.log.count_removals()
    upkeep.checkpoint(table.log, now=time.time() + 8 * DAY)
    again = TableLog(TableStore(tmp_path))
    assert again.refresh().files.keys() == table.log.state.files.keys()
    assert again.count_removals() == 0


def test_maintenance_folds_between_batches_and_what_fails_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tmp_path)
    maintenance = Maintenance(table.log, SEED)
    monkeypatch.setattr(upkeep, "CHECKPOINT_EVERY", 5)
    for n in range(3 * FAN):
        table.take((f"k{n}", 0, n + 1, "v"))
        maintenance.step()
    maintenance.close(finish=True)
    assert len(table.log.state.files) < 2 * FAN
    assert set(table.held()) == {f"k{n}" for n in range(3 * FAN)}
    assert list((tmp_path / FOLDER).glob("*.checkpoint.parquet"))
    monkeypatch.setattr(upkeep, "choose", lambda state: 1 / 0)
    again = Maintenance(table.log, SEED)
    again.step()
    assert again.problem == "upkeep: division by zero"
    again.close()


def test_maintenance_vacuums_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, seen, clock = Table(tmp_path), [], [0.0]
    monkeypatch.setattr(upkeep, "vacuum_at", lambda place, table: seen.append(place))
    maintenance = Maintenance(table.log, None, lambda: clock[0])
    for seconds in (0, upkeep.VACUUM_SECONDS, upkeep.VACUUM_SECONDS):
        clock[0] = seconds
        maintenance.step()
    maintenance.close()
    assert seen == [str(tmp_path)]


def test_a_vacuum_by_the_clock_that_fails_is_reported_once_and_tried_again_after_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, clock, ended = Table(tmp_path), [0.0], []

    def failing(place: str, table: str) -> None:
        ended.append(place)
        raise PermissionError("the store refuses to list")

    monkeypatch.setattr(upkeep, "vacuum_at", failing)
    maintenance = Maintenance(table.log, None, lambda: clock[0])

    def problem_at(hours: float) -> str:
        clock[0] = hours * upkeep.VACUUM_SECONDS
        maintenance.step()
        maintenance._thread.submit(int).result()  # whatever was submitted before has ended
        return maintenance.problem

    told = [problem_at(hours) for hours in (1, 1.1, 1.2, 2.1, 2.2, 2.3)]
    maintenance.close()
    failed = "upkeep: the store refuses to list"
    assert told == ["", failed, "", "", failed, ""] and len(ended) == 2


def test_a_table_in_numbers(tmp_path: Path) -> None:
    table = small_files(tmp_path, 3)
    told = describe(table.log)
    assert (told["files"], told["rows"], told["dead_rows"], told["bucket"], told["batches"]) == (3, 13, 2, "b", 3)
    optimize(table.log, Indexes(table.store, table.log.state.id, SEED), everything=True)
    assert describe(table.log)["files"] == 1


def test_the_history_tells_what_commits_did_as_far_back_as_the_log_has_them(tmp_path: Path) -> None:
    table = Table(tmp_path)
    for number in range(3):
        table.take(("a", 0, number + 1, "v"))
    told = upkeep.history(table.log)
    assert [each["version"] for each in told] == [3, 2, 1, 0]
    assert (told[0]["operation"], told[0]["operationMetrics"]["mutations"]) == ("MIRROR", "1")
    assert [each["version"] for each in upkeep.history(table.log, 2)] == [3, 2]
    (tmp_path / FOLDER / f"{1:020d}.json").unlink()
    assert [each["version"] for each in upkeep.history(table.log)] == [3, 2]
