"""HOLD_CLOCK: the time up to which this node gives no more change a CAS (node/buckets/clock_floor.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headwater.errors import StorageError
from headwater.node.kv.command import handles
from headwater.node.refused import CommandRefused
from headwater.node.vbucket.prepares import joined
from headwater.wire.admin import HoldClock, HoldClockResponse
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket
    from headwater.node.kv.api import Session
    from headwater.node.vbucket.vbucket import VBucket


@handles(HoldClock, anywhere=True, lasts=True)
async def hold_clock(session: Session, request: HoldClock) -> HoldClockResponse:
    """Promise a time, at most this node's own; ETMPFAIL if the promise could not be written.

    All changes with an older CAS are durable with the answer, so that the seqnos that a reader requests behind it
    contain them.
    """
    bucket = session.store_bucket
    now = bucket.clock.time_ns()
    try:
        # Never above the own clock: a promise of the next year would give that year to all changes from now on.
        await bucket.clock_floor.promise(min(request.wanted_cas, now))
    except StorageError as error:
        raise CommandRefused(Status.ETMPFAIL, str(error)) from None
    session.saw_unstable()
    epoch, revision = session.server.cluster.version
    return HoldClockResponse(
        held_cas=bucket.clock_floor.held,
        now=bucket.clock.time_ns(),
        epoch=epoch,
        revision=revision,
        exceptions=list(_exceptions(bucket)),
    )


def _exceptions(bucket: Bucket) -> Iterator[tuple[int, int]]:
    """Yield the active vbuckets that a promise does not bind, each with a CAS below which none of its changes comes."""
    for vb in bucket.vbuckets:
        if bucket.is_active(vb):
            if bucket.clock_floor.unbound(vb):
                yield vb, 0
            elif bucket.vbuckets[vb].prepares.pending:
                yield vb, _oldest_prepared(bucket, bucket.vbuckets[vb])


def _oldest_prepared(bucket: Bucket, vbucket: VBucket) -> int:
    """Return the lowest CAS of the prepares that wait: each becomes a change with the CAS that it has now."""
    prepares = (bucket.store.prepares.find(vbucket.id, joined(key)) for key in vbucket.prepares.pending)
    return min(0 if prepare is None else prepare.cas for prepare in prepares)
