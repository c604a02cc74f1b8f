"""A clock that only `advance` moves, for code that takes the time as an argument or a function."""

from __future__ import annotations


class FakeClock:
    """A clock in seconds that stands still until `advance`; calling it returns the time."""

    def __init__(self, now: float = 100.0) -> None:
        self.now: float = now

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def advance(self, seconds: float) -> float:
        """Move the clock forward; return the time."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards ({seconds} s)")
        self.now += seconds
        return self.now
