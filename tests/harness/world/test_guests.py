"""Guests of a world with users: real logins and rights, and a node that forgets to look at them is found."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

from harness.simulation.host import Crash
from harness.world import operators
from harness.world.nemesis import begin
from harness.world.plan import WorldPlan, plan_of
from harness.world.rights import ADMINISTRATOR
from harness.world.run import WorldOutcome, run
from harness.world.steps import Fault, Step
from harness.world.system import simulated, unwatched
from harness.world.world import World
from headwater.node.kv.session import KvSession

SEEDS = range(3, 9)


def quiet_plan(seed: int) -> WorldPlan:
    """A world without faults in which rights change every second."""
    plan = plan_of(seed, 200)
    changes = tuple(Step(0.01 + 0.7 * at, Fault.RIGHTS, at % plan.nodes, 0, 0.0, 0.5) for at in range(8))
    return replace(plan, steps=changes, has_users=True)


def outcome_of(seed: int) -> WorldOutcome:
    return run(quiet_plan(seed))


def test_guests_are_answered_and_refused_as_their_rights_are() -> None:
    outcome = outcome_of(3)
    assert not outcome.broken, outcome.broken
    counts = outcome.counts
    assert counts["rights"] == counts["changes of rights acknowledged"] == 8
    assert counts["answers to guests"] and counts["guests refused"]


def test_a_node_that_goes_by_the_rights_of_before_is_found() -> None:
    with mock.patch.object(KvSession, "users_changed", lambda _: None):
        found = [outcome.broken for outcome in map(outcome_of, SEEDS) if outcome.broken]
    assert any("rights: guest-" in each for each in found)


def test_the_list_of_users_outlives_a_power_cut_of_a_simulated_machine() -> None:
    with unwatched():
        world = World(quiet_plan(3))
        login = mock.patch.object(operators, "LOGIN", ADMINISTRATOR)
        with login, simulated(world.schedule, world.network, {}):
            world.begin()
            assert world.guests is not None
            begin(world, Step(0.0, Fault.RIGHTS, 1, 0, 0.0, 0.5))
            world.schedule.run(2.0)
            before = world.machines[0].server.users.list
            assert before is not None and before.entries.keys() <= {"guest-0", "guest-1"}
            world.crash(0, Crash.POWER)
            world.start(0)
            assert world.machines[0].server.users.list == before
            world.close()
