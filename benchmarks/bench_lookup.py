"""How many lookups of two paths a node answers in a second of its processor's time, from fifty connections.

    python -m benchmarks lookup
    HEADWATER_BENCH_BESIDE=../before/src python -m benchmarks lookup

Each connection has one lookup under way at a time, as in a pool of clients. The processor time of all threads of the
node is measured, since a busy machine changes it less than the time on the clock. With another source tree's node both
get the same rounds in turn. Plain GETs of the same documents, by the same connections, are measured as well.
"""

from __future__ import annotations

import json
import os
import select
import socket
import statistics
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import Figure, publish
from headwater import testing
from headwater.wire import documents, subdoc
from headwater.wire.framing import FrameBuffer
from headwater.wire.layout import Request
from headwater.wire.opcodes import Opcode

CONNECTIONS = 50
REQUESTS = 4_000  # of all connections, in a round
ROUNDS = 9
KEYS = 200
TARGET = 30.0
DOCUMENT = json.dumps(
    {"name": "ann", "age": 41, "address": {"city": "Basel", "zip": "4051"}, "tags": ["a", "b"], "text": "x" * 200}
).encode()
PATHS = [(int(Opcode.SUBDOC_GET), 0, b"name"), (int(Opcode.SUBDOC_GET), 0, b"address.city")]


class Guests:
    """Fifty connections to a node that also measure the node's processor time."""

    def __init__(self, node: testing.Node) -> None:
        self._tasks = Path(f"/proc/{node.pid}/task")
        self._sockets = {}
        self._poll = select.epoll()
        for _ in range(CONNECTIONS):
            sock = socket.create_connection((node.host, node.port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets[sock.fileno()] = sock
            self._poll.register(sock.fileno(), select.EPOLLIN)
        first = next(iter(self._sockets.values()))
        reader = FrameBuffer()
        first.sendall(b"".join(documents.Set(key=key, value=DOCUMENT).encode() for key in keys()))
        left = KEYS
        while left:
            left -= sum(1 for frame in reader.receive_data(first.recv(1 << 20)) if not frame.status)

    def per_second(self, requests: list[bytes]) -> float:
        """Return how many thousand of the requests the node answers in a second of its processor's time."""
        before = self._processor_ns()
        self._ask(requests)
        return len(requests) / (self._processor_ns() - before) * 1e6

    def _ask(self, requests: list[bytes]) -> None:
        waiting = iter(requests)
        for sock in self._sockets.values():
            sock.sendall(next(waiting))
        left, readers = len(requests), {number: FrameBuffer() for number in self._sockets}
        while left:
            for number, _ in self._poll.poll():
                for frame in readers[number].receive_data(self._sockets[number].recv(1 << 16)):
                    if frame.status:
                        raise AssertionError(f"refused: {frame}")
                    left -= 1
                    if (request := next(waiting, None)) is not None:
                        self._sockets[number].sendall(request)

    def _processor_ns(self) -> int:
        return sum(int((task / "schedstat").read_text().split()[0]) for task in self._tasks.iterdir())

    def close(self) -> None:
        """Close the connections."""
        self._poll.close()
        for sock in self._sockets.values():
            sock.close()


def keys() -> list[bytes]:
    """Return the keys of all documents."""
    return [b"key-%06d" % number for number in range(KEYS)]


def main() -> None:
    """Measure lookups and plain reads at this tree's node, and in turn at the other's if there is one."""
    beside = os.environ.get("HEADWATER_BENCH_BESIDE")
    with ExitStack() as stack:
        guests = []
        for source in [None, beside] if beside else [None]:
            environment = {"PYTHONPATH": str(Path(source).resolve())} if source else None
            made = Guests(stack.enter_context(testing.node(vbuckets=1, environment=environment)))
            stack.callback(made.close)
            guests.append(made)
        _measure("lookup_in of two paths", guests, [subdoc.SubdocMultiLookup(key=key, specs=PATHS) for key in keys()])
        _measure("get", guests, [documents.Get(key=key) for key in keys()], None)


def _measure(name: str, guests: list[Guests], asked: list[Request], target: float | None = TARGET) -> None:
    requests = [asked[number % KEYS].encode() for number in range(REQUESTS)]
    taken: list[list[float]] = [[] for _ in guests]
    for number in range(ROUNDS):
        for which in range(len(guests))[:: 1 if number % 2 else -1]:
            taken[which].append(guests[which].per_second(requests))
    ours, title = taken[0], f"{name}, {CONNECTIONS} connections"
    reference = max(taken[1]) if len(taken) > 1 else None
    publish(
        Figure(
            title,
            "k/s of the node's processor time",
            max(ours),
            min(ours),
            statistics.median(ours),
            "beside" if reference else None,
            reference,
            max(ours) / reference if reference else None,
            target,
        )
    )


if __name__ == "__main__":
    main()
