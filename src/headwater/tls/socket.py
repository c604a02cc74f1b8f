"""A connected, non-blocking socket with TLS, with the methods of a plain socket.

Two more properties report what the system can't: `has_more` (plaintext is left to read, though no bytes may arrive) and
`unsent_bytes` (encrypted bytes not sent yet: wait for room, then `flush`).
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import suppress
from socket import socket
from typing import TypeVar

from headwater.errors import TlsError
from headwater.tls.engine import TlsEngine
from headwater.tls.words import hung_up, in_words, not_tls

__all__ = ["SEALED_BYTES", "TlsSocket"]

SEALED_BYTES = 256 << 10
SEND_BYTES = 256 << 10
_BEGINNINGS = (0x15, 0x16)  # an alert, a handshake

T = TypeVar("T")


class TlsSocket:
    """A socket with its TLS engine, and encrypted bytes that are not sent yet.

    Args:
        peer: "host:port", for messages. arena: receive buffer; sockets that are read one after the other may share it.
        other_port: the port of this node without TLS, for the message to a peer that does not speak TLS; None if there
            is none.
    """

    __slots__ = ("_arena", "_looked", "_other_port", "_socket", "_unsent", "engine", "peer")

    def __init__(
        self, sock: socket, engine: TlsEngine, peer: str, arena: memoryview, other_port: int | None = None
    ) -> None:
        self.engine: TlsEngine = engine
        self.peer: str = peer
        self._socket, self._arena, self._other_port = sock, arena, other_port
        self._unsent = memoryview(b"")
        self._looked = False

    def fileno(self) -> int:
        """Return the descriptor to wait for; -1 if the socket is closed."""
        return self._socket.fileno()

    @property
    def raw(self) -> socket:
        """The underlying socket, for the system's own options."""
        return self._socket

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Set an option of the socket."""
        self._socket.setsockopt(level, option, value)

    def setblocking(self, flag: bool) -> None:
        """Set the socket's blocking mode; everything here needs a non-blocking one."""
        self._socket.setblocking(flag)

    @property
    def is_established(self) -> bool:
        """True if the handshake is complete."""
        return self.engine.is_established

    @property
    def has_more(self) -> bool:
        """True if the next read returns plaintext at once, which the system can't report."""
        return self.engine.has_more

    @property
    def unsent_bytes(self) -> int:
        """The number of encrypted bytes that wait for room in the socket."""
        return len(self._unsent)

    def shake(self) -> bool:
        """Continue the handshake as far as possible now; return True once it is complete.

        Raises:
            TlsError: the handshake failed. OSError: the connection is broken.
        """
        if not self.is_established and self._socket_has_room():
            self._run_engine(self.engine.shake)
            while not self.is_established and self._fill():
                self._run_engine(self.engine.shake)
        return self.is_established

    def recv_into(self, room: memoryview) -> int:
        """Receive plaintext as a socket does; return the number of bytes, 0 at the end, or raise BlockingIOError if
        there is none.

        Raises:
            TlsError: the handshake failed, or the bytes are not TLS. OSError: the connection is broken.
        """
        if not self.engine.has_more and not self._fill():
            raise BlockingIOError
        count = self._run_engine(lambda: self.engine.read_into(room))
        if not count and not self.engine.is_over:
            raise BlockingIOError
        return count

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Encrypt and send `data`; return the number of bytes accepted, some of which may be sent later.

        Raises:
            BlockingIOError: earlier bytes still wait, or the handshake is incomplete. TlsError: the TLS connection
                failed. OSError: the connection is broken.
        """
        if not self.is_established or not self.flush():
            raise BlockingIOError
        # All of what is encrypted has to be kept until the socket takes it: so no more than this at a time.
        piece = memoryview(data)[:SEND_BYTES]
        self._run_engine(lambda: self.engine.write(piece))
        return len(piece)

    def flush(self) -> bool:
        """Send encrypted bytes; return True if all were sent."""
        while self._unsent or self.engine.wants_to_send:
            if not self._unsent:
                self._unsent = memoryview(self.engine.data_to_send())
            try:
                sent_bytes = self._socket.send(self._unsent)
            except (BlockingIOError, InterruptedError):
                return False
            self._unsent = self._unsent[sent_bytes:]
        return True

    def close(self) -> None:
        """Close the socket, after TLS's announcement to the peer if the socket has room for it."""
        with suppress(OSError):
            if not self._unsent:
                self.engine.close()
                self.flush()
        self._unsent = memoryview(b"")
        self._socket.close()

    def _socket_has_room(self) -> bool:
        return not self._unsent or self.flush()

    def _fill(self) -> bool:
        """Receive available bytes and pass them to the engine; return False if there are none."""
        try:
            count = self._socket.recv_into(self._arena)
        except (BlockingIOError, InterruptedError):
            return False
        if not count:
            if not self.is_established:
                raise TlsError(self.peer, hung_up(is_server=self.engine.is_server))
            self.engine.receive_eof()
            return True
        if not self._looked:
            self._looked = True
            # A client that forgot TLS is recognised by its first byte, for OpenSSL's own message would not say so.
            if self._arena[0] not in _BEGINNINGS:
                beginning = bytes(self._arena[: min(count, 16)])
                raise TlsError(self.peer, not_tls(beginning, self._other_port, is_server=self.engine.is_server))
        self.engine.receive(self._arena[:count])
        return True

    def _run_engine(self, work: Callable[[], T]) -> T:
        """Call `work` on the engine, and send the bytes that result; after a failure also the alert."""
        try:
            result = work()
        except ssl.SSLError as error:
            with suppress(OSError):
                self.flush()
            raise TlsError(self.peer, in_words(error), getattr(error, "verify_code", 0)) from None
        self.flush()
        return result
