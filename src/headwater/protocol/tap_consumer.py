"""The consumer's end of TAP: messages in, what they tell out, and the answers they are owed.

Used by the client and by a node that is fed by a mover alike. A message is answered when it asks (flag ACK), and, once
the producer said OPAQUE 0, also when it could not be obeyed; so the caller obeys first, durably, and then lets it be
answered. Source: tap.md 3 (what messages mean), 4 (what is answered), 5.3 (what is applied).
"""

from __future__ import annotations

from typing import Final, TypeAlias

from headwater.errors import BadMessage, RemoteProtocolError
from headwater.wire import tap
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status, name_of
from headwater.wire.tap import MessageFlag, OpaqueCode
from headwater.wire.vbucket import State

TapMessage: TypeAlias = (
    "tap.Mutation | tap.Delete | tap.Flush | tap.Opaque | tap.VbucketSet | tap.CheckpointStart | tap.CheckpointEnd"
)

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
_FLAGS_END: Final = 4


class TapConsumer:
    """One connection's answers.

    Attributes:
        answers_errors: the producer said OPAQUE 0.
        open_vbuckets: those that come from scratch and are not complete.
        handed_over: those that a takeover is not done with.
    """

    def __init__(self) -> None:
        self.answers_errors = False
        self.open_vbuckets: set[int] = set()
        self.handed_over: set[int] = set()

    @property
    def is_whole(self) -> bool:
        """Whether all that was begun was completed: at the end of a dump or takeover, whether it is one."""
        return not self.open_vbuckets and not self.handed_over

    def read(self, frame: Frame) -> TapMessage | None:
        """Read one request of the producer; None for a no-op.

        Raises:
            BadMessage: it is malformed, or its time to live is over; answer its status.
            RemoteProtocolError: no message of TAP, or a checkpoint without an id: disconnect.
        """
        if frame.opcode == Opcode.NOOP:
            return None
        kind = MESSAGES.get(frame.opcode)
        if kind is None:
            raise RemoteProtocolError(f"opcode 0x{frame.opcode:02x} on a TAP stream")
        try:
            message = kind.decode(frame)
        except BadMessage as bad:
            if issubclass(kind, tap.CheckpointStart):
                raise RemoteProtocolError(f"a checkpoint without an id: {bad.problem}") from None
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
            case tap.Opaque() if message.code == OpaqueCode.CLOSE_BACKFILL:
                self.open_vbuckets.discard(message.vbucket)
            case tap.VbucketSet():
                if message.state == State.PENDING:
                    self.handed_over.add(message.vbucket)
                else:
                    self.handed_over.discard(message.vbucket)

    def answer(self, frame: Frame, status: int = Status.SUCCESS) -> Frame | None:
        """The answer a message is owed; None if it is owed none.

        Raises:
            RemoteProtocolError: it could not be obeyed, and the producer does not take answers: disconnect, so that it
                does not go on as if.
        """
        asks = bool(int.from_bytes(frame.extras[2:_FLAGS_END]) & MessageFlag.ACK)
        if asks or (status and self.answers_errors):
            return response(frame, status)
        if status:
            raise RemoteProtocolError(f"{name_of(status)} for opcode 0x{frame.opcode:02x}, which asked for no answer")
        return None
