"""The consumer's end of TAP: frames in, messages and their answers out.

Used by the client, and by a node that a mover feeds. A message needs an answer if it has the flag ACK; once the
producer has sent OPAQUE 0, also if it could not be applied. So the caller first applies a message, durably, and then
reports it (`processed`). Source: tap.md 3 (meaning of messages), 4 (answers), 5.3 (effects).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from headwater.errors import BadMessage, RemoteProtocolError
from headwater.protocol.end import PeerGone, each_frame
from headwater.protocol.tap.options import TapOptions
from headwater.wire import tap
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame, response
from headwater.wire.json_text import context_of
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status, name_of
from headwater.wire.tap import OpaqueCode, asks_for_answer
from headwater.wire.vbucket import State

TapMessage: TypeAlias = (
    "tap.Mutation | tap.Delete | tap.Flush | tap.Opaque | tap.VbucketSet | tap.CheckpointStart | tap.CheckpointEnd"
)

TTL_MAX: Final = 255
"""tap.md 3.2: "a producer sends 255"."""

SILENCE_SECONDS_MAX: Final = 600.0
"""tap.md 3.3: no-ops come every 200 s; "a client that sees nothing for several intervals should reconnect"."""

MESSAGES: Final[dict[int, type[TapMessage]]] = {
    Opcode.TAP_MUTATION: tap.Mutation,
    Opcode.TAP_DELETE: tap.Delete,
    Opcode.TAP_FLUSH: tap.Flush,
    Opcode.TAP_OPAQUE: tap.Opaque,
    Opcode.TAP_VBUCKET_SET: tap.VbucketSet,
    Opcode.TAP_CHECKPOINT_START: tap.CheckpointStart,
    Opcode.TAP_CHECKPOINT_END: tap.CheckpointEnd,
}


@dataclass(frozen=True, slots=True)
class Received:
    """A message to apply and then report by `TapConsumer.processed`."""

    message: TapMessage
    frame: Frame


@dataclass(frozen=True, slots=True)
class ConnectRefused:
    """The producer refuses TAP_CONNECT; `said` is its explanation, if it gave one."""

    status: int
    said: str = ""


Event: TypeAlias = Received | ConnectRefused | PeerGone


class TapConsumer:
    """The consumer's end of one TAP connection.

    A producer ends a dump or takeover by closing the connection, and a connection also closes after failures. So the
    caller passes the expected vbuckets (`expected`), and the session has succeeded only if all of them are complete.

    Args:
        expects: vbuckets without which a dump or takeover is not whole; None if unknown.
        takes_over: True for a takeover: a vbucket is complete once the producer sets it active, not after its backfill.
        now: seconds of a monotonic clock; without it, silence counts from the first bytes on.

    Attributes:
        answers_errors: True once the producer has sent OPAQUE 0.
        open_vbuckets: vbuckets that are sent from the beginning and are not complete.
        handed_over: vbuckets that a takeover has not finished.
        completed: vbuckets that are complete.
    """

    def __init__(
        self, expects: Collection[int] | None = None, *, takes_over: bool = False, now: float | None = None
    ) -> None:
        self.expects: Final = expects
        self.takes_over: bool = takes_over
        self.answers_errors: bool = False
        self.open_vbuckets: set[int] = set()
        self.handed_over: set[int] = set()
        self.completed: set[int] = set()
        self._heard_at = now
        self._buffer = FrameBuffer()
        self._out = bytearray()

    # --- the five methods (protocol/end.py) -------------------------------------------------------------------------

    def connect(self, options: TapOptions) -> None:
        """Send the request for the stream."""
        self._out += options.encode()

    @property
    def deadline(self) -> float | None:
        """The time at which to call `tick`; None for never."""
        return None if self._heard_at is None else self._heard_at + SILENCE_SECONDS_MAX

    def receive_data(self, data: bytes, now: float) -> list[Event]:
        """Take received bytes; return their events. Apply each message, then call `processed` for it.

        Raises:
            RemoteProtocolError: the connection must be closed.
        """
        return each_frame(self._buffer, data, now, self.receive_frame)

    def receive_frame(self, frame: Frame, now: float) -> list[Event]:
        """Take one frame, for owners that cut frames themselves."""
        self._heard_at = now
        if frame.is_response:
            return [ConnectRefused(frame.status, context_of(frame.value))] if frame.opcode == Opcode.TAP_CONNECT else []
        try:
            message = self.read(frame)
        except BadMessage as error:
            self._reply(frame, error.status)
            return []
        return [] if message is None else [Received(message, frame)]

    def processed(self, received: Received, status: int = Status.SUCCESS) -> None:
        """Report the outcome of a message: SUCCESS if it was applied, durably; otherwise the error's status.

        After ETMPFAIL the producer sends the message again later; any other error ends the session. Raises as `answer`
        does.
        """
        self._reply(received.frame, status)

    def _reply(self, frame: Frame, status: int) -> None:
        if (answer := self.answer(frame, status)) is not None:
            self._out += answer.encode()

    def receive_eof(self) -> list[Event]:
        """Report that the producer closed the connection; a dump or takeover has succeeded if `is_whole` is True."""
        return [PeerGone(waited_for=f"vbuckets {', '.join(map(str, sorted(self.missing)))}" if self.missing else "")]

    def tick(self, now: float) -> list[Event]:
        """Act on the deadline: "a client that sees nothing for several intervals should reconnect" (tap.md 3.3)."""
        if self._heard_at is None or now < self._heard_at + SILENCE_SECONDS_MAX:
            return []
        return [PeerGone(now - self._heard_at)]

    def data_to_send(self) -> bytes:
        """Return the bytes to send, and forget them."""
        data = bytes(self._out)
        self._out.clear()
        return data

    # --- messages ---------------------------------------------------------------------------------------------------

    @property
    def is_whole(self) -> bool:
        """True if all vbuckets of a dump or takeover are complete; without `expects`, all begun ones, at least one."""
        return not self.missing and (self.expects is not None or bool(self.completed))

    @property
    def missing(self) -> set[int]:
        """The vbuckets that were expected or begun and are not complete."""
        return self.open_vbuckets | self.handed_over | (set(self.expects or ()) - self.completed)

    def read(self, frame: Frame) -> TapMessage | None:
        """Read one request of the producer; return None for a no-op.

        Raises:
            BadMessage: the request is malformed, or its TTL is 0; answer with the error's status.
            RemoteProtocolError: the request is no TAP message, or is a checkpoint without an id: close the connection.
        """
        if frame.opcode == Opcode.NOOP:
            return None
        kind = MESSAGES.get(frame.opcode)
        if kind is None:
            raise RemoteProtocolError(f"opcode 0x{frame.opcode:02x} on a TAP stream")
        try:
            message = kind.decode(frame)
        except BadMessage as error:
            # "A checkpoint message without an id: disconnect" (tap.md 5.1).
            if issubclass(kind, tap.CheckpointStart):
                raise RemoteProtocolError(f"a checkpoint without an id: {error.problem}") from None
            raise
        # tap.md 3.2: "a message received with ttl 0 is not applied and is answered with EINVAL".
        if message.ttl == 0:
            raise BadMessage(kind.__name__, frame.opcode, "its time to live is over: it goes in a circle")
        self._note(message)
        return message

    def _note(self, message: TapMessage) -> None:
        match message:
            case tap.Opaque() if message.code == OpaqueCode.ENABLE_AUTO_NACK:
                self.answers_errors = True
            case tap.Opaque() if message.code == OpaqueCode.INITIAL_VBUCKET_STREAM:
                self.open_vbuckets.add(message.vbucket)
                # It comes from scratch once more, so what was whole is not whole any more.
                self.completed.discard(message.vbucket)
            case tap.Opaque() if message.code == OpaqueCode.CLOSE_BACKFILL:
                self.open_vbuckets.discard(message.vbucket)
                if not self.takes_over:
                    self.completed.add(message.vbucket)
            case tap.VbucketSet() if message.state == State.PENDING:
                self.handed_over.add(message.vbucket)
            case tap.VbucketSet() if message.state == State.ACTIVE:
                self.handed_over.discard(message.vbucket)
                self.completed.add(message.vbucket)

    def answer(self, frame: Frame, status: int = Status.SUCCESS) -> Frame | None:
        """Return the answer to a message; None if it needs none.

        Raises:
            RemoteProtocolError: the message could not be applied, and the producer accepts no error answers. Close the
                connection, so that the producer does not continue as if the message had been applied.
        """
        asks = asks_for_answer(frame)
        if asks or (status and self.answers_errors):
            return response(frame, status)
        if status:
            raise RemoteProtocolError(f"{name_of(status)} for opcode 0x{frame.opcode:02x}, which asked for no answer")
        return None


def hops_after(ttl: int) -> int:
    """Return the number of nodes that a change has passed, from its TTL: the first producer sends changes with 255."""
    return TTL_MAX + 1 - ttl


def expected(options: TapOptions, stats: Mapping[str, str]) -> set[int] | None:
    """Return the vbuckets without which a dump or takeover is not whole; None if that is unknown.

    A takeover must bring every vbucket of its list. "DUMP covers the active vbuckets of the filter that hold items"
    (tap.md 1.1); a vbucket that was requested by number and is not active there is missing, even if it is empty.

    Args:
        options: options of the request.
        stats: the producer's statistics `vbucket-details`; empty if it has none.
    """
    if options.takeover:
        return set(options.vbuckets)
    states = {int(name[3:]): state for name, state in stats.items() if name.startswith("vb_") and name[3:].isdecimal()}
    if not states:
        return None
    active = {vb for vb, state in states.items() if state == "active"}
    filled = {vb for vb in active if stats.get(f"vb_{vb}:num_items", "0") != "0"}
    return filled if not options.vbuckets else set(options.vbuckets) - (active - filled)
