"""Plain memcached: a real one, and what can be said of one in a few lines."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from harness.nodes import until
from headwater.wire.header import HEADER_BYTES, Frame, lengths, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status


@contextmanager
def real_memcached() -> Iterator[int]:
    """Run memcached; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    line = ["memcached", "-u", "nobody", "-l", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(line)

    def answers() -> bool:
        assert process.poll() is None, "memcached ended"
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 10.0):
            return True
        return False

    try:
        until(answers, "memcached answers")
        yield port
    finally:
        process.kill()
        process.wait()


@contextmanager
def plain_memcached() -> Iterator[tuple[str, list[int]]]:
    """Serve one connection that has every key and knows only how to delete, and falls silent as memcached 1.6 does;
    yields the address, and what was asked."""
    asked: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_serve, args=(listening, asked), daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}", asked
    thread.join(60.0)


def _serve(listening: socket.socket, asked: list[int]) -> None:
    with suppress(OSError):
        connection, _ = listening.accept()
        kept, silent = bytearray(), False
        with connection:
            while data := connection.recv(65536):
                kept += data
                while len(kept) >= HEADER_BYTES and (size := lengths(kept).frame) <= len(kept):
                    frame = Frame.decode(kept[:size])
                    del kept[:size]
                    asked.append(frame.opcode)
                    known = frame.opcode in (Opcode.DELETE, Opcode.DELETEQ, Opcode.NOOP)
                    silent = silent or not (known or size == HEADER_BYTES)
                    if not silent and frame.opcode != Opcode.DELETEQ:
                        connection.sendall(response(frame, 0 if known else Status.UNKNOWN_COMMAND).encode())
