from pathlib import Path
from typing import Any

import pytest

from headwater.errors import OptionError, TableError
from headwater.lake.commit import DOMAIN
from headwater.lake.log import TableLog, creation, record
from headwater.lake.places import store_of
from headwater.lake.shape import fields
from headwater.pipelines.tables import fold, fold_plan, open_table, vacuum, vacuum_plan
from headwater.pipelines.tasks import SEED as INDEX_SEED
from tests.lake.support import SEED, Table


def test_a_folder_without_a_table_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="there is no table here"):
        open_table(str(tmp_path / "nothing"))


def test_a_table_is_folded_as_planned_and_keeps_files_within_its_retention(tmp_path: Path) -> None:
    log = TableLog(store_of(tmp_path))
    begun = record(DOMAIN, {"v": 1, "bucket": "b", "end": {}, "batch": 0})
    assert log.commit([*creation(fields(), {INDEX_SEED: SEED.hex()}, "b"), begun], "CREATE TABLE")
    table, place, steps = Table(tmp_path), str(tmp_path), list[tuple[int, int]]()
    for number in range(3):
        table.take((f"k{number}", number, 1, "v"))
    before = len(table.log.refresh().files)

    def tell(done: int, total: int) -> None:
        steps.append((done, total))

    assert fold_plan(place, tell).is_empty
    plan = fold_plan(place, tell, everything=True)
    assert plan.lines == (f"{before} of {before} files would be folded",)
    assert plan.facts == {"folded": 0, "chosen": before, "before": before}
    outcome = fold(place, tell, everything=True)
    assert outcome.line == f"folded {before} files: the table had {before} and has 1"
    assert (outcome.facts, steps[-1]) == ({"folded": before, "before": before, "after": 1}, (0, before))
    plan = vacuum_plan(place, tell)
    assert (plan.is_empty, plan.facts) == (True, {"files": [], "removed": 0})
    outcome = vacuum(place, tell)
    assert (outcome.line, outcome.facts) == ("0 files were removed", {"files": [], "removed": 0})


@pytest.mark.parametrize("work", [vacuum, vacuum_plan])
@pytest.mark.parametrize("seconds", [-1.0, 0.0, 3599.0, float("nan")])
def test_a_vacuum_takes_no_files_of_the_last_hour(work: Any, seconds: float, tmp_path: Path) -> None:
    """A batch that is under way would lose its files before its commit."""
    with pytest.raises(OptionError, match="3600 or more"):
        work(str(tmp_path), lambda done, total: None, seconds=seconds)
