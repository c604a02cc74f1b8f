"""Logs waits while they last: for a node that does not answer, or a vbucket without a node.

The log `headwater.client.waiting` has a line of level INFO when it begins and every ten seconds after that. The command
line shows it: otherwise a user who waits for a minute would not know why.
"""

from __future__ import annotations

import logging
import math
from typing import Final

from headwater.errors import HeadwaterError, TransportError

__all__ = ["WaitTeller"]

AGAIN_SECONDS: Final = 10.0
MOVING_SECONDS: Final = 1.0
"""The shortest wait that is logged: a vbucket that moves is back within a fraction of a second, and a temporary refusal
asks for little more."""

log: Final = logging.getLogger(__name__)


class WaitTeller:
    """Logs one wait.

    Args:
        began_at: the time at which the wait began, seconds.
        patience_seconds: the time after which the wait is given up; infinite for never.
    """

    def __init__(self, began_at: float, patience_seconds: float) -> None:
        self._give_up_at, self._began_at = began_at + patience_seconds, began_at
        self._next: float | None = None

    def tell(self, reason: HeadwaterError, now: float) -> None:
        """Log the reason for the wait; not in its first moments, and then every AGAIN_SECONDS at most."""
        quiet_seconds = 0.0 if isinstance(reason, TransportError) else MOVING_SECONDS
        if now < (self._began_at + quiet_seconds if self._next is None else self._next):
            return
        self._next = now + AGAIN_SECONDS
        remaining_seconds = self._give_up_at - now
        log.info(
            "%s; trying again, %s",
            reason,
            "until it is there" if math.isinf(remaining_seconds) else f"for up to {remaining_seconds:.0f} s",
        )
