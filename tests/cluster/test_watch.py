"""Waiting for copies: a seqno as high is not enough, the history must be the owner's."""

import asyncio
from dataclasses import dataclass, field

import pytest

from headwater.cluster.answers import CopyReport
from headwater.cluster.watch import Watch
from headwater.errors import ClusterError, TemporaryFailure
from headwater.wire.vbucket import State

from .views import A, B, a_map


@dataclass
class Node:
    """Stands for a NodeAdmin; each look takes the next of `found`, the seqnos, and of `logs`; the last one stays.

    `complete_to`: up to where it is complete, each time that it is asked; as far as its seqno if there are none left.
    `silent_for`: how often it does not serve yet, and `refuses` to say what it owns or leaves the vbucket out.
    """

    found: list
    logs: list = field(default_factory=lambda: [[(1, 0)]])
    complete_to: list = field(default_factory=list)
    states: list = field(default_factory=lambda: [State.ACTIVE])
    silent_for: int = 0
    refuses: bool = False

    async def seqnos(self, state=None):
        if self.silent_for:
            self.silent_for -= 1
            if self.refuses:
                raise TemporaryFailure("ask for the seqnos")
            return {}
        return {0: _next(self.found)}

    async def copies(self, vbuckets):
        seqno, log = _next(self.found), _next(self.logs)
        complete = self.complete_to.pop(0) if self.complete_to else seqno
        return {vb: CopyReport(_next(self.states), seqno, complete, log) for vb in vbuckets if vb == 0}


def _next(values):
    return values.pop(0) if len(values) > 1 else values[0]


class Members:
    def __init__(self, nodes):
        self.nodes = nodes

    def admin(self, address):
        return self.nodes[address]


def wait(owner, copy, clock=lambda: 0.0, **options):
    watch = Watch(Members({A: owner, B: copy}), pause_seconds=0.0, clock=clock, **options)
    asyncio.run(watch.until_level(0, A, [B]))


def test_a_copy_is_waited_for_until_it_has_what_the_owner_had():
    copy = Node([3, 7, 9, 12])
    wait(Node([9]), copy)
    assert copy.found == [12]


def test_a_copy_with_a_history_of_its_own_is_not_level_however_high_its_seqno():
    copy = Node([500, 500, 80, 90], [[(7, 0)], [(7, 0)], [(2, 80), (1, 0)]])
    wait(Node([90], [[(2, 80), (1, 0)]]), copy)
    assert copy.found == [90] and len(copy.logs) == 1


def test_a_copy_within_a_snapshot_is_not_level_whatever_its_seqno():
    copy = Node([12], complete_to=[0, 0, 9])
    wait(Node([9]), copy)
    assert copy.complete_to == []


def test_a_copy_that_does_not_come_on_is_given_up_with_its_numbers():
    now = iter(range(1000))
    with pytest.raises(ClusterError, match="stands at seqno 3, 9 is wanted"):
        wait(Node([9]), Node([3]), clock=lambda: float(next(now)), still_seconds_max=20.0)


def test_a_copy_that_comes_on_slowly_is_not_given_up():
    now = iter(range(100_000))
    wait(Node([200]), Node([*range(200), 200]), clock=lambda: float(next(now)), still_seconds_max=20.0)


def test_a_dead_copy_is_not_level_for_it_follows_nobody():
    copy = Node([9], states=[State.DEAD, State.DEAD, State.REPLICA])
    wait(Node([9]), copy)
    assert copy.states == [State.REPLICA]


def test_an_owner_that_is_none_any_more_is_told():
    async def work():
        await Watch(Members({A: Node([9])})).until_level(1, A, [B])

    with pytest.raises(ClusterError, match="does not own vbucket 1"):
        asyncio.run(work())


def all_level(owner):
    now = iter(range(1000))
    watch = Watch(Members({A: owner, B: Node([9])}), pause_seconds=0.0, clock=lambda: float(next(now)))
    asyncio.run(watch.until_all_level(a_map("AB", servers=(A, B))))


@pytest.mark.parametrize("refuses", [False, True])
def test_an_owner_that_has_just_started_serves_in_a_moment(refuses):
    owner = Node([9], silent_for=3, refuses=refuses)
    all_level(owner)
    assert not owner.silent_for


def test_an_owner_that_serves_nothing_for_long_is_none():
    with pytest.raises(ClusterError, match="does not own vbucket 0"):
        all_level(Node([9], silent_for=1000))


def test_all_replicas_of_a_map_are_waited_for():
    copy = Node([1, 5, 9])
    watch = Watch(Members({A: Node([9]), B: copy}), pause_seconds=0.0)
    asyncio.run(watch.until_all_level(a_map("AB", servers=(A, B))))
    assert copy.found == [9]
