"""Stage changes in bulk: a kernel handles a received buffer before Python handles single frames.

One call of the kernel stages the changes in the buffer, of all vbuckets, up to a frame that it leaves to Python. The
index grows by the numbers of changes that the producer has announced. Source: dcp 9; 7 (acknowledgements).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headwater.invariants import node_invariant
from headwater.kernels import apply as kernel
from headwater.wire.dcp import SnapshotFlag

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket
    from headwater.node.connections.connection import Connection
    from headwater.protocol.dcp.consumer import Consumer
    from headwater.protocol.dcp.events import Marked

BULK_BYTES = 128 << 10
"""A received buffer of so many bytes is a sign that more will follow: then acknowledgements are sent less often."""


class Intake:
    """Stages the changes of a connection with a kernel.

    Attributes:
        changes: the number of changes that the kernel has staged since the connection was opened.
        bytes: the number of bytes of these changes.
        is_full: True if the last call of `take` stopped because the staging arena, or the disk, is full.
    """

    def __init__(self, bucket: Bucket, consumer: Consumer, connection: Connection) -> None:
        self.changes: int = 0
        self.bytes: int = 0
        self.is_full: bool = False
        self._bucket = bucket
        self._consumer = consumer
        self._connection = connection
        self._loading: set[int] = set()  # vbuckets in the midst of a snapshot from the producer's disk

    def take(self, data: memoryview, offset: int, now: float) -> int:
        """Stage changes of data[offset:]; return the offset at which the kernel stopped.

        The kernel stops at a frame that it leaves to Python, or at a full arena (`is_full`), or if the connection gives
        way to others, because growing the columns of many vbuckets takes long.

        Args:
            data: frames; the last may be incomplete.
            now: seconds of a monotonic clock.
        """
        store, rows, frames = self._bucket.store, self._consumer.table.rows, np.frombuffer(data, np.uint8)
        collections = int(self._consumer.negotiated.collections)
        begun, delete_time, is_unread = offset, self._bucket.now(), self._is_loading
        code, count = kernel.GROW, 0
        while code == kernel.GROW and not self._connection.is_paused:
            arena, used = store.staging.room()
            code, offset, used, change_count, vb = kernel.apply(
                rows,
                store.table,
                store.segments,
                frames,
                offset,
                store.staging.slot,
                used,
                len(arena),
                delete_time,
                collections,
            )
            # After each call, before the index grows, because rows already refer to these bytes.
            store.staging.use(int(used), is_unread=is_unread)
            count += int(change_count)
            if code == kernel.GROW:
                store.staging.grow(int(vb), self._consumer.announced(int(vb)))
                self._connection.gives_way()
        size = len(data)
        node_invariant(begun <= offset <= size, "changes of bytes {} to {} of {} are taken", begun, offset, size)
        self.is_full = code == kernel.ARENA_FULL
        if count:
            self._took(count, int(offset) - begun, now, is_bulk=len(data) >= BULK_BYTES)
        return int(offset)

    def marked(self, event: Marked, *, is_read: bool) -> None:
        """Note that a snapshot begins.

        The changes of a snapshot from the producer's disk are many, and unlikely to be read here soon if the vbucket
        has no readers (`is_read` is False); `take` tells the staging so.
        """
        if event.flags & SnapshotFlag.DISK and not is_read:
            self._loading.add(event.stream.vbucket)

    @property
    def _is_loading(self) -> bool:
        while self._loading and not self._consumer.announced(vb := next(iter(self._loading))):
            self._loading.discard(vb)
        return bool(self._loading)

    def _took(self, count: int, size_bytes: int, now: float, *, is_bulk: bool) -> None:
        self._bucket.committer.wrote()
        self.changes += count
        self.bytes += size_bytes
        self._consumer.counted(size_bytes, now, more_waits=is_bulk)
