"""The role that a map gives one vbucket on this node: a table, without side effects.

    the map says            and the vbucket is      then it
    ours                    anything                stays as it is, and follows nobody: the map never makes an owner
    another's, we replica   not here, dead          becomes a replica and follows the owner
                            replica                 follows the owner
                            pending                 waits for its mover; becomes a replica when it has another owner
                            active                  becomes a replica and follows, if it has another owner now
    another's, not in it    active                  becomes dead, if it has another owner now, or the node is left out
                            anything else           stays as it is, and follows nobody
    nobody's                active                  stays as it is: nobody else has it
    nobody's, we left out   active                  becomes dead

Another owner: than in the map before. Only that takes an ownership away. A vbucket that was taken over a moment ago
belongs to another node in every map until the next one; a map in between does not change its owner, and must not leave
it without one. But a map that leaves the node out is no such map: the others go on without the vbuckets that were taken
over. If it names no owner, as the first map of a failover does (cluster/failover.py), it is the last that comes to this
node: the map with the next owner is not sent here. So this map sends readers and clients away.
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
    """Other nodes hold it, with the same owner."""
    OWNER = 2


@dataclass(frozen=True, slots=True)
class Role:
    """The role of a vbucket: the `state` to go to (None: as it is), the `source` to follow (None: none)."""

    state: State | None = None
    source: Address | None = None


AS_IT_IS = Role()


def role(known: ClusterMap, vbucket: int, state: State | None, news: News) -> Role:
    """Return the role that a map gives a vbucket.

    Args:
        state: the state of the vbucket, None if it is not on this node.
        news: the change of its entry in the map.
    """
    owner, is_news = known.owner(vbucket), news is News.OWNER or (known.this is None and news is News.CHAIN)
    # The map never makes a vbucket active: it can't know whether this copy holds what the former owner acknowledged
    # (decision 0030).
    if known.is_owner(vbucket):
        return AS_IT_IS
    if known.is_replica(vbucket):
        return _as_replica(owner, state, is_news)
    is_given_up = is_news and (owner is not None or known.here is None)
    return Role(State.DEAD) if state is State.ACTIVE and is_given_up else AS_IT_IS


def _as_replica(owner: Address | None, state: State | None, is_news: bool) -> Role:
    if state is State.REPLICA:
        return Role(source=owner)
    # A takeover that broke off behind pending: the mover decides, and a replica role taken here would let the former
    # owner's stream in again.
    if state is State.PENDING and not is_news:
        return AS_IT_IS
    # Taken over a moment ago: maps that were made before it name another owner, and obeying one would leave the vbucket
    # with none.
    if state is State.ACTIVE and not (is_news and owner is not None):
        return AS_IT_IS
    return Role(State.REPLICA, owner)


def news(before: ClusterMap | None, after: ClusterMap) -> dict[int, News]:
    """Return the news by vbucket, for those that changed; with the first map, for all of them."""
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
