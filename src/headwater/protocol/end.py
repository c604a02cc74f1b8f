"""The common interface of all ends of a conversation: bytes and the time in, events and bytes out.

The owner of a socket drives each of them in the same way, which docs/howto/sans-io.md shows:

    handshake.Handshake     dcp.drain.Drain          tap.consumer.TapConsumer
                            dcp.consumer.Consumer    tap.producer.TapProducer
                            dcp.producer.Producer

Send `data_to_send` after every call. No end has a socket, a thread or a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame

Event = TypeVar("Event")
Event_co = TypeVar("Event_co", covariant=True)


@dataclass(frozen=True, slots=True)
class PeerGone:
    """No more messages come: close the connection.

    Attributes:
        silent_seconds: length of the silence; None if the peer closed the connection.
        waited_for: the unanswered request, if that is the reason.
    """

    silent_seconds: float | None = None
    waited_for: str = ""

    def __str__(self) -> str:
        detail = f" ({self.waited_for})" * bool(self.waited_for)
        if self.silent_seconds is None:
            return f"closed the connection{detail}"
        return f"has been silent for {self.silent_seconds:g} s{detail}"


class End(Protocol[Event_co]):
    """One end of a conversation."""

    @property
    def deadline(self) -> float | None:
        """The time at which to call `tick`; None for never. Read it again after every other call."""

    def receive_data(self, data: bytes, now: float) -> Sequence[Event_co]:
        """Take received bytes, split at any point; return their events, oldest first.

        Args:
            data: at least one byte; for the end of the connection call `receive_eof`.
            now: seconds of one monotonic clock, as in every other call.

        Raises:
            RemoteProtocolError: the peer broke the rules. Send `data_to_send`, then close the connection.
        """

    def receive_eof(self) -> Sequence[Event_co]:
        """Report that the peer closed the connection: the last event is `PeerGone`. Call nothing after it."""

    def tick(self, now: float) -> Sequence[Event_co]:
        """Act on the deadline; return `PeerGone` if the peer was silent for too long.

        Raises:
            RemoteProtocolError: as for `receive_data`.
        """

    def data_to_send(self) -> bytes:
        """Return the bytes to send, and forget them; empty if there are none."""


def each_frame(
    buffer: FrameBuffer, data: bytes, now: float, receive_frame: Callable[[Frame, float], Sequence[Event]]
) -> list[Event]:
    """Pass each frame that `data` completes to `receive_frame`; return all their events.

    Raises:
        BadFrame: the bytes after these frames are not a frame.
    """
    events = [event for frame in buffer.receive_data(data) for event in receive_frame(frame, now)]
    if buffer.failure is not None:
        raise buffer.failure
    return events
