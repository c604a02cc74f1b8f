"""The index's memory."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.errors import StorageError
from headwater.kernels import index
from headwater.node.storage.columns import Columns, Index


def filled(vbuckets: int, keys: int, factor: float = 1.25) -> Index:
    """An index in which so many keys were stored one by one; only what growing looks at is real."""
    made = Index(vbuckets, (1, 2))
    for vb in range(vbuckets):
        row = made.table[vb]
        while row[index.ROWS] < keys:
            made.grow(vb, factor=factor)
            row[index.ROWS] = min(keys, row[index.CAPACITY], int(row[index.KEYS_MAX]))
            row[index.KEYS] = row[index.ROWS]
            made.columns[vb].next[:] = 0
    return made


@pytest.mark.parametrize(("vbuckets", "keys"), [(1, 1_000_000), (64, 15_625), (256, 977), (16, 1537), (16, 1500)])
def test_a_key_takes_56_bytes_at_most_with_all_that_is_kept_free(vbuckets: int, keys: int) -> None:
    made = filled(vbuckets, keys)
    columns = sum(one.nbytes for one in made.columns)
    assert made.nbytes() == columns + made.table.nbytes
    assert columns / (vbuckets * keys) <= 56
    for vb in range(vbuckets):
        made.fit(vb)
    assert sum(one.nbytes for one in made.columns) / (vbuckets * keys) <= 48


def test_an_empty_vbucket_takes_nothing() -> None:
    assert Index(1024, (1, 2)).nbytes() == 1024 * index.FIELDS * 8
    made = filled(2, 100)
    made.reset(0)
    made.reset(1)
    assert made.nbytes() == made.table.nbytes


def test_the_table_of_slots_always_has_a_free_one() -> None:
    made = filled(1, 5000)
    assert made.table[0, index.KEYS_MAX] < len(made.columns[0].slots)


def test_growing_keeps_the_old_columns_for_those_who_read_them() -> None:
    made = filled(1, 10)
    old = made.columns[0]
    old.seq[:10] = np.arange(10)
    made.grow(0, rows=1000, keys=1000)
    assert made.columns[0] is not old
    assert list(made.columns[0].seq[:10]) == list(range(10))
    assert made.table[0, index.CAPACITY] >= 1010
    old.seq[:10] = 0
    assert list(made.columns[0].seq[:10]) == list(range(10))


def test_more_rows_than_32_bits_count_are_refused() -> None:
    made = Index(1, (1, 2))
    with pytest.raises(StorageError, match="compact, or use more vbuckets"):
        made.grow(0, rows=index.ROWS_MAX + 1)


def test_columns_of_no_rows_have_one_slot_that_is_free() -> None:
    assert Columns(0, 1).slots.tolist() == [0xFFFFFFFF]
