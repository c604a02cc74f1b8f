"""The judge of what a change replaced: each wrong version is found, and what is not kept is counted."""

from collections import Counter
from dataclasses import dataclass, replace

import pytest

from harness.simulation.histories import Broken, Change
from harness.world.befores import BeforesJudge
from harness.world.watcher import Branches
from headwater.client.befores import Before, Lack, Replaced
from tests.harness.world.resting import resting

LOG = ((0xB, 4), (0xA, 0))
FIRST, SECOND, GONE = Change(b"k", b"v1-", 11, 1, 3, 5), Change(b"k", b"v2-", 12, 2), Change(b"k", None, 13, 3)
IMAGE = Before(seqno=1, rev_seqno=1, cas=11, flags=3, expiry=5, datatype=0, value=b"v1-")


@dataclass
class Shown:
    """A change of the document k in vbucket 0."""

    seqno: int
    before: Replaced
    key: bytes = b"k"
    vbucket: int = 0


def judge() -> BeforesJudge:
    """Return a judge of a vbucket: k was created as 1, changed as 2 in a branch that was given up, and deleted as 6."""
    branches = Branches()
    branches.sent(0, b"k", b"v9-")
    branches.wrote("n0", 0, 0xA, 1, FIRST)
    branches.wrote("n0", 0, 0xA, 5, replace(FIRST, value=b"v9-", cas=19))
    branches.wrote("n1", 0, 0xB, 5, SECOND)
    branches.wrote("n1", 0, 0xB, 6, GONE)
    return BeforesJudge(branches, Counter())


def test_the_version_before_is_the_newest_one_of_the_same_history() -> None:
    made = judge()
    made.judge("r", LOG, Shown(1, None))
    made.judge("r", LOG, Shown(5, IMAGE))
    made.judge("r", LOG, Shown(6, Before(5, 2, 12, 0, 0, 0, b"v2-")))
    made.judge("r", LOG, Shown(7, None))
    assert made.counts == {"replaced versions judged": 4}


@pytest.mark.parametrize(
    ("seqno", "before"),
    [
        (1, IMAGE),
        (5, None),
        (6, IMAGE),
        (6, Before(5, 2, 19, 0, 0, 0, b"v9-")),
        (7, Before(5, 2, 12, 0, 0, 0, b"v2-")),
        (5, replace(IMAGE, seqno=2)),
        (5, replace(IMAGE, rev_seqno=2)),
        (5, replace(IMAGE, cas=12)),
        (5, replace(IMAGE, flags=0)),
        (5, replace(IMAGE, expiry=0)),
    ],
)
def test_every_other_version_is_a_violation(seqno: int, before: Before | None) -> None:
    with pytest.raises(Broken, match=rf"^before: r was shown that seqno {seqno} of vbucket 0 replaced "):
        judge().judge("r", LOG, Shown(seqno, before))


def test_a_version_that_is_not_kept_is_counted() -> None:
    made = judge()
    made.judge("r", LOG, Shown(5, Lack.NOT_KEPT))
    assert made.counts == {"replaced versions not kept": 1}


def test_of_a_history_whose_beginning_is_not_known_nothing_is_judged() -> None:
    made = judge()
    made.judge("r", ((0xB, 4),), Shown(5, None))
    assert not made.counts


def test_a_flipped_bit_of_a_replaced_value_is_read_as_it_was() -> None:
    made = judge()
    made.branches.flipped.add("1")
    made.judge("r", LOG, Shown(5, replace(IMAGE, value=b"w1-")))


def test_a_world_judges_what_its_reader_of_versions_is_shown() -> None:
    with resting(60) as world:
        assert world.counts["replaced versions judged"] > 10
        assert world.counts["replaced versions judged"] >= world.counts["versions judged"]
