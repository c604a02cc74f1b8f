"""A histogram of durations in Prometheus' form: the number of durations up to each bound."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

BOUNDS_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Durations:
    """Counts durations by upper bounds in seconds.

    Args:
        bounds_seconds: the bounds, ascending.

    Attributes:
        total_seconds: the sum of all durations.
    """

    def __init__(self, bounds_seconds: Sequence[float] = BOUNDS_SECONDS) -> None:
        self.total_seconds: float = 0.0
        self._bounds_seconds = bounds_seconds
        self._counts = [0] * (len(bounds_seconds) + 1)

    def add(self, seconds: float, count: int = 1) -> None:
        """Count `count` durations of `seconds` each."""
        self._counts[bisect_left(self._bounds_seconds, seconds)] += count
        self.total_seconds += seconds * count

    def at_most(self) -> list[tuple[str, int]]:
        """Return (bound as text, number of durations up to it) for each bound; the last bound is "+Inf"."""
        bounds = (*(f"{bound:g}" for bound in self._bounds_seconds), "+Inf")
        return list(zip(bounds, accumulate(self._counts), strict=True))
