"""How long something takes, counted as Prometheus wants it: so many were at most so long."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

BOUNDS_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Durations:
    """Counts durations; `total_seconds` is their sum."""

    def __init__(self) -> None:
        self.total_seconds = 0.0
        self._counts = [0] * (len(BOUNDS_SECONDS) + 1)

    def add(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.total_seconds += seconds

    def at_most(self) -> list[tuple[str, int]]:
        """Return how many were at most so long, for each bound as text; the last is "+Inf", all of them."""
        bounds = (*(f"{bound:g}" for bound in BOUNDS_SECONDS), "+Inf")
        return list(zip(bounds, accumulate(self._counts), strict=True))
