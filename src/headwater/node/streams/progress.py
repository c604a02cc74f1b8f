"""STAT dcp-vbtakeover VB NAME: the progress of a vbucket's stream on a connection, for a mover.

The keys are those of failover.md 5. This node has no checkpoints, so `chk_items` counts the changes still to be sent
once the backfill is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from headwater.kernels import index
from headwater.node.refused import CommandRefused
from headwater.node.streams.stream import StreamPhase
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket
    from headwater.node.streams.stream import Stream
    from headwater.node.vbucket.vbucket import VBucket

VBUCKET_DIGITS_MAX = 5
_STATUS = {StreamPhase.BACKFILLING: "backfilling", StreamPhase.DEAD: "stream_is_dead"}
"""Any other phase is "in-memory"."""


class Sender(Protocol):
    """A connection on which vbuckets may be streamed."""

    def stream_of(self, vbucket: VBucket) -> Stream | None:
        """Return the connection's stream of a vbucket; None if there is none."""


def takeover_stats(
    bucket: Bucket, connections: Mapping[bytes, Sender], arguments: list[str]
) -> Iterable[tuple[str, str]]:
    """Return the names and values of the statistics.

    Args:
        bucket: the bucket.
        connections: the bucket's connections by name.
        arguments: the vbucket's number, then the words of the connection's name.

    Raises:
        CommandRefused: EINVAL if the number or the name is missing, NOT_MY_VBUCKET if the vbucket is not here.
    """
    vbucket, name = _target(bucket, arguments)
    connection = connections.get(name.encode("latin-1", "replace"))
    stream = connection.stream_of(vbucket) if connection is not None else None
    yield "name", name
    yield "vb_items", str(bucket.store.index.items(vbucket.id))
    yield "on_disk_deletes", str(_deletions(bucket, vbucket))
    if stream is not None:
        yield from _of_stream(stream)
    else:
        yield from _without_stream(bucket, vbucket, "connection" if connection is None else "stream")


def _target(bucket: Bucket, arguments: list[str]) -> tuple[VBucket, str]:
    number, *words = arguments or [""]
    if not (number.isascii() and number.isdecimal() and len(number) <= VBUCKET_DIGITS_MAX and words):
        raise CommandRefused(Status.EINVAL, "the arguments are a vbucket and the name of a connection")
    vbucket = bucket.vbuckets.get(int(number))
    if vbucket is None:
        raise CommandRefused(Status.NOT_MY_VBUCKET)
    return vbucket, " ".join(words)


def _of_stream(stream: Stream) -> Iterable[tuple[str, str]]:
    remaining = stream.items_remaining
    backfilling = stream.phase is StreamPhase.BACKFILLING
    yield "status", _STATUS.get(stream.phase, "in-memory")
    yield "estimate", str(remaining)
    yield "backfillRemaining", str(remaining if backfilling else 0)
    yield "chk_items", str(0 if backfilling else remaining)


def _without_stream(bucket: Bucket, vbucket: VBucket, missing: str) -> Iterable[tuple[str, str]]:
    """Return the statistics of a vbucket without a stream: all changes are still to be sent."""
    yield "status", f"{missing}_does_not_exist"
    yield "estimate", str(bucket.store.index.items(vbucket.id) + _deletions(bucket, vbucket))
    yield "backfillRemaining", "0"
    yield "chk_items", "0"


def _deletions(bucket: Bucket, vbucket: VBucket) -> int:
    """Return the number of keys whose newest version is a tombstone."""
    row = bucket.store.table[vbucket.id]
    return int(row[index.KEYS]) - int(row[index.ITEMS])
