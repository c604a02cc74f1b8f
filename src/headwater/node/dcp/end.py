"""A DCP connection of this node, as producer or as consumer.

Whole frames go to one protocol object, whose answers are sent once their batch is durable; frames of other protocols go
to the key-value session of the connection, which continues to serve. `ProducerSession` (dcp/producer.py) and
`ConsumerSession` (dcp/consumer.py) differ in how they handle the events. Source: dcp 1, 2.1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from headwater.node.connections.inbox import whole_frame
from headwater.node.kv.access import check_rights
from headwater.node.kv.command import COMMANDS
from headwater.node.kv.rights import Rule
from headwater.node.refused import CommandRefused, NoRoom
from headwater.protocol.dcp.controls import Negotiated
from headwater.protocol.dcp.refusals import Refusals
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.privilege import Privilege, in_words
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.connections.connection import Connection
    from headwater.node.kv.api import Session
    from headwater.node.streams.dcp_hub import DcpHub
    from headwater.node.streams.stream import Stream
    from headwater.node.vbucket.vbucket import VBucket

REFUSED_ON_DCP: dict[int, Status] = {
    **dict.fromkeys((Opcode.SASL_AUTH, Opcode.SASL_STEP, Opcode.SELECT_BUCKET), Status.NOT_SUPPORTED),
    Opcode.DELETE_BUCKET: Status.NOT_SUPPORTED,
    Opcode.TAP_CONNECT: Status.EINVAL,
}
"""The requests that a DCP connection refuses, and the status of each answer (dcp 1); for TAP, "mixing on one connection
is an error (EINVAL)" (tap 6)."""


class Spoken(Protocol):
    """The interface of a protocol object, a producer or a consumer."""

    negotiated: Negotiated
    refusals: Refusals

    @property
    def deadline(self) -> float | None:
        """The time of the next `tick`, in seconds of the monotonic clock; None for never."""

    def data_to_send(self) -> bytes:
        """Return the bytes to send, and forget them."""


End = TypeVar("End", bound=Spoken)


