"""Waits, told while they last: for a node that does not answer, for a vbucket that no node has at the moment.

The log `headwater.client.waiting` has a line of level INFO when it begins and every ten seconds after that. The command
line shows it: without it nobody who waits for a minute knows for what.
"""

from __future__ import annotations

import logging
import math
from typing import Final

from headwater.errors import HeadwaterError, TransportError

__all__ = ["WaitTeller"]

AGAIN_SECONDS: Final = 10.0
MOVING_SECONDS: Final = 1.0
"""A vbucket that moves is back within a fraction of a second, and a node that says "not now" asks for little more: of
less than this nothing is said."""

log = logging.getLogger(__name__)


class WaitTeller:
    """One wait, and who tells of it.

    Args:
        began: the time at which it began, seconds.
        patience_seconds: after which it is given up; infinite for never.
    """

    def __init__(self, began: float, patience_seconds: float) -> None:
        self._until, self._began = began + patience_seconds, began
        self._next: float | None = None

    def tell(self, why: HeadwaterError, now: float) -> None:
        """Say why it is waited now, unless that was said a moment ago."""
        silent = 0.0 if isinstance(why, TransportError) else MOVING_SECONDS
        if now < (self._began + silent if self._next is None else self._next):
            return
        self._next = now + AGAIN_SECONDS
        left = self._until - now
        log.info("%s; trying again, %s", why, "until it is there" if math.isinf(left) else f"for up to {left:.0f} s")
