"""TLS beside no TLS, at one node: bulk sets and drains, by turns in one run, so that both have the same cores.

The sealing and the opening of a record each cost processor time: about 0.6 s for each GiB here (AES-256-GCM, one core,
OpenSSL 3). The kernel has no part in it; a system with kernel TLS could save a copy (docs/decisions/0060).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.bench_streams import ITEMS, VALUE_BYTES, VBUCKETS, draining, requests
from benchmarks.harness import Figure, measure
from headwater import testing
from headwater.tls.engine import TlsEngine
from headwater.tls.settings import TlsSettings
from headwater.tls.socket import SEALED_BYTES, TlsSocket
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode

RATIO_MIN = 0.4
REPETITIONS = 5
_NOOP = Frame(0x80, Opcode.NOOP).encode()


def feeding(node: testing.Node, pieces: list[bytes], *, tls: bool) -> Callable[[], None]:
    """Return a function that sends all sets, by TLS or without, and waits for the answer of the no-op behind them."""

    def run() -> None:
        with socket.create_connection((node.host, (node.tls_port or 0) if tls else node.port)) as sock:
            line = _wrapped(sock, node) if tls else sock
            for piece in (*pieces, _NOOP):
                _send(line, memoryview(piece))
            room = memoryview(bytearray(24))
            while _received(line, room) == 0:
                pass
        if room[1] != Opcode.NOOP:
            raise AssertionError(f"a set was refused: {bytes(room).hex()}")

    return run


def _wrapped(sock: socket.socket, node: testing.Node) -> TlsSocket:
    if node.certificates is None:
        raise AssertionError("a node without certificates")
    context = TlsSettings(trust_store=node.certificates.trust_store).context()
    engine = TlsEngine(context, is_server=False, host=node.host)
    line = TlsSocket(sock, engine, "node", memoryview(bytearray(SEALED_BYTES)))
    while not line.shake():  # the socket blocks, so this does
        pass
    return line


def _send(line: socket.socket | TlsSocket, data: memoryview) -> None:
    while data:
        data = data[line.send(data) :]


def _received(line: socket.socket | TlsSocket, room: memoryview) -> int:
    try:
        return line.recv_into(room)
    except BlockingIOError:
        return 0


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_of(node: testing.Node, run: Callable[[], None]) -> tuple[float, float]:
    """Run something; return the processor seconds that it took in this process and in the node."""
    before = time.process_time(), cpu_seconds(node.pid)
    run()
    return time.process_time() - before[0], cpu_seconds(node.pid) - before[1]


def compare(node: testing.Node, name: str, by_tls: Callable[[], None], without: Callable[[], None]) -> Figure:
    """Measure the rates in turn, and print the processor time of one run of each."""
    amount, reference = ITEMS / 1e6, ("without TLS", without)
    figure = measure(name, unit="M items/s", amount=amount, ours=by_tls, reference=reference, repetitions=REPETITIONS)
    met = figure.ratio is not None and figure.ratio >= RATIO_MIN
    print(f"  target: a ratio of at least {RATIO_MIN}: {'met' if met else 'MISSED'}")
    size = ITEMS * (79 + VALUE_BYTES) >> 20
    for how, run in (("by TLS", by_tls), ("without", without)):
        here, there = cpu_of(node, run)
        print(f"  {how}: {here:.2f} s of processor here, {there:.2f} s at the node, for {size} MiB")
    return figure


def main() -> None:
    """Measure bulk sets and drains."""
    pieces = list(requests(ITEMS, 0x61, VBUCKETS))
    with testing.node(vbuckets=VBUCKETS, tls=True) as node:
        sets = [feeding(node, pieces, tls=tls) for tls in (True, False)]
        compare(node, f"bulk sets over TLS, {VALUE_BYTES} B values", *sets)
        with node.client(tls=True) as sealed, node.client() as plain:
            compare(node, f"drain over TLS, {VALUE_BYTES} B values", draining(sealed, ITEMS), draining(plain, ITEMS))


if __name__ == "__main__":
    main()
