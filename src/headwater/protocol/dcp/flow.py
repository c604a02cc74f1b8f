"""The producer's half of flow control: an exact ledger of the bytes a consumer has not acknowledged.

There is one window for the whole connection, all its streams together. A message may be sent while fewer bytes than the
window are outstanding, so one message may overshoot it; it then counts with its complete wire size. Other messages
(answers, no-ops) do not count. Source: DCP, flow-control.md, buffer-ack.md; dcp 7.
"""

from dataclasses import dataclass, field

from headwater.invariants import invariant

WINDOW_BYTES_MAX = 0xFFFF_FFFF
"""The window is an unsigned 32-bit number."""


@dataclass(slots=True)
class FlowLedger:
    """The bytes sent and acknowledged, and the bytes that may follow.

    Attributes:
        window_bytes: `connection_buffer_size`; 0, the initial value, means that flow control is off.
        outstanding_bytes: sent while flow control was on, and not acknowledged.
        sent_bytes: all bytes that were ever sent, with or without a window.
        acknowledged_bytes: all bytes that were ever acknowledged, without the excess.
        excess_bytes: bytes acknowledged beyond the outstanding ones; not 0 for a consumer that counts wrongly.
        is_full: True if no counted message may be sent until the consumer acknowledges.
    """

    window_bytes: int = 0
    outstanding_bytes: int = 0
    sent_bytes: int = 0
    acknowledged_bytes: int = 0
    excess_bytes: int = 0
    is_full: bool = field(default=False, init=False)  # kept, not found out: asked seven times for each stream

    def resize(self, window_bytes: int) -> None:
        """Set the window; it may change at any time. Switching it off forgets all outstanding bytes."""
        if not 0 <= window_bytes <= WINDOW_BYTES_MAX:
            raise ValueError(f"a flow-control window is 0 to {WINDOW_BYTES_MAX} bytes, not {window_bytes}")
        self.window_bytes = window_bytes
        # "0: unlimited, acks ignored" (dcp 7): bytes from before would never be acknowledged, and count against a later
        # window.
        if window_bytes == 0:
            self.outstanding_bytes = 0
        self.is_full = 0 < window_bytes <= self.outstanding_bytes

    @property
    def budget_bytes(self) -> int | None:
        """The bytes left in the window: a message may be sent while this is above 0. None if there is no limit."""
        if self.window_bytes == 0:
            return None
        return max(0, self.window_bytes - self.outstanding_bytes)

    def send(self, size_bytes: int) -> None:
        """Count the bytes of messages that are sent now; the last message may exceed the window (dcp 7)."""
        if self.is_full:
            raise ValueError(f"{size_bytes} bytes do not go through a window of {self.window_bytes} bytes that is full")
        self.sent_bytes += size_bytes
        if self.window_bytes:
            self.outstanding_bytes += size_bytes
            self.is_full = self.window_bytes <= self.outstanding_bytes

    def acknowledge(self, size_bytes: int) -> None:
        """Count acknowledged bytes, clamped to the outstanding ones (dcp 7). Ignored while flow control is off."""
        if self.window_bytes == 0:
            return
        # "Over-acking is clamped" (dcp 7): below 0, one lying consumer would have an endless window.
        counted = min(size_bytes, self.outstanding_bytes)
        self.outstanding_bytes -= counted
        self.is_full = self.window_bytes <= self.outstanding_bytes
        self.acknowledged_bytes += counted
        self.excess_bytes += size_bytes - counted
        accounted, sent_bytes = self.acknowledged_bytes + self.outstanding_bytes, self.sent_bytes
        invariant(
            accounted <= sent_bytes, "{} bytes are acknowledged or on their way, {} were sent", accounted, sent_bytes
        )
