"""The world itself: what it knows of its machines and programs."""

import asyncio
from dataclasses import replace

import pytest

from harness.simulation.histories import Broken
from harness.simulation.host import Crash
from harness.world.nemesis import begin
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


def test_clients_ask_the_rest_once_the_cluster_is_healed_in_which_they_could_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harness.world.world.OVERTIME_SECONDS", 30.0)
    with unwatched():
        world = World(replace(plan_of(3, 60), steps=(), seconds=1.0))
        with world.inside():
            world.begin()
            for node in range(len(world.machines)):
                world.crash(node, Crash.KILL)
            world.happen(begin)
            asked = sum(client.asked for client in world.clients)
            world.heal()
            world.finish()
            keys = len(world.clients[0]._keys)
            assert asked < 60 <= sum(client.asked for client in world.clients) - keys
            world.close()
