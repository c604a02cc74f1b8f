"""Counts of a node's requests by opcode and status, and their durations.

The duration of a request begins when the node begins to work on its bytes. It ends when the answer may be sent: the
request is executed, and the changes on which the answer depends are on disk. Requests in one piece of input begin at
the same moment, and answers that wait for one batch are sent at the same moment, so the clock is read twice for each
piece and once for each batch, not for each request.

Kernels count in their own memory, which `Tally` reads; other requests are counted here one by one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol

from headwater.node.reporting.durations import Durations

BOUNDS_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


UNKNOWN = -1
"""Stands for all opcodes without a name."""


class Tally(Protocol):
    """The counts of requests that the kernels keep."""

    def counts(self) -> Iterator[tuple[int, int, int]]:
        """Yield (opcode, status, count) of the requests so far."""


class Requests:
    """Counts requests and measures their durations; call all methods from the event loop's thread.

    Args:
        tally: the counts of the kernels; None if there are none.
        clock: returns seconds of a monotonic clock.

    Attributes:
        durations: the durations by opcode.
        received_bytes, sent_bytes: the bytes of all connections, without the overhead of TLS.
        begun_at: the time at which work on the present requests began.
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
        """Note that work on a connection's bytes begins."""
        self.begun_at = self._clock()

    def end(self) -> None:
        """Note that all requests in these bytes were executed; record the durations of those that wait for no batch."""
        if self._done:
            seconds = self._clock() - self.begun_at
            for opcode, count in self._done.items():
                self._took(opcode, seconds, count)
            self._done.clear()

    def answered(self, opcode: int, status: int) -> None:
        """Count a request that was executed in Python."""
        self._reported[opcode, status] += 1

    def ran(self, opcode: int, count: int, gate: int) -> None:
        """Count `count` executed requests of an opcode, whose answers may be sent once batch `gate` is on disk (0:
        now).
        """
        if gate:
            self._waiting.append((gate, self.begun_at, opcode, count))
        else:
            self._done[opcode] = self._done.get(opcode, 0) + count

    def finished(self, opcode: int, begun_at: float) -> None:
        """Record the duration of a request that had to wait, from `begun_at` until now."""
        self._took(opcode, self._clock() - begun_at, 1)

    def settled(self, durable: int) -> None:
        """Note that the batches up to `durable` are on disk; record the durations of the requests that waited
        for them.
        """
        if self._waiting:
            now, still_waiting = self._clock(), []
            for each in self._waiting:
                gate, begun_at, opcode, count = each
                if gate <= durable:
                    self._took(opcode, now - begun_at, count)
                else:
                    still_waiting.append(each)
            self._waiting = still_waiting

    def lost(self) -> None:
        """Forget the requests that wait for a batch, because a batch was lost, and they get no answer."""
        self._waiting.clear()

    def counts(self) -> Counter[tuple[int, int]]:
        """Return the number of answered requests by (opcode, status)."""
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
    """Counts nothing, for a node without metrics."""

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
        """Return no counts."""
        return Counter()
