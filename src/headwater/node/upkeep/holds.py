"""The readers that keep files which compaction has replaced, and the limit of their time.

A stream sends a snapshot as it was announced, so the files that it reads stay on the disk, without a name, until the
snapshot is sent. A consumer that never acknowledges would keep these files for ever, and fill the disk. So the time is
limited; the limit is shorter while the files take much room. When the time is over, a DCP stream ends (reason 4, too
slow), and can be requested again from its position; a TAP session continues with the present files.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from headwater.node.reporting.log_lines import event

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket

__all__ = ["BYTES_MIN", "SECONDS_FULL", "SECONDS_MIN", "Holds"]

BYTES_MIN: Final = 256 << 20
SECONDS_MIN: Final = 10.0
SECONDS_FULL: Final = 2.0

log: Final = logging.getLogger(__name__)


class Holds:
    """Limits the time for which one bucket's readers keep replaced files.

    Args:
        bucket: the bucket.
        seconds: the time for which replaced files may be kept. It is SECONDS_MIN while these files are larger than all
            live documents (and than BYTES_MIN), and SECONDS_FULL while the disk is full.

    Attributes:
        ended: the number of readers that had to give up their files.
    """

    def __init__(self, bucket: Bucket, seconds: float) -> None:
        self.ended: int = 0
        self._bucket = bucket
        self._seconds = seconds
        self._oldest: int | None = None
        self._since = 0.0

    def look(self, now: float, *, needed: bool = False) -> None:
        """Make readers beyond the limit give up their files. Call this every few seconds.

        Args:
            now: seconds of the loop's clock.
            needed: True if a compaction waits for the room.
        """
        store = self._bucket.store
        oldest, held = store.slots.oldest_retired, store.slots.retired_bytes
        # The time counts for the oldest file only; when this file is freed, the time of the next one begins.
        if oldest != self._oldest:
            self._oldest, self._since = oldest, now
        if oldest is None:
            return
        seconds = self._seconds
        if held > max(BYTES_MIN, store.index.live_bytes):
            seconds = min(seconds, SECONDS_MIN)
        if needed or store.staging.lacks_room:
            seconds = min(seconds, SECONDS_FULL)
        if now - self._since >= seconds:
            self._let_go(held, now - self._since)

    def _let_go(self, held: int, seconds: float) -> None:
        readers = [reader for vbucket in self._bucket.vbuckets.values() for reader in vbucket.readers]
        slow = [reader for reader in readers if reader.holds_removed_files]
        for reader in slow:
            reader.let_go()
        self.ended += len(slow)
        if slow:
            message = "%d streams kept %d MiB of files that were compacted for %.0f s, and are ended or begin anew"
            log.warning(
                message, len(slow), held >> 20, seconds, extra=event("streams.slow", streams=len(slow), bytes=held)
            )
