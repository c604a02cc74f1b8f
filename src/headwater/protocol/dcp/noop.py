"""No-ops and dead peers, seen from the producer: two deadlines and a counter of opaques.

With no-ops enabled the producer sends one every interval, also while the flow-control window is full, but not while the
previous no-op is unanswered. Any message that arrives counts as a sign of life. Servers have closed silent connections
after different times: first one unanswered interval, today `dcp_idle_timeout` (360 s). This producer waits for two
intervals of silence, at least `SILENCE_SECONDS_MIN` and at most the idle timeout, so that the interval that a consumer
requests determines how soon its loss is noticed. Source: DCP, dead-connections.md, no-op.md; dcp 6.
"""

from dataclasses import dataclass

INTERVAL_SECONDS_MIN = 0.1
"""The smallest interval that is accepted (errata P19: any fraction from here on)."""
INTERVAL_SECONDS_MAX = 10_800.0
"""The largest interval, as the documents have it."""
INTERVAL_SECONDS_DEFAULT = 20.0
IDLE_TIMEOUT_SECONDS = 360.0
SILENCE_SECONDS_MIN = 2.0
"""The shortest silence that counts: a consumer with an interval below a second must be allowed a pause."""
OPAQUE_FIRST = 10_000_001
"""No-ops have opaques of their own, counted from here (dcp 2.13)."""


@dataclass(slots=True)
class NoopTimer:
    """The time of the next no-op, and the time at which a silent consumer counts as gone. Times are seconds of one
    monotonic clock.

    Attributes:
        enabled: False at first; without no-ops only TCP checks that the peer is alive.
        interval_seconds: time between no-ops; half the silence after which the peer counts as gone.
        idle_timeout_seconds: the upper limit of that silence.
    """

    enabled: bool = False
    interval_seconds: float = INTERVAL_SECONDS_DEFAULT
    idle_timeout_seconds: float = IDLE_TIMEOUT_SECONDS
    _heard_at: float = 0.0
    _sent_at: float = 0.0
    _sent_opaque: int = OPAQUE_FIRST - 1
    _answer_owed: bool = False

    def enable(self, now: float) -> None:
        """Start sending no-ops; the first is due one interval from now."""
        # A second enable must not put the next no-op off: clients repeat the control.
        if not self.enabled:
            self.enabled, self._heard_at, self._sent_at = True, now, now

    def disable(self) -> None:
        """Send no more no-ops; the answer to the last one may still come."""
        self.enabled = self._answer_owed = False

    def heard(self, now: float) -> None:
        """Note a sign of life: any request or response."""
        self._heard_at = now

    def answered(self, opaque: int) -> bool:
        """Take the answer to a no-op; return False if its opaque is not that of the last one."""
        if not self.enabled:
            return True
        self._answer_owed = False
        return opaque == self._sent_opaque

    @property
    def silence_seconds_max(self) -> float:
        """The longest time for which the consumer may send nothing."""
        return min(max(2 * self.interval_seconds, SILENCE_SECONDS_MIN), self.idle_timeout_seconds)

    @property
    def deadline(self) -> float | None:
        """The time at which `peer_is_silent` or `due` may next become true; None for never."""
        if not self.enabled:
            return None
        silent_at = self._heard_at + self.silence_seconds_max
        return silent_at if self._answer_owed else min(silent_at, self._sent_at + self.interval_seconds)

    def overslept(self, now: float) -> bool:
        """Return True if the deadline passed so long ago that this process itself must have been stopped (SIGSTOP, a
        paused machine).

        Then silence proves nothing: the peer's answer may be unread, or the no-op was never sent.
        """
        deadline = self.deadline
        return deadline is not None and now >= deadline + SILENCE_SECONDS_MIN

    def peer_is_silent(self, now: float) -> bool:
        """Return True if the consumer has been silent for too long."""
        return self.enabled and now >= self._heard_at + self.silence_seconds_max

    def due(self, now: float) -> int | None:
        """Return the opaque of the no-op to send now; None if none is due, or an answer is still owed."""
        if not self.enabled or self._answer_owed or now < self._sent_at + self.interval_seconds:
            return None
        self._sent_opaque += 1
        self._answer_owed, self._sent_at = True, now
        return self._sent_opaque
