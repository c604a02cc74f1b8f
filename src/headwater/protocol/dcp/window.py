"""The consumer's half of flow control: decides how many bytes to acknowledge, and when.

Bytes are counted three times: as received (by the kernels), as processed (when the application returns for more), as
acknowledged. Only processed bytes are acknowledged: with acknowledgements of bytes merely read, the window would not
bound memory. Source: dcp.md 7: "ack when unacked exceeds 20 % of the window, or when any unacked byte is older than 5
s; count bytes when processed, not when read".
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.invariants import invariant

ACK_SHARE = 0.2
ACK_SECONDS_MAX = 5.0
ACK_BYTES_MAX = 0xFFFF_FFFF
SMALL_ACK_BYTES = 50_000
"""A consumer may also acknowledge as soon as it owes this much (dcp.md 7, small clients)."""


@dataclass(slots=True)
class ConsumerWindow:
    """The acknowledgements a consumer owes its producer. Times are seconds of one monotonic clock.

    Attributes:
        window_bytes: `connection_buffer_size`; 0 when flow control is off, and nothing is owed.
        owed_bytes_max: acknowledge as soon as more than this is owed; None for only the share of the window.
        received_bytes, processed_bytes, acknowledged_bytes: since the connection was opened.
    """

    window_bytes: int
    received_bytes: int = 0
    processed_bytes: int = 0
    acknowledged_bytes: int = 0
    owed_bytes_max: int | None = None
    _owed_since: float | None = None

    def receive(self, size_bytes: int) -> None:
        """Count bytes of counted messages (dcp.md 7), also those of streams that are over."""
        self.received_bytes += size_bytes

    def process(self, now: float, keep_bytes: int = 0) -> None:
        """Count all bytes received so far as processed, except for `keep_bytes`."""
        self.processed_bytes = max(self.processed_bytes, self.received_bytes - keep_bytes)
        processed, received = self.processed_bytes, self.received_bytes
        invariant(processed <= received, "{} bytes are processed, {} were received", processed, received)
        if self.owed_bytes and self._owed_since is None:
            self._owed_since = now

    @property
    def owed_bytes(self) -> int:
        """Bytes processed and not acknowledged."""
        return self.processed_bytes - self.acknowledged_bytes if self.window_bytes else 0

    @property
    def deadline(self) -> float | None:
        """The time at which the oldest owed byte must be acknowledged; None if none is owed."""
        return None if self._owed_since is None else self._owed_since + ACK_SECONDS_MAX

    def due(self, now: float, *, more_waits: bool = False) -> int:
        """Return the number of bytes to acknowledge now, and count them as acknowledged; 0 if no acknowledgement is
        due.

        `more_waits` is True if more bytes were received already: the producer is not waiting, so the acknowledgement
        may wait for the share of the window.
        """
        # BUFFER_ACK has 32 bits; the rest stays owed for the next one.
        bytes_due = min(self.owed_bytes, ACK_BYTES_MAX)
        late = self._owed_since is not None and now >= self._owed_since + ACK_SECONDS_MAX
        share = self.window_bytes * ACK_SHARE
        bearable = share if self.owed_bytes_max is None or more_waits else min(share, self.owed_bytes_max)
        if not bytes_due or not (late or bytes_due > bearable):
            return 0
        self.acknowledged_bytes += bytes_due
        acked, processed = self.acknowledged_bytes, self.processed_bytes
        invariant(acked <= processed, "{} bytes are acknowledged, {} were processed", acked, processed)
        self._owed_since = now if self.owed_bytes else None
        return bytes_due
