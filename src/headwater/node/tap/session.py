"""The session of a TAP connection on which this node produces.

"After TAP_CONNECT the client may only send responses": they go to the protocol object. What is sent is pulled, an arena
at a time, as on a DCP connection. Source: tap.md 1, 4, 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.errors import RemoteProtocolError
from headwater.node.inbox import whole_frame
from headwater.protocol.tap_producer import Fate
from headwater.wire.header import Frame
from headwater.wire.status import name_of

if TYPE_CHECKING:
    from headwater.node.kv.session import KvSession
    from headwater.node.tap.feed import Feed
    from headwater.node.tap.hub import TapHub


class TapSession:
    """One connection.

    Attributes:
        feed: the session proper, which may live on without us.
        deadline: when `tick` must be called.
    """

    def __init__(self, kv: KvSession, hub: TapHub, feed: Feed) -> None:
        self.connection = kv.connection
        self.feed = feed
        self.deadline: float | None = None
        self._kv = kv
        self._hub = hub
        self._loop = kv.server.loop

    def receive(self, data: memoryview) -> int:
        """Take every whole frame."""
        offset, connection = 0, self.connection
        while not connection.is_paused and not connection.is_closed and (size := whole_frame(data, offset)):
            frame = Frame.decode(data[offset : offset + size])
            offset += size
            if not frame.is_response:
                raise RemoteProtocolError(f"opcode 0x{frame.opcode:02x} after TAP_CONNECT: only answers may follow")
            self.feed.producer.receive_frame(frame, self._loop.time())
        self.feed.heard()
        self._answer()
        return offset

    def pump(self) -> None:
        """Send at most an arena's worth."""
        outlet = self._hub.outlet
        outlet.begin(self.connection)
        outlet.write(self.feed.producer.data_to_send(self._loop.time()))
        if self.feed.connection is self.connection:
            self.feed.pump(outlet)
        outlet.flush()
        self._answer()

    def tick(self, now: float) -> None:
        """A no-op is due, a suspension is over, or the client has acknowledged nothing for too long."""
        self.feed.producer.tick(now)
        self.feed.heard()
        self._answer()

    @property
    def written_gate(self) -> int:
        """The newest batch with a key-value write that came over this connection."""
        return self._kv.written_gate

    def closed(self) -> None:
        """The socket is gone; the session stays if it is to be kept."""
        self._hub.left(self.feed, self.connection)
        self._kv.closed()

    def _answer(self) -> None:
        producer, connection = self.feed.producer, self.connection
        if data := producer.data_to_send(self._loop.time()):
            connection.send(data)
        if producer.fate is Fate.FAILED:
            connection.drop(f"the TAP client answered {name_of(producer.failure)}", fault=False)
        elif producer.is_complete:
            producer.fate = Fate.DONE
            connection.finish()
        self.deadline = producer.deadline