class DcpEnd(ABC, Generic[End]):
    """One DCP connection.

    Args:
        kv: the session with which the connection began.
        hub: the bucket's DCP connections.
        end: the protocol object.

    Attributes:
        connection: the socket with its queues.
        deadline: the time at which `tick` must be called, in loop.time() seconds; None for never.
        is_producer: True if this node produces on the connection.
    """

    pumps = True
    quick = None
    is_producer: bool
    _needs: Privilege
    """The rights that the user must have for as long as the connection is open."""

    def __init__(self, kv: Session, hub: DcpHub, end: End) -> None:
        self.connection: Connection = kv.connection
        self.deadline: float | None = None
        self._end = end
        self._kv = kv
        self._hub = hub
        self._bucket = hub.bucket
        self._loop = kv.server.loop
        self._name = end.negotiated.connection_name.encode("latin-1")
        self._gate = 0
        hub.enter(self._name, self)

    # --- what the connection calls ----------------------------------------------------------------------------------

    def receive(self, data: memoryview) -> int:
        """Handle every whole frame; stop early if the connection is paused. Return the number of bytes consumed."""
        offset, connection = 0, self.connection
        try:
            while not connection.is_paused and not connection.is_closed:
                offset = self._take_many(data, offset)
                size = 0 if connection.is_paused else whole_frame(data, offset)
                if not size:
                    break
                self._take(Frame.decode(data[offset : offset + size]))
                offset += size
                if connection.gives_way():
                    break
        except NoRoom:
            self._wait_for_room()
        finally:
            self._kv.end_burst()
            self._answer()
        return offset

    def pump(self) -> None:
        """Send waiting output, at most as much as an arena holds."""
        self._kv.pump()

    @abstractmethod
    def tick(self, now: float) -> None:
        """Act on the deadline, which has passed."""

    @property
    def key_value(self) -> Session:
        """The key-value session with which the connection began, with the features of its HELLO. It answers all
        requests except those of DCP.
        """
        return self._kv

    @property
    def written_gate(self) -> int:
        """The number of the newest batch with a key-value write over this connection; 0 for none."""
        return self._kv.written_gate

    @property
    def user(self) -> str | None:
        """The user who opened the connection; None if this node opened it, or has no users."""
        return self._kv.user

    @property
    def named_at(self) -> int:
        """The time at which the client opened the connection, in monotonic nanoseconds; 0 if this node opened it."""
        return self._kv.named_at

    def users_changed(self) -> None:
        """Close the connection if its user was removed, or has lost a right that the connection needs.

        A user without any right in the bucket has no bucket selected any more, and so has none of these rights.
        """
        self._kv.users_changed()
        rights = 0 if self._kv.bucket is None else self._kv.access.anywhere
        if (missing := self._needs & ~rights) and not self.connection.is_closed:
            self._kv.server.audit(self._kv, f"may not stream any more: it needs {in_words(missing)}")
            self.connection.drop(f"user {self.user!r} has no right to it any more", fault=False)

    def closed(self) -> None:
        """Close everything that belongs to the connection, because its socket is closed."""
        self._close_streams()
        self._hub.leave(self._name, self)
        self._kv.closed()

    @abstractmethod
    def stats(self) -> Iterable[tuple[str, str]]:
        """Return this connection's part of STAT dcp."""

    def backlog(self) -> Iterable[int]:
        """Yield the number of changes that each stream still has to send; a consumer yields nothing."""
        return ()

    def oldest_unsent_ns(self) -> int | None:
        """Return the Unix time in nanoseconds of the oldest change that is not sent yet; None if there is none."""
        return None

    def stream_of(self, vbucket: VBucket) -> Stream | None:
        """Return the stream on which a vbucket is sent; None if this end does not send it."""
        return None

    def batch_lost(self, error: BaseException) -> None:
        """Do nothing, because a producer sends durable changes only. A consumer overrides this."""

    # --- input ------------------------------------------------------------------------------------------------------

    def _take_many(self, data: memoryview, offset: int) -> int:
        """Handle frames in bulk; return the offset of the first frame that must be handled by itself."""
        return offset

    @abstractmethod
    def _take(self, frame: Frame) -> None:
        """Handle one frame. Raises NoRoom, before any effect, if the frame must be handled again after the next
        commit.
        """

    def _wait_for_room(self) -> None:
        """Continue to read after the next commit."""
        self._kv.parking.wait_for_room(self._kv.server.committer)

    @abstractmethod
    def _close_streams(self) -> None:
        """Close all streams, in both directions."""

    def _pass_on(self, frame: Frame) -> None:
        """Pass a frame of another protocol to the key-value session; refuse the requests in REFUSED_ON_DCP."""
        self._answer()
        status = None if frame.is_response else REFUSED_ON_DCP.get(frame.opcode)
        if status is not None:
            self._refuse(frame, status, "a DCP connection can not do that any more")
        else:
            self._kv.give(frame)

    def _may(self, frame: Frame, rule: Rule | None = None) -> bool:
        """Return True if the user may send this frame, by `rule` or else by the rule of its opcode; otherwise send the
        refusal and return False.

        Most rights need no such check: OPEN checks them, and a user who loses them is disconnected.
        """
        try:
            check_rights(self._kv, frame, rule or COMMANDS[frame.opcode].rule)
        except CommandRefused as refused:
            self._refuse(frame, Status(refused.status), refused.context)
            return False
        return True

    @abstractmethod
    def _refuse(self, frame: Frame, status: Status, reason: str) -> None:
        """Answer with an error; `reason` is for people."""

    # --- output -----------------------------------------------------------------------------------------------------

    def _hold_until(self, gate: int) -> None:
        """Hold back the protocol object's next output until batch `gate` is durable."""
        self._gate = max(self._gate, gate)

    def _answer(self) -> None:
        """Send the output of the protocol object; it waits for the batch that it depends on."""
        if self._end.refusals:
            self._log_refusals()
        data = self._end.data_to_send()
        if data:
            # One gate for all output that has gathered: earlier output waits for the batch too, which keeps the order
            # of the wire.
            self.connection.send(data, self._gate)
            self._gate = 0
        self.deadline = self._next_deadline()

    def _log_refusals(self) -> None:
        """Log the refusals before their answers are sent, so that a refused client finds the reason in the log."""
        name = self._name.decode("latin-1")
        refusals = self._end.refusals.take()
        sentences = [f'DCP connection "{name}": {refusal}' for refusal in refusals]
        self._hub.refusals.tell(self.connection.peer, sentences, self._loop.time())

    def _next_deadline(self) -> float | None:
        return self._end.deadline
