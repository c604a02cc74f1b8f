"""No-ops and dead peers, seen from the producer: two deadlines and a counter of opaques.

With no-ops enabled the producer asks "are you there" every interval, unless an answer is still owed, whether or not
the flow-control window is full. Anything at all that arrives counts as a sign of life. The rule for giving up changed
over the years: first one unanswered interval, today `dcp_idle_timeout` (360 s). Here: two intervals of silence, but not
sooner than `SILENCE_SECONDS_MIN` and not later than the idle timeout, so that the interval a consumer asks for decides
how soon it is missed. Source: DCP, dead-connections.md, no-op.md; dcp 6.
"""

from dataclasses import dataclass

INTERVAL_SECONDS_MIN = 0.1
"""The smallest interval that is accepted (errata P19: any fraction from here on)."""
INTERVAL_SECONDS_MAX = 10_800.0
"""The largest, as the documents always had it."""
INTERVAL_SECONDS_DEFAULT = 20.0
IDLE_TIMEOUT_SECONDS = 360.0
SILENCE_SECONDS_MIN = 2.0
"""A consumer that asks for a fraction of a second must still be allowed a pause."""
OPAQUE_FIRST = 10_000_001
"""No-ops have opaques of their own, counted from here (dcp 2.13)."""


@dataclass(slots=True)
class NoopTimer:
    """When to send a no-op, and when to give the consumer up. Times are seconds of one monotonic clock.

    Attributes:
        enabled: off at first; without no-ops there is no liveness check besides TCP's.
        interval_seconds: between no-ops; half the silence that means the peer is gone.
        idle_timeout_seconds: the most silence that is ever allowed.
    """

    enabled: bool = False
    interval_seconds: float = INTERVAL_SECONDS_DEFAULT
    idle_timeout_seconds: float = IDLE_TIMEOUT_SECONDS
    _heard_at: float = 0.0
    _sent_at: float = 0.0
    _asked_opaque: int = OPAQUE_FIRST - 1
    _answer_owed: bool = False

    def enable(self, now: float) -> None:
        """Start to ask; the first no-op goes out one interval from now."""
        if not self.enabled:
            self.enabled, self._heard_at, self._sent_at = True, now, now

    def disable(self) -> None:
        """Ask no more; an answer still owed may come or not."""
        self.enabled = self._answer_owed = False

    def heard(self, now: float) -> None:
        """Any request or response is a sign of life."""
        self._heard_at = now

    def answered(self, opaque: int) -> bool:
        """Take the answer to a no-op; False when its opaque is not that of the last one asked."""
        if not self.enabled:
            return True
        self._answer_owed = False
        return opaque == self._asked_opaque

    @property
    def silence_seconds_max(self) -> float:
        """How long the consumer may send nothing at all."""
        return min(max(2 * self.interval_seconds, SILENCE_SECONDS_MIN), self.idle_timeout_seconds)

    @property
    def deadline(self) -> float | None:
        """When `peer_is_silent` or `due` may next become true; None for never."""
        if not self.enabled:
            return None
        gone = self._heard_at + self.silence_seconds_max
        return gone if self._answer_owed else min(gone, self._sent_at + self.interval_seconds)

    def overslept(self, now: float) -> bool:
        """Whether it is so long after the deadline that this end must have been stopped itself (SIGSTOP, a paused
        machine): the peer's answer may lie there unread, or nobody has asked it."""
        deadline = self.deadline
        return deadline is not None and now >= deadline + SILENCE_SECONDS_MIN

    def peer_is_silent(self, now: float) -> bool:
        """Whether the consumer has been silent for too long."""
        return self.enabled and now >= self._heard_at + self.silence_seconds_max

    def due(self, now: float) -> int | None:
        """The opaque of the no-op to send now, or None: none is due, or an answer is still owed."""
        if not self.enabled or self._answer_owed or now < self._sent_at + self.interval_seconds:
            return None
        self._asked_opaque += 1
        self._answer_owed, self._sent_at = True, now
        return self._asked_opaque
