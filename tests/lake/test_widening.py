"""Columns of numbers that get wider: which type a column has, and what the table's log says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import UnsupportedTable
from headwater.lake import widening
from headwater.lake.commit import DOMAIN
from headwater.lake.iceberg import entry
from headwater.lake.layout import OF_DELTA, OF_ICEBERG, TableLayout
from headwater.lake.log import TableLog, creation, record, schema_string
from headwater.lake.places import store_of
from headwater.lake.shape import TYPE_CHANGES, WIDENING
from headwater.lake.unfold import REST, UNFOLDED, JsonShape, agrees, merged, width_of
from headwater.lake.widening import ENABLED
from tests.lake.iceberg.support import set_published
from tests.lake.support import rows

TO_LONG, TO_DOUBLE = ({"fromType": "integer", "toType": kind} for kind in ("long", "double"))


def unfolded(shape: JsonShape, *documents: dict[str, Any]) -> list[dict[str, Any]]:
    """The documents' rows, each with the fields that have a value."""
    batch = rows(*((f"k{n}", 0, n + 1, json.dumps(document)) for n, document in enumerate(documents)))
    names = [column for column, _ in shape.columns.of.values()]
    made = shape.rows(batch)
    names = [*(column for column, _ in shape.columns.of.values()), REST]
    return [{name: row[name] for name in names if row[name] is not None} for row in made.to_pylist()]


def shape_of(*added: dict[str, Any], widenings: Any = widening.OF_DELTA) -> JsonShape:
    return JsonShape([*UNFOLDED.columns, *added], widenings)


def column(shape: JsonShape, name: str) -> tuple[Any, list[Any]]:
    """A column's type, and the changes of it."""
    described = next(each for each in shape.described if each["name"] == name)
    return described["type"], described["metadata"].get(TYPE_CHANGES, [])


@pytest.mark.parametrize(("values", "kind"), [
    ([1, -2147483648, None], "integer"),
    ([1, 2147483648], "long"),
    ([1, 1.5], "double"),
    ([True, False], "boolean"),
    ([1, 10**30], "integer"),
])  # fmt: skip
def test_a_new_column_has_the_narrowest_type_of_its_first_values(values: list[Any], kind: str) -> None:
    shape = shape_of()
    unfolded(shape, *({"n": value} for value in values))
    assert column(shape, "n") == (kind, [])


def test_without_widening_whole_numbers_have_64_bits() -> None:
    shape = shape_of(widenings=frozenset())
    assert unfolded(shape, {"n": 1}) == [{"n": 1}]
    assert column(shape, "n") == ("long", [])


@pytest.mark.parametrize(("value", "kind", "changes"), [(1 << 40, "long", [TO_LONG]), (1.5, "double", [TO_DOUBLE])])
def test_a_column_gets_wider_with_a_later_batch(value: float, kind: str, changes: list[Any]) -> None:
    shape = shape_of()
    assert unfolded(shape, {"n": 7}) == [{"n": 7}]
    later = shape_of(*shape.added)
    assert unfolded(later, {"n": 7}) == [{"n": 7}] and later.added == []
    assert unfolded(later, {"n": 7}, {"n": value}) == [{"n": 7}, {"n": value}]
    assert column(later, "n") == (kind, changes) and [each["type"] for each in later.added] == [kind]
    assert unfolded(later, {"n": 2**31}) == [{"n": 2**31}]


def test_a_column_gets_no_wider_than_readers_of_the_older_files_allow() -> None:
    of_iceberg = shape_of(widenings=widening.OF_ICEBERG)
    unfolded(of_iceberg, {"n": 7})
    assert unfolded(of_iceberg, {"n": 1.5}, {"n": 8}) == [{REST: '{"n": 1.5}'}, {"n": 8}]
    of_delta = shape_of()
    unfolded(of_delta, {"n": 7})
    assert unfolded(of_delta, {"n": 1 << 40}, {"n": "a"}) == [{"n": 1 << 40}, {REST: '{"n": "a"}'}]
    assert unfolded(of_delta, {"n": 1.5}) == [{REST: '{"n": 1.5}'}]  # from 64 bits to a double values would change
    assert column(of_delta, "n") == ("long", [TO_LONG])


