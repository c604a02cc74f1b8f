"""Remarks of a planner that waits: what for and since when, now and then; nothing of what passes in a moment."""

from __future__ import annotations

import logging
from collections.abc import Callable

GRACE_SECONDS = 5.0
"""A vbucket that moves is nowhere for a moment, and a node may be starting: that long nobody is told."""

REMARK_SECONDS = 60.0
"""The time from one remark to the next."""

log: logging.Logger = logging.getLogger(__name__)


class Remarks:
    """Tells of one thing that is not as it should be.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: float | None = None
        self._said: float | None = None

    def waits(self, what: str) -> float:
        """Take note that it still is so, and say it if that is due; returns for how many seconds it has been so."""
        now = self._clock()
        self._since = now if self._since is None else self._since
        seconds = now - self._since
        if seconds >= GRACE_SECONDS and (self._said is None or now >= self._said + REMARK_SECONDS):
            self._said = now
            log.warning("for %.0f s: %s", seconds, what)
        return seconds

    def is_over(self, what: str) -> None:
        """Take note that it is no longer so; who was told of it hears that, too."""
        if self._said is not None and self._since is not None:
            log.warning("after %.0f s: %s", self._clock() - self._since, what)
        self._since = self._said = None
