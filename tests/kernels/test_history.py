"""Replay, fed with anything; slots; counting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.kernels import history, index
from headwater.kernels.builds import debug_copy
from headwater.kernels.guard import registered
from headwater.node.storage.columns import Index
from headwater.node.storage.records import drop_frame, mutation_frame

CHECKED = debug_copy("headwater.kernels.history")
FRAMES = [mutation_frame(n % 2, b"key %d" % (n % 3), b"v" * n, seqno=n + 1, cas=n + 1, rev_seqno=1) for n in range(6)]
DATA = b"".join([*FRAMES, drop_frame(1)])


def replayed(build: Any, data: bytes, end: int) -> tuple[tuple[int, ...], list[list[int]]]:
    made, segments = Index(2, (1, 2)), np.zeros((4, 2), np.uint64)
    memory = np.frombuffer(data, np.uint8).copy()
    for vb in (0, 1):
        made.grow(vb, 16, 16)
    segments[2] = (memory.ctypes.data, len(memory))
    arrays = [array for one in made.columns for array in (one.block, one.slots)]
    with registered(memory, *arrays):
        counts, bodies = np.zeros(2, np.int64), np.array([[0, end]], np.int64)
        build.count_rows(segments, 2, bodies, counts)
        told = build.replay(made.table, segments, 2, bodies, 0, 0, 0, 2)
        assert (made.table[:, index.ROWS] <= counts).all()
        for vb in (0, 1):
            assert build.link(made.table, vb, segments, 0) == made.rows(vb)
    return tuple(int(number) for number in told), made.table[:, [0, 11, 13, 16, 18, 19, 20]].tolist()


@given(at=st.integers(0, len(DATA) - 1), flip=st.integers(0, 255), end=st.integers(0, len(DATA)))
def test_replay_reads_nothing_outside_its_batch_whatever_the_frames_say(at: int, flip: int, end: int) -> None:
    data = bytearray(DATA)
    data[at] ^= flip
    checked = replayed(CHECKED, bytes(data), end)
    assert checked == replayed(history, bytes(data), end)
    assert checked[0][2] <= end


def test_replay_stops_at_a_control_frame_and_says_how_long_it_is() -> None:
    (code, batch, offset, length), _ = replayed(history, DATA, len(DATA))
    assert (code, batch, offset, length) == (history.CONTROL, 0, len(DATA) - 24, 24)


def test_replay_says_which_vbucket_must_grow() -> None:
    made, segments = Index(2, (1, 2)), np.zeros((4, 2), np.uint64)
    memory = np.frombuffer(DATA, np.uint8).copy()
    segments[2] = (memory.ctypes.data, len(memory))
    told = history.replay(made.table, segments, 2, np.array([[0, len(DATA)]], np.int64), 0, 0, 0, 2)
    assert [int(number) for number in told] == [history.GROW, 0, 0, 0]


def test_replay_passes_over_the_frames_of_other_vbuckets() -> None:
    made, segments = Index(2, (1, 2)), np.zeros((4, 2), np.uint64)
    memory = np.frombuffer(DATA, np.uint8).copy()
    segments[2] = (memory.ctypes.data, len(memory))
    made.grow(0, 16, 16)
    told = history.replay(made.table, segments, 2, np.array([[0, len(DATA)]], np.int64), 0, 0, 0, 1)
    assert (int(told[0]), made.rows(0), made.rows(1)) == (history.DONE, 3, 0)


def test_rows_are_linked_as_far_as_there_is_room_for_keys() -> None:
    made, segments = Index(1, (1, 2)), np.zeros((4, 2), np.uint64)
    memory = np.frombuffer(
        b"".join(mutation_frame(0, b"k%d" % n, b"", seqno=n, cas=1, rev_seqno=1) for n in range(1, 41)), np.uint8
    )
    segments[2] = (memory.ctypes.data, len(memory))
    made.make_room(0, 40)
    history.replay(made.table, segments, 2, np.array([[0, len(memory)]], np.int64), 0, 0, 0, 1)
    assert (made.rows(0), history.link(made.table, 0, segments, 0)) == (40, 0)
    made.make_room_for_keys(0, 20)
    assert history.link(made.table, 0, segments, 0) == made.table[0, index.KEYS] == made.table[0, index.KEYS_MAX] == 24
    made.make_room_for_keys(0, 16)
    assert history.link(made.table, 0, segments, 24) == 40
    for n in range(1, 41):
        assert index.lookup(made.table, 0, segments, np.frombuffer(b"k%d" % n, np.uint8), 0) == n - 1


@given(st.lists(st.integers(0, (1 << 32) - 1), max_size=40), st.data())
def test_slots_hold_the_newest_row_of_every_key_and_nothing_else(hashes: list[int], data: st.DataObject) -> None:
    superseded = [data.draw(st.booleans()) for _ in hashes]
    nexts = np.array([0 if gone else 0xFFFFFFFF for gone in superseded], np.uint32)
    slots = np.full(64, 0xFFFFFFFF, np.uint32)
    history.fill_slots(slots, np.array(hashes, np.uint32), nexts, len(hashes))
    held = sorted(int(row) for row in slots if row != 0xFFFFFFFF)
    assert held == [row for row, gone in enumerate(superseded) if not gone]
    for row in held:
        at = hashes[row] & 63
        while slots[at] != row:
            assert slots[at] != 0xFFFFFFFF
            at = (at + 1) & 63


def test_frames_are_counted_only_when_they_fill_the_bytes_exactly() -> None:
    data = np.frombuffer(DATA, np.uint8).copy()
    assert history.count_frames(data, len(data)) == 7
    assert history.count_frames(data, len(data) - 24) == 6
    for used in (len(data) - 1, len(data) - 23, 23, len(data) + 1):
        assert history.count_frames(data, used) == -1
    assert history.count_frames(data, 0) == 0


@pytest.mark.parametrize(
    ("field", "number"),
    [
        (index.DURABLE_ROWS, 3),
        (index.FROZEN_ROWS, 4),
        (index.ROWS, 9),
        (index.KEYS, 4),
        (index.DURABLE_HIGH, 6),
        (index.FROZEN_HIGH, 8),
    ],
)
def test_a_vbucket_whose_numbers_are_in_disorder_is_found(field: int, number: int) -> None:
    table = np.zeros((3, index.FIELDS), np.uint64)
    table[:, [index.DURABLE_ROWS, index.FROZEN_ROWS, index.ROWS, index.CAPACITY, index.KEYS]] = 1, 2, 3, 8, 3
    table[:, [index.DURABLE_HIGH, index.FROZEN_HIGH, index.HIGH]] = 4, 5, 7
    assert history.out_of_order(table) == -1
    table[1, field] = number
    assert history.out_of_order(table) == 1
