"""Ids are given out once, and go with a row that moves."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.lake.row_ids import IdColumns, mark, new_properties, next_row, with_ids, with_kept

COLUMNS = IdColumns("ids", "versions")


def add(path: str, rows: int, **more: Any) -> dict[str, Any]:
    return {"add": {"path": path, "stats": json.dumps({"numRecords": rows}), **more}}


def marked(following: int) -> dict[str, str]:
    (domain,) = mark(following).values()
    return {domain["domain"]: domain["configuration"]}


def test_files_get_ids_one_behind_the_other_and_the_mark_is_the_last() -> None:
    given = with_ids([add("a", 3), {"txn": {}}, add("b", 2)], 10, 7)
    assert [each.get("add", {}).get("baseRowId") for each in given] == [10, None, 13, None]
    assert [each.get("add", {}).get("defaultRowCommitVersion") for each in given] == [7, None, 7, None]
    assert given[-1] == mark(15) and next_row(marked(15)) == 15


def test_a_file_that_has_ids_keeps_them_and_a_commit_without_new_files_moves_no_mark() -> None:
    known = add("a", 3, baseRowId=4, defaultRowCommitVersion=1)
    assert with_ids([known], 10, 7) == [known]


def test_a_commit_may_begin_above_the_mark_and_never_below_it() -> None:
    assert with_ids([mark(20), add("a", 1)], 10, 7)[0]["add"]["baseRowId"] == 20
    assert with_ids([mark(5), add("a", 1)], 10, 7)[0]["add"]["baseRowId"] == 10
    assert with_ids([mark(20)], 0, 7) == [mark(20)]


def test_a_table_without_a_mark_begins_with_0() -> None:
    assert next_row({}) == 0
    assert next_row({"delta.rowTracking": '{"rowIdHighWaterMark":268,"domainName":"delta.rowTracking"}'}) == 269


def test_columns_that_a_table_had_keep_their_names() -> None:
    first = new_properties({})
    assert new_properties(first) == first and IdColumns.of(first) is not None
    assert IdColumns.of({}) is None and new_properties({}) != first


def test_a_row_that_moves_has_what_it_had_and_one_of_a_file_without_ids_has_none() -> None:
    arrays = [pa.array([None, 5, None], pa.int64()), pa.array([None, 2, None], pa.int64()), pa.nulls(3, pa.int64())]
    batch = pa.RecordBatch.from_arrays(arrays, schema=COLUMNS.folded)
    places = np.array([0, 4, 9])
    assert with_kept(batch, COLUMNS, places, 100, 8).to_pydict() == {
        "ids": [100, 5, 109],
        "versions": [8, 2, 8],
        "versions-sequence": [9, 3, 9],
    }
    assert with_kept(batch, COLUMNS, places, None, None).to_pydict() == {
        "ids": [None, 5, None],
        "versions": [None, 2, None],
        "versions-sequence": [None, 3, None],
    }
