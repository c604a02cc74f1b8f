"""A client of frames over a blocking socket, for tests against a real node."""

from __future__ import annotations

import socket
from types import TracebackType

from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame


class Client:
    """Sends bytes or frames, reads frames; no read waits for ever."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self._buffer = FrameBuffer()
        self._frames: list[Frame] = []

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self) -> Frame | None:
        """The next frame; None when the node has closed the connection."""
        while not self._frames:
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._frames = self._buffer.receive_data(data)
        return self._frames.pop(0)

    def ask(self, opcode: int, **sections: object) -> Frame:
        self.send(Frame(0x80, opcode, **sections).encode())  # type: ignore[arg-type]
        answer = self.read()
        assert answer is not None, f"the node hung up on opcode 0x{opcode:02x}"
        return answer
