"""What a map asks of one vbucket on this node: a table, without anything that happens.

    the map says            and the vbucket is      then it
    ours                    anything                stays as it is, and follows nobody: the map never makes an owner
    another's, we replica   not here, dead          becomes a replica and follows the owner
                            replica                 follows the owner
                            pending                 waits for its mover; becomes a replica when the map has news of it
                            active                  becomes a replica and follows, if the map has news of it
    another's, not in it    active                  becomes dead, if the map has news of it
                            anything else           stays as it is, and follows nobody
    nobody's                active                  stays as it is: nobody else has it

News of a vbucket: its chain is another than in the map before. Only news takes an ownership away. A vbucket that has
been taken over a moment ago is another's in every map until the next one; a map in between that was made for the sake
of other vbuckets says nothing about it, and must not leave it without owner.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headwater.node.membership.map import Address, NodeMap
from headwater.wire.vbucket import State


@dataclass(frozen=True, slots=True)
class Role:
    """What is to become of a vbucket: `state` to go to (None: as it is), `source` to follow (None: nobody)."""

    state: State | None = None
    source: Address | None = None


AS_IT_IS = Role()


def role(known: NodeMap, vb: int, state: State | None, *, news: bool) -> Role:
    """What a map asks of a vbucket.

    Args:
        state: the vbucket's, None if it is not on this node.
        news: the map tells something about it that we did not know.
    """
    owner = known.owner(vb)
    if known.is_owner(vb):
        return AS_IT_IS
    if known.is_replica(vb):
        return _as_replica(owner, state, news)
    return Role(State.DEAD) if state is State.ACTIVE and news and owner is not None else AS_IT_IS


def _as_replica(owner: Address | None, state: State | None, news: bool) -> Role:
    if state is State.REPLICA:
        return Role(source=owner)
    if state is State.PENDING and not news:
        return AS_IT_IS
    if state is State.ACTIVE and not (news and owner is not None):
        return AS_IT_IS
    return Role(State.REPLICA, owner)


def news(before: NodeMap | None, after: NodeMap) -> Iterable[int]:
    """The vbuckets that a map tells something new about; all of them if there was none, or we were not in it."""
    if before is None or before.here != after.here:
        return range(len(after.chains))
    return [vb for vb in range(len(after.chains)) if before.chain(vb) != after.chain(vb)]
