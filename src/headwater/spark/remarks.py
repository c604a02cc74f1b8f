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
        self._since: float | None = None
        self._said: float | None = None

    def waits(self, what: str) -> float:
        """Note that the condition lasts, and log it if that is due; return the seconds since it began.

        Args:
            what: the condition in words.
        """
        now = self._clock()
        self._since = now if self._since is None else self._since
        seconds = now - self._since
        if seconds >= GRACE_SECONDS and (self._said is None or now >= self._said + REMARK_SECONDS):
            self._said = now
            log.warning("for %.0f s: %s", seconds, what)
        return seconds

    def is_over(self, what: str) -> None:
        """Note that the condition is over; log it if it was logged before."""
        if self._said is not None and self._since is not None:
            log.warning("after %.0f s: %s", self._clock() - self._since, what)
        self._since = self._said = None
