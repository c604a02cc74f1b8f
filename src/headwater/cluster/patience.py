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


class CopyPosition(NamedTuple):
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
        self._seconds, self._give_up_at = seconds, now + seconds
        self._best: CopyPosition | None = None
        self._is_copied = self._hands_over = self._is_unsure = False

    def begin(self) -> None:
        """Begin the next attempt."""
        self._hands_over = False

    def note_copied(self, now: float) -> None:
        """Note that the target has nearly everything, and that the hand-over begins."""
        self._hands_over = True
        if not self._is_copied:
            self._is_copied = True
            self._give_up_at = now + self._seconds

    def failed(self, now: float, progress: CopyPosition | None, *, passed: bool) -> bool:
        """Note that an attempt failed; return True if it made progress.

        Args:
            progress: the state of the target's copy now; None if the target does not answer.
            passed: True if changes were sent to the target. While it does not answer, that counts as progress, but only
                once.
        """
        if self._hands_over:
            return False
        gained = self._is_more(progress) if progress is not None else passed and not self._is_unsure
        self._is_unsure = progress is None and (gained or self._is_unsure)
        if gained:
            self._give_up_at = now + self._seconds
        return gained

    def is_over(self, at: float) -> bool:
        """Return True if the patience ends at this time or before it."""
        return at >= self._give_up_at

    def _is_more(self, progress: CopyPosition) -> bool:
        best = self._best
        if best is not None and progress.vb_uuid == best.vb_uuid and progress.high_seqno <= best.high_seqno:
            return False
        self._best = progress
        return True
