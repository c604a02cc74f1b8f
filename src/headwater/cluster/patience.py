"""The time after which a mover gives up on a vbucket that makes no progress. No I/O; the time is an argument.

Progress is measured by the changes that the target keeps, not by the bytes that were sent: bytes that a target refuses
are sent again at every attempt, and a mover that counted them would continue for ever. So patience begins anew

    when the target holds more of the vbucket than ever before,
    when its history is another one than before: it was rolled back, and begins there,
    when the vbucket was copied for the first time: handing it over is another matter than copying it.

A hand-over that fails gains nothing: changes that were written meanwhile are copied before each attempt.
"""

from __future__ import annotations

from typing import NamedTuple


class Held(NamedTuple):
    """The state of a copy: the newest vb uuid of its failover log, and its high seqno."""

    vb_uuid: int
    high_seqno: int


class Patience:
    """The patience with one vbucket, from `now` on.

    Args:
        seconds: the longest time without progress.
        now: monotonic seconds.
    """

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds, self._until = seconds, now + seconds
        self._most: Held | None = None
        self._is_copied = self._hands_over = self._is_unsure = False

    def begin(self) -> None:
        """Begin the next attempt."""
        self._hands_over = False

    def note_copied(self, now: float) -> None:
        """Note that the target has nearly everything, and that the hand-over begins."""
        self._hands_over = True
        if not self._is_copied:
            self._is_copied = True
            self._until = now + self._seconds

    def failed(self, now: float, held: Held | None, *, passed: bool) -> bool:
        """Note that an attempt failed; return True if it made progress.

        Args:
            held: the state of the target's copy now; None if the target does not answer.
            passed: True if changes were sent to the target. While it does not answer, that counts as progress, but only
                once.
        """
        if self._hands_over:
            return False
        gained = self._is_more(held) if held is not None else passed and not self._is_unsure
        self._is_unsure = held is None and (gained or self._is_unsure)
        if gained:
            self._until = now + self._seconds
        return gained

    def is_over(self, at: float) -> bool:
        """Return True if the patience ends at this time or before it."""
        return at >= self._until

    def _is_more(self, held: Held) -> bool:
        most = self._most
        if most is not None and held.vb_uuid == most.vb_uuid and held.high_seqno <= most.high_seqno:
            return False
        self._most = held
        return True
