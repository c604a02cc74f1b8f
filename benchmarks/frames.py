"""Made-up DCP traffic, millions of frames a second, written by numpy into one buffer.

The changes take turns among the vbuckets in short runs, as a producer with many streams sends them; each vbucket's
seqnos rise from 1, and a V1 snapshot marker stands before every `snapshot` changes of a vbucket, so the traffic obeys
every rule a consumer checks. Values are random bytes, the worst case for anything that searches for headers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

HEADER = 24
MARKER, MUTATION, DELETION = 0x56, 0x57, 0x58
EXTRAS = {MARKER: 20, MUTATION: 31, DELETION: 18}
FLAGS = 0x02000006  # what SDKs write for JSON
CAS_BASE = 1 << 60


@dataclass(frozen=True, slots=True)
class Traffic:
    """Frames back to back.

    Attributes:
        buffer: the bytes.
        offsets: int64, one more than there are frames: where each starts, and where the last ends.
        changes: how many of the frames are mutations and deletions.
        vbuckets: the number of vbuckets, from 0 on, to which the changes belong; every stream's opaque is its vbucket.
    """

    buffer: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    changes: int
    vbuckets: int

    def pieces(self, piece_bytes: int) -> list[NDArray[np.uint8]]:
        """Return the buffer in pieces, cut at the frame boundaries nearest below each multiple of `piece_bytes`."""
        edges = np.arange(0, len(self.buffer), piece_bytes)
        cuts = self.offsets[np.searchsorted(self.offsets, edges, "right") - 1]
        bounds = np.unique(np.append(cuts, len(self.buffer)))
        return [self.buffer[start:end] for start, end in pairwise(bounds.tolist())]


@dataclass(frozen=True, slots=True)
class _Plan:
    """Columns with one row for each frame, in order: its opcode, vbucket and seqno, and the bytes of its parts."""

    opcode: NDArray[np.uint8]
    vbucket: NDArray[np.int64]
    seqno: NDArray[np.int64]
    extras: NDArray[np.int64]
    key: NDArray[np.int64]
    value: NDArray[np.int64]


def unaligned(buffer: NDArray[np.uint8], kind: str) -> NDArray[Any]:
    """Return an overlapping view of `buffer`: element i is the number of type `kind` that starts at byte i."""
    dtype = np.dtype(kind)
    return np.ndarray((len(buffer) - dtype.itemsize + 1,), dtype, buffer, 0, (1,))


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes and counts of the traffic.

    Attributes:
        value_bytes: the length of every value, or the smallest and the largest of evenly spread ones.
        key_bytes: at most 19, a letter and decimal digits; every key is used once.
        run: changes of one vbucket in a row.
        snapshot: changes of one vbucket behind one marker; a multiple of `run`.
    """

    value_bytes: int | tuple[int, int] = 256
    key_bytes: int = 16
    vbuckets: int = 64
    run: int = 20
    snapshot: int = 1000
    deletion_share: float = 0.01
    seed: int = 1


def traffic(changes: int, shape: Shape | None = None) -> Traffic:
    """Return `changes` mutations and deletions, with the markers that they need."""
    shape = shape or Shape()
    random = np.random.default_rng(shape.seed)
    plan = _plan(random, changes, shape)
    offsets = np.zeros(len(plan.opcode) + 1, np.int64)
    np.cumsum(HEADER + plan.extras + plan.key + plan.value, out=offsets[1:])
    buffer = np.frombuffer(bytearray(random.bytes(int(offsets[-1]))), np.uint8)
    _write_headers(buffer, offsets[:-1], plan)
    _write_changes(buffer, offsets[:-1], plan, random)
    _write_markers(buffer, offsets[:-1], plan, shape.snapshot)
    _write_keys(buffer, offsets[:-1], plan, shape.key_bytes)
    return Traffic(buffer, offsets, changes, shape.vbuckets)


