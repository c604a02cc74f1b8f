"""The role that a map gives one vbucket on this node: a table, without side effects.

    owner by the map        state of the vbucket    role
    this node               any                     stays, and follows no node: a map never makes a vbucket active
    another; replica here   missing, dead           becomes a replica and follows the owner
                            replica                 follows the owner
                            pending                 waits for its mover; becomes a replica if it has a new owner
                            active                  becomes a replica and follows, if it has a new owner
    another; no copy here   active                  becomes dead, if it has a new owner, or the map lacks this node
                            any other               stays, and follows no node
    none                    active                  stays: no other node has it
    none; this node missing active                  becomes dead

A new owner is another one than in the map before; only that ends an ownership. A vbucket that this node has just taken
over belongs to another node in every map until the next change of owner; a map in between does not change its owner,
and must not leave it without one. A map that lacks this node is different: the others continue without the vbuckets
that this node took over. If such a map names no owner, as the first map of a failover does (cluster/failover.py), it is
the last one that this node receives. So with this map the vbucket becomes dead, which sends clients away.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import compress
from operator import ne

from headwater.wire.address import Address
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.vbucket import State


class News(IntEnum):
    """The change of a vbucket's entry between two maps."""

    NONE = 0
    CHAIN = 1
    """Other nodes have copies of the vbucket, but the owner is the same."""
    OWNER = 2


@dataclass(frozen=True, slots=True)
class Role:
    """The role of a vbucket on this node.

    Attributes:
        state: its new state; None to leave the state unchanged.
        source: the node that it follows; None for no node.
    """

    state: State | None = None
    source: Address | None = None


AS_IT_IS = Role()


def role(cluster_map: ClusterMap, vbucket: int, state: State | None, news: News) -> Role:
    """Return the role that a map gives a vbucket.

    Args:
        cluster_map: the map.
        vbucket: the vbucket's number.
        state: the present state of the vbucket; None if it is not on this node.
        news: the change of the vbucket's entry in the map.
    """
    owner, is_news = cluster_map.owner(vbucket), news is News.OWNER or (cluster_map.this is None and news is News.CHAIN)
    # The map never makes a vbucket active: it can't know whether this copy has all changes that the former owner has
    # acknowledged (decision 0030).
    if cluster_map.is_owner(vbucket):
        return AS_IT_IS
    if cluster_map.is_replica(vbucket):
        return _as_replica(owner, state, is_news)
    is_given_up = is_news and (owner is not None or cluster_map.here is None)
    return Role(State.DEAD) if state is State.ACTIVE and is_given_up else AS_IT_IS


def _as_replica(owner: Address | None, state: State | None, is_news: bool) -> Role:
    if state is State.REPLICA:
        return Role(source=owner)
    # The takeover failed after PENDING, so the mover decides; as a replica, the vbucket would accept the former owner's
    # stream again.
    if state is State.PENDING and not is_news:
        return AS_IT_IS
    # The vbucket was just taken over: older maps name another owner, and obeying them would leave the vbucket without
    # one.
    if state is State.ACTIVE and not (is_news and owner is not None):
        return AS_IT_IS
    return Role(State.REPLICA, owner)


def news(before: ClusterMap | None, after: ClusterMap) -> dict[int, News]:
    """Return the change of each vbucket whose entry differs between two maps. Without a map before (None), all vbuckets
    have a new owner.
    """
    everything = range(len(after.chains))
    if before is None:
        return dict.fromkeys(everything, News.OWNER)
    if before.servers == after.servers and before.this == after.this:
        changed = list(compress(everything, map(ne, before.chains, after.chains)))
    else:
        changed = list(everything)
    by_vbucket = {vb: _news(before, after, vb) for vb in changed}
    return {vb: each for vb, each in by_vbucket.items() if each}


def _news(before: ClusterMap, after: ClusterMap, vb: int) -> News:
    if before.owner(vb) != after.owner(vb):
        return News.OWNER
    same = before.chain(vb) == after.chain(vb) and before.here == after.here
    return News.NONE if same else News.CHAIN
