"""One TCP connection that never blocks: connect, receive what is there, send what fits, keep the rest. With TLS or not.

Errors of the operating system become `ConnectionLost` with the peer's address here, and nowhere else.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from contextlib import suppress
from typing import Any, TypeAlias

from headwater.errors import ConnectionLost, TlsError
from headwater.tls.engine import TlsEngine
from headwater.tls.socket import SEALED_BYTES, TlsSocket

SOCKET_BUFFER_BYTES = 1024 * 1024
SEND_BYTES = 256 * 1024
SocketAddress: TypeAlias = tuple[int, tuple[Any, ...]]
"""Address family and the address as sockets take it."""

_CONNECTING = {errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY}


def refuse_itself(connected: socket.socket, address: object) -> None:
    """Raise the error of an address where nobody listens when a socket that is connected there is so to itself.

    Where nobody listens on this machine, the system may give a socket that calls there the very port it calls: TCP
    takes that for two who call each other at once. It would hear its own words, and hold the port against its owner.
    """
    if connected.getsockname() == address:
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


def _socket(family: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setblocking(False)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        made.setsockopt(socket.SOL_SOCKET, buffer, SOCKET_BUFFER_BYTES)
    return made


class Channel:
    """A connection under way or made.

    Args:
        engine: the client's end of TLS; None for a connection without it.

    Attributes:
        peer: "host:port", for messages.
        tls: the socket as TLS; None without it, or as long as nobody has answered.
    """

    __slots__ = ("_connecting", "_engine", "_outgoing", "_socket", "peer", "tls")

    def __init__(self, peer: str, address: SocketAddress, engine: TlsEngine | None = None) -> None:
        self.peer: str = peer
        self.tls: TlsSocket | None = None
        self._engine = engine
        self._outgoing: deque[memoryview] = deque()
        try:
            made = _socket(address[0])
        except OSError as error:  # too many files are open, or the system knows no IPv6
            raise self._error(error) from None
        self._socket: socket.socket | TlsSocket = made
        code = made.connect_ex(address[1])
        self._connecting = code in {0, *_CONNECTING}
        if not self._connecting:
            raise self._lost(OSError(code, os.strerror(code)))

    def fileno(self) -> int:
        """The descriptor to wait for; -1 once closed."""
        return self._socket.fileno()

    @property
    def wants_to_write(self) -> bool:
        """True if room to write is worth waiting for: a connect under way, or bytes kept."""
        return self._connecting or bool(self._outgoing) or (self.tls is not None and self.tls.unsent_bytes > 0)

    @property
    def has_more(self) -> bool:
        """True if to receive again without waiting: TLS holds what the system will not tell of."""
        return self.tls is not None and self.tls.has_more

    def connected(self) -> bool:
        """Return True if the connect, and TLS's handshake after it, are over, one way or the other.

        Raises:
            ConnectionLost: it failed. TlsError: the handshake did.
        """
        if self._connecting and isinstance(self._socket, socket.socket):
            if code := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise self._lost(OSError(code, os.strerror(code)))
            try:
                peer = self._socket.getpeername()
            except OSError:
                return False
            try:
                refuse_itself(self._socket, peer)
            except OSError as error:
                raise self._lost(error) from None
            self._connecting = False
        if self._engine is None:
            return True
        return self._shaken(self._engine)

    def _shaken(self, engine: TlsEngine) -> bool:
        """Return True if TLS's handshake is over; it goes on as far as it can now."""
        if self.tls is None and isinstance(self._socket, socket.socket):
            self.tls = TlsSocket(self._socket, engine, self.peer, memoryview(bytearray(SEALED_BYTES)))
            self._socket = self.tls
        try:
            return self.tls is None or self.tls.shake()
        except TlsError:
            self.close()
            raise
        except OSError as error:
            raise self._lost(error) from None

    def receive_into(self, buffer: memoryview) -> int | None:
        """Receive what is there: the number of bytes, 0 when the peer closed, None when nothing is there now."""
        try:
            return self._socket.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return None
        except TlsError:
            self.close()
            raise
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
        if not self.wants_to_write or not self.connected():
            return
        try:
            if self.tls is not None and not self.tls.flush():
                return
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