@pytest.mark.parametrize("value", [10**30, -(10**400), "1", True, None, [1], {"a": 1}])
def test_a_value_that_no_type_of_numbers_has_widens_nothing(value: Any) -> None:
    assert width_of(value) is None


def test_tasks_of_one_batch_agree_on_the_type_or_write_again() -> None:
    first = shape_of()
    unfolded(first, {"n": 7})
    tasks = [shape_of(*first.added) for _ in range(3)]
    for task, value in zip(tasks, (8, 1 << 40, 1.5), strict=True):
        unfolded(task, {"n": value})
    fields = merged(first.described, [tasks[1].added])
    assert agrees(fields, tasks[1].added) and fields[-1] == tasks[1].described[-1]
    both = merged(first.described, [task.added for task in tasks[1:]])
    assert (both[-1]["type"], both[-1]["metadata"][TYPE_CHANGES]) == ("double", [TO_DOUBLE])
    assert not agrees(both, tasks[1].added) and agrees(both, tasks[2].added)
    # Another process has made it one of 64 bits meanwhile: no double any more.
    assert merged(fields, [tasks[2].added]) == fields and not agrees(fields, tasks[2].added)


def test_a_field_without_a_name_widens_its_own_column_only() -> None:
    """The column has no name of the mirror's own columns, some of which are whole numbers of 32 bits."""
    shape = shape_of()
    unfolded(shape, {"": 1 << 40})
    kinds = {column["name"]: column["type"] for column in UNFOLDED.columns}
    then = {each["name"]: each["type"] for each in merged(UNFOLDED.columns, [shape.added])}
    assert then.items() > kinds.items() and "integer" in kinds.values()


def test_a_new_column_that_gets_wider_within_a_task_says_so() -> None:
    """The task's first file has 32 bits, its second one 64."""
    shape = shape_of()
    for value in (1, 1 << 40):
        unfolded(shape, {"n": value})
    fields = merged(UNFOLDED.columns, [shape.added])
    assert agrees(fields, shape.added) and fields[-1]["metadata"][TYPE_CHANGES] == [TO_LONG]


def log_of(place: Path, layout: TableLayout = OF_DELTA, *, vectors: bool = True) -> TableLog:
    log = TableLog(store_of(place))
    begun = record(DOMAIN, {"v": 1, "bucket": "b", "end": {}, "batch": 0})
    assert log.commit([*creation(UNFOLDED.columns, {}, "b", layout=layout, vectors=vectors), begun], "CREATE TABLE")
    log.refresh()
    return log


@pytest.mark.parametrize("vectors", [True, False])
def test_a_table_that_exists_begins_in_one_commit_and_only_once(tmp_path: Path, *, vectors: bool) -> None:
    log = log_of(tmp_path, vectors=vectors)
    assert widening.widenings_of(log.state) == frozenset()
    for _ in range(2):
        widening.begin(log)
    protocol = TableLog(log.store).refresh().protocol
    assert log.state.version == 1 and log.state.says(ENABLED) and protocol["minReaderVersion"] == 3
    assert all(WIDENING in protocol[f"{side}Features"] for side in ("reader", "writer"))
    assert log.state.vectors == vectors and widening.widenings_of(log.state) == widening.OF_DELTA


def test_a_table_that_iceberg_reads_gets_only_what_iceberg_has(tmp_path: Path) -> None:
    both = log_of(tmp_path / "both")
    set_published(both)
    for log in (both, log_of(tmp_path / "alone", OF_ICEBERG)):
        widening.begin(log)
        assert widening.widenings_of(log.state) == widening.OF_ICEBERG


def test_a_table_that_was_widened_to_a_double_is_not_published(tmp_path: Path) -> None:
    """Readers of Iceberg can't read its older files."""
    log = log_of(tmp_path)
    widening.begin(log)
    first = shape_of()
    unfolded(first, {"n": 1}, {"m": 1})
    for value, name in ((1 << 40, "m"), (1.5, "n")):
        unfolded(first, {name: value})
    then = merged(log.state.fields, [first.added])
    assert log.commit([{"metaData": log.state.metadata | {"schemaString": schema_string(then)}}], "ADD COLUMNS")
    with pytest.raises(UnsupportedTable, match="n: double, widened from integer"):
        entry.check_columns(log.store.root, log.refresh().fields)
    entry.check_columns(log.store.root, [field for field in log.state.fields if field["name"] != "n"])
