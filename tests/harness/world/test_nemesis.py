"""Each fault begins and is undone."""

import pytest

from harness.simulation.sockets import Link
from harness.world.nemesis import begin
from harness.world.plan import plan_of
from harness.world.steps import WORKS, Fault, Step
from harness.world.system import unwatched
from harness.world.world import World


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
