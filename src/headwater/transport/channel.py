"""One TCP connection that never blocks: connect, receive what is there, send what fits, keep the rest.

Errors of the operating system become `ConnectionLost` with the peer's address here, and nowhere else.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from contextlib import suppress
from typing import Any, TypeAlias

from headwater.errors import ConnectionLost

SOCKET_BUFFER_BYTES = 1024 * 1024
SEND_BYTES = 256 * 1024
SocketAddress: TypeAlias = tuple[int, tuple[Any, ...]]
"""Address family and the address as sockets take it."""

_CONNECTING = {errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY}


class Channel:
    """A connection under way or made.

    Attributes:
        peer: "host:port", for messages.
    """

    __slots__ = ("_connecting", "_outgoing", "_socket", "peer")

    def __init__(self, peer: str, address: SocketAddress) -> None:
        self.peer = peer
        self._outgoing: deque[memoryview] = deque()
        self._socket = socket.socket(address[0], socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            self._socket.setsockopt(socket.SOL_SOCKET, buffer, SOCKET_BUFFER_BYTES)
        code = self._socket.connect_ex(address[1])
        self._connecting = code in _CONNECTING
        if code and not self._connecting:
            raise self._lost(OSError(code, os.strerror(code)))

    def fileno(self) -> int:
        """The descriptor to wait for; -1 once closed."""
        return self._socket.fileno()

    @property
    def wants_to_write(self) -> bool:
        """Whether room to write is worth waiting for: a connect under way, or bytes kept."""
        return self._connecting or bool(self._outgoing)

    def connected(self) -> bool:
        """Whether the connect is over, one way or the other.

        Raises:
            ConnectionLost: it failed.
        """
        if self._connecting:
            if code := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise self._lost(OSError(code, os.strerror(code)))
            try:
                self._socket.getpeername()
            except OSError:
                return False
            self._connecting = False
        return True

    def receive_into(self, buffer: memoryview) -> int | None:
        """Receive what is there: the number of bytes, 0 when the peer closed, None when nothing is there now."""
        try:
            return self._socket.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise self._lost(error) from None

    def send(self, data: bytes) -> None:
        """Send as much as fits now, keep the rest for `flush`; `data` must not change afterwards."""
        if data:
            self._outgoing.append(memoryview(data))
            self.flush()

    def send_some(self, data: memoryview) -> int:
        """Send as much of `data` as fits now and return how much that was; for who keeps the rest itself.

        Raises:
            ConnectionLost: the connection is broken. It is left open: what the peer said before that can be received.
        """
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise self._error(error) from None

    def flush(self) -> None:
        """Send as much of what is kept as fits now.

        Raises:
            ConnectionLost: the connection is broken.
        """
        if not self._outgoing or not self.connected():
            return
        try:
            while self._outgoing:
                self._drop(self._socket.send(self._outgoing[0][:SEND_BYTES]))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise self._lost(error) from None

    def _drop(self, sent: int) -> None:
        if sent == len(self._outgoing[0]):
            self._outgoing.popleft()
        else:
            self._outgoing[0] = self._outgoing[0][sent:]

    def close(self) -> None:
        """Close the connection; what was not sent is dropped. May be called again."""
        self._outgoing.clear()
        with suppress(OSError):
            self._socket.close()

    def _lost(self, error: OSError) -> ConnectionLost:
        self.close()
        return self._error(error)

    def _error(self, error: OSError) -> ConnectionLost:
        return ConnectionLost(self.peer, (error.strerror or str(error)).lower())
