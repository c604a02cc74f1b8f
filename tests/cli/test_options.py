"""The options that commands share."""

import pytest

from headwater.cli.options import vbucket_set
from tests.cli.support import Run


def test_a_list_of_vbuckets_may_hold_ranges() -> None:
    assert vbucket_set("0-2,700, 5") == [0, 1, 2, 5, 700]


def test_no_list_means_all() -> None:
    assert vbucket_set(None) is None


@pytest.mark.parametrize(
    "line", [("seqnos", "--vbuckets", "900"), ("failover-log", "16"), ("seqnos", "--vbuckets=3,16")]
)
def test_a_vbucket_that_the_bucket_has_not_is_told_with_those_it_has(run: Run, line: tuple[str, ...]) -> None:
    status, shown, told = run(*line)
    assert (status, shown) == (2, "") and "of this bucket, which has 0 to 15" in told and told.count("\n") == 1
