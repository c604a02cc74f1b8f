"""The session of a TAP connection on which this node sends.

"After TAP_CONNECT the client may only send responses": they are passed to the protocol object. As on a DCP connection,
the connection calls `pump` for output whenever the client has received the previous output.

Source: tap.md 1, 4, 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headwater.errors import RemoteProtocolError
from headwater.node.connections.inbox import whole_frame
from headwater.node.tap.merging import complete, end_without_right
from headwater.protocol.tap.producer import Fate
from headwater.wire.header import Frame
from headwater.wire.status import name_of

if TYPE_CHECKING:
    from headwater.node.connections.connection import Connection
    from headwater.node.kv.api import Session
    from headwater.node.streams.outlet import Outlet
    from headwater.node.tap.feed import Feed


class Hub(Protocol):
    """The TAP sessions of a bucket, as one of their connections uses them.

    Attributes:
        outlet: the buffer for output, which all connections use in turn.
    """

    outlet: Outlet

    def left(self, feed: Feed, connection: Connection) -> None:
        """Keep or end a session whose connection is closed."""


class TapSession:
    """The session of one TAP connection on which this node sends.

    Attributes:
        connection: the connection.
        feed: the TAP session itself, which may outlive this connection.
        deadline: the time at which `tick` must be called.
    """

    pumps = True
    quick = None

    def __init__(self, kv: Session, hub: Hub, feed: Feed) -> None:
        self.connection: Connection = kv.connection
        self.feed = feed
        self.deadline: float | None = None
        self._kv = kv
        self._hub = hub
        self._loop = kv.server.loop

    def receive(self, data: memoryview) -> int:
        """Handle every complete frame in `data`; return the number of bytes consumed."""
        offset, connection = 0, self.connection
        while not connection.is_paused and not connection.is_closed and (size := whole_frame(data, offset)):
            frame = Frame.decode(data[offset : offset + size])
            offset += size
            if not frame.is_response:
                raise RemoteProtocolError(f"opcode 0x{frame.opcode:02x} after TAP_CONNECT: only answers may follow")
            self.feed.producer.receive_frame(frame, self._loop.time())
            if connection.gives_way():
                break
        self.feed.heard()
        self._answer()
        return offset

    def pump(self) -> None:
        """Send up to one outlet full of messages."""
        outlet = self._hub.outlet
        outlet.begin(self.connection, self.connection.turn_is_over)
        outlet.write(self.feed.producer.data_to_send())
        self.feed.producer.wrote(self._loop.time())
        if self.feed.connection is self.connection:
            self.feed.pump(outlet)
        outlet.flush()
        self._answer()

    def tick(self, now: float) -> None:
        """Do what is due now: send a no-op, end a suspension, or close the connection of a client that has acknowledged
        nothing for too long.
        """
        self.feed.producer.tick(now)
        self.feed.heard()
        self._answer()

    @property
    def written_gate(self) -> int:
        """The number of the newest batch with a key-value write from this connection."""
        return self._kv.written_gate

    def users_changed(self) -> None:
        """Close the connection if its user was removed, or has lost a right that the session needs."""
        end_without_right(self._kv, takes_over=self.feed.producer.options.takeover)

    def closed(self) -> None:
        """Leave the TAP session, because the connection is closed; the TAP session may wait for its client."""
        self._hub.left(self.feed, self.connection)
        self._hub.outlet.leave(self.connection)
        self._kv.closed()

    def _answer(self) -> None:
        producer, connection = self.feed.producer, self.connection
        if data := producer.data_to_send():
            connection.send(data)
        producer.wrote(self._loop.time())
        if producer.fate is Fate.FAILED:
            connection.drop(f"the TAP client answered {name_of(producer.failure)}")
        elif producer.is_complete:
            producer.fate = Fate.DONE
            if connection.is_inner:  # the client's worker takes an end without this frame for a failure
                connection.send(complete())
            connection.finish()
        self.deadline = producer.deadline
