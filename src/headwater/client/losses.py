"""Deletions that were purged before a drain came to them: what a node's refusal to go on means.

Such a refusal looks like a failover that left nothing in common: a rollback to 0. The difference matters. After a
failover the reader has too much; after a purge some of what he holds was deleted, and no change will ever tell of it.
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
    """The stream of a vbucket begins again at 0: deletions up to `purge_seqno` were purged, and we stood at `seqno`."""

    seqno: int
    purge_seqno: int


def explained(cluster: Cluster, failure: HeadwaterError, asked: Mapping[int, int]) -> Steps[HeadwaterError]:
    """Return why a drain failed: a rollback to 0 is a DataLoss, if deletions above where it stood were purged.

    Args:
        asked: after which seqno the drain was to go on, by vbucket, where no stream of it was accepted yet: of all of
            these the error names those that lack deletions.
    """
    if not isinstance(failure, RollbackRequired) or failure.common or not failure.requested:
        return failure
    try:
        told = yield from Operations(cluster).vbucket_stats(_STATS)
    except (TransportError, StatusError):  # they don't say: then it is a rollback, which is true as well
        return failure
    asked = {**asked, failure.vbucket: failure.requested}
    purged = {vb: _number(told.get(vb, {}).get("purge_seqno", "")) for vb in asked}
    missed = {vb: purged[vb] for vb in sorted(asked) if 0 < asked[vb] < purged[vb]}
    return DataLoss(missed, asked[min(missed)]) if failure.vbucket in missed else failure


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 0
