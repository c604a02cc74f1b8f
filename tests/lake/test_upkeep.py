"""Upkeep beside the batches: checkpoints, folds and vacuums come when they are due, and what fails ends nothing."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.errors import TableAway
from headwater.lake import upkeep
from headwater.lake.folds import FAN
from headwater.lake.log import FOLDER, Action, TableLog, TableState
from headwater.lake.store import TableStore
from headwater.lake.upkeep import Maintenance
from headwater.lake.vacuum import DAY, vacuum
from tests.lake.support import SEED, Table, aged, expected, small_files


@pytest.mark.parametrize("away", [FOLDER, ""])
def test_upkeep_of_a_table_whose_log_is_away_touches_nothing(away: str, tmp_path: Path) -> None:
    """A vacuum would find that no version needs any file; a checkpoint would begin a log."""
    place = tmp_path / "t"
    table = small_files(place, 2)
    aged(place, 30)
    Path(place, away).rename(tmp_path / "away")
    before = sorted(tmp_path.rglob("*"))
    for log in (table.log, TableLog(TableStore(place))):
        for work in (vacuum, upkeep.checkpoint):
            with pytest.raises(TableAway, match="the table that was here is away"):
                work(log)
    assert sorted(tmp_path.rglob("*")) == before


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
