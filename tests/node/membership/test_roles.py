"""The table of roles: what a map asks of one vbucket."""

from __future__ import annotations

from itertools import product

import pytest

from headwater.node.membership.map import Address, NodeMap
from headwater.node.membership.roles import AS_IT_IS, Role, news, role
from headwater.wire.vbucket import State
from tests.node.membership.support import cluster_map

ADDRESSES = ["a:1", "b:2", "c:3"]
A, B, C = Address("a", 1), Address("b", 2), Address("c", 3)
EVERYWHERE = (None, *State)


def seen_by_a(*chain: int, rev: int = 1, this: int | None = 0) -> NodeMap:
    config = cluster_map(rev, ADDRESSES, [chain], this)
    return NodeMap.from_json(config, bucket="default", vbuckets=1)


@pytest.mark.parametrize("state", EVERYWHERE)
@pytest.mark.parametrize("told", [False, True])
def test_what_is_ours_stays_as_it_is(state: State | None, told: bool) -> None:
    assert role(seen_by_a(0, 1), 0, state, news=told) == AS_IT_IS


@pytest.mark.parametrize(
    ("state", "told", "expected"),
    [
        (None, False, Role(State.REPLICA, B)),
        (State.DEAD, False, Role(State.REPLICA, B)),
        (State.REPLICA, False, Role(None, B)),
        (State.PENDING, False, AS_IT_IS),
        (State.PENDING, True, Role(State.REPLICA, B)),
        (State.ACTIVE, False, AS_IT_IS),
        (State.ACTIVE, True, Role(State.REPLICA, B)),
    ],
)
def test_a_replica_follows_its_owner(state: State | None, told: bool, expected: Role) -> None:
    assert role(seen_by_a(1, 0), 0, state, news=told) == expected


@pytest.mark.parametrize("this", [0, None], ids=["a member", "removed"])
def test_of_what_others_have_only_an_ownership_is_given_up_and_only_on_news(this: int | None) -> None:
    for state, told in product(EVERYWHERE, (False, True)):
        expected = Role(State.DEAD) if state is State.ACTIVE and told else AS_IT_IS
        assert role(seen_by_a(1, 2, this=this), 0, state, news=told) == expected


def test_what_nobody_owns_is_not_given_up() -> None:
    for told in (False, True):
        assert role(seen_by_a(-1), 0, State.ACTIVE, news=told) == AS_IT_IS
        assert role(seen_by_a(-1, 0), 0, State.ACTIVE, news=told) == AS_IT_IS
        assert role(seen_by_a(-1, 0), 0, State.REPLICA, news=told) == Role(None, None)


def test_no_map_makes_a_vbucket_active() -> None:
    chains = [(-1,), (0,), (1,), (0, 1), (1, 0), (1, 2), (-1, 0), (1, 2, 0)]
    for chain, state, told in product(chains, EVERYWHERE, (False, True)):
        assert role(seen_by_a(*chain), 0, state, news=told).state is not State.ACTIVE


def test_news_is_a_chain_that_changed_whatever_its_numbers_are() -> None:
    before = seen_by_a(0, 1)
    assert list(news(None, before)) == [0]
    assert list(news(before, seen_by_a(0, 1, rev=2))) == []
    assert list(news(before, seen_by_a(1, 0, rev=2))) == [0]
    renumbered = cluster_map(2, ["b:2", "a:1"], [[1, 0]], 1)
    assert list(news(before, NodeMap.from_json(renumbered, bucket="default", vbuckets=1))) == []
    assert list(news(before, seen_by_a(0, 1, rev=2, this=None))) == [0]
