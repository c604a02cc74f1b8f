"""One end of a TLS connection as bytes in and bytes out: no socket, no clock.

    received from the network --receive--> engine --read_into--> plaintext
    plaintext --write--> engine --data_to_send--> to the network

Many records are opened with one call, and many sealed before anything is sent: an event loop's own TLS goes to the
system for each record of 16 KiB, which costs more than opening it (docs/decisions/0060).
"""

from __future__ import annotations

import ssl

__all__ = ["RECORD_BYTES_MAX", "TlsEngine"]

RECORD_BYTES_MAX = 16 << 10


class TlsEngine:
    """The state of one connection. Every call may raise ssl.SSLError, after which there is only an alert to send.

    Args:
        context: whom to trust, and who we are.
        is_server: which end this is.
        host: whom the other end must prove to be; for a client.
        end_point: the hash of our own certificate by which a login may be bound to it; for a server.

    Attributes:
        is_server, end_point: as given.
        is_established: the handshake is over; plaintext can be written.
        has_more: plaintext may be there that the last room did not hold; nothing of it will come from the network.
        is_over: the peer sends no more.
    """

    __slots__ = ("_incoming", "_object", "_outgoing", "end_point", "has_more", "is_established", "is_over", "is_server")

    def __init__(
        self, context: ssl.SSLContext, *, is_server: bool, host: str | None = None, end_point: bytes = b""
    ) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server, server_hostname=host)
        self.is_server: bool = is_server
        self.end_point: bytes = end_point
        self.is_established: bool = False
        self.has_more: bool = False
        self.is_over: bool = False

    def receive(self, data: memoryview | bytes) -> None:
        """Take what came from the network."""
        self._incoming.write(data)

    def receive_eof(self) -> None:
        """Nothing more will come from the network."""
        self._incoming.write_eof()

    def shake(self) -> bool:
        """Go on with the handshake; whether it is over. To be called first by a client: it speaks first."""
        if not self.is_established:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                return False
            self.is_established = True
        return True

    def read_into(self, room: memoryview) -> int:
        """Put plaintext into `room`, as many records as it holds; the number of bytes, 0 when there is none now."""
        if not self.shake():
            return 0
        taken, size, read = 0, len(room), self._object.read
        try:
            while taken < size:
                count = read(size - taken, room[taken:])
                if not count:
                    self.is_over = True
                    break
                taken += int(count)
        except ssl.SSLWantReadError:
            self.has_more = False
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):  # frames say their length: a cut end is seen by those
            self.has_more, self.is_over = False, True
        else:
            self.has_more = not self.is_over
        return taken

    def write(self, data: memoryview) -> None:
        """Seal plaintext; all of it is ours then."""
        done, size, write = 0, len(data), self._object.write
        while done < size:
            done += write(data[done:])

    def data_to_send(self) -> bytes:
        """Take what must go to the network."""
        return self._outgoing.read()

    @property
    def wants_to_send(self) -> bool:
        """True if anything must go to the network."""
        return bool(self._outgoing.pending)

    def close(self) -> None:
        """Say that no more is written, if the handshake came so far; the peer's own end is not waited for."""
        if self.is_established:
            try:
                self._object.unwrap()
            except (ssl.SSLError, ValueError):
                return

    def certificate(self) -> bytes | None:
        """The peer's certificate as DER; None if it showed none."""
        return self._object.getpeercert(binary_form=True)

    @property
    def version(self) -> str:
        """TLS version and cipher, for people."""
        cipher = self._object.cipher()
        return f"{self._object.version()} {cipher[0] if cipher else ''}".strip()
