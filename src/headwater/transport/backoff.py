"""Delays between attempts: they double, are spread at random, and never exceed a maximum.

The random spread keeps a thousand clients of one failed node from reconnecting in the same millisecond. The source of
random numbers is an argument, so tests can predict the delays.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

FIRST_SECONDS = 0.05
LONGEST_SECONDS = 5.0
LONGEST_FOR_REQUESTS_SECONDS = 1.0
"""The longest delay of one request: a vbucket that moves is back within a fraction of a second, and the caller waits.
"""

_DOUBLINGS_MAX = 32
"""The most doublings of a delay: 2.0 ** 1024 does not fit a float, and a client may try for weeks."""


@dataclass(slots=True)
class Backoff:
    """A series of delays in seconds.

    Args:
        first_seconds: the upper bound of the first delay; every next one is twice as high.
        longest_seconds: no delay is longer.
        chance: returns numbers from 0 to 1; each delay lies between half its bound and its bound.
    """

    first_seconds: float = FIRST_SECONDS
    longest_seconds: float = LONGEST_SECONDS
    chance: Callable[[], float] = field(default=random.random, repr=False)
    failures: int = 0

    def next_seconds(self) -> float:
        """Count one more failure, and return the delay before the next attempt in seconds."""
        bound = min(self.first_seconds * 2.0 ** min(self.failures, _DOUBLINGS_MAX), self.longest_seconds)
        self.failures += 1
        return bound * (0.5 + 0.5 * self.chance())

    def reset(self) -> None:
        """Return to the first delay, after an attempt that succeeded."""
        self.failures = 0

    def slow_down(self) -> None:
        """Use the longest delay from now on, until `reset`."""
        self.failures = _DOUBLINGS_MAX


def for_requests() -> Backoff:
    """Return the delays between the attempts of one request."""
    return Backoff(longest_seconds=LONGEST_FOR_REQUESTS_SECONDS)
