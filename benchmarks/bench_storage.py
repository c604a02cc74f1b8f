"""The store: durable batches, reopening, the index's memory, rollback, compaction, backfill.

A million items with 16-byte keys and 256-byte values over 64 vbuckets (the index over 1024 as well). Every figure
stands beside what the hardware does with the same bytes in the same seconds: write and fdatasync, a checksum, a memcpy.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from benchmarks.harness import Figure, measure, publish
from headwater.kernels import apply, index
from headwater.kernels.tracker import StreamTable
from headwater.node.storage.records import mutation_frame
from headwater.node.storage.store import Store

ITEMS = 1_000_000
VBUCKETS = 64
KEY, VALUE = 16, 256
FRAME = 55 + KEY + VALUE
BATCH = 10_000
RUN = 20  # changes of one vbucket in a row
BLOCK_BYTES = 256 << 10


def changes(items: int, vbuckets: int, generation: int = 0) -> NDArray[np.uint8]:
    """Return frames that store each of `items` keys once, in another order within each vbucket at each generation."""
    sample = mutation_frame(0, bytes(KEY), os.urandom(VALUE), seqno=0, cas=0, rev_seqno=generation + 1)
    frames = np.tile(np.frombuffer(sample, np.uint8), (items, 1))
    number = np.arange(items)
    vbucket = number // RUN % vbuckets
    order = np.argsort(vbucket, kind="stable")
    per = np.bincount(vbucket, minlength=vbuckets)
    starts = np.repeat(np.cumsum(per) - per, per)
    seqno, key = np.empty(items, np.int64), number.copy()
    seqno[order] = np.arange(items) - starts + 1
    if generation:
        random = np.random.default_rng(generation)
        shuffled = order[np.lexsort((random.random(items), vbucket[order]))]
        key[order] = shuffled
    put(frames, 6, vbucket, ">u2")
    put(frames, 16, number + 1 + generation * items, ">u8")
    put(frames, 24, seqno + generation * per[vbucket], ">u8")
    text = np.char.zfill(key.astype(f"S{KEY}"), KEY)
    frames[:, 55 : 55 + KEY] = np.frombuffer(text.tobytes(), np.uint8).reshape(items, KEY)
    return frames.reshape(-1)


def put(frames: NDArray[np.uint8], at: int, numbers: NDArray[np.int64], kind: str) -> None:
    """Write a number into each frame at byte `at`, big-endian and of type `kind`."""
    size = np.dtype(kind).itemsize
    frames[:, at : at + size] = numbers.astype(kind).view(np.uint8).reshape(len(frames), size)


def commit(store: Store) -> None:
    """Make all staged changes durable."""
    batch = store.freeze()
    if batch is not None:
        store.write(batch)
        store.settle(batch)


def streams(store: Store, vbuckets: int) -> StreamTable:
    """Return open streams that accept all changes behind those that the store has."""
    table = StreamTable()
    for vbucket in range(vbuckets):
        table.open(vbucket, 0, store.index.high_seqno(vbucket))
        table.enter(vbucket, 0, 1 << 48)
    return table


def stage(store: Store, table: StreamTable, data: NDArray[np.uint8]) -> int:
    """Stage the changes of a buffer, as a node that follows another does; return how many."""
    code, offset, count = apply.GROW, 0, 0
    while code == apply.GROW:
        arena, used = store.staging.room()
        code, offset, used, taken, vbucket = apply.apply(
            table.rows, store.table, store.segments, data, offset, store.staging.slot, used, len(arena), 1, 0
        )
        store.staging.use(int(used))
        count += int(taken)
        if code == apply.GROW:
            store.staging.grow(int(vbucket))
    return count


def load(store: Store, data: NDArray[np.uint8]) -> None:
    """Stage and commit, BATCH changes at a time."""
    table = streams(store, len(store.table))
    for begin in range(0, len(data), BATCH * FRAME):
        part = data[begin : begin + BATCH * FRAME]
        while len(part):  # behind a segment's end there is room for a part of a batch only
            part = part[stage(store, table, part) * FRAME :]
            commit(store)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Make a folder for the block and remove it afterwards; yield its path."""
    made = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    try:
        yield made
    finally:
        shutil.rmtree(made)


def raw_writer(path: Path, data: NDArray[np.uint8]) -> Callable[[], None]:
    """Return a function that writes the same batches by the disk alone: pwrite and fdatasync, into space that was set
    aside.
    """

    def write() -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.posix_fallocate(descriptor, 0, len(data))
        for begin in range(0, len(data), BATCH * FRAME):
            os.pwrite(descriptor, data[begin : begin + BATCH * FRAME], begin)
            os.fdatasync(descriptor)
        os.close(descriptor)
        path.unlink()

    return write


def durable_writes(data: NDArray[np.uint8]) -> None:
    """Measure new keys in batches of 10,000, each synced; and the same without the disk."""
    with folder() as place:
        number = iter(range(1000))

        def ours() -> None:
            path = place / str(next(number))
            store = Store.open(path, vbuckets=VBUCKETS)
            load(store, data)
            store.close(clean=False)
            shutil.rmtree(path)

        reference = ("write + fdatasync of the same bytes", raw_writer(place / "raw", data))
        measure(
            "durable batches of 10,000 new items",
            unit="M items/s",
            amount=ITEMS / 1e6,
            ours=ours,
            reference=reference,
            repetitions=3,
        )


