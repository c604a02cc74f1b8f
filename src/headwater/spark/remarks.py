"""Log lines about the condition that a planner waits for, and for how long; at intervals, and not for a short wait."""

from __future__ import annotations

import logging
from collections.abc import Callable

GRACE_SECONDS = 5.0
"""The time without a message: a vbucket that moves has no node for a moment, and a node may be starting."""

REMARK_SECONDS = 60.0
"""The time between two messages."""

log: logging.Logger = logging.getLogger(__name__)


class Remarks:
    """The log of one condition, for as long as it lasts.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_at: float | None = None
        self._remarked_at: float | None = None

    def waits(self, condition: str) -> float:
        """Note that the condition lasts, and log it if that is due; return the seconds since it began.

        Args:
            condition: the condition in words.
        """
        now = self._clock()
        self._since_at = now if self._since_at is None else self._since_at
        seconds = now - self._since_at
        if seconds >= GRACE_SECONDS and (self._remarked_at is None or now >= self._remarked_at + REMARK_SECONDS):
            self._remarked_at = now
            log.warning("for %.0f s: %s", seconds, condition)
        return seconds

    def is_over(self, condition: str) -> None:
        """Note that the condition is over; log it if it was logged before."""
        if self._remarked_at is not None and self._since_at is not None:
            log.warning("after %.0f s: %s", self._clock() - self._since_at, condition)
        self._since_at = self._remarked_at = None
