"""The rows of a quarantine that count, and how those that do not are taken back; in whole: tests/pipelines."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.lake import folds, upkeep
from headwater.lake.quarantine import REASON, QuarantineShape, bring_back, clear, columns, is_level
from tests.lake.support import Table, rows


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table(tmp_path)
    made.take(("a", 0, 1, "one"), ("b", 0, 2, "two"), fresh=[0])
    return made


def test_rows_are_those_of_a_table_whose_keys_are_bytes_and_the_reason() -> None:
    made = QuarantineShape(columns()).rows(rows(("a", 0, 1, "x"), ("b", 3, 2, "y")), ["no JSON", "an array"])
    assert made.column("key").to_pylist() == [b"a", b"b"]
    assert made.column(REASON).to_pylist() == ["no JSON", "an array"]
    assert [column["name"] for column in columns()][-1] == REASON


def test_a_batch_after_the_named_version_is_taken_back_and_counts_no_more(table: Table) -> None:
    named = table.log.state.version
    assert is_level(table.log, named)
    table.take(("a", 0, 3, None), ("c", 0, 4, "three"))
    assert not is_level(table.log, named)
    assert is_level(table.log, table.log.state.version)
    assert bring_back(table.log, named)
    assert table.held() == {"a": "one", "b": "two"}
    assert is_level(table.log, named)
    table.take(("d", 0, 5, "four"))
    assert not is_level(table.log, named)


def test_what_was_brought_back_for_another_version_is_not_level(table: Table) -> None:
    first = table.log.state.version
    table.take(("c", 0, 4, "three"))
    second = table.log.state.version
    assert bring_back(table.log, first)
    assert not is_level(table.log, second)
    assert bring_back(table.log, second)
    assert table.held() == {"a": "one", "b": "two", "c": "three"}


def test_a_fold_is_no_batch_and_what_it_folded_comes_back_with_its_dead_rows(table: Table) -> None:
    table.take(("a", 0, 3, None))
    named = table.log.state.version
    assert folds.optimize(table.log, None, everything=True)
    assert is_level(table.log, named)
    table.take(("b", 0, 4, None))
    upkeep.checkpoint(table.log)
    assert bring_back(table.log, named)
    assert table.held() == {"b": "two"}


def test_a_version_that_is_gone_or_was_never_there_can_not_be_brought_back(table: Table, tmp_path: Path) -> None:
    named = table.log.state.version
    assert not is_level(table.log, named + 5) and not bring_back(table.log, named + 5)
    table.take(("b", 0, 4, "three"))
    for file in tmp_path.glob("*.parquet"):
        file.unlink()
    version = table.log.state.version
    assert not bring_back(table.log, named)
    assert table.log.refresh().version == version
    clear(table.log)
    assert table.held() == {}
