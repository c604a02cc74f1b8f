"""The world itself: what it knows of its machines and programs."""

import asyncio

import pytest

from harness.simulation.histories import Broken
from harness.simulation.host import Crash
from harness.world.plan import plan_of
from harness.world.system import simulated, unwatched
from harness.world.world import World


def test_a_world_knows_who_owns_what_and_tells_what_is_not_level() -> None:
    with unwatched():
        world = World(plan_of(3, 20))
        with simulated(world.schedule, world.network, {}):
            world.begin()
            world.schedule.run(1.0)
            assert world.difference() == ""
            owner = world.copies(0)[0]
            assert world.owner(0).id == 0
            assert world.name_of(str(world.addresses[owner])) == world.name(owner)
            assert world.name_of("nowhere:1") == ""
            world.crash(owner, Crash.KILL)
            assert world.watcher.serving(0) == []
            world.start(owner)
            world.close()


def test_a_program_that_does_not_end_breaks_a_promise() -> None:
    with unwatched():
        world = World(plan_of(3, 20))
        with simulated(world.schedule, world.network, {}):
            for node in range(len(world.machines)):
                world.start(node)
            with pytest.raises(Broken, match="whole: waiter has not come to an end within 1 s"):
                world.complete("waiter", lambda: asyncio.sleep(60), 1)
            world.close()
