"""The consumer's fast path: what it takes, what it leaves to Python, and that both builds do the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.kernels import apply as compiled
from headwater.kernels.builds import debug_copy
from headwater.kernels.tracker import LAST, StreamTable
from headwater.node.storage.store import Store
from headwater.protocol.dcp.consumer_changes import check_change, read_change
from headwater.wire import dcp, snappy, upr, xattr
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame

OPAQUE = 7
NOW = 1_700_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store.open(tmp_path / "s", vbuckets=4, arena_bytes=1 << 20)
    yield made
    made.close(clean=False)


def table(vb: int = 1, last: int = 0, snapshot: tuple[int, int] = (1, 100)) -> StreamTable:
    made = StreamTable()
    made.open(vb, OPAQUE, last)
    made.enter(vb, *snapshot)
    return made


def run(kernel: ModuleType, store: Store, streams: StreamTable, data: bytes) -> tuple[int, int, int]:
    """(why it stopped, where, changes taken)"""
    frames, offset, taken = np.frombuffer(data, np.uint8), 0, 0
    while True:
        arena, used = store.staging.room()
        code, offset, used, count, vb = kernel.apply(
            streams.rows, store.table, store.segments, frames, offset, store.staging.slot, used, len(arena), NOW, 0
        )
        store.staging.use(int(used))
        taken += int(count)
        if code != kernel.GROW:
            return int(code), int(offset), taken
        store.staging.grow(int(vb))


def mutation(seqno: int, key: bytes = b"k", **more: Any) -> bytes:
    fields = {"vbucket": 1, "opaque": OPAQUE, "cas": 9, "rev_seqno": 2, "value": b"v", **more}
    return dcp.Mutation(key=key, by_seqno=seqno, **fields).encode()


def test_changes_are_stored_as_they_came(store: Store) -> None:
    data = (
        mutation(1, b"a", flags=5, expiration=6)
        + mutation(2, b"b", datatype=1)
        + dcp.Deletion(vbucket=1, opaque=OPAQUE, cas=8, key=b"a", by_seqno=3, rev_seqno=3).encode()
        + dcp.DeletionV2(vbucket=1, opaque=OPAQUE, cas=7, key=b"c", by_seqno=5, rev_seqno=4, delete_time=11).encode()
        + dcp.Expiration(vbucket=1, opaque=OPAQUE, cas=6, key=b"d", by_seqno=9, rev_seqno=4, delete_time=12).encode()
    )
    streams = table()
    assert run(compiled, store, streams, data) == (compiled.DONE, len(data), 5)
    assert int(streams.rows[1, LAST]) == store.index.high_seqno(1) == 9
    found = {key: store.document(1, key) for key in (b"a", b"b", b"c", b"d")}
    assert [(d.seqno, d.cas, d.rev_seqno, d.deleted, d.delete_time) for d in found.values() if d] == [
        (3, 8, 3, True, NOW),
        (2, 9, 2, False, 0),
        (5, 7, 4, True, 11),
        (9, 6, 4, True, 12),
    ]
    assert found[b"b"] is not None and found[b"b"].datatype == 1


@pytest.mark.parametrize(
    "frame",
    [
        mutation(2, opaque=OPAQUE + 1),
        mutation(2, vbucket=2),
        mutation(2, vbucket=4),
        mutation(0),
        mutation(1),
        mutation(101),
        mutation(2, cas=0),
        mutation(2, cas=2**64 - 1),
        mutation(2, nmeta=1),
        mutation(2, datatype=8),
        mutation(2, b"k" * 251),
        mutation(2, datatype=2, value=b"no Snappy"),
        mutation(2, datatype=2, value=snappy.compress(b"x") + b"x"),
        mutation(2, datatype=4, value=b"\0\0\1\0{}"),
        mutation(2, datatype=6, value=snappy.compress(xattr.join({"a": b"1"}, b"{}"))),  # of which only Python knows
        Frame(0x80, 0x57, b"", bytes(7) + b"\2" + bytes(23), vbucket=1, opaque=OPAQUE, cas=1).encode(),
        Frame(0x80, 0x57, b"k", bytes(7) + b"\2" + bytes(21), vbucket=1, opaque=OPAQUE, cas=1).encode(),
        Frame(0x80, 0x57, b"k", bytes(7) + b"\2" + bytes(21) + b"\1", vbucket=1, opaque=OPAQUE, cas=1).encode(),
        Frame(0x80, 0x58, b"k", bytes(7) + b"\2" + bytes(13), b"x", 4, 1, OPAQUE, 1).encode(),
        Frame(0x80, 0x59, b"k", bytes(7) + b"\2" + bytes(9) + b"\1", vbucket=1, opaque=OPAQUE, cas=1).encode(),
        Frame(0x80, 0x59, b"k", bytes(7) + b"\2" + bytes(11), vbucket=1, opaque=OPAQUE, cas=1).encode(),
        Frame(0x81, 0x57, vbucket=1, opaque=OPAQUE).encode(),
        dcp.Noop(opaque=1).encode(),
        b"\x42" + bytes(23),
    ],
)
def test_what_is_not_plainly_right_is_left_to_python(store: Store, frame: bytes) -> None:
    first = mutation(1)
    streams = table()
    assert run(compiled, store, streams, first + frame + mutation(3)) == (compiled.PLAIN, len(first), 1)
    assert store.index.high_seqno(1) == int(streams.rows[1, LAST]) == 1


def test_compressed_documents_and_those_with_attributes_are_taken(store: Store) -> None:
    data = mutation(1, b"a", datatype=3, value=snappy.compress(b"[1]")) + mutation(
        2, b"b", datatype=5, value=xattr.join({"_s": b"1", "u": b"{}"}, b"[2]")
    )
    assert run(compiled, store, table(), data) == (compiled.DONE, len(data), 2)


def test_the_layouts_of_upr_are_stored_in_the_form_of_the_log(store: Store) -> None:
    data = (
        upr.Mutation(
            vbucket=1, opaque=OPAQUE, cas=9, key=b"a", by_seqno=1, rev_seqno=2, flags=5, expiration=6, value=b"v"
        ).encode()
        + dcp.Deletion(vbucket=1, opaque=OPAQUE, cas=9, key=b"b", by_seqno=2, rev_seqno=3).encode()
        + upr.Expiration(vbucket=1, opaque=OPAQUE, cas=9, key=b"c", by_seqno=3, rev_seqno=4).encode()
    )
    stored = (
        dcp.Mutation(vbucket=1, cas=9, key=b"a", by_seqno=1, rev_seqno=2, flags=5, expiration=6, value=b"v").encode()
        + dcp.DeletionV2(vbucket=1, cas=9, key=b"b", by_seqno=2, rev_seqno=3, delete_time=NOW).encode()
        + dcp.Expiration(vbucket=1, cas=9, key=b"c", by_seqno=3, rev_seqno=4, delete_time=NOW).encode()
    )
    assert run(compiled, store, table(), data) == (compiled.DONE, len(data), 3)
    arena, used = store.staging.room()
    assert arena[:used].tobytes() == stored


def stage_plainly(store: Store, data: bytes) -> None:
    """Stage frames one by one, as Python does."""
    for frame in FrameBuffer().receive_data(data):
        check_change(frame)
        change = read_change(frame, deleted_user_xattrs=False)
        numbers = {"seqno": change.seqno, "cas": change.cas, "rev_seqno": change.rev_seqno}
        if change.deleted:
            when = NOW if change.delete_time is None else change.delete_time
            store.staging.deletion(1, change.key, **numbers, delete_time=when, now=NOW, expired=change.expired)
        else:
            more = {"flags": change.flags, "expiry": change.expiry, "datatype": change.datatype}
            store.staging.mutation(1, change.key, change.value, **numbers, **more)


KINDS = {0x57: (30, 31), 0x58: (18, 21), 0x59: (18, 20)}
_NUMBERS = st.integers(0, 2**32 - 1)


@st.composite
def changes(draw: st.DrawFn) -> bytes:
    """Changes in all layouts of DCP and UPR, seqnos from 1."""
    frames = []
    for seqno in range(1, draw(st.integers(1, 12)) + 1):
        opcode = draw(st.sampled_from(sorted(KINDS)))
        extras = seqno.to_bytes(8) + draw(_NUMBERS).to_bytes(8)
        value, datatype = b"", 0
        match length := draw(st.sampled_from(KINDS[opcode])):
            case 30 | 31:
                extras += b"".join(draw(_NUMBERS).to_bytes(4) for _ in "fe") + bytes(length - 24)
                value, datatype = draw(st.binary(max_size=40)), draw(st.integers(0, 1))
            case 18:
                extras += bytes(2)
            case _:
                extras += draw(_NUMBERS).to_bytes(4) + bytes(length - 20)
        key = draw(st.binary(min_size=1, max_size=3))
        frames.append(Frame(0x80, opcode, key, extras, value, datatype, 1, OPAQUE, draw(_NUMBERS) + 1).encode())
    return b"".join(frames)


@given(data=changes())
def test_the_kernel_stores_what_the_plain_path_stores(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    arenas = []
    for stage in (lambda store: run(compiled, store, table(), data), lambda store: stage_plainly(store, data)):
        store = Store.open(tmp_path_factory.mktemp("s"), vbuckets=2, arena_bytes=1 << 20, random=bytes)
        stage(store)
        arena, used = store.staging.room()
        arenas.append((arena[:used].tobytes(), store.index.items(1), store.index.high_seqno(1)))
        store.close(clean=False)
    assert arenas[0] == arenas[1]


def test_a_stream_that_was_closed_takes_nothing(store: Store) -> None:
    streams = table()
    streams.close(1)
    assert run(compiled, store, streams, mutation(1)) == (compiled.PLAIN, 0, 0)


def test_a_full_arena_stops_before_the_change_that_does_not_fit(store: Store) -> None:
    data = b"".join(mutation(n, b"k%d" % n, value=bytes(200_000)) for n in range(1, 8))
    code, offset, taken = run(compiled, store, table(), data)
    assert code == compiled.ARENA_FULL
    assert store.index.high_seqno(1) == taken < 7
    assert data[offset + 24 : offset + 32] == (taken + 1).to_bytes(8)


@given(keep=st.integers(0, 400), junk=st.binary(max_size=80), seqnos=st.lists(st.integers(1, 9), max_size=5))
def test_the_checked_build_does_the_same_with_whatever_arrives(
    tmp_path_factory: pytest.TempPathFactory, keep: int, junk: bytes, seqnos: list[int]
) -> None:
    data = b"".join(mutation(seqno, b"k%d" % (seqno % 3)) for seqno in seqnos)[:keep] + junk
    results = []
    for kernel in (compiled, debug_copy("headwater.kernels.apply")):
        store = Store.open(tmp_path_factory.mktemp("s"), vbuckets=4, arena_bytes=1 << 20, random=bytes)
        streams = table()
        if kernel is not compiled:
            from headwater.kernels import guard  # noqa: PLC0415 - the checked build must know the store's memory

            arena, _ = store.staging.room()
            guard.register(arena)
            store.staging.grow(1)
            for array in (store.index.columns[1].block, store.index.columns[1].slots):
                guard.register(array)
        results.append((run(kernel, store, streams, data), store.index.high_seqno(1), streams.rows[1].tolist()))
        store.close(clean=False)
    assert results[0] == results[1]
