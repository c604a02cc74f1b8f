"""Memory as a record batch: the message in front of the columns is one that Arrow itself would write."""

from __future__ import annotations

import gc

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.kernels.batches import ALIGNMENT, SCHEMA, Block, metadata


def filled(rows: int, capacity: int = 100) -> tuple[Block, pa.RecordBatch]:
    """A block whose first rows hold their own number, and the batch that Arrow makes of the same rows."""
    block = Block(capacity, 8 * capacity, 16 * capacity)
    columns = block.columns.arrays
    for row in range(capacity):
        for name in SCHEMA.names[:-2]:
            columns[name][row] = row
        columns["key_offsets"][row + 1], columns["value_offsets"][row + 1] = 2 * (row + 1), 0
    columns["key_offsets"][0] = columns["value_offsets"][0] = 0
    columns["key_data"][: 2 * capacity] = [byte for row in range(capacity) for byte in b"%02d" % row]
    keys, values = [b"%02d" % row for row in range(rows)], [b""] * rows
    numbers = [pa.array(range(rows), kind) for kind in SCHEMA.types[:-2]]
    return block, pa.RecordBatch.from_arrays([*numbers, pa.array(keys), pa.array(values)], schema=SCHEMA)


@given(rows=st.integers(0, 100))
def test_a_batch_is_the_first_rows(rows: int) -> None:
    block, expected = filled(rows)
    batch = block.batch(rows, object())
    batch.validate(full=True)
    assert batch.equals(expected, check_metadata=True)


def test_nothing_is_copied_and_every_buffer_is_aligned() -> None:
    block, _ = filled(10)
    batch = block.batch(10, object())
    for name, column in zip(SCHEMA.names[:-2], batch.columns, strict=False):
        (_, data) = column.buffers()
        assert data.address == block.columns.arrays[name].ctypes.data
        assert data.address % ALIGNMENT == 0


def test_the_lease_is_held_as_long_as_any_part_of_the_batch() -> None:
    dropped: list[int] = []

    class Lease:
        def __del__(self) -> None:
            dropped.append(1)

    block, _ = filled(10)
    kept = block.batch(10, Lease()).column("key").slice(3, 2)
    gc.collect()
    assert not dropped
    del kept
    gc.collect()
    assert dropped


def test_the_message_is_what_arrow_reads() -> None:
    message = metadata(1, [(0, 0), (0, 80)], 128)
    assert len(message) % ALIGNMENT == 0
    read = pa.ipc.read_message(message + bytes(128))
    assert (read.type, read.metadata_version) == ("record batch", pa.ipc.MetadataVersion.V5)
    assert read.body.size == 128
    (column,) = pa.ipc.read_record_batch(read, pa.schema([("x", pa.int64())])).columns
    assert len(column) == 0


@pytest.mark.parametrize("shape", [(1, 0, 0), (1, 1, 1), (7, 65536, 33)])
def test_capacities_are_kept_to_the_byte(shape: tuple[int, int, int]) -> None:
    columns, places = Block(*shape).columns
    assert (len(columns["seqno"]), len(columns["key_data"]), len(columns["value_data"])) == shape
    assert len(columns["key_offsets"]) == len(columns["value_offsets"]) == shape[0] + 1
    assert places[:3].tolist() == list(shape)
