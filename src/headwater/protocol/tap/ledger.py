"""The unacknowledged messages of a TAP producer: their numbers, the window, and the places to return to for a resend.

The ledger keeps no messages. A message of data is a seqno of a vbucket, and the log still has that change (or a later
one of its key): sending again means moving the vbucket's cursor back. So the ledger stores a run of messages as their
seqnos and the `TapPlace` of the stream before them; 10 000 unacknowledged documents cost 80 kB, whatever their size.
Messages are numbered from 1 without end; the opaque on the wire is (number - 1) modulo (2^32 - 1), plus 1. Source:
tap.md 2 (opaque), 4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from headwater.invariants import invariant

OPAQUES: Final = 0xFFFF_FFFF
ACK_INTERVAL: Final = 1000
"""A message requests an acknowledgement after so many messages without a request."""
WINDOW_MESSAGES: Final = 10 * ACK_INTERVAL
"""The number of messages that may be unacknowledged."""


class TapStep(IntEnum):
    """The steps of a vbucket's stream, in the order of tap.md 5."""

    PENDING = 1  # takeover: tell the consumer to make the vbucket, pending
    INITIAL = 2  # tell it that the vbucket comes from scratch
    BACKFILL = 3
    LIVE = 4
    DRAIN = 5  # takeover: this node's vbucket is dead, what is left of it goes out
    HANDED = 6  # takeover: the consumer was told to be active
    DONE = 7


@dataclass(frozen=True, slots=True)
class TapPlace:
    """The place of a vbucket's stream: its step, the last seqno sent, and the id of the open checkpoint (0: none)."""

    step: TapStep
    seqno: int = 0
    checkpoint: int = 0


@dataclass(slots=True)
class Run:
    """Messages with consecutive numbers of one stream.

    Attributes:
        first, count: number of the first message, and how many there are.
        stream: the stream; before: the stream's place before the first message.
        seqnos: seqno of each message; empty for a single message that is not a change.
    """

    first: int
    count: int
    stream: Hashable
    before: TapPlace
    seqnos: Sequence[int]

    @property
    def last(self) -> int:
        """The number of the last message."""
        return self.first + self.count - 1

    def place_before(self, number: int) -> TapPlace:
        """Return the place of the stream before it sent message `number` of this run."""
        if number <= self.first or not len(self.seqnos):
            return self.before
        return replace(self.before, seqno=int(self.seqnos[number - self.first - 1]))


class Ledger:
    """The numbers of messages sent and acknowledged.

    Args:
        acknowledges: True if the client acknowledges; if not, nothing is kept and the window is endless.

    Attributes:
        sent, acked: number of the last message sent, and of the last one acknowledged.
        ack_request: number of the last message with flag ACK.
    """

    def __init__(self, *, acknowledges: bool) -> None:
        self.acknowledges = acknowledges
        self.sent: int = 0
        self.acked: int = 0
        self.ack_request: int = 0
        self._runs: deque[Run] = deque()

    @property
    def unacked(self) -> int:
        """The number of messages that are sent and not acknowledged; 0 if the client never acknowledges."""
        return self.sent - self.acked if self.acknowledges else 0

    @property
    def room(self) -> int:
        """The number of messages that may still be sent: "at most 10 x 1000 messages beyond the last acked one"."""
        return WINDOW_MESSAGES - self.unacked

    @property
    def awaits(self) -> bool:
        """True if a requested acknowledgement has not come yet."""
        return self.acknowledges and self.ack_request > self.acked

    @property
    def runs(self) -> Sequence[Run]:
        """The unacknowledged runs, oldest first."""
        return tuple(self._runs)

    @property
    def next_opaque(self) -> int:
        """The opaque of the next message."""
        return self.sent % OPAQUES + 1

    def sending(self, stream: Hashable, before: TapPlace, seqnos: Sequence[int] = (), *, asks: bool) -> None:
        """Record one message without a change, or one for each of `seqnos`; `asks` is True if the last has flag ACK."""
        count = len(seqnos) or 1
        first, self.sent = self.sent + 1, self.sent + count
        if not self.acknowledges:
            return
        self._runs.append(Run(first, count, stream, before, seqnos))
        self.ack_request = self.sent if asks else max(self.ack_request, self.sent - self.sent % ACK_INTERVAL)

    def number_of(self, opaque: int) -> int | None:
        """Return the number of the unacknowledged message with this opaque; None if there is none."""
        # The wire's number wraps (tap.md 2); the one meant is the next above what is acknowledged, as the window is far
        # smaller than the circle.
        number = self.acked + 1 + (opaque - 1 - self.acked) % OPAQUES
        return number if self.acked < number <= self.sent and opaque else None

    def acknowledge(self, number: int) -> list[Run]:
        """Acknowledge a message "and every earlier message"; return the runs with newly acknowledged messages."""
        runs = []
        self.acked = max(self.acked, number)
        invariant(self.acked <= self.sent, "message {} is acknowledged, {} were sent", self.acked, self.sent)
        while self._runs and self._runs[0].first <= self.acked:
            runs.append(self._runs[0])
            if self._runs[0].last > self.acked:
                break
            self._runs.popleft()
        return runs

    def restart(self, stream: Hashable, place: TapPlace) -> None:
        """Set the place to which a stream returns when its unacknowledged messages must be sent again."""
        for run in self._runs:
            if run.stream is stream:
                # Without seqnos, so that a refusal of any message of the run leads to the new place.
                run.before, run.seqnos = place, ()

    def take_back(self) -> list[tuple[Hashable, TapPlace]]:
        """Forget all unacknowledged messages; return each stream's place from which they must be sent again."""
        places: dict[Hashable, TapPlace] = {}
        for run in self._runs:
            # The oldest unacknowledged run of each stream decides: everything behind it is sent again, in order.
            places.setdefault(run.stream, run.place_before(self.acked + 1))
        self._runs.clear()
        # "Sent again with new seqnos" (tap.md 1.2): the old numbers are passed over and never answered.
        self.acked = self.ack_request = self.sent
        return list(places.items())
