"""Expired documents that nobody touches: a pager turns them into EXPIRATION records.

The store knows for each vbucket before which second nothing can expire, so only vbuckets with something due are
searched. Work is cut into slices, so that a million documents that expire at once stall nobody.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headwater.errors import StorageError
from headwater.node.kv import documents

if TYPE_CHECKING:
    from headwater.node.bucket import Bucket

SLICE = 1000  # documents expired in one turn of the event loop


class Pager:
    """Looks every `interval_seconds` (0: never)."""

    def __init__(self, bucket: Bucket, loop: asyncio.AbstractEventLoop, *, interval_seconds: int) -> None:
        self._bucket = bucket
        self._loop = loop
        self._interval = interval_seconds
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look, the first time after one interval."""
        if self._interval:
            self._timer = self._loop.call_later(self._interval, self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def page(self, limit: int = SLICE) -> int:
        """Expire up to `limit` documents; returns how many did."""
        bucket, done = self._bucket, 0
        now = bucket.now()
        for vb in bucket.vbuckets if not bucket.store.full else ():
            if done >= limit:
                break
            keys = bucket.store.expired(vb, now, limit - done) if bucket.is_active(vb) else []
            for key in keys:
                found = bucket.store.document(vb, key)
                if found is None or not documents.is_expired(found, now):
                    continue
                try:
                    documents.expire(bucket, vb, key, found)
                except StorageError:  # no room in this batch, or on the disk: at the next look
                    bucket.committer.wrote()
                    return done
                done += 1
        return done

    def _look(self) -> None:
        more = self.page() >= SLICE
        self._timer = self._loop.call_later(0 if more else self._interval, self._look)
