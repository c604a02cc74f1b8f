"""The checker itself: what must not be is found."""

import pytest

from headwater import testing
from headwater.testing.checker import Violation
from headwater.testing.owners import OwnerWatch, check_history

LOG = [(3, 20), (2, 10), (1, 0)]


def test_a_history_that_holds_what_was_acknowledged_is_fine():
    check_history(LOG, [(1, 10), (2, 20), (3, 21)], before=[(2, 10), (1, 0)])


@pytest.mark.parametrize(
    ("log", "acknowledged", "before", "why"),
    [
        (LOG, [(9, 5)], [], "that is gone"),
        (LOG, [(2, 21)], [], "left that branch at 20"),
        (LOG, [], [(7, 0)], "the history began as"),
        ([(3, 5), (2, 10), (1, 0)], [], [], "no failover log"),
        ([(1, 5), (1, 0)], [], [], "no failover log"),
        ([(1, 5)], [], [], "no failover log"),
        ([], [], [], "no failover log"),
    ],
)
def test_a_history_that_lacks_something_is_found_out(log, acknowledged, before, why):
    with pytest.raises(Violation, match=why):
        check_history(log, acknowledged, before)


def test_two_owners_are_seen():
    with testing.node(vbuckets=2) as one:
        watch = OwnerWatch(one.port, one.port, 0)  # one node in both places is two owners
        watch.start()
        watch.wait_samples(10)
        with pytest.raises(Violation, match="both nodes own vbucket 0"):
            watch.finish()
