"""The readers that keep files which compaction has replaced, and the limit of their time.

A stream sends a snapshot as it was announced, so the files that it reads stay on the disk, without a name, until the
snapshot is sent. A consumer that never acknowledges would keep them without end, and fill the disk. So there is a limit
on the time, which is shorter while they take much room. After it a DCP stream ends (reason 4, too slow) and can be
requested again from its position; a TAP session continues with the present files.
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

    Attributes: ended, the number of readers that had to give up their files.

    Args:
        seconds: the time for which replaced files may be kept; SECONDS_MIN while they take more than all live documents
            (and BYTES_MIN), SECONDS_FULL while the disk is full: then writes stop, or compaction lacks room.
    """

    def __init__(self, bucket: Bucket, seconds: float) -> None:
        self.ended: int = 0
        self._bucket = bucket
        self._seconds = seconds
        self._oldest: int | None = None
        self._since = 0.0

    def look(self, now: float, *, needed: bool = False) -> None:
        """Make readers beyond the limit give up their files; to be called every few seconds. `needed`: a compaction
        waits for the room.
        """
        store = self._bucket.store
        oldest, held = store.slots.oldest_retired, store.slots.retired_bytes
        # The time counts for the oldest file alone; when that one is gone, the next one's begins.
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
        readers = [reader for each in self._bucket.vbuckets.values() for reader in each.readers]
        slow = [reader for reader in readers if reader.holds_removed_files]
        for reader in slow:
            reader.let_go()
        self.ended += len(slow)
        if slow:
            message = "%d streams kept %d MiB of files that were compacted for %.0f s, and are ended or begin anew"
            log.warning(
                message, len(slow), held >> 20, seconds, extra=event("streams.slow", streams=len(slow), bytes=held)
            )
