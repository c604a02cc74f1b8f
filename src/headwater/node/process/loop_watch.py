"""Measure the delay of the event loop: all clients wait while one callback runs, so STAT shows the longest turns.

A timer runs at intervals. Its delay is the wall time of the turn that has delayed it. The processor time of the loop's
thread since the last run is recorded too, up to that delay. On a machine with other work, the wall time is the delay
for clients, and the processor time is the part that the node itself has caused.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from headwater.node.reporting.durations import Durations


def standing_clock() -> Callable[[], float]:
    """Return a function that returns the seconds for which this thread has been ready to run but had no processor; 0 if
    the system does not report them.
    """
    try:
        descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        # Called without an argument this is 0.0, always.
        return float
    return lambda: int(os.pread(descriptor, 100, 0).split()[1]) / 1e9


class LoopWatch:
    """The longest turns of an event loop since the start, or since the last reset.

    Args:
        loop: the event loop.
        interval_seconds: the interval of the timer, by which a delay may be underestimated; 0 to measure nothing.
        processor_seconds: returns the processor time of the loop's thread; called in that thread.
        standing: returns a function like that of `standing_clock`; called in that thread.

    Attributes:
        late_seconds: the longest delay, wall time.
        busy_seconds: the longest processor time within a delay.
        own_seconds: the longest delay without the thread's wait for a processor.
        durations: the delay of each run of the timer, wall time.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        interval_seconds: float,
        processor_seconds: Callable[[], float] = time.thread_time,
        standing: Callable[[], Callable[[], float]] = standing_clock,
    ) -> None:
        self.late_seconds: float = 0.0
        self.busy_seconds: float = 0.0
        self.own_seconds: float = 0.0
        self.durations: Final = Durations()
        self._loop = loop
        self._interval_seconds = interval_seconds
        self._processor_seconds = processor_seconds
        self._standing = standing
        self._stood: Callable[[], float] = float
        self._due_at = self._busy_until = self._stood_until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timer."""
        if self._interval_seconds:
            self._stood = self._standing()
            self._busy_until, self._stood_until = self._processor_seconds(), self._stood()
            self._arm()

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def stats(self, arguments: Sequence[str]) -> Iterable[tuple[str, str]]:
        """Return STAT loop, with times in microseconds. If "reset" is in `arguments`, the times then begin at 0
        again.
        """
        statistics = (
            ("ep_loop_watch_interval", str(round(1e6 * self._interval_seconds))),
            ("ep_loop_late_max", str(round(1e6 * self.late_seconds))),
            ("ep_loop_own_max", str(round(1e6 * self.own_seconds))),
            ("ep_loop_busy_max", str(round(1e6 * self.busy_seconds))),
        )
        if "reset" in arguments:
            self.late_seconds = self.busy_seconds = self.own_seconds = 0.0
        return statistics

    def _arm(self) -> None:
        self._due_at = self._loop.time() + self._interval_seconds
        self._timer = self._loop.call_at(self._due_at, self._look)

    def _look(self) -> None:
        late = max(0.0, self._loop.time() - self._due_at)
        busy_until, stood_until = self._processor_seconds(), self._stood()
        self.durations.add(late)
        self.late_seconds = max(self.late_seconds, late)
        self.busy_seconds = max(self.busy_seconds, min(late, busy_until - self._busy_until))
        self.own_seconds = max(self.own_seconds, late - (stood_until - self._stood_until))
        self._busy_until, self._stood_until = busy_until, stood_until
        self._arm()
