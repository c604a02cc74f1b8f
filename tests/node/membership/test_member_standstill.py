"""A process that stood still asks at once whether the others went on without it, and nobody is failed over to it
before it knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random

from harness.simulation.host import Crash
from harness.simulation.sockets import Link
from harness.world import operators
from harness.world.operators import Work
from harness.world.plan import plan_of
from harness.world.system import unwatched
from harness.world.world import World
from headwater.errors import HeadwaterError

PAUSED_SECONDS, SOON_SECONDS = 8.0, 1.5


@contextmanager
def cluster(members: int) -> Iterator[World]:
    """Found a cluster of simulated nodes, and remove all members but the first ones."""
    with unwatched():
        world = World(replace(plan_of(3, 60), steps=(), has_users=False))
        with world.inside():
            world.begin()
            for at in range(members, len(world.machines)):
                assert fail_over(world, at, Work.REMOVE) == []
            try:
                yield world
            finally:
                world.close()


def fail_over(world: World, at: int, work: Work = Work.FAILOVER) -> list[HeadwaterError]:
    """Let an operator do a piece of work once; return the refusal in a list."""
    once = partial(operators.refusals, work, world.addresses, world.addresses[at], Random(1), attempts=1)
    return world.complete(work.value, once, 60)  # type: ignore[return-value]


def in_doubt(world: World, at: int) -> bool:
    fence = world.machines[at].server.first.membership.fence
    return fence is not None and fence.in_doubt


def test_it_hears_at_once_that_it_was_failed_over() -> None:
    with cluster(3) as world:
        world.machines[0].pause(PAUSED_SECONDS)
        wakes_at = world.schedule.now + PAUSED_SECONDS
        assert fail_over(world, 0) == []
        world.schedule.run(wakes_at + SOON_SECONDS - world.schedule.now)
        membership = world.machines[0].server.first.membership
        assert membership.map is not None and membership.map.this is None
        assert not world.watcher.serving(0).count("n0")


def test_the_other_of_two_members_is_not_failed_over_to_it_before_it_knows() -> None:
    with cluster(2) as world:
        world.machines[0].pause(PAUSED_SECONDS)
        world.network.set_link(Work.FAILOVER.value, "n0", Link.DOWN)  # the operator can't tell it either
        assert fail_over(world, 0) == []
        world.network.set_link(Work.FAILOVER.value, "n0", Link.UP)
        world.crash(1, Crash.KILL)
        assert world.schedule.run(PAUSED_SECONDS + SOON_SECONDS, lambda: in_doubt(world, 0))
        (refusal,) = fail_over(world, 1)
        assert "stood still for a while and heard from no majority of 2 members" in str(refusal)
        world.start(1)
        assert world.schedule.run(30.0, lambda: world.watcher.serving(0) == ["n1"])
        assert not in_doubt(world, 0)


def test_it_is_in_doubt_no_more_once_the_other_has_answered() -> None:
    with cluster(2) as world:
        world.machines[0].pause(PAUSED_SECONDS)
        world.schedule.run(PAUSED_SECONDS + SOON_SECONDS)
        assert not in_doubt(world, 0)
        world.crash(1, Crash.KILL)
        assert fail_over(world, 1) == []
