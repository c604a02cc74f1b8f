"""An arena of columns: what its batches hold, and when their memory is used again."""

from __future__ import annotations

import gc
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headwater.kernels import columns, decode
from headwater.kernels.batches import Block, schema_of
from headwater.kernels.columns import SCHEMA, SCHEMA_WITH_IDS, Arena, Stop, StreamTable
from headwater.wire import dcp
from tests.kernels.decoding import MARKER, MUTATION, small, streams


def test_a_mutation_becomes_the_row_its_fields_say() -> None:
    arena, table = Arena(), streams()
    decoded = arena.decode(MARKER.encode() + MUTATION.encode(), table)
    assert (decoded.stop, decoded.rows, decoded.controls.tolist()) == (Stop.NEED_MORE, 1, [[0, 0]])
    assert decoded.flow_bytes == 44 + 55 + 10
    batch = arena.batch()
    assert batch.schema == SCHEMA
    batch.validate(full=True)
    assert batch.to_pylist() == [
        {
            "vbucket": 7, "opcode": 0x57, "seqno": 6, "rev_seqno": 3, "cas": 0x1122334455667788, "flags": 0x2000006,
            "expiry": 1_800_000_000, "datatype": 1, "snapshot_start": 6, "snapshot_end": 9,
            "key": b"hello", "value": b"world",
        }
    ]  # fmt: skip


def test_rows_of_many_receives_gather_in_one_batch() -> None:
    arena, table, data = Arena(), streams(), MARKER.encode() + MUTATION.encode()
    decoded = arena.decode(data, table)
    for seqno in (7, 8, 9):
        change = dcp.Deletion(vbucket=7, opaque=1007, key=b"k", by_seqno=seqno, rev_seqno=1)
        decoded = arena.decode(change.encode(), table)
    assert (decoded.rows, arena.rows, arena.bytes) == (4, 4, 13)
    assert arena.batch().column("seqno").to_pylist() == [6, 7, 8, 9]
    assert arena.rows == 0
    assert arena.batch().num_rows == 0


def test_a_batch_keeps_its_values_while_the_arena_goes_on() -> None:
    arena, table = Arena(), StreamTable(checked=False)
    arena.decode(MUTATION.encode(), table)
    held = arena.batch()
    for _ in range(5):
        arena.decode(dcp.Deletion(vbucket=7, key=b"other", by_seqno=6, rev_seqno=9).encode() * 3, table)
        assert arena.batch().num_rows == 3
    assert held.column("key").to_pylist() == [b"hello"]
    assert held.column("rev_seqno").to_pylist() == [3]


def test_memory_is_used_again_once_its_batch_and_all_slices_are_gone() -> None:
    arena, table = Arena(), StreamTable(checked=False)

    def batch() -> pa.RecordBatch:
        arena.decode(MUTATION.encode(), table)
        return arena.batch()

    def address(of: pa.RecordBatch) -> int:
        return int(of.column("seqno").buffers()[1].address)

    first = batch()
    home = address(first)
    second = batch()
    assert address(second) != home
    view = first.column("value").slice(0, 1)
    numbers = first.column("seqno").to_numpy()
    del first
    gc.collect()
    assert address(batch()) != home
    del view
    third = batch()
    assert address(third) != home
    del numbers
    assert address(batch()) == home


def test_a_writer_that_holds_ten_batches_at_a_time_gets_the_same_memory_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[int, ...]] = []

    def counted(*shape: int, **columns: bool) -> Block:
        made.append(shape)
        return Block(*shape, **columns)

    monkeypatch.setattr(columns, "Block", counted)
    arena, table = Arena(), StreamTable(checked=False)
    for _ in range(3):
        held = []
        for _ in range(10):
            arena.decode(MUTATION.encode(), table)
            held.append(arena.batch())
        del held
    assert len(made) == 10
    arena.grow(20 << 20)
    held = []
    for _ in range(10):
        arena.decode(MUTATION.encode(), table)
        held.append(arena.batch())
    del held
    assert len(arena._free) == 5  # of larger ones fewer are kept


def test_a_frame_larger_than_the_arena_says_so_and_fits_after_growing() -> None:
    arena, table = small(Arena), StreamTable(checked=False)
    large = dcp.Mutation(vbucket=1, key=b"k" * 40, value=bytes(1000), by_seqno=1, rev_seqno=1).encode()
    decoded = arena.decode(large, table)
    assert (decoded.stop, decoded.consumed, decoded.needed) == (Stop.FRAME_TOO_LARGE, 0, len(large))
    arena.grow(decoded.needed)
    assert arena.decode(large, table).rows == 1
    with pytest.raises(ValueError, match="while it is empty"):
        arena.grow(decoded.needed)
    with pytest.raises(ValueError, match="at most 31457304 bytes"):
        Arena().grow(31457305)


def test_whatever_memory_is_read_the_kernel_is_the_one_that_was_warmed() -> None:
    columns.warm_up()
    kernel: Any = decode.decode_frames
    before = list(kernel.signatures)
    for received in (b"", bytearray(64), memoryview(bytearray(64)), np.zeros(64, np.uint8)):
        Arena(value_bytes=64).decode(received, StreamTable())
    assert len(before) == 1 and kernel.signatures == before


def test_an_arena_needs_room_for_something() -> None:
    for options in ({"rows": 0}, {"controls": 0}, {"value_bytes": 1 << 31}):
        with pytest.raises(ValueError, match="an arena holds"):
            Arena(**options)  # type: ignore[arg-type]


def test_every_column_has_its_place_in_the_schema() -> None:
    names = list(dict.fromkeys(name.removesuffix("_offsets").removesuffix("_data") for name in decode.ARRAY_TYPES))
    assert schema_of(with_ids=True, with_befores=True).names == names
    assert all(getattr(decode, name.upper()) == number for number, name in enumerate(decode.ARRAY_TYPES))
    assert SCHEMA.names == SCHEMA_WITH_IDS.names[:-1]
    assert all(a != b for a, b in pairwise(SCHEMA.names))
