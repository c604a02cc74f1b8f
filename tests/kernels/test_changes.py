"""The numbers in stored changes: absolute expiry and the hybrid clock of CAS values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.kernels.builds import debug_copy
from headwater.kernels.index import CAS, FIELDS, HIGH
from headwater.wire.numbers import HELD_MAX
from headwater.wire.times import absolute_expiry, next_cas

changes = debug_copy("headwater.kernels.changes")
NOON = 1_700_000_000


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_expiry_is_made_absolute_as_on_the_plain_path(expiry: int, now: int) -> None:
    assert int(changes.absolute(np.uintp(expiry), np.uintp(now))) == absolute_expiry(expiry, now)


@pytest.mark.parametrize(
    ("rev", "next_one"), [(0, 1), (7, 8), (2**63 - 2, 2**63 - 1), (2**63 - 1, 2**63 - 1), (2**64 - 9, 2**64 - 9)]
)
def test_a_revision_grows_up_to_the_highest_that_others_take(rev: int, next_one: int) -> None:
    with np.errstate(over="ignore"):
        assert int(changes.above(np.uintp(rev))) == next_one


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (0, (NOON * 10**9) & ~0xFFFF),
        ((NOON * 10**9) & ~0xFFFF, ((NOON * 10**9) & ~0xFFFF) + 1),
        (2**63, 2**63 + 1),
        (HELD_MAX - 1, HELD_MAX),
        (HELD_MAX, (NOON * 10**9) & ~0xFFFF | 6),
        (2**64 - 1, (NOON * 10**9) & ~0xFFFF | 6),
    ],
)
def test_a_cas_is_the_time_or_one_more_than_the_last(last: int, expected: int) -> None:
    table = np.zeros((1, FIELDS), np.uint64)
    table[0, CAS], table[0, HIGH] = last, 5
    assert next_cas(last, NOON * 10**9, 6) == expected
    assert int(changes.next_cas(table, 0, np.uintp(NOON * 10**9))) == expected