def _plan(random: np.random.Generator, changes: int, shape: Shape) -> _Plan:
    """Return the order of the frames: each change in its run, a marker before the first change of each snapshot."""
    index = np.arange(changes)
    runs = index // shape.run
    vbucket = runs % shape.vbuckets
    seqno = runs // shape.vbuckets * shape.run + index % shape.run + 1
    opcode = np.where(random.random(changes) < shape.deletion_share, DELETION, MUTATION)
    low, high = (shape.value_bytes,) * 2 if isinstance(shape.value_bytes, int) else shape.value_bytes
    value = np.where(opcode == MUTATION, random.integers(low, high + 1, changes), 0)
    announced = np.flatnonzero((seqno - 1) % shape.snapshot == 0)

    def with_markers(column: NDArray[Any], at_marker: Any) -> NDArray[Any]:
        return np.insert(column, announced, at_marker)

    opcode = with_markers(opcode.astype(np.uint8), MARKER)
    extras = np.choose(opcode - MARKER, [EXTRAS[MARKER], EXTRAS[MUTATION], EXTRAS[DELETION]]).astype(np.int64)
    key = np.where(opcode == MARKER, 0, shape.key_bytes)
    own = (vbucket[announced], seqno[announced])
    return _Plan(
        opcode, with_markers(vbucket, own[0]), with_markers(seqno, own[1]), extras, key, with_markers(value, 0)
    )


def _write_headers(buffer: NDArray[np.uint8], starts: NDArray[np.int64], plan: _Plan) -> None:
    u16, u32, u64 = (unaligned(buffer, kind) for kind in (">u2", ">u4", ">u8"))
    buffer[starts] = 0x80
    buffer[starts + 1] = plan.opcode
    u16[starts + 2] = plan.key
    buffer[starts + 4] = plan.extras
    buffer[starts + 5] = 0
    u16[starts + 6] = plan.vbucket
    u32[starts + 8] = plan.extras + plan.key + plan.value
    u32[starts + 12] = plan.vbucket
    u64[starts + 16] = np.where(plan.opcode == MARKER, 0, CAS_BASE + plan.seqno)


def _write_changes(
    buffer: NDArray[np.uint8], starts: NDArray[np.int64], plan: _Plan, random: np.random.Generator
) -> None:
    u16, u32, u64 = (unaligned(buffer, kind) for kind in (">u2", ">u4", ">u8"))
    change = plan.opcode != MARKER
    at = starts[change] + HEADER
    u64[at] = plan.seqno[change]
    u64[at + 8] = random.integers(1, 50, len(at))
    mutation = starts[plan.opcode == MUTATION] + HEADER
    u32[mutation + 16] = FLAGS
    u64[mutation + 20] = 0  # expiration, lock time
    u16[mutation + 28] = 0
    buffer[mutation + 30] = 2
    u16[starts[plan.opcode == DELETION] + HEADER + 16] = 0


def _write_markers(buffer: NDArray[np.uint8], starts: NDArray[np.int64], plan: _Plan, snapshot: int) -> None:
    u32, u64 = unaligned(buffer, ">u4"), unaligned(buffer, ">u8")
    marker = plan.opcode == MARKER
    at = starts[marker] + HEADER
    u64[at] = plan.seqno[marker]
    u64[at + 8] = plan.seqno[marker] + snapshot - 1
    u32[at + 16] = 0x01  # from memory


def _write_keys(buffer: NDArray[np.uint8], starts: NDArray[np.int64], plan: _Plan, key_bytes: int) -> None:
    change = plan.opcode != MARKER
    at = starts[change] + HEADER + plan.extras[change]
    text = np.empty((len(at), key_bytes), np.uint8)
    text[:, 0] = ord("k")
    number = np.arange(len(at))
    for digit in range(key_bytes - 1, 0, -1):
        text[:, digit] = ord("0") + number % 10
        number //= 10
    unaligned(buffer, f"V{key_bytes}")[at] = text.view(f"V{key_bytes}").ravel()
