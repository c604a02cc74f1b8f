"""The pager stages the expiration of expired documents that no client reads.

For each vbucket the store has the earliest possible expiry, so only vbuckets with due documents are searched. The work
is cut into slices, so that a million documents that expire at once do not block clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from headwater.errors import DiskFull, HeadwaterError
from headwater.node.kv import documents
from headwater.node.reporting.log_lines import event
from headwater.node.storage.staging import ArenaFull

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket

log: Final = logging.getLogger(__name__)

SLICE = 1000  # documents expired in one turn of the event loop
SLICE_BYTES = 32 << 20
"""The bytes of values after which a slice ends: each value is copied for the attributes that stay, which takes some
milliseconds for 20 MiB."""


class Pager:
    """Searches for expired documents, and stages their expirations.

    Args:
        bucket: the bucket.
        loop: the event loop.
        interval_seconds: the time between two searches; 0 for no searches.
    """

    def __init__(self, bucket: Bucket, loop: asyncio.AbstractEventLoop, *, interval_seconds: int) -> None:
        self._bucket = bucket
        self._loop = loop
        self._interval = interval_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._complaints: dict[int, str] = {}
        self._left_bytes = SLICE_BYTES

    def start(self) -> None:
        """Start searching, the first time after one interval."""
        if self._interval:
            self._timer = self._loop.call_later(self._interval, self._look)

    def stop(self) -> None:
        """Stop searching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def page(self, limit: int = SLICE) -> int:
        """Stage the expirations of up to `limit` documents; return their number. If that fails in a vbucket, log the
        error and continue with the next vbucket.
        """
        bucket, staged = self._bucket, 0
        now = bucket.now()
        self._left_bytes = SLICE_BYTES
        for vb in bucket.vbuckets if not bucket.store.full else ():
            if staged >= limit or self._left_bytes <= 0:
                break
            if not bucket.is_active(vb):
                continue
            try:
                for _ in self._expired_keys(vb, now, limit - staged):
                    staged += 1
            except (ArenaFull, DiskFull):  # at the next look
                bucket.committer.wrote()
                break
            except Exception as error:  # an error in one vbucket, perhaps damage, must not stop the others
                self._complain(vb, error)
            else:
                self._complaints.pop(vb, None)
        return staged

    def _expired_keys(self, vb: int, now: int, limit: int) -> Iterator[bytes]:
        """Yield the keys of a vbucket's expired documents, each after its expiration was staged."""
        bucket = self._bucket
        alive = np.array(sorted(bucket.vbuckets[vb].collections.alive), np.uint64)
        for key, collection in bucket.store.expired(vb, now, limit, alive):
            if self._left_bytes <= 0:
                return
            document = bucket.store.document(vb, key, collection)
            in_flight = bucket.durable_writes.is_in_flight(vb, collection, key)
            self._left_bytes -= len(document.value) if document is not None else 0
            if document is not None and documents.is_expired(document, now) and not in_flight:
                documents.expire(bucket, vb, key, document)
                yield key

    def _complain(self, vb: int, error: Exception) -> None:
        """Log an error in a vbucket, unless the last one was the same; with a traceback if it is a fault of
        headwater.
        """
        if self._complaints.get(vb) != str(error):
            is_known = isinstance(error, HeadwaterError)
            message = "vbucket %d: what has expired can't be turned into tombstones: %s"
            log.error(message, vb, error, exc_info=None if is_known else error, extra=event("pager.failed", vbucket=vb))
        self._complaints[vb] = str(error)

    def _look(self) -> None:
        more = self.page() >= SLICE or self._left_bytes <= 0
        self._timer = self._loop.call_later(0 if more else self._interval, self._look)
