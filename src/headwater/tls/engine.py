"""One end of a TLS connection as bytes in and bytes out: no socket, no clock.

    received from the network --receive--> engine --read_into--> plaintext
    plaintext --write--> engine --data_to_send--> to the network

One call decrypts many records, and many are encrypted before bytes are sent: an event loop's own TLS needs a system
call for each record of 16 KiB, which costs more than decrypting it (docs/decisions/0060).
"""

from __future__ import annotations

import ssl

__all__ = ["RECORD_BYTES_MAX", "TlsEngine"]

RECORD_BYTES_MAX = 16 << 10


class TlsEngine:
    """The TLS state of one connection. Every call may raise ssl.SSLError; then send `data_to_send`, which has the
    alert.

    Args:
        context: trusted CAs, and this end's certificate.
        is_server: True for the server's end.
        host: the name that the server's certificate must contain; for a client.
        end_point: hash of this end's certificate, to which a login may be bound; for a server.

    Attributes:
        is_server, end_point: the arguments.
        is_established: True once the handshake is over; plaintext can be written.
        has_more: True if plaintext may be left that did not fit into the room of the last `read_into`; no event of the
            network reports it.
        is_over: True if the peer sends no more.
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
        """Take sealed bytes that arrived from the network."""
        self._incoming.write(data)

    def receive_eof(self) -> None:
        """Note that the network sends no more bytes."""
        self._incoming.write_eof()

    def shake(self) -> bool:
        """Continue the handshake; return True once it is complete. A client must call it before it receives bytes."""
        if not self.is_established:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                return False
            self.is_established = True
        return True

    def read_into(self, room: memoryview) -> int:
        """Write plaintext to `room`, as many records as fit; return the number of bytes, 0 if there is none."""
        if not self.shake():
            return 0
        count_read, size, read = 0, len(room), self._object.read
        try:
            while count_read < size:
                count = read(size - count_read, room[count_read:])
                if not count:
                    self.is_over = True
                    break
                count_read += int(count)
        except ssl.SSLWantReadError:
            self.has_more = False
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):  # frames say their length: a cut end is seen by those
            self.has_more, self.is_over = False, True
        else:
            self.has_more = not self.is_over
        return count_read

    def write(self, data: memoryview) -> None:
        """Encrypt all of `data`."""
        written, size, write = 0, len(data), self._object.write
        while written < size:
            written += write(data[written:])

    def data_to_send(self) -> bytes:
        """Return the bytes to send to the network, and forget them."""
        return self._outgoing.read()

    @property
    def wants_to_send(self) -> bool:
        """True if there are bytes to send to the network."""
        return bool(self._outgoing.pending)

    def close(self) -> None:
        """Announce the end of this end's data, if the handshake is complete, without waiting for the peer's end."""
        if self.is_established:
            try:
                self._object.unwrap()
            except (ssl.SSLError, ValueError):
                return

    def certificate(self) -> bytes | None:
        """Return the peer's certificate as DER; None if it sent none."""
        return self._object.getpeercert(binary_form=True)

    @property
    def version(self) -> str:
        """TLS version and cipher, for people."""
        cipher = self._object.cipher()
        return f"{self._object.version()} {cipher[0] if cipher else ''}".strip()
