"""Compaction at a running node, with writes and streams going on; bench_storage.py measures it on a store alone.

A million items over 64 vbuckets; every key was overwritten five times, in another order each time, while nothing was
compacted. Then COMPACT_DB, timed from the request to its answer: once at rest, once under a writer of 5,000 durable
sets a second and a client on a live stream, and once with another client beside those that drains the bucket again and
again. Each of them is a process. The reference is write and fdatasync of as many bytes as are live, under the same load
and right after. At the end of each run, and once more after a restart, all acknowledged writes are checked.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import Synchronized

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from benchmarks.bench_move import distribution
from benchmarks.bench_storage import FRAME, folder, raw_writer
from benchmarks.bench_streams import ITEMS, VALUE_BYTES, VBUCKETS, WINDOW_BYTES, requests, send
from benchmarks.harness import Figure, publish, seconds
from benchmarks.roaming import Report, roam
from headwater import client, testing
from headwater.wire.admin import CompactDb
from headwater.wire.header import Frame
from headwater.wire.status import Status

OVERWRITES = 5
PIECE_ITEMS = 4_000
WRITES_PER_SECOND = 5_000
BEFORE_SECONDS = 2.0
ARRIVAL_SECONDS = 10.0
COMPACTION_SECONDS_MAX = 60.0
ITEMS_PER_SECOND_TARGET = 1.0  # in millions


_processes = multiprocessing.get_context("spawn")


class Keys:
    """The million keys, as requests that set them. `generation` is the number of the last overwrite; its byte fills all
    values.
    """

    def __init__(self) -> None:
        sets = b"".join(requests(ITEMS, 0, VBUCKETS))
        self._table = np.frombuffer(sets, np.uint8).reshape(ITEMS, -1).copy()
        self._random = np.random.default_rng(1)
        self.generation = 0

    def overwrite(self, node: testing.Node) -> None:
        """Set every key to the next value, in another order each time."""
        self.generation += 1
        self._table[:, -VALUE_BYTES:] = self.generation
        order = self._random.permutation(ITEMS)
        send(node, (self._table[order[at : at + PIECE_ITEMS]].tobytes() for at in range(0, ITEMS, PIECE_ITEMS)))

    def stored(self) -> NDArray[np.uint8]:
        """Return as many bytes as the keys and values take in the log."""
        return np.resize(self._table, ITEMS * FRAME)

    def check(self, node: testing.Node, held: dict[bytes, int]) -> None:
        """Drain the bucket; AssertionError unless it has each key with its last value, each acknowledged write, and
        nothing else.
        """
        loaded, written = 0, {}
        value = pa.scalar(bytes([self.generation]) * VALUE_BYTES)
        with node.client() as bucket, bucket.batches(until="now", window_bytes=WINDOW_BYTES) as batches:
            for batch in batches:
                records = batch.records.select(["key", "value"])
                ours = pc.starts_with(records.column("key"), pattern=b"key-")
                loaded += pc.sum(pc.equal(records.filter(ours).column("value"), value)).as_py() or 0
                others = records.filter(pc.invert(ours))
                for key, text in zip(*(column.to_pylist() for column in others.columns), strict=True):
                    written[key] = int(text.split()[0])
        if loaded != ITEMS or written != held:
            lost = sum(written.get(key) != number for key, number in held.items())
            raise AssertionError(f"{loaded} of {ITEMS} keys have their last value, {lost} of {len(held)} writes lost")


def follow(control: Connection, address: str, arrived: Synchronized[int]) -> None:
    """Stay on a live stream of all vbuckets and count the changes that come; the body of a process."""
    with client.connect(address) as bucket, bucket.batches(start="now", window_bytes=WINDOW_BYTES) as batches:
        control.send("ready")
        for batch in batches:
            arrived.value += batch.records.num_rows


def drain(control: Connection, address: str, drains: Synchronized[int]) -> None:
    """Drain the bucket again and again, and count the drains; the body of a process."""
    with client.connect(address) as bucket:
        control.send("ready")
        while True:
            with bucket.batches(until="now", window_bytes=WINDOW_BYTES) as batches:
                rows = sum(batch.records.num_rows for batch in batches)
            if rows < ITEMS:
                raise AssertionError(f"a drain ended after {rows} items")
            drains.value += 1


class Load:
    """The traffic at the node. After `running` the writes are in `report`, if there was a writer."""

    def __init__(self, node: testing.Node, *, written: bool = False, drained: bool = False) -> None:
        self.report = Report()
        self.arrived, self.drains = (_processes.Value("q") for _ in range(2))
        self._node, self._written, self._drained = node, written, drained

    def __str__(self) -> str:
        if not self._written:
            return "at rest"
        return "under 5 k writes/s and a live stream" + " and drains" * self._drained

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the traffic while the block runs. A writer begins BEFORE_SECONDS earlier, for times of answers without a
        compaction.
        """
        with contextlib.ExitStack() as stack:
            if self._written:
                stack.enter_context(_reader(follow, self._node.address, self.arrived))
                stack.enter_context(self._writer())
            if self._drained:
                stack.enter_context(_reader(drain, self._node.address, self.drains))
            if self._written:
                time.sleep(BEFORE_SECONDS)
            yield

    @contextlib.contextmanager
    def _writer(self) -> Iterator[None]:
        ours, theirs = multiprocessing.Pipe()
        process = _processes.Process(
            target=roam, args=(theirs, [self._node.port], [0] * VBUCKETS, WRITES_PER_SECOND), daemon=True
        )
        _start(process, ours, theirs)
        ours.send("go")
        try:
            yield
            ours.send("stop")
            self.report = ours.recv()
            deadline = time.perf_counter() + ARRIVAL_SECONDS
            while self.arrived.value < len(self.report.latencies) and time.perf_counter() < deadline:
                time.sleep(0.01)
        finally:
            process.terminate()
            process.join()


