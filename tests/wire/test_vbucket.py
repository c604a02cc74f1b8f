"""vbucket states and the place of a key."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import OptionError
from headwater.wire.vbucket import State, vbucket_of, vbucket_set


def test_replica_is_2_and_pending_is_3():
    assert [(state.name, state.value) for state in State] == [
        ("ACTIVE", 1),
        ("REPLICA", 2),
        ("PENDING", 3),
        ("DEAD", 4),
    ]


def test_a_key_is_placed_by_the_middle_of_its_crc():
    assert vbucket_of(b"123456789", 1024) == (0xCBF43926 >> 16) & 0x7FFF & 1023  # the check value of CRC-32
    assert vbucket_of(b"", 1024) == 0


def test_keys_spread_over_all_vbuckets():
    counts = Counter(vbucket_of(b"key-%d" % number, 64) for number in range(6400))
    assert len(counts) == 64 and max(counts.values()) < 200


def test_a_list_of_vbuckets_may_hold_ranges_and_names_each_once():
    assert vbucket_set("7, 0-2,2 ,700") == (0, 1, 2, 7, 700)


@pytest.mark.parametrize("text", ["", "x", "1-", "-1", "5-3", "1,,2", "1.5", "1-2-3", "\u0663", "9" * 5000])
def test_what_is_no_list_of_vbuckets_is_refused(text: str):
    with pytest.raises(OptionError, match="a vbucket list such as 0-511,700"):
        vbucket_set(text)


@pytest.mark.parametrize(("text", "count"), [("0-1024", 1024), ("64", 64), ("0-99999", 1024)])
def test_a_vbucket_that_is_not_there_is_named(text: str, count: int):
    with pytest.raises(OptionError, match=f"is out of range, there are 0 to {count - 1}"):
        vbucket_set(text, count)


@given(st.sets(st.integers(0, 1023), min_size=1))
def test_any_set_written_out_is_read_back(chosen: set[int]):
    assert vbucket_set(",".join(map(str, chosen))) == tuple(sorted(chosen))
