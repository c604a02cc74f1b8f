"""Received frames to Arrow columns, in memory: the kernel a consumer spends its time in.

16-byte keys, 64 vbuckets in runs of 20, one marker per thousand changes, one deletion in a hundred; every change is
checked against its stream. The reference copies the same bytes in the same chunks: nothing that keeps the values can
be faster. Batches are made as a consumer makes them, one per MiB received, and dropped.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.frames import Shape, Traffic, traffic
from benchmarks.harness import measure
from harness.columns_numpy import decode as decode_numpy
from headwater.kernels.columns import Arena, StreamTable

TOTAL_BYTES = 16 << 20
CHUNK_BYTES = 1 << 20
FRAME_BYTES = 24 + 31 + 16
TARGETS = {64: None, 256: 25.0, 1024: None}  # million frames a second on one core


def decoding(made: Traffic, arena: Arena) -> Callable[[], None]:
    """Return a function that decodes all traffic once, as the streams of a fresh connection."""
    pieces = made.pieces(CHUNK_BYTES)
    table = StreamTable()

    def run() -> None:
        rows = 0
        for vbucket in range(made.vbuckets):
            table.open(vbucket, opaque=vbucket)
        for piece in pieces:
            rows += arena.decode(piece, table).rows
            arena.batch()
        if rows != made.changes:
            raise AssertionError(f"{made.changes} changes were sent, {rows} arrived")

    return run


def copying(made: Traffic) -> Callable[[], None]:
    """Return a function that copies all traffic once, chunk by chunk, into the same place."""
    pieces = made.pieces(CHUNK_BYTES)
    target = np.empty(max(len(piece) for piece in pieces), np.uint8)

    def run() -> None:
        for piece in pieces:
            target[: len(piece)] = piece

    return run


def main() -> None:
    """Measure three sizes of values with the kernel, and one with its numpy twin."""
    for value_bytes, target in TARGETS.items():
        made = traffic(TOTAL_BYTES // (FRAME_BYTES + value_bytes), Shape(value_bytes=value_bytes))
        measure(
            f"decode to columns, {value_bytes} B values",
            unit="M frames/s",
            amount=made.changes / 1e6,
            ours=decoding(made, Arena()),
            reference=("memcpy of the same chunks", copying(made)),
            target=target,
        )
    made = traffic(TOTAL_BYTES // 4 // (FRAME_BYTES + 256))
    measure(
        "the same without numba, 256 B values",
        unit="M frames/s",
        amount=made.changes / 1e6,
        ours=decoding(made, Arena(decoder=decode_numpy)),
        reference=("the kernel", decoding(made, Arena())),
        repetitions=3,
    )
