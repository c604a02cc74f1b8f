"""A view's frames on their way out, against a plain reference."""

from __future__ import annotations

from struct import Struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.kernels import gather
from headwater.node.storage.records import StoredDocument
from headwater.node.storage.store import Store
from headwater.testing.faults import FaultyDisk
from tests.node.storage.model import commit, frames, open_store

HEADER = Struct(">BBHBBHIIQ")
OPAQUE = 0xDEADBEEF
FORMS = st.integers(0, 63)


def store_of(count: int) -> Store:
    store = open_store(FaultyDisk())
    for number in range(count):
        key = b"key %d" % (number % 23)
        common: dict[str, Any] = {"cas": number + 1, "rev_seqno": number}
        if number % 5 == 3:
            xattr = b"\x00\x00\x00\x00" if number % 2 else b""
            store.staging.deletion(
                1, key, xattr, delete_time=77, datatype=4 if xattr else 0, expired=number % 3 == 0, **common
            )
        else:
            store.staging.mutation(1, key, b"v" * (number % 40), flags=3, expiry=9, datatype=number % 2, **common)
        if number % 20 == 7:
            commit(store)
    commit(store)
    return store


def expected(one: StoredDocument, expired: bool, encoding: int) -> bytes:
    """A frame as dcp.md 2.8 to 2.10 and 2.1 (OPEN flags) have it."""
    value, datatype = one.value, one.datatype
    if encoding & (gather.NO_VALUE | gather.KEEP_DATATYPE):
        value, datatype = b"", (one.datatype & 1 if encoding & gather.KEEP_DATATYPE else 0)
    numbers = one.seqno, one.rev_seqno
    if not one.deleted:
        opcode, extras = 0x57, Struct(">QQIIIHB").pack(*numbers, one.flags, one.expiry, 0, 0, 0)
        extras = extras[:30] if encoding & gather.UPR else extras
    elif encoding & gather.UPR:
        is_expiration = expired and encoding & gather.EXPIRY_OPCODE
        opcode, extras = 0x59 if is_expiration else 0x58, Struct(">QQH").pack(*numbers, 0)
    elif expired and encoding & gather.EXPIRY_OPCODE:
        opcode, extras = 0x59, Struct(">QQI").pack(one.seqno, one.rev_seqno, one.delete_time)
    elif encoding & gather.DELETE_TIMES:
        opcode, extras = 0x58, Struct(">QQIB").pack(one.seqno, one.rev_seqno, one.delete_time, 0)
    else:
        opcode, extras = 0x58, Struct(">QQH").pack(one.seqno, one.rev_seqno, 0)
    body = len(extras) + len(one.key) + len(value)
    return (
        HEADER.pack(0x80, opcode, len(one.key), len(extras), datatype, 1, body, OPAQUE, one.cas)
        + extras
        + one.key
        + value
    )


def reference(store: Store, encoding: int) -> list[bytes]:
    wanted = []
    with store.view(1) as view:
        while not view.nothing:
            frame = view.next_frame()
            one = StoredDocument.decode(frame, True)
            if not (one.deleted and encoding & gather.NO_DELETES):
                wanted.append(expected(one, frame[1] == 0x59, encoding))
    return wanted


STORE = store_of(120)


@given(encoding=FORMS, size=st.integers(140, 3000))
def test_every_form_comes_out_as_specified_however_small_the_buffer(encoding: int, size: int) -> None:
    out, parts, count = np.zeros(size, np.uint8), [], 0
    with STORE.view(1) as view:
        done = False
        while not done:
            got = view.fill(out, OPAQUE, encoding)
            assert not got.plain
            parts.append(out[: got.bytes].tobytes())
            count, done = count + got.frames, got.done
        assert view.cursor == view.end_seqno
    wanted = reference(STORE, encoding)
    assert b"".join(parts) == b"".join(wanted)
    assert count == len(wanted)


def test_a_deletion_in_its_three_forms() -> None:
    store = open_store(FaultyDisk())
    store.staging.deletion(0, b"k", seqno=1, cas=2, rev_seqno=3, delete_time=4, expired=True)
    commit(store)
    seen = []
    for encoding in (gather.EXPIRY_OPCODE | gather.DELETE_TIMES, gather.DELETE_TIMES, 0):
        out = np.zeros(100, np.uint8)
        with store.view(0) as view:
            got = view.fill(out, 7, encoding)
        seen.append(out[: got.bytes].tobytes().hex())
    tail = "00000007 0000000000000002 0000000000000001 0000000000000003".replace(" ", "")
    assert seen == [
        "8059000114000000" + "00000015" + tail + "00000004" + "6b",
        "8058000115000000" + "00000016" + tail + "0000000400" + "6b",
        "8058000112000000" + "00000013" + tail + "0000" + "6b",
    ]


@given(budget=st.integers(0, 4000))
def test_the_budget_is_overshot_by_one_frame_at_most(budget: int) -> None:
    out = np.zeros(1 << 16, np.uint8)
    with STORE.view(1) as view:
        got = view.fill(out, OPAQUE, gather.DELETE_TIMES, budget_bytes=budget)
    sizes = [len(frame) for frame in reference(STORE, gather.DELETE_TIMES)]
    before = sum(sizes[: got.frames - 1]) if got.frames else 0
    assert got.bytes == sum(sizes[: got.frames])
    assert got.bytes >= min(budget, sum(sizes))
    assert before < budget or got.frames == 0


def test_a_frame_with_a_slow_datatype_is_left_to_python() -> None:
    out, plain, count = np.zeros(1 << 16, np.uint8), 0, 0
    with STORE.view(1) as view:
        while not view.nothing:
            got = view.fill(out, OPAQUE, gather.DELETE_TIMES, slow=4)
            count += got.frames
            if got.plain:
                assert StoredDocument.decode(view.next_frame(), True).datatype == 4
                plain += 1
    assert plain > 0
    assert plain + count == len(reference(STORE, 0))


def test_a_frame_larger_than_the_buffer_is_left_to_python() -> None:
    store = open_store(FaultyDisk())
    store.staging.mutation(0, b"small", b"", cas=1, rev_seqno=1)
    store.staging.mutation(0, b"large", b"x" * 500, cas=1, rev_seqno=1)
    commit(store)
    out = np.zeros(200, np.uint8)
    with store.view(0) as view:
        assert view.fill(out, 1) == (60, 1, False, False)
        assert view.fill(out, 1) == (0, 0, False, True)
        assert StoredDocument.decode(view.next_frame(), True).value == b"x" * 500
        assert view.nothing
        with pytest.raises(IndexError):
            view.next_frame()


def test_a_view_counts_what_it_will_hand_over() -> None:
    with STORE.view(1) as view:
        count, total = view.count()
        stored = []
        while not view.nothing:
            stored.append(view.next_frame())
    assert (count, total) == (len(stored), sum(map(len, stored)))


def test_a_view_starts_behind_and_ends_at_the_seqnos_given() -> None:
    with STORE.view(1, 0) as view:
        seqnos = [one.seqno for one in frames(view)]
    with STORE.view(1, seqnos[3]) as view:
        assert view.cursor == seqnos[3]
        assert [one.seqno for one in frames(view)] == seqnos[4:]
    with STORE.view(1, seqnos[-1]) as view:
        assert view.nothing
        assert (view.cursor, view.end_seqno) == (seqnos[-1], seqnos[-1])
        assert view.fill(np.zeros(9, np.uint8), 1) == (0, 0, True, False)
