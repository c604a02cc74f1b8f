"""The key-value front end: durable quiet sets by the pipeline. Requests one at a time: bench_small.py.

Every set is on the disk before the no-op behind it is answered. Beside it take turns: the disk alone (the bytes that
the log must hold, written and synced in pieces as large as its batches), and memcached 1.6 with one thread, which
keeps nothing, fed by the same generator. The same sets in a collection of their own stand beside those in the default
one. Without memcached on this machine its comparisons are left out, and a line says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator

from benchmarks.harness import measure
from headwater import testing
from headwater.wire.features import Feature
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import vbucket_of

ITEMS = 1_000_000
KEYS = 250_000
VBUCKETS = 64
KEY_BYTES = 16
FRAME_OVERHEAD_BYTES = 55  # of a stored mutation: header and extras
BATCH_BYTES = 16 << 20
PIECE_ITEMS = 4000
CONNECTIONS = 50
ITEMS_TARGET = 1.0  # M items/s
READY_SECONDS = 10.0
REPETITIONS = 5

_SET = struct.Struct(">BBHBBHIIQQ")
_HELLO = Frame(0x80, Opcode.HELLO, value=Feature.COLLECTIONS.to_bytes(2)).encode()
_DEFAULT = {"uid": "0", "name": "_default"}
_SHOP = {"uid": "8", "name": "shop", "collections": [{"uid": "8", "name": "orders"}]}
_MANIFEST = json.dumps({"uid": "1", "scopes": [_DEFAULT | {"collections": [_DEFAULT]}, _SHOP]}).encode()
_NOOP = Frame(0x80, Opcode.NOOP, opaque=0xFFFF_FFFF).encode()


def requests(value_bytes: int, collection: bytes = b"") -> list[bytes]:
    """Return ITEMS quiet sets over KEYS keys, in pieces of PIECE_ITEMS. The value is random bytes, so that it is never
    JSON; `collection` is the id in front of each key, on a connection with Collections.
    """
    value = b"\xff" + os.urandom(value_bytes - 1)
    key_bytes = len(collection) + KEY_BYTES
    body, pieces, piece = 8 + key_bytes + value_bytes, [], bytearray()
    for number in range(ITEMS):
        key = b"key-%012d" % (number % KEYS)
        head = _SET.pack(0x80, Opcode.SETQ, key_bytes, 8, 0, vbucket_of(key, VBUCKETS), body, 0, 0, 0)
        piece += head + collection + key + value
        if number % PIECE_ITEMS == PIECE_ITEMS - 1:
            pieces.append(bytes(piece))
            piece.clear()
    return pieces


def feeding(port: int, pieces: list[bytes], before: bytes = b"") -> Callable[[], None]:
    """Return a function that sends all sets and waits for the answer of the no-op behind them; `before` is a request
    that begins the connection.
    """

    def run() -> None:
        with socket.create_connection(("127.0.0.1", port)) as sock:
            if before:
                ask(sock, before)
            for piece in pieces:
                sock.sendall(piece)
            sock.sendall(_NOOP)
            answer = sock.recv(24, socket.MSG_WAITALL)
        if answer[1] != Opcode.NOOP:
            raise AssertionError(f"a set was refused: {Frame.decode(answer)}")

    return run


def ask(sock: socket.socket, request: bytes) -> None:
    """Send a request, and wait for its answer, which must be a success."""
    sock.sendall(request)
    head = sock.recv(24, socket.MSG_WAITALL)
    body = sock.recv(int.from_bytes(head[8:12]), socket.MSG_WAITALL)
    if head[6:8] != bytes(2):
        raise AssertionError(f"refused: {Frame.decode(head + body)}")


def writing(folder: str, count: int) -> Callable[[], None]:
    """Return a function that writes `count` bytes over a file and syncs them, a batch at a time."""
    piece = os.urandom(BATCH_BYTES)

    def run() -> None:
        descriptor = os.open(f"{folder}/disk", os.O_WRONLY | os.O_CREAT)
        try:
            for offset in range(0, count, BATCH_BYTES):
                os.pwrite(descriptor, piece[: min(BATCH_BYTES, count - offset)], offset)
                os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    return run


@contextlib.contextmanager
def memcached() -> Iterator[int | None]:
    """Run a memcached with one thread and 2 GiB of memory while the block runs; yield its port, or None if it is not
    installed.
    """
    with memcached_process() as server:
        yield None if server is None else server[0]


@contextlib.contextmanager
def memcached_process() -> Iterator[tuple[int, int] | None]:
    """Run the same memcached while the block runs; yield its port and process id, or None if it is not installed."""
    program = shutil.which("memcached")
    if program is None:
        print("  memcached is not installed: its comparisons are left out", flush=True)
        yield None
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = [program, "-u", "nobody", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-t", "1", "-m", "2048"]
    process = subprocess.Popen(arguments)
    try:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            if time.monotonic() > deadline:
                raise AssertionError("memcached did not come up")
            time.sleep(0.02)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


def quiet_sets(node: testing.Node, other: int | None, folder: str, value_bytes: int) -> None:
    """Measure pipelined quiet sets, beside the disk and beside memcached."""
    pieces = requests(value_bytes)
    stored = ITEMS * (FRAME_OVERHEAD_BYTES + KEY_BYTES + value_bytes)
    name = f"durable quiet sets, {value_bytes} B values"
    ours = feeding(node.port, pieces)
    disk = ("write + fdatasync of the bytes", writing(folder, stored))
    measure(
        name,
        unit="M items/s",
        amount=ITEMS / 1e6,
        ours=ours,
        reference=disk,
        target=ITEMS_TARGET,
        repetitions=REPETITIONS,
    )
    if other is not None:
        theirs = ("memcached, nothing kept", feeding(other, pieces))
        measure(name, unit="M items/s", amount=ITEMS / 1e6, ours=ours, reference=theirs, repetitions=REPETITIONS)


def named_sets(node: testing.Node, value_bytes: int) -> None:
    """Measure the same sets in a collection of their own, beside those in the default one on such a connection."""
    with socket.create_connection(("127.0.0.1", node.port)) as sock:
        ask(sock, _HELLO)
        ask(sock, Frame(0x80, Opcode.COLLECTIONS_SET_MANIFEST, value=_MANIFEST).encode())
    measure(
        f"durable quiet sets in a named collection, {value_bytes} B values",
        unit="M items/s",
        amount=ITEMS / 1e6,
        ours=feeding(node.port, requests(value_bytes, b"\x08"), _HELLO),
        reference=("in the default collection", feeding(node.port, requests(value_bytes, b"\0"), _HELLO)),
        repetitions=REPETITIONS,
    )


def round_trips(port: int, opcode: int, seconds: float) -> list[float]:
    """Let CONNECTIONS clients send requests for some seconds, one at a time each; return the milliseconds that each
    answer took.
    """
    poll, started, socks = select.epoll(), {}, {}
    for number in range(CONNECTIONS):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key = b"latency-%08d" % number
        extras, value = (bytes(8), b"\xff" * 256) if opcode == Opcode.SET else (b"", b"")
        request = Frame(0x80, opcode, key, extras, value, vbucket=vbucket_of(key, VBUCKETS)).encode()
        socks[sock.fileno()] = (sock, request)
        poll.register(sock, select.EPOLLIN)
    taken, end = [], time.perf_counter() + seconds
    for number, (sock, request) in socks.items():
        started[number] = time.perf_counter()
        sock.send(request)
    while time.perf_counter() < end:
        for number, _ in poll.poll(1.0):
            sock, request = socks[number]
            sock.recv(4096)
            now = time.perf_counter()
            taken.append((now - started[number]) * 1000)
            started[number] = now
            sock.send(request)
    for sock, _ in socks.values():
        sock.close()
    poll.close()
    return taken


def main() -> None:
    """Measure pipelines with two sizes of values."""
    with (
        tempfile.TemporaryDirectory() as folder,
        memcached() as other,
        testing.node(vbuckets=VBUCKETS) as node,
    ):
        for value_bytes in (64, 256):
            quiet_sets(node, other, folder, value_bytes)
        named_sets(node, 64)
