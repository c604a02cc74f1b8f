"""The options that commands share."""

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from headwater.cli.options import vbucket_set


def test_a_list_of_vbuckets_may_hold_ranges() -> None:
    assert vbucket_set("0-2,700, 5") == [0, 1, 2, 5, 700]


def test_no_list_means_all() -> None:
    assert vbucket_set(None) is None


@pytest.mark.parametrize("text", ["", "x", "1-", "-1", "5-3", "0-1024", "1024", "1,,2", "1.5"])
def test_what_is_no_list_of_vbuckets_is_named(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="--vbuckets"):
        vbucket_set(text)


@given(st.sets(st.integers(0, 1023), min_size=1))
def test_any_set_written_out_is_read_back(chosen: set[int]) -> None:
    assert vbucket_set(",".join(map(str, chosen))) == sorted(chosen)
