"""Verification of the log while the node runs: its times, its speed, and the handling of damage.

A pass begins `interval_seconds` after the previous one has ended, and reads at most `bytes_per_second`. It shares the
thread that writes and syncs batches, one slice at a time: a commit waits for at most one slice, and the two never use
the disk at the same time. Damage is reported in one log line with file and offset, and counted in STAT. The changes in
the damaged batch are no longer served: requests for their keys get an error, and streams end and are refused
(storage/quarantine.py). All other changes are served as before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Final

from headwater.node.reporting.log_lines import event
from headwater.node.storage.scrub import Damage

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket

SLICE_BYTES = 1 << 20

log: Final = logging.getLogger(__name__)


class Scrubber:
    """Verifies one bucket's store, one pass after another.

    Args:
        bucket: the bucket.
        loop: the event loop.
        interval_seconds: the time from the end of a pass to the next one; 0 for no passes.
        bytes_per_second: the highest reading speed.
        sleep: waits for a number of seconds.

    Attributes:
        runs: the number of complete passes.
        bytes: the number of bytes read by all passes, including the present one.
    """

    def __init__(
        self,
        bucket: Bucket,
        loop: asyncio.AbstractEventLoop,
        *,
        interval_seconds: float,
        bytes_per_second: float,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.runs: int = 0
        self.bytes: int = 0
        self._bucket = bucket
        self._loop = loop
        self._interval_seconds = interval_seconds
        self._bytes_per_second = bytes_per_second
        self._sleep = sleep
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin the passes, the first after one interval, because opening the store has just verified everything."""
        if self._interval_seconds:
            self._timer = self._loop.call_later(self._interval_seconds, self._begin)

    async def stop(self) -> None:
        """Stop, and cancel the present pass."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):  # as asked
                await self._task

    async def run(self) -> None:
        """Verify all durable batches in one pass."""
        findings = self._bucket.store.scrub(SLICE_BYTES)
        while (step := await self._next(findings)) is not None:
            if isinstance(step, Damage):
                self._report(step)
            else:
                self.bytes += step
                # A wait after each slice limits the mean rate, however fast the disk is.
                await self._sleep(step / self._bytes_per_second)
        self.runs += 1
        log.info("the log is verified: %d bytes so far", self.bytes, extra=event("log.verified", bytes=self.bytes))

    async def _next(self, findings: Iterator[int | Damage]) -> int | Damage | None:
        steps: list[int | Damage | None] = []
        # In the committer's thread, so no batch is read while it is being written.
        await self._bucket.committer.run_alone(lambda: steps.append(next(findings, None)))
        return steps[0]

    def _report(self, damage: Damage) -> None:
        hit = self._bucket.take_out(damage)
        if hit is not None:
            vbuckets_text = ", ".join(map(str, sorted(hit))) or "none"
            message = (
                "%s; not served any more: a part of vbuckets %s; replace the node, or restore the store from a copy"
            )
            log.error(message, damage, vbuckets_text, extra=event("log.damaged", vbuckets=sorted(hit)))

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._pass())

    async def _pass(self) -> None:
        try:
            await self.run()
        except Exception:  # a fault of ours: told in full, and the node goes on
            log.exception("the log could not be verified", extra=event("node.failed"))
        self._task = None
        self.start()
