"""Deletions that were purged before a drain read them: the meaning of a node's refusal to continue.

Such a refusal looks like a failover that left nothing in common: a rollback to 0. The difference matters: after a
failover the reader has too much; after a purge it has documents that were deleted, without any change about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headwater.client.cluster import Cluster
from headwater.client.kv import Operations
from headwater.errors import DataLoss, HeadwaterError, RollbackRequired, StatusError, TransportError
from headwater.protocol.dcp.events import StreamEvent
from headwater.transport.waiting import Steps

__all__ = ["ReadAgain", "explained"]

_STATS: Final = "vbucket-seqno"


@dataclass(frozen=True, slots=True)
class ReadAgain(StreamEvent):
    """The stream of a vbucket begins again at 0, since deletions up to `purge_seqno` were purged and we had read up to
    `seqno`.
    """

    seqno: int
    purge_seqno: int


def explained(cluster: Cluster, failure: HeadwaterError, starts: Mapping[int, int]) -> Steps[HeadwaterError]:
    """Return the error of a drain: a rollback to 0 becomes a DataLoss if deletions above the start were purged.

    Args:
        starts: the start seqno of each vbucket whose stream was requested and not accepted yet; the DataLoss names all
            of these vbuckets that lack deletions.
    """
    if not isinstance(failure, RollbackRequired) or failure.common or not failure.requested:
        return failure
    try:
        stats = yield from Operations(cluster).vbucket_stats(_STATS)
    except (TransportError, StatusError):  # they don't say: then it is a rollback, which is true as well
        return failure
    starts = {**starts, failure.vbucket: failure.requested}
    purge_seqnos = {vb: _number(stats.get(vb, {}).get("purge_seqno", "")) for vb in starts}
    missed = {vb: purge_seqnos[vb] for vb in sorted(starts) if 0 < starts[vb] < purge_seqnos[vb]}
    return DataLoss(missed, starts[min(missed)]) if failure.vbucket in missed else failure


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 0
