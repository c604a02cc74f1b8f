"""Each fault begins and is undone; those that no operator of sense would begin are put off."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from harness.simulation.host import Crash
from harness.simulation.sockets import Link
from harness.world import operators
from harness.world.nemesis import begin
from harness.world.operators import Work
from harness.world.plan import plan_of
from harness.world.steps import WORKS, Fault, Step
from harness.world.system import unwatched
from harness.world.world import World

PUT_OFF = "failovers put off: nobody else has the newest map"


@contextmanager
def two_members() -> Iterator[World]:
    """Found a cluster without users, and remove all members but the first two."""
    with unwatched():
        world = World(replace(plan_of(3, 60), steps=(), has_users=False))
        with world.inside():
            world.begin()
            for at in range(2, len(world.machines)):
                work = partial(operators.do, Work.REMOVE, world.addresses, world.addresses[at], Random(1))
                assert world.complete("remover", work, 60) is True
            try:
                yield world
            finally:
                world.close()


def failover(node: int) -> Step:
    return Step(0.0, Fault.FAILOVER, node, 0, 0.0, 0.5)


@pytest.mark.parametrize("fault", Fault)
def test_each_fault_begins_and_is_undone(fault: Fault) -> None:
    plan = plan_of(3, 20)
    with unwatched():
        world = World(plan)
        with world.inside():
            world.begin()
            undo = begin(world, Step(0.0, fault, 0, 1, 0.5, 0.3))
            assert (fault in WORKS) == (world.counts[WORKS[fault].value] == 1 if fault in WORKS else False)
            if undo is not None:
                world.schedule.run(0.5)
                undo()
            assert world.network.link("n0", "n1") is Link.UP
            assert not (world.network.deaf or world.network.slow)
            assert world.machines[0].is_up
            world.close()


def test_nobody_is_failed_over_to_a_machine_that_was_failed_over_itself_and_has_not_heard_of_it() -> None:
    with two_members() as world:
        world.machines[0].pause(60.0)
        begin(world, failover(0))
        assert world.schedule.run(30.0, lambda: not world.leaving)
        newest = world.newest_map()
        assert newest is not None and newest.servers == (world.addresses[1],)
        world.crash(1, Crash.KILL)
        begin(world, failover(1))
        assert world.counts[PUT_OFF] == 1 and not world.leaving
        world.start(1)
        assert world.schedule.run(90.0, lambda: not world.has_newest_map_alone(1))


def test_two_operators_do_not_take_out_both_of_two_members() -> None:
    with two_members() as world:
        assert not world.has_newest_map_alone(1)
        begin(world, failover(0))
        assert world.has_newest_map_alone(1) and not world.has_newest_map_alone(0)
        begin(world, failover(1))
        assert world.counts[PUT_OFF] == 1
