"""The requests of a node: how many of which opcode were answered how, and how long they took.

A request takes from when the bytes it came with were taken up until its answer may leave: carried out, and on disk
what it tells of. Whatever comes in one piece begins at the same moment, and whatever waits for one batch ends at the
same, so the clock is looked at twice for each piece and once for each batch, and never for a single request of many.

The kernel counts by itself, in the memory that `Tally` reads; the rest is told here, request by request.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol

from headwater.node.reporting.durations import Durations

BOUNDS_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


UNKNOWN = -1
"""Stands for all opcodes that nobody has named."""


class Tally(Protocol):
    """Counts of requests that are kept elsewhere: the kernel's."""

    def counts(self) -> Iterator[tuple[int, int, int]]:
        """Return (opcode, status, how many), of those that there were."""


class Requests:
    """Counts requests, and how long they take; all methods belong to the event loop's thread.

    Args:
        tally: what the kernel counts beside this.
        clock: seconds that only grow.

    Attributes:
        durations: by opcode.
        received_bytes, sent_bytes: of all connections, without what TLS adds.
        begun_at: when the bytes were taken up whose requests are carried out now.
    """

    def __init__(self, tally: Tally | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self.durations: dict[int, Durations] = {}
        self.received_bytes = self.sent_bytes = 0
        self.begun_at: float = 0.0
        self._clock = clock
        self._tally = tally
        self._reported: Counter[tuple[int, int]] = Counter()
        self._done: dict[int, int] = {}
        self._waiting: list[tuple[int, float, int, int]] = []

    def begin(self) -> None:
        """Bytes of a connection are taken up."""
        self.begun_at = self._clock()

    def end(self) -> None:
        """All that can be carried out of them was: whatever waits for no batch is answered."""
        if self._done:
            seconds = self._clock() - self.begun_at
            for opcode, count in self._done.items():
                self._took(opcode, seconds, count)
            self._done.clear()

    def answered(self, opcode: int, status: int) -> None:
        """Count one that was carried out in Python."""
        self._reported[opcode, status] += 1

    def ran(self, opcode: int, count: int, gate: int) -> None:
        """Some of those taken up were carried out; their answers may leave once batch `gate` is on disk (0: now)."""
        if gate:
            self._waiting.append((gate, self.begun_at, opcode, count))
        else:
            self._done[opcode] = self._done.get(opcode, 0) + count

    def finished(self, opcode: int, begun_at: float) -> None:
        """One that was put off is answered."""
        self._took(opcode, self._clock() - begun_at, 1)

    def settled(self, durable: int) -> None:
        """The batches up to `durable` are on disk: whatever waited for them is answered."""
        if self._waiting:
            now, left = self._clock(), []
            for each in self._waiting:
                gate, begun_at, opcode, count = each
                if gate <= durable:
                    self._took(opcode, now - begun_at, count)
                else:
                    left.append(each)
            self._waiting = left

    def lost(self) -> None:
        """A batch is lost, and nobody who waits for one is answered."""
        self._waiting.clear()

    def counts(self) -> Counter[tuple[int, int]]:
        """Return how many were answered, by (opcode, status)."""
        counts = self._reported.copy()
        for opcode, status, count in self._tally.counts() if self._tally is not None else ():
            counts[opcode, status] += count
        return counts

    def _took(self, opcode: int, seconds: float, count: int) -> None:
        durations = self.durations.get(opcode)
        if durations is None:
            durations = self.durations[opcode] = Durations(BOUNDS_SECONDS)
        durations.add(seconds, count)


class Uncounted(Requests):
    """Counts nothing: of a node without metrics."""

    def begin(self) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""

    def answered(self, opcode: int, status: int) -> None:
        """Do nothing."""

    def ran(self, opcode: int, count: int, gate: int) -> None:
        """Do nothing."""

    def finished(self, opcode: int, begun_at: float) -> None:
        """Do nothing."""

    def counts(self) -> Counter[tuple[int, int]]:
        """Return none."""
        return Counter()