def _start(process: BaseProcess, ours: Connection, theirs: Connection) -> None:
    """Start a process and wait until it says that it is ready; EOFError if it ends first."""
    process.start()
    theirs.close()
    ours.recv()


@contextlib.contextmanager
def _reader(
    target: Callable[[Connection, str, Synchronized[int]], None], address: str, count: Synchronized[int]
) -> Iterator[None]:
    ours, theirs = multiprocessing.Pipe()
    process = _processes.Process(target=target, args=(theirs, address, count), daemon=True)
    _start(process, ours, theirs)
    try:
        yield
    finally:
        failed = process.exitcode
        process.terminate()
        process.join()
    if failed is not None:
        raise AssertionError(f"{target.__name__} ended by itself, with status {failed}")


def items(node: testing.Node) -> int:
    """Return how many documents a node has."""
    with node.client() as bucket:
        return int(bucket.stats()["curr_items"])


def log_mib(node: testing.Node) -> float:
    """Return the size of the log's files on the disk, in MiB."""
    return sum(path.stat().st_blocks * 512 for path in node.data.rglob("*.log")) / (1 << 20)


def compact(node: testing.Node) -> tuple[float, float]:
    """Compact a node's log; return the times of the request and of its answer, in seconds of `time.perf_counter`."""
    with socket.create_connection((node.host, node.port), COMPACTION_SECONDS_MAX) as sock:
        began = time.perf_counter()
        sock.sendall(CompactDb(vbucket=0).encode())
        answer = Frame.decode(sock.recv(24, socket.MSG_WAITALL))
        ended = time.perf_counter()
    if answer.status != Status.SUCCESS:
        raise AssertionError(f"the compaction was refused: {answer}")
    return began, ended


def answer_times(load: Load, began: float, ended: float) -> None:
    """Publish the times in which the writer's sets were answered, before and during the compaction."""
    answered = np.array(load.report.answered)
    taken = np.array(load.report.latencies)
    before, during = taken[answered < began], taken[(answered >= began) & (answered - taken <= ended)]
    distribution("  durable set answered, before", before.tolist())
    distribution("  durable set answered, during", during.tolist())
    first, second = (1000 * float(np.percentile(each, 99)) for each in (before, during))
    low, high = 1000 * during.min(), 1000 * during.max()
    name = f"durable set during compaction {load}, 99th percentile"
    publish(Figure(name, "ms", second, low, high, "before it", first, second / first))
    print(f"  {len(during):,} sets in that time, {len(during) / (ended - began):,.0f} a second", flush=True)
    print(f"  {load.arrived.value:,} of {len(taken):,} writes came through the live stream, {load.drains.value} drains")


def measured(node: testing.Node, load: Load, keys: Keys) -> None:
    """Measure one compaction under a load, and beside it the time to write the live bytes."""
    with folder() as place:
        raw = raw_writer(place / "raw", keys.stored())
        with load.running():
            live, size, drains = items(node), log_mib(node), load.drains.value
            began, ended = compact(node)
            drains = load.drains.value - drains
            after, other = log_mib(node), seconds(raw)
        taken, millions = ended - began, live / 1e6
        rate, base = millions / taken, ITEMS / 1e6 / other
        figure = Figure(
            f"compaction {load}, 6 versions each",
            "M live items/s",
            *(rate, rate, rate),
            "write + fdatasync of them",
            base,
            rate / base,
            ITEMS_PER_SECOND_TARGET,
        )
        publish(figure)
        print(f"  {taken / millions:.2f} s a million, log {size:,.0f} to {after:,.0f} MiB; {drains} drains meanwhile")
        if load.report.latencies:
            answer_times(load, began, ended)


def main() -> None:
    """Measure three compactions; takes about a minute."""
    keys, held = Keys(), dict[bytes, int]()
    with testing.node(vbuckets=VBUCKETS, compact_dead_percent=100) as node:
        keys.overwrite(node)
        for load in (Load(node), Load(node, written=True), Load(node, written=True, drained=True)):
            for _ in range(OVERWRITES):
                keys.overwrite(node)
            measured(node, load, keys)
            held |= load.report.held
            keys.check(node, held)
        node.restart()
        keys.check(node, held)
    print(f"{ITEMS:,} items and {len(held):,} more that were written meanwhile: none is lost, nor after a restart")


if __name__ == "__main__":
    main()
