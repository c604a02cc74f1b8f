"""Expiry and CAS; the clock is an argument."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.wire.numbers import HELD_MAX
from headwater.wire.times import absolute_expiry, is_expired, next_cas

NOW = 1_700_000_000


@pytest.mark.parametrize(
    ("expiration", "absolute"),
    [(0, 0), (1, NOW + 1), (2_592_000, NOW + 2_592_000), (2_592_001, 2_592_001), (NOW - 5, NOW - 5)],
)
def test_up_to_30_days_counts_from_now(expiration, absolute):
    assert absolute_expiry(expiration, NOW) == absolute


def test_an_expiry_never_leaves_its_32_bits():
    assert absolute_expiry(1000, 0xFFFF_FFFF - 1) == 0xFFFF_FFFF


def test_a_document_runs_out_at_its_second():
    assert not is_expired(NOW + 1, NOW) and is_expired(NOW, NOW) and is_expired(1, NOW) and not is_expired(0, NOW)


@given(st.lists(st.integers(0, 1 << 62), min_size=2, max_size=10))
def test_cas_only_grows_whatever_the_clock_does(clock):
    given_out = []
    for now in clock:
        given_out.append(next_cas(given_out[-1] if given_out else 0, now, 1))
    assert given_out == sorted(set(given_out))


def test_cas_is_the_clock_with_16_bits_to_count_in():
    assert next_cas(0, 0x1234_5678_9ABC, 7) == 0x1234_5678_0000
    assert next_cas(0x1234_5678_0000, 0x1234_5678_9ABC, 7) == 0x1234_5678_0001


def test_behind_the_highest_cas_it_is_the_clock_again_and_another_for_each_change():
    assert next_cas(HELD_MAX - 1, 0x1234_5678_9ABC, 7) == HELD_MAX
    assert next_cas(HELD_MAX, 0x1234_5678_9ABC, 0x5_0007) == 0x1234_5678_0007
