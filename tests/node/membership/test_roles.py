"""The table of roles: what a map asks of one vbucket."""

from __future__ import annotations

from itertools import product

import pytest

from headwater.node.membership.map import read_map
from headwater.node.membership.roles import AS_IT_IS, News, Role, news, role
from headwater.wire.address import Address
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.vbucket import State
from tests.node.membership.support import cluster_map

ADDRESSES = ["a:1", "b:2", "c:3"]
A, B, C = Address("a", 1), Address("b", 2), Address("c", 3)
EVERYWHERE = (None, *State)


def seen_by_a(*chain: int, rev: int = 1, this: int | None = 0) -> ClusterMap:
    config = cluster_map(rev, ADDRESSES, [chain], this)
    return read_map(config, bucket="default", vbuckets=1)


@pytest.mark.parametrize("state", EVERYWHERE)
@pytest.mark.parametrize("told", News)
def test_what_is_ours_stays_as_it_is(state: State | None, told: News) -> None:
    assert role(seen_by_a(0, 1), 0, state, told) == AS_IT_IS


@pytest.mark.parametrize(
    ("state", "told", "expected"),
    [
        (None, News.CHAIN, Role(State.REPLICA, B)),
        (State.DEAD, News.CHAIN, Role(State.REPLICA, B)),
        (State.REPLICA, News.CHAIN, Role(None, B)),
        (State.PENDING, News.CHAIN, AS_IT_IS),
        (State.PENDING, News.OWNER, Role(State.REPLICA, B)),
        (State.ACTIVE, News.CHAIN, AS_IT_IS),
        (State.ACTIVE, News.OWNER, Role(State.REPLICA, B)),
    ],
)
def test_a_replica_follows_its_owner(state: State | None, told: News, expected: Role) -> None:
    assert role(seen_by_a(1, 0), 0, state, told) == expected


@pytest.mark.parametrize(("this", "least"), [(0, News.OWNER), (None, News.CHAIN)], ids=["a member", "removed"])
def test_of_what_others_have_only_an_ownership_is_given_up_and_only_to_another_owner(
    this: int | None, least: News
) -> None:
    for state, told in product(EVERYWHERE, News):
        expected = Role(State.DEAD) if state is State.ACTIVE and told >= least else AS_IT_IS
        assert role(seen_by_a(1, 2, this=this), 0, state, told) == expected


def test_what_nobody_owns_is_not_given_up() -> None:
    for told in News:
        assert role(seen_by_a(-1), 0, State.ACTIVE, told) == AS_IT_IS
        assert role(seen_by_a(-1, 0), 0, State.ACTIVE, told) == AS_IT_IS
        assert role(seen_by_a(-1, 0), 0, State.REPLICA, told) == Role(None, None)


def test_what_nobody_owns_is_given_up_by_who_is_left_out() -> None:
    """A failover begins with such a map, and the next one comes to nobody who is left out."""
    for state, told in product(EVERYWHERE, News):
        expected = Role(State.DEAD) if state is State.ACTIVE and told >= News.CHAIN else AS_IT_IS
        assert role(seen_by_a(-1, 2, this=None), 0, state, told) == expected


def test_no_map_makes_a_vbucket_active() -> None:
    chains = [(-1,), (0,), (1,), (0, 1), (1, 0), (1, 2), (-1, 0), (1, 2, 0)]
    for chain, state, told in product(chains, EVERYWHERE, News):
        assert role(seen_by_a(*chain), 0, state, told).state is not State.ACTIVE


def test_news_is_a_chain_that_changed_whatever_its_numbers_are() -> None:
    before = seen_by_a(0, 1)
    assert news(None, before) == {0: News.OWNER}
    assert news(before, seen_by_a(0, 1, rev=2)) == {}
    assert news(before, seen_by_a(1, 0, rev=2)) == {0: News.OWNER}
    assert news(before, seen_by_a(-1, 1, rev=2)) == {0: News.OWNER}
    assert news(before, seen_by_a(0, 2, rev=2)) == {0: News.CHAIN}
    renumbered = cluster_map(2, ["b:2", "a:1"], [[1, 0]], 1)
    assert news(before, read_map(renumbered, bucket="default", vbuckets=1)) == {}
    assert news(before, seen_by_a(0, 1, rev=2, this=None)) == {0: News.CHAIN}
