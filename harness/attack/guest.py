"""A guest: a connection that sends any bytes, and takes no answer for an error."""

from __future__ import annotations

import secrets
import socket
import ssl
from collections import deque
from struct import pack
from types import TracebackType

from headwater.protocol.scram import Scram
from headwater.wire.header import HEADER, HEADER_BYTES, Frame, Magic
from headwater.wire.opcodes import Opcode

ANSWER_SECONDS = 60.0
"""The longest wait for an answer; a node that takes longer counts as not serving."""
MECHANISM = "SCRAM-SHA512"
MARK = 0xA77AC000
GONE = (ConnectionError, TimeoutError, BrokenPipeError, ssl.SSLError)


class Guest:
    """A blocking connection of frames and bytes, by TLS if `tls` is given; a context manager.

    Attributes:
        is_gone: True once the node has hung up.
        silent: True once the node did not answer in time.
    """

    def __init__(self, port: int, seconds: float = ANSWER_SECONDS, tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket)
        self.is_gone = self.silent = False
        self._heard = bytearray()
        self._asked = 0
        self._marks: deque[int] = deque()

    def __enter__(self) -> Guest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def say(self, data: bytes) -> bool:
        """Send all of the bytes; return False if the node hung up or accepts no more."""
        try:
            self.socket.sendall(data)
        except GONE:
            self.is_gone = True
        return not self.is_gone

    def hear(self) -> Frame | None:
        """Return the next frame; None if the node hung up or did not answer."""
        while True:
            size = HEADER_BYTES + int.from_bytes(self._heard[8:12])
            if len(self._heard) >= max(size, HEADER_BYTES):
                frame = Frame.decode(bytes(self._heard[:size]))
                del self._heard[:size]
                return frame
            if not self._listen():
                return None

    def _listen(self) -> bool:
        """Wait for more bytes; return False if the node hung up or is silent."""
        try:
            data = self.socket.recv(1 << 20)
        except TimeoutError:
            self.silent = True
            return False
        except (ConnectionError, ssl.SSLError):
            data = b""
        self._heard += data
        self.is_gone = not data
        return bool(data)

    def ask(
        self, opcode: int, key: bytes = b"", extras: bytes = b"", value: bytes = b"", vbucket: int = 0
    ) -> Frame | None:
        """Send one request, and return the next frame; None as `hear`."""
        self.say(Frame(0x80, opcode, key, extras, value, vbucket=vbucket).encode())
        return self.hear()

    def mark(self) -> bytes:
        """Return a no-op to send after other bytes; `reach_mark` waits for its answer."""
        self._asked += 1
        self._marks.append(MARK + self._asked)
        return Frame(0x80, Opcode.NOOP, opaque=self._marks[-1]).encode()

    def reach_mark(self) -> bool:
        """Wait until the node has answered the oldest mark, and so dealt with all bytes before it; False if it hung up
        or was silent.

        Answers before the mark's are not parsed: a guest that parsed them would be slower than the node.
        """
        answer = HEADER.pack(Magic.CLIENT_RESPONSE, Opcode.NOOP, 0, 0, 0, 0, 0, self._marks.popleft(), 0)
        while (at := self._heard.find(answer)) < 0:
            del self._heard[: -len(answer)]
            if not self._listen():
                return False
        del self._heard[: at + len(answer)]
        return True

    def settle(self) -> bool:
        """Wait until the node has dealt with all bytes so far; return False if it hung up or was silent."""
        self.say(self.mark())
        return self.reach_mark()

    def log_in(self, user: str, password: str) -> bool:
        """Log in by SCRAM, as our own client does; return True if the node accepted it."""
        exchange = Scram(MECHANISM, user, password, secrets.token_urlsafe(18))
        challenge = self.ask(Opcode.SASL_AUTH, MECHANISM.encode(), value=exchange.first())
        if challenge is None:
            return False
        done = self.ask(Opcode.SASL_STEP, MECHANISM.encode(), value=exchange.final(challenge.value))
        return done is not None and done.status == 0

    def hello(self, *features: int) -> None:
        """Send HELLO with features; unknown ones are not granted."""
        self.ask(Opcode.HELLO, b"guest", value=b"".join(pack(">H", feature) for feature in features))
