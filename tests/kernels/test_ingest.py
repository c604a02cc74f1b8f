"""Bulk staging, fed with anything: it takes whole, sound frames, says where it stopped, and touches nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headwater.kernels import ingest
from headwater.kernels.guard import registered
from headwater.kernels.jit import debug_copy
from headwater.node.storage.columns import Index
from headwater.node.storage.records import deletion_frame, mutation_frame

CHECKED = debug_copy("headwater.kernels.ingest")
FRAMES = [mutation_frame(n % 2, b"key %d" % (n % 3), b"v" * n, seqno=n + 1, cas=n + 1, rev_seqno=1) for n in range(6)]
FRAMES += [deletion_frame(0, b"key 0", seqno=9, cas=9, rev_seqno=2, delete_time=3)]
DATA = b"".join(FRAMES)


def run(build: Any, data: bytes, limit: int) -> tuple[tuple[int, ...], bytes, list[list[int]]]:
    """What ingest says, what it wrote, and the counters it left, in an index that needs no growing."""
    made, arena, segments = Index(2, (1, 2)), np.zeros(limit + 16, np.uint8), np.zeros((4, 2), np.uint64)
    for vb in (0, 1):
        made.grow(vb, 16, 16)
    segments[0] = (arena.ctypes.data, len(arena))
    taken = np.frombuffer(data, np.uint8).copy()
    arrays = [array for one in made.columns for array in (one.block, one.slots)]
    with registered(arena, *arrays):
        told = build.ingest(made.table, segments, taken, 0, len(taken), 0, 0, limit, 77)
    counters = made.table[:, [0, 11, 13, 16, 18, 19, 20]]
    return tuple(int(number) for number in told), arena.tobytes(), counters.tolist()


@given(
    cut=st.integers(0, len(DATA)), at=st.integers(0, len(DATA) - 1), flip=st.integers(0, 255), limit=st.integers(0, 900)
)
def test_whatever_comes_is_taken_as_far_as_it_is_sound_and_fits(cut: int, at: int, flip: int, limit: int) -> None:
    data = bytearray(DATA)
    data[at] ^= flip
    checked = run(CHECKED, bytes(data[:cut]), limit)
    assert checked == run(ingest, bytes(data[:cut]), limit)
    (_, offset, used, frames, _), arena, _ = checked
    assert offset <= cut
    assert used <= limit
    assert arena[used:] == bytes(len(arena) - used)
    assert frames <= len(FRAMES)
    if not flip:
        whole = [frame for end, frame in zip(np.cumsum([len(f) for f in FRAMES]), FRAMES, strict=True) if end <= cut]
        assert b"".join(whole).startswith(arena[:used])


@given(st.binary(max_size=200))
def test_noise_is_not_taken(noise: bytes) -> None:
    (_, offset, used, frames, _), _, _ = run(CHECKED, noise, 400)
    assert (offset, used, frames) == (0, 0, 0)
