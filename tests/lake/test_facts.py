"""Facts about a table: its numbers, and what its commits did."""

from pathlib import Path

from headwater.lake import facts
from headwater.lake.facts import describe
from headwater.lake.folds import optimize
from headwater.lake.index import Indexes
from headwater.lake.log import FOLDER
from tests.lake.support import SEED, Table, small_files


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
    told = facts.history(table.log)
    assert [each["version"] for each in told] == [3, 2, 1, 0]
    assert (told[0]["operation"], told[0]["operationMetrics"]["mutations"]) == ("MIRROR", "1")
    assert [each["version"] for each in facts.history(table.log, 2)] == [3, 2]
    (tmp_path / FOLDER / f"{1:020d}.json").unlink()
    assert [each["version"] for each in facts.history(table.log)] == [3, 2]
