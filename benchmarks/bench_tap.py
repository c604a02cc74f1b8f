"""A TAP dump of a million items out of a node's log: how many leave the node in a second.

16-byte keys, 256-byte values, 64 vbuckets, as in bench_streams. The receiver only counts bytes; the reference is the
same items over DCP to the same receiver.

Measured too is what acknowledgements cost the node, in seconds of its CPU: a client answers every message that asks for
an acknowledgement, as all TAP clients do, with 1024 vbuckets and beside that with the same items in 16.
"""

from __future__ import annotations

import socket
import statistics
from collections.abc import Callable

import numpy as np

from benchmarks.bench_replication import cpu_seconds
from benchmarks.bench_streams import ITEMS, VALUE_BYTES, VBUCKETS, load
from benchmarks.harness import Figure, measure, publish
from headwater import testing
from headwater.kernels import tap as kernel
from headwater.protocol.tap.options import TapOptions
from headwater.wire import dcp
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import HEADER_BYTES, response
from headwater.wire.opcodes import Opcode
from headwater.wire.tap import MessageFlag

TARGET = 2.0
ROUNDS = 400
ANSWERED_ITEMS = 100_000
ANSWERED_DUMPS = 5
MANY, FEW = 1024, 16


def dumping(node: testing.Node) -> Callable[[], None]:
    """Return a function that receives a whole dump; AssertionError when fewer bytes come than the items have."""
    memory = memoryview(bytearray(1 << 20))

    def run() -> None:
        total = 0
        with socket.create_connection((node.host, node.port)) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            sock.sendall(TapOptions(dump=True, network_byte_order=True).encode())
            while count := sock.recv_into(memory):
                total += count
        if total < ITEMS * (HEADER_BYTES + 25 + 16 + VALUE_BYTES):
            raise AssertionError(f"only {total} bytes came")

    return run


def answered_dump(node: testing.Node) -> float:
    """Receive a dump and answer the messages that ask for it; return the CPU seconds that it cost the node."""
    before, count, buffer = cpu_seconds(node), 0, FrameBuffer()
    with socket.create_connection((node.host, node.port)) as sock:
        sock.sendall(TapOptions(dump=True, acknowledge=True, network_byte_order=True).encode())
        while data := sock.recv(1 << 20):
            frames = buffer.receive_data(data)
            count += sum(frame.opcode == Opcode.TAP_MUTATION for frame in frames)
            asking = (frame for frame in frames if int.from_bytes(frame.extras[2:4]) & MessageFlag.ACK)
            sock.sendall(b"".join(response(frame).encode() for frame in asking))
    if count != ANSWERED_ITEMS:
        raise AssertionError(f"{count} documents came")
    return cpu_seconds(node) - before


def answering() -> None:
    """Publish how many items a second of the node's CPU sends, with many vbuckets and with few."""
    with testing.node(vbuckets=MANY) as many, testing.node(vbuckets=FEW) as few:
        for node, vbuckets in ((many, MANY), (few, FEW)):
            load(node, ANSWERED_ITEMS, vbuckets=vbuckets)
            answered_dump(node)
        taken = [(answered_dump(many), answered_dump(few)) for _ in range(ANSWERED_DUMPS)]
    rates = [[ANSWERED_ITEMS / 1e6 / max(each, 0.01) for each in column] for column in zip(*taken, strict=True)]
    ours, reference = map(statistics.median, rates)
    name = f"tap: dump that is acknowledged, {MANY} vbuckets, per second of the node's CPU"
    extremes = min(rates[0]), max(rates[0])
    publish(Figure(name, "M items", ours, *extremes, f"{FEW} vbuckets", reference, ours / reference))


def streaming(node: testing.Node) -> Callable[[], None]:
    """Return a function that receives the same items over DCP, without flow control."""
    memory = memoryview(bytearray(1 << 20))
    wanted = ITEMS * (HEADER_BYTES + 31 + 16 + VALUE_BYTES)

    def run() -> None:
        with node.client() as bucket:
            ends = bucket.seqnos()
        requests = b"".join(
            dcp.StreamRequest(
                vbucket=vb,
                opaque=vb,
                start_seqno=0,
                end_seqno=ends[vb],
                vb_uuid=0,
                snap_start_seqno=0,
                snap_end_seqno=0,
            ).encode()
            for vb in range(VBUCKETS)
        )
        with socket.create_connection((node.host, node.port)) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            sock.sendall(dcp.Open(key=b"bench", flags=dcp.OpenFlag.PRODUCER).encode() + requests)
            left = wanted
            while left > 0:
                left -= sock.recv_into(memory)

    return run


def reshaping() -> None:
    """Measure the kernel alone, on frames that are in the processor's cache."""
    change = dcp.Mutation(by_seqno=1, rev_seqno=1, key=b"key-000000000000", value=b"a" * VALUE_BYTES, cas=1).encode()
    count = (256 << 10) // len(change)
    frames = np.frombuffer(change * count, np.uint8)
    out, seqnos = np.zeros(len(frames), np.uint8), np.zeros(count, np.uint64)

    def run() -> None:
        for _ in range(ROUNDS):
            kernel.reshape(frames, len(frames), out, 1, 1000, 4, 0, 1, 0, seqnos)

    def copying() -> None:
        for _ in range(ROUNDS):
            np.copyto(out, frames)

    amount = ROUNDS * count / 1e6
    measure("tap: frames of the log as TAP", unit="M/s", amount=amount, ours=run, reference=("copying them", copying))


def main() -> None:
    """Measure dumps, acknowledged dumps and the kernel."""
    reshaping()
    answering()
    with testing.node(vbuckets=VBUCKETS) as node:
        load(node, ITEMS)
        measure(
            "tap: dump",
            unit="M items/s",
            amount=ITEMS / 1e6,
            ours=dumping(node),
            reference=("DCP to the same receiver", streaming(node)),
            target=TARGET,
            repetitions=3,
        )
