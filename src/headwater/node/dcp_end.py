"""What a DCP connection of this node is, whichever end of the protocol it speaks.

Whole frames in, one protocol object that understands them, its answers out behind their gate; what is no DCP goes on to
the key-value session, which keeps serving. `DcpSession` (streams/session.py) is the end that produces,
`ConsumerSession` (replication/session.py) the one that consumes: they differ in what their events mean.
Source: dcp 1, 2.1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from headwater.node.inbox import whole_frame
from headwater.node.kv.command import NoRoom
from headwater.protocol.controls import Negotiated
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.dcp import DcpHub
    from headwater.node.kv.session import KvSession

REFUSED_ON_DCP: dict[int, Status] = {
    **dict.fromkeys((Opcode.SASL_AUTH, Opcode.SASL_STEP, Opcode.SELECT_BUCKET), Status.NOT_SUPPORTED),
    Opcode.TAP_CONNECT: Status.EINVAL,
}
"""What a connection can not do any more once it is a DCP connection, and the answer: dcp 1; for TAP, "mixing on one
connection is an error (EINVAL)" (tap 6)."""


class Spoken(Protocol):
    """What is asked of the protocol object, of either end."""

    negotiated: Negotiated

    @property
    def deadline(self) -> float | None:
        """When it wants to be called."""

    def data_to_send(self) -> bytes:
        """Take the bytes that wait to be sent."""


End = TypeVar("End", bound=Spoken)


class DcpEnd(ABC, Generic[End]):
    """One DCP connection.

    Attributes:
        connection: the socket.
        deadline: when `tick` must be called.
    """

    def __init__(self, kv: KvSession, hub: DcpHub, end: End) -> None:
        self.connection = kv.connection
        self.deadline: float | None = None
        self._end = end
        self._kv = kv
        self._hub = hub
        self._bucket = hub.bucket
        self._loop = kv.server.loop
        self._name = end.negotiated.connection_name.encode("latin-1")
        self._gate = 0
        hub.enter(self._name, self)

    # --- Session ----------------------------------------------------------------------------------------------------

    def receive(self, data: memoryview) -> int:
        """Take every whole frame; stops early when something pauses the connection."""
        offset, connection = 0, self.connection
        try:
            while not connection.is_paused and not connection.is_closed:
                offset = self._take_many(data, offset)
                size = 0 if connection.is_paused else whole_frame(data, offset)
                if not size:
                    break
                self._take(Frame.decode(data[offset : offset + size]))
                offset += size
        except NoRoom:
            self._wait_for_room()
        finally:
            self._answer()
        return offset

    def pump(self) -> None:
        """Send at most an arena's worth of what is waiting; nothing, unless something is streamed from here."""

    @abstractmethod
    def tick(self, now: float) -> None:
        """The deadline has come."""

    @property
    def written_gate(self) -> int:
        """The newest batch with a key-value write that came over this connection."""
        return self._kv.written_gate

    def closed(self) -> None:
        """The socket is gone, and all that belongs to it."""
        self._close_streams()
        self._hub.leave(self._name, self)
        self._kv.closed()

    @abstractmethod
    def stats(self) -> Iterable[tuple[str, str]]:
        """This connection's part of STAT dcp."""

    # --- input ------------------------------------------------------------------------------------------------------

    def _take_many(self, data: memoryview, offset: int) -> int:
        """Take frames that need no look at each of them; where the first one begins that does."""
        return offset

    @abstractmethod
    def _take(self, frame: Frame) -> None:
        """Take one frame. NoRoom: it must be given again after the next commit."""

    def _wait_for_room(self) -> None:
        """Read on after the next commit."""
        self._kv.wait_for_room()

    @abstractmethod
    def _close_streams(self) -> None:
        """No more is to be had from, or sent to, the peer."""

    def _pass_on(self, frame: Frame) -> None:
        """What is no DCP: the key-value session answers, but for what would change whose connection this is."""
        self._answer()
        status = None if frame.is_response else REFUSED_ON_DCP.get(frame.opcode)
        if status is not None:
            self._refuse(frame, status)
        else:
            self._kv.handle(frame)

    @abstractmethod
    def _refuse(self, frame: Frame, status: Status) -> None:
        """Answer with nothing but a status."""

    # --- output -----------------------------------------------------------------------------------------------------

    def _hold_until(self, gate: int) -> None:
        """What the protocol object says next leaves once this batch is durable."""
        self._gate = max(self._gate, gate)

    def _answer(self) -> None:
        """Send what the protocol object has to say, once it is true on disk as well."""
        data = self._end.data_to_send()
        if data:
            self.connection.send(data, self._gate)
            self._gate = 0
        self.deadline = self._next_deadline()

    def _next_deadline(self) -> float | None:
        return self._end.deadline
