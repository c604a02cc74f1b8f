"""How far a vbucket's history is safe: up to which seqno enough of its copies have it on disk.

A failover takes back what the promoted replica never had. Who hands a change on only when enough copies have persisted
it, each under the same vb uuid, is not told of what a failover among those takes back ("rollback mitigation"). What a
copy has, it says itself: OBSERVE_SEQNO (kv.md 2, 0x91), with the uuid of the branch that one reads:

    format 0     the branch is its newest: all up to `persisted_seqno` counts
    format 1     it left that branch (a failover): what it had of it then counts, if it is on disk
    KEY_ENOENT   it does not know the branch (yet): nothing counts

A replica that fills up has on disk a part of a snapshot, in which keys are missing that were written again later: a
failover to it goes back to where it was complete before. A headwater node counts up to there on connections with the
feature COMPLETE_SEQNOS (decision 0086). Of other servers it is assumed that all that they call persisted counts.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Literal, TypeAlias, TypeVar

from headwater.errors import OptionError
from headwater.wire.durability import majority_of
from headwater.wire.meta import ObserveSeqnoFailedOver, ObserveSeqnoResponse

MinPersisted: TypeAlias = int | Literal["majority", "all"]
"""How many copies must have a change on disk, the active one included; "all" are those that the cluster map names."""

Copy = TypeVar("Copy", bound=Hashable)

COPIES_MAX = 4
"""A bucket has three replicas at most."""


def read_min_persisted(told: object) -> MinPersisted:
    """Read what a user says, as a number or as text.

    Raises:
        OptionError: no number of copies, and no word for one.
    """
    if told in ("majority", "all"):
        return "majority" if told == "majority" else "all"
    if isinstance(told, str) and told.isascii() and told.isdecimal():
        told = int(told)
    if isinstance(told, int) and not isinstance(told, bool) and 1 <= told <= COPIES_MAX:
        return told
    raise OptionError("min_persisted", told, f'a number of copies from 1 to {COPIES_MAX}, "majority" or "all"')


def copies_needed(wanted: MinPersisted, named: int, configured: int) -> int:
    """Return how many copies have to have a change.

    Args:
        wanted: what the user asks for.
        named: how many copies the cluster map names now. Those that are missing there (a replica that was failed over,
            a cluster of too few nodes) are not waited for: they can't be promoted, so nothing rolls back to them.
        configured: how many copies the bucket is to have; a majority is one of these.
    """
    most = {"all": named, "majority": majority_of(configured)}
    return min(wanted if isinstance(wanted, int) else most[wanted], named)


def persisted(answer: ObserveSeqnoResponse, vb_uuid: int) -> int:
    """Return up to which seqno a copy has the branch `vb_uuid` on disk, by its answer to a question for that."""
    if isinstance(answer, ObserveSeqnoFailedOver):
        known = answer.old_vb_uuid == vb_uuid
        return min(answer.persisted_seqno, answer.last_received_seqno) if known else 0
    return answer.persisted_seqno if answer.vb_uuid == vb_uuid else 0


def persisted_by(count: int, copies: Collection[Copy], told: Mapping[Copy, int]) -> int:
    """Return the seqno up to which `count` of these copies have all; who said nothing has nothing."""
    if not 0 < count <= len(copies):
        return 0
    return sorted((told.get(copy, 0) for copy in copies), reverse=True)[count - 1]
