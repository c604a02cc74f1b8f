"""A client's end of a connection to a simulated node: whole messages out, bytes in, and one callback when it is lost.

    line = Line(network, loop, received=frames.receive_data, lost=give_up)
    line.connect("n0"); line.send(data); line.pause(); line.close()

It runs on the world's own loop, which no crash ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.simulation.scheduler import SimLoop
    from harness.simulation.sockets import Network, SimSocket

PLACE = "client"
"""The place of all clients in the simulated network."""
READ_BYTES = 64 << 10


class Line:
    """One connection after the other; closed at first.

    Args:
        received: called with the received bytes, at least one.
        lost: called with the reason when the node hung up or accepts no more bytes; it must close the line.
    """

    def __init__(
        self, network: Network, loop: SimLoop, *, received: Callable[[bytes], None], lost: Callable[[str], None]
    ) -> None:
        self._network, self._loop = network, loop
        self._received, self._lost = received, lost
        self._sock: SimSocket | None = None

    @property
    def is_open(self) -> bool:
        """True if there is a connection, as far as this end knows."""
        return self._sock is not None

    def connect(self, target: str) -> bool:
        """Connect a closed line to a node; return False if it does not listen."""
        sock = self._network.socket(PLACE)
        try:
            self._network.join(sock, target)
        except ConnectionError:
            sock.close()
            return False
        self._sock = sock
        self.resume()
        return True

    def close(self) -> None:
        """Close the connection; unread bytes are lost."""
        sock, self._sock = self._sock, None
        if sock is not None:
            self._loop.remove_reader(sock.fileno())
            sock.close()

    def pause(self) -> None:
        """Stop reading for now."""
        if self._sock is not None:
            self._loop.remove_reader(self._sock.fileno())

    def resume(self) -> None:
        """Continue reading."""
        if self._sock is not None:
            self._loop.add_reader(self._sock.fileno(), self._readable)

    def send(self, data: bytes) -> None:
        """Send all of the bytes; if the node has no room for them, the connection is given up."""
        if not data:
            return
        try:
            sent = self._sock.send(data) if self._sock is not None else 0
        except OSError:
            sent = 0
        if sent < len(data):
            self._lost("its node takes nothing")

    def _readable(self) -> None:
        try:
            data = b"" if self._sock is None else self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._received(data)
        else:
            self._lost("its node hung up")