def staging(data: NDArray[np.uint8]) -> None:
    """Measure staging and indexing alone: no batch is written."""
    with folder() as place, contextlib.closing(Store.open(place, vbuckets=VBUCKETS)) as store:
        part = data[: 150_000 * FRAME]
        target = np.empty(len(part), np.uint8)

        def ours() -> None:
            for begin in range(0, len(part), BATCH * FRAME):
                assert stage(store, streams(store, VBUCKETS), part[begin : begin + BATCH * FRAME]) == BATCH
                batch = store.freeze()
                assert batch is not None
                store.abandon(batch, RuntimeError())

        measure(
            "staged, indexed and taken back",
            unit="M items/s",
            amount=0.15,
            ours=ours,
            reference=("memcpy of the same bytes", lambda: np.copyto(target, part)),
            target=3.0,
        )


def backfill(name: str, store: Store, live: NDArray[np.uint8]) -> None:
    """Measure View.fill of all vbuckets into one block, beside a memcpy of as many bytes into it."""
    block = np.empty(BLOCK_BYTES, np.uint8)

    def ours() -> None:
        frames = 0
        for vb in range(VBUCKETS):
            with store.view(vb) as view:
                while not view.nothing:
                    frames += view.fill(block, 7).frames
        assert frames == ITEMS

    def copied() -> None:
        for begin in range(0, len(live) - BLOCK_BYTES, BLOCK_BYTES):
            np.copyto(block, live[begin : begin + BLOCK_BYTES])

    reference = ("memcpy of the same bytes", copied)
    measure(name, unit="M items/s", amount=ITEMS / 1e6, ours=ours, reference=reference, target=30.0, repetitions=5)


def reopening(place: Path) -> None:
    """Measure the opening of a store of a million items, which verifies and indexes them, beside checksums of the same
    files.
    """

    def ours() -> None:
        Store.open(place, vbuckets=VBUCKETS).close(clean=False)

    def checksums() -> None:
        for path in place.glob("*.log"):
            with path.open("rb") as file:
                while part := file.read(8 << 20):
                    xxhash.xxh3_64_intdigest(part)

    measure(
        "reopen a million items",
        unit="times/s",
        amount=1,
        ours=ours,
        reference=("XXH3 of the same files", checksums),
        target=2.0,
        repetitions=5,
    )


def index_memory(place: Path) -> None:
    """Print the index's bytes for each key, after loading and after reopening; AssertionError if there are more than
    56.
    """
    for vbuckets in (64, 1024):
        path = place / f"memory-{vbuckets}"
        store = Store.open(path, vbuckets=vbuckets)
        load(store, changes(ITEMS, vbuckets))
        loaded = store.index.nbytes() / ITEMS
        store.close()
        with contextlib.closing(Store.open(path, vbuckets=vbuckets)) as again:
            reopened = again.index.nbytes() / ITEMS
        print(f"index: {loaded:.1f} bytes a key loaded, {reopened:.1f} reopened, {vbuckets} vbuckets (at most 56)")
        assert max(loaded, reopened) <= 56
        shutil.rmtree(path)


def once(  # noqa: PLR0917 - a figure
    name: str, unit: str, amount: float, taken: float, reference: str, other: float, target: float
) -> None:
    """Publish a measurement that can be made only once per store."""
    rate, base = amount / taken, amount / other
    publish(Figure(name, unit, rate, rate, rate, reference, base, rate / base, target))


def timed(run: Callable[[], object]) -> float:
    """Return how many seconds a call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def compaction(place: Path, store: Store) -> None:
    """Measure a compaction that drops five of six versions, and the pauses that the event loop would feel."""
    store.log.seal()
    pauses: list[float] = []

    def ours() -> None:
        job = store.compact(history_rows=lambda vb: 0)
        assert job is not None
        job.survey()
        pauses.append(timed(job.announce))
        commit(store)
        job.copy()
        steps, start = job.swap(), time.perf_counter()
        for _ in steps:
            pauses.append(time.perf_counter() - start)
            start = time.perf_counter()
        job.remove()
        job.forget()

    taken = timed(ours)
    live = np.empty(store.index.live_bytes, np.uint8)
    raw = timed(raw_writer(place / "raw", live))
    once("compaction of a million items, 6 versions each", "times/s", 1, taken, "write + fdatasync of them", raw, 1.0)
    size = store.log.bytes / store.index.live_bytes
    print(f"compaction: longest pause {1000 * max(pauses):.1f} ms, {size:.2f} x live bytes")


def rollback(place: Path) -> None:
    """Measure a rollback of the newest 100,000 of 300,000 changes of one vbucket, over 200,000 keys."""
    with contextlib.closing(Store.open(place / "rollback", vbuckets=1)) as store:
        load(store, changes(200_000, 1))
        load(store, changes(200_000, 1, 1)[: 100_000 * FRAME])
        taken = timed(lambda: store.rollback(0, 200_000))
        assert int(store.table[0, index.ROWS]) == store.index.items(0) == 200_000
        part = changes(100_000, 1)
        target = np.empty_like(part)
        np.copyto(target, part)
        copied = timed(lambda: np.copyto(target, part))
        once("roll back 100,000 changes", "times/s", 1, taken, "memcpy of their frames", copied, 20.0)


def main() -> None:
    """Measure all parts of the store; takes about two minutes."""
    data = changes(ITEMS, VBUCKETS)
    staging(data)
    durable_writes(data)
    with folder() as place:
        index_memory(place)
        rollback(place)
        store = Store.open(place / "store", vbuckets=VBUCKETS)
        load(store, data)
        backfill("backfill", store, data)
        store.close()
        reopening(place / "store")
        store = Store.open(place / "store", vbuckets=VBUCKETS)
        for generation in range(1, 6):
            load(store, changes(ITEMS, VBUCKETS, generation))
        backfill("backfill after five overwrites", store, data)
        compaction(place, store)
        backfill("backfill after compaction", store, data)
        store.close()


if __name__ == "__main__":
    main()
