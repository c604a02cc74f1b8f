"""A loopback proxy that breaks connections on purpose: cut, stalled, half open or corrupted at a chosen frame.

    with FaultProxy(node.address) as proxy:
        connect to proxy.address
        proxy.before = lambda way, frame: Fault.CUT if frame.opcode == 0x5B else Fault.NONE

Bytes are passed on frame by frame; `before` is called for each, in the threads that move bytes, and returns the fault
for that frame. `cut` ends every connection at once.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from enum import Enum

from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame

READ_BYTES = 256 << 10


class Way(Enum):
    """The direction of a frame."""

    UP = "to the server"
    DOWN = "to the client"


class Fault(Enum):
    """A fault that the proxy injects into a frame."""

    NONE = "it is passed on"
    CUT = "both connections are reset"
    CUT_AFTER = "it is passed on, then both connections are reset"
    STALL = "nothing moves this way any more, the sockets stay open"
    DROP = "it is left out"
    CORRUPT = "it is passed on with another magic"


Judge = Callable[[Way, Frame], Fault]


class FaultProxy:
    """A proxy in front of one server.

    Args:
        upstream: "host:port".
        before: returns the fault for each frame; None passes everything on. May be set at any time.

    Attributes:
        port, address: the address for clients. refuses: True to reset new connections. connections: their count.
    """

    def __init__(self, upstream: str, before: Judge | None = None) -> None:
        host, _, port = upstream.rpartition(":")
        self.before = before
        self.refuses = False
        self.connections: int = 0
        self._upstream = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """The address as host:port."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def cut(self) -> int:
        """Reset every connection; return their number."""
        with self._lock:
            pairs = tuple(self._pairs)
        for pair in pairs:
            self._reset(pair)
        return len(pairs)

    def close(self) -> None:
        """Accept no more connections, and cut the open ones."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            self.connections += 1
            try:
                server = None if self.refuses else socket.create_connection(self._upstream, 5)
            except OSError:
                server = None
            if server is None:
                client.close()
                continue
            server.settimeout(None)
            pair = (client, server)
            with self._lock:
                self._pairs.add(pair)
            for way in Way:
                threading.Thread(target=self._move, args=(way, pair), daemon=True).start()

    def _move(self, way: Way, pair: tuple[socket.socket, socket.socket]) -> None:
        source, target = pair if way is Way.UP else reversed(pair)
        frames = FrameBuffer()
        with contextlib.suppress(OSError):
            while data := source.recv(READ_BYTES):
                for frame in frames.receive_data(data):
                    if not self._pass(way, frame, target, pair):
                        return
        self._reset(pair)

    def _pass(self, way: Way, frame: Frame, target: socket.socket, pair: tuple[socket.socket, socket.socket]) -> bool:
        """Pass a frame on, or carry out its fault; return False if no more frames pass in this direction."""
        fault = self.before(way, frame) if self.before is not None else Fault.NONE
        if fault is Fault.STALL:
            return False
        if fault is Fault.CUT:
            self._reset(pair)
            return False
        if fault is not Fault.DROP:
            data = frame.encode()
            target.sendall(b"\x42" + data[1:] if fault is Fault.CORRUPT else data)
        if fault is Fault.CUT_AFTER:
            self._reset(pair)
        return fault is not Fault.CUT_AFTER

    def _reset(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            self._pairs.discard(pair)
        for sock in pair:
            # shutdown first: it wakes a thread that waits in recv, which close alone does not.
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
