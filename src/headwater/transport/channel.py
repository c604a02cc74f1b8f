"""One TCP connection that never blocks, with or without TLS: it connects, receives, sends as much as fits and keeps the
rest.

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
    """Raise "connection refused" if a socket is connected to itself.

    If no process listens at an address of this machine, the system may assign that very port to the connecting socket,
    and TCP then connects the socket to itself. It would receive its own bytes, and block the port for its owner.
    """
    if connected.getsockname() == address:
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


def _socket(family: int) -> socket.socket:
    socket_ = socket.socket(family, socket.SOCK_STREAM)
    socket_.setblocking(False)
    socket_.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    socket_.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        socket_.setsockopt(socket.SOL_SOCKET, buffer, SOCKET_BUFFER_BYTES)
    return socket_


class Channel:
    """A connection, or the attempt to open one.

    Args:
        engine: the client's end of TLS; None without TLS.

    Attributes:
        peer: "host:port", for messages.
        tls: the TLS socket; None without TLS, or until the TCP connection is open.
    """

    __slots__ = ("_connecting", "_engine", "_outgoing", "_socket", "peer", "tls")

    def __init__(self, peer: str, address: SocketAddress, engine: TlsEngine | None = None) -> None:
        self.peer: str = peer
        self.tls: TlsSocket | None = None
        self._engine = engine
        self._outgoing: deque[memoryview] = deque()
        try:
            socket_ = _socket(address[0])
        except OSError as error:  # too many files are open, or the system knows no IPv6
            raise self._error(error) from None
        self._socket: socket.socket | TlsSocket = socket_
        code = socket_.connect_ex(address[1])
        self._connecting = code in {0, *_CONNECTING}
        if not self._connecting:
            raise self._connection_lost(OSError(code, os.strerror(code)))

    def fileno(self) -> int:
        """Return the descriptor to wait for; -1 if the channel is closed."""
        return self._socket.fileno()

    @property
    def wants_to_write(self) -> bool:
        """True if the channel waits for room to write: to finish the connect, or to send kept bytes."""
        return self._connecting or bool(self._outgoing) or (self.tls is not None and self.tls.unsent_bytes > 0)

    @property
    def has_more(self) -> bool:
        """True if the next receive returns bytes at once: TLS holds plaintext, which the system can't report."""
        return self.tls is not None and self.tls.has_more

    def connected(self) -> bool:
        """Continue to connect; return True once the connection, and the TLS handshake after it, are complete.

        Raises:
            ConnectionLost: the connect failed. TlsError: the handshake failed.
        """
        if self._connecting and isinstance(self._socket, socket.socket):
            if code := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise self._connection_lost(OSError(code, os.strerror(code)))
            try:
                peer = self._socket.getpeername()
            except OSError:
                return False
            try:
                refuse_itself(self._socket, peer)
            except OSError as error:
                raise self._connection_lost(error) from None
            self._connecting = False
        if self._engine is None:
            return True
        return self._continue_handshake(self._engine)

    def _continue_handshake(self, engine: TlsEngine) -> bool:
        """Continue the TLS handshake as far as possible now; return True once it is complete."""
        if self.tls is None and isinstance(self._socket, socket.socket):
            self.tls = TlsSocket(self._socket, engine, self.peer, memoryview(bytearray(SEALED_BYTES)))
            self._socket = self.tls
        try:
            return self.tls is None or self.tls.shake()
        except TlsError:
            self.close()
            raise
        except OSError as error:
            raise self._connection_lost(error) from None

    def receive_into(self, buffer: memoryview) -> int | None:
        """Receive available bytes; return their number, 0 if the peer closed the connection, None if there are none
        now.
        """
        try:
            return self._socket.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return None
        except TlsError:
            self.close()
            raise
        except OSError as error:
            raise self._connection_lost(error) from None

    def send(self, data: bytes) -> None:
        """Send as much as fits now, keep the rest for `flush`; `data` must not change afterwards."""
        if data:
            self._outgoing.append(memoryview(data))
            self.flush()

    def send_some(self, data: memoryview) -> int:
        """Send as much of `data` as fits now; return the number of bytes. For callers that keep the rest themselves.

        Raises:
            ConnectionLost: the connection is broken. It stays open, so that earlier bytes can be received.
        """
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise self._error(error) from None

    def flush(self) -> None:
        """Send as much of the kept bytes as fits now.

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
            raise self._connection_lost(error) from None

    def _drop(self, sent_bytes: int) -> None:
        if sent_bytes == len(self._outgoing[0]):
            self._outgoing.popleft()
        else:
            self._outgoing[0] = self._outgoing[0][sent_bytes:]

    def close(self) -> None:
        """Close the connection; unsent bytes are dropped. May be called again."""
        self._outgoing.clear()
        with suppress(OSError):
            self._socket.close()

    def _connection_lost(self, error: OSError) -> ConnectionLost:
        self.close()
        return self._error(error)

    def _error(self, error: OSError) -> ConnectionLost:
        return ConnectionLost(self.peer, (error.strerror or str(error)).lower())
