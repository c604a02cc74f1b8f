"""Tenants of a world: rights in single collections, and a node that forgets to look at them is found."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import pytest

from harness.simulation.histories import Broken
from harness.world.plan import WorldPlan, plan_of
from harness.world.rights import Change, Guest
from harness.world.run import WorldOutcome, run
from harness.world.steps import Fault, Step
from harness.world.tenants import Answered, check
from headwater.node.kv.session import KvSession
from headwater.node.users.places import Places

N0, N1 = "127.0.0.1:11000", "127.0.0.1:11001"
BOTH = frozenset((N0, N1))
SEEDS = range(4, 10)


def told(tenant: Guest, right: str, room: str, node: str, began: float, ended: float) -> None:
    check(Answered(tenant, right, room, node, began, ended, "something"), [N0, N1])


def tenant_with(*roles: str) -> Guest:
    """A tenant who has these from second 2 on, and loses them at second 6."""
    given = Change(roles, 1.0, 2.0, BOTH, is_everywhere=True)
    return Guest("tenant-0", "secret", [given, Change((), 5.0, 6.0, BOTH, is_everywhere=True)])


def test_a_right_in_one_collection_is_none_in_another() -> None:
    tenant = tenant_with("read[default:rooms:red]")
    told(tenant, "read", "rooms.red", N0, 3.0, 3.1)
    with pytest.raises(Broken, match=r"tenant-0 may read rooms\.blue on 127\.0\.0\.1:11000 from 3\.000"):
        told(tenant, "read", "rooms.blue", N0, 3.0, 3.1)
    with pytest.raises(Broken, match=r"may write rooms\.red"):
        told(tenant, "write", "rooms.red", N0, 3.0, 3.1)


def test_a_right_in_a_scope_is_one_in_all_of_its_collections() -> None:
    told(tenant_with("stream[default:rooms]"), "stream", "rooms.blue", "", 3.0, 3.1)


def test_a_stream_that_began_when_no_node_could_give_it_any_more_shows_nothing() -> None:
    tenant = tenant_with("stream[default:rooms:red]")
    told(tenant, "stream", "rooms.red", "", 5.5, 9.0)
    with pytest.raises(Broken, match=r"may stream rooms\.red from no node from 6\.500"):
        told(tenant, "stream", "rooms.red", "", 6.5, 9.0)


def quiet_plan(seed: int) -> WorldPlan:
    """A world without faults in which the rights of tenants change twice a second."""
    plan = plan_of(seed, 200)
    changes = tuple(Step(0.01 + 0.5 * at, Fault.RIGHTS, at % plan.nodes, 0, 0.0, 0.1) for at in range(12))
    return replace(plan, steps=changes, has_users=True, has_tenants=True)


def outcome_of(seed: int) -> WorldOutcome:
    return run(quiet_plan(seed))


def test_tenants_are_answered_and_shown_what_their_rights_are_for() -> None:
    outcome = outcome_of(6)
    assert not outcome.broken, outcome.broken
    counts = outcome.counts
    answered = [counts[f"told to tenants: {right}"] for right in ("read", "write", "stream")]
    assert all(answered) and counts["requests of tenants"] > answered[0] + answered[1]


def anything(*_: object) -> None:
    """Deny nothing."""


@pytest.mark.parametrize(
    ("place", "name", "stand_in", "right"),
    [
        (Places, "denied", anything, "stream"),
        (Places, "in_collection", lambda self, *_: self.anywhere, "(read|write|stream)"),
        (KvSession, "users_changed", anything, "(read|write|stream)"),
    ],
    ids=["streams are not looked at", "a right is one everywhere", "changes of rights are passed over"],
)
def test_a_node_that_does_not_look_at_the_rights_in_a_collection_is_found(
    place: type, name: str, stand_in: Callable[..., object], right: str
) -> None:
    with mock.patch.object(place, name, stand_in):
        broken = (outcome.broken for outcome in map(outcome_of, SEEDS))
        assert any(re.match(f"rights: tenant-[01] may {right} rooms", each) for each in broken)
