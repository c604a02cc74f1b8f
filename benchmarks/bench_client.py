"""The client alone: a drain beside a loop that only receives the same bytes.

Another process plays the node: it answers the bootstrap as `testing.peers` does, and once all streams are requested
sends frames that were made beforehand, as fast as the socket takes them. So only the client is measured: receive,
check, decode into columns, hand out batches. `bench_streams.py` measures the same with a real node at the other end.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
from collections.abc import Callable, Iterator

from benchmarks.harness import measure
from headwater import client
from headwater.testing.peers import History, Peer, encode_log
from headwater.wire import dcp
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode

ITEMS = 500_000
VBUCKETS = 64
RUN = 20
SEND_BYTES = 256 * 1024
SINGLE_ITEMS = 100_000


def frames(items: int, value_bytes: int) -> bytes:
    """Return the frames of all streams: markers, mutations of all vbuckets in short runs, then the ends. A stream's
    opaque is its vbucket plus one.
    """
    each = items // VBUCKETS
    parts = [
        dcp.SnapshotMarker(vbucket=vb, opaque=vb + 1, start_seqno=0, end_seqno=each, flags=2).encode()
        for vb in range(VBUCKETS)
    ]
    value = bytes(value_bytes)
    templates = [
        dcp.Mutation(vbucket=vb, opaque=vb + 1, by_seqno=1, rev_seqno=1, cas=9, key=bytes(16), value=value).encode()
        for vb in range(VBUCKETS)
    ]
    for first in range(1, each + 1, RUN):
        for vb, frame in enumerate(templates):
            for seqno in range(first, min(first + RUN, each + 1)):
                key = b"%04d-%011d" % (vb, seqno)
                parts.append(frame[:24] + seqno.to_bytes(8) + frame[32:55] + key + value)
    parts += [dcp.StreamEnd(vbucket=vb, opaque=vb + 1, status=0).encode() for vb in range(VBUCKETS)]
    return b"".join(parts)


class Canned(Peer):
    """A peer that accepts streams and sends none of their frames: `_play` sends them."""

    accepted = 0

    def _stream(self, request: Frame) -> Iterator[Frame]:
        self.accepted += 1
        yield response(request, value=encode_log(History().failover_log))

    def answers(self, request: Frame) -> Iterator[Frame]:
        """Return the peer's answers to a request; to a stream request only that it is accepted."""
        return self._stream(request) if request.opcode == Opcode.DCP_STREAM_REQ else super().answers(request)


def _play(listener: socket.socket, canned: bytes) -> None:
    """Serve one connection after the other: send `canned` on each, until the peer hangs up."""
    while True:
        sock, _ = listener.accept()
        multiprocessing.get_context("fork").Process(target=_converse, args=(sock, canned), daemon=False).start()
        sock.close()


def _converse(sock: socket.socket, canned: bytes) -> None:
    peer = Canned(vbuckets=VBUCKETS, address=sock.getsockname())
    buffer, data = FrameBuffer(), memoryview(canned)
    with sock, contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        while received := sock.recv(SEND_BYTES):
            if received == b"raw":
                peer.accepted = VBUCKETS
            else:
                answers = (answer for frame in buffer.receive_data(received) for answer in peer.answers(frame))
                sock.sendall(b"".join(answer.encode() for answer in answers))
            if peer.accepted == VBUCKETS:
                peer.accepted = 0
                for at in range(0, len(data), SEND_BYTES):
                    sock.sendall(data[at : at + SEND_BYTES])


@contextlib.contextmanager
def playing(canned: bytes) -> Iterator[tuple[str, int]]:
    """Run a node in another process while the block runs; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        player = multiprocessing.get_context("fork").Process(target=_play, args=(listener, canned))
        player.start()
        try:
            yield listener.getsockname()
        finally:
            player.terminate()
            player.join()


def draining(address: tuple[str, int], items: int, *, batch_bytes: int) -> Callable[[], None]:
    """Return a function that drains everything into record batches."""

    def run() -> None:
        with client.connect(f"{address[0]}:{address[1]}", vbuckets=VBUCKETS) as bucket:
            ends = dict.fromkeys(range(VBUCKETS), items // VBUCKETS)
            with bucket.batches(until=ends, window_bytes=0, batch_bytes=batch_bytes) as batches:
                rows = sum(len(batch) for batch in batches)
        if rows != items // VBUCKETS * VBUCKETS:
            raise AssertionError(f"{rows} rows of {items} arrived")

    return run


def one_by_one(address: tuple[str, int], items: int) -> Callable[[], None]:
    """Return a function that drains everything as objects."""

    def run() -> None:
        with client.connect(f"{address[0]}:{address[1]}", vbuckets=VBUCKETS) as bucket:
            ends = dict.fromkeys(range(VBUCKETS), items // VBUCKETS)
            with bucket.changes(until=ends, window_bytes=0) as changes:
                count = sum(1 for _ in changes)
        if count < items // VBUCKETS * VBUCKETS:
            raise AssertionError(f"{count} events of {items} arrived")

    return run


def receiving(address: tuple[str, int], size: int) -> Callable[[], None]:
    """Return a function that receives `size` bytes and does nothing with them."""
    memory = memoryview(bytearray(SEND_BYTES))

    def run() -> None:
        with socket.create_connection(address) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            sock.sendall(b"raw")
            left = size
            while left:
                left -= sock.recv_into(memory)

    return run


def main() -> None:
    """Measure record batches with two sizes of values, then objects."""
    for value_bytes in (64, 256, 1024):
        canned = frames(ITEMS, value_bytes)
        with playing(canned) as address:
            measure(
                f"drain into columns, {value_bytes} B values",
                unit="M items/s",
                amount=ITEMS / 1e6,
                ours=draining(address, ITEMS, batch_bytes=1 << 20),
                reference=("only receiving the same bytes", receiving(address, len(canned))),
                repetitions=7,
            )
    canned = frames(SINGLE_ITEMS, 256)
    with playing(canned) as address:
        measure(
            "drain into objects, 256 B values",
            unit="M items/s",
            amount=SINGLE_ITEMS / 1e6,
            ours=one_by_one(address, SINGLE_ITEMS),
            repetitions=5,
        )


if __name__ == "__main__":
    main()
