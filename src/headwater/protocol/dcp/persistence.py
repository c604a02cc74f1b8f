"""The safe part of a vbucket's history: the seqno up to which enough of its copies have it on disk.

A failover undoes the changes that the promoted replica never had. A client that yields a change only once enough copies
have persisted it, each under the same vb uuid, never yields a change that a failover to one of these copies undoes
("rollback mitigation"). Each copy reports its persisted seqno of a branch by OBSERVE_SEQNO (kv.md 2, 0x91):

    format 0     the branch is the copy's newest: everything up to `persisted_seqno` counts
    format 1     the copy left the branch in a failover: the part that it had and has on disk counts
    KEY_ENOENT   the copy does not know the branch (yet): nothing counts

A replica in the middle of a snapshot has part of it on disk, without the keys that were written again later: a failover
to it goes back to the last seqno at which the replica was complete. On connections with the feature COMPLETE_SEQNOS
(decision 0086), a headwater node reports that seqno. Other servers' persisted seqnos are used as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Literal, TypeAlias, TypeVar

from headwater.errors import OptionError
from headwater.invariants import invariant
from headwater.wire.durability import majority_of
from headwater.wire.meta import ObserveSeqnoFailedOver, ObserveSeqnoResponse

MinPersisted: TypeAlias = int | Literal["majority", "all"]
"""The number of copies that must have a change on disk, the active one included; "all": the cluster map's."""

Copy = TypeVar("Copy", bound=Hashable)

COPIES_MAX = 4
"""A bucket has three replicas at most."""


def read_min_persisted(option: object) -> MinPersisted:
    """Read a user's option, a number or text.

    Raises:
        OptionError: the value is neither a number of copies nor one of the option's words.
    """
    if option in ("majority", "all"):
        return "majority" if option == "majority" else "all"
    if isinstance(option, str) and option.isascii() and option.isdecimal():
        option = int(option)
    if isinstance(option, int) and not isinstance(option, bool) and 1 <= option <= COPIES_MAX:
        return option
    raise OptionError("min_persisted", option, f'a number of copies from 1 to {COPIES_MAX}, "majority" or "all"')


def copies_needed(min_persisted: MinPersisted, copies: int, configured: int) -> int:
    """Return the number of copies that must persist a change before it is yielded.

    Args:
        min_persisted: the user's option.
        copies: number of copies that the cluster map names now. Copies missing there (a replica that was failed over, a
            cluster of too few nodes) do not count: they can't be promoted, so nothing rolls back to them.
        configured: the bucket's configured number of copies, of which a majority is taken.
    """
    counts = {"all": copies, "majority": majority_of(configured)}
    # Never more than the map names, or a cluster after a failover would hold everything back.
    needed = min(min_persisted if isinstance(min_persisted, int) else counts[min_persisted], copies)
    invariant(needed > 0 or not copies, "no copy is needed of {}", copies)
    return needed


def persisted(answer: ObserveSeqnoResponse, vb_uuid: int) -> int:
    """Return the seqno up to which a copy has the branch `vb_uuid` on disk, from its answer to OBSERVE_SEQNO."""
    if isinstance(answer, ObserveSeqnoFailedOver):
        is_older_branch = answer.old_vb_uuid == vb_uuid
        # Of a branch that the copy left counts what it received of it, and only as far as that is on its disk.
        return min(answer.persisted_seqno, answer.last_received_seqno) if is_older_branch else 0
    return answer.persisted_seqno if answer.vb_uuid == vb_uuid else 0


def persisted_by(count: int, copies: Collection[Copy], seqnos: Mapping[Copy, int]) -> int:
    """Return the seqno up to which at least `count` of these copies have everything on disk; a missing copy counts as
    0.
    """
    if not 0 < count <= len(copies):
        return 0
    seqno = sorted((seqnos.get(copy, 0) for copy in copies), reverse=True)[count - 1]
    having = sum(seqnos.get(copy, 0) >= seqno for copy in copies)
    invariant(having >= count, "{} of {} copies have seqno {}, {} are needed", having, len(copies), seqno, count)
    return seqno
