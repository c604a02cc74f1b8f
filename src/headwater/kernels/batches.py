"""Memory that becomes a record batch in one step, whatever its content.

Building a record batch of a MiB from a dozen arrays in Python costs a quarter of the time of decoding its rows. But
Arrow reads a whole batch at once, without copying, from a message of its IPC format: a few numbers (metadata), then the
buffers (body). So the columns of a batch lie in one block, after the metadata of such a message. The metadata is
written once; only its number of rows changes.

    block:  continuation ff ff ff ff | metadata bytes u32 | metadata, a flatbuffer | column | column | ...

Source: the Arrow columnar format, "Encapsulated message format" and Message.fbs (little-endian, metadata version V5).
"""

from __future__ import annotations

import struct
from itertools import accumulate
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headwater.kernels.decode import ARRAY_TYPES, ColumnMemory
from headwater.wire.event_columns import BATCH, BEFORE

SCHEMA: Final = pa.schema([(name, getattr(pa, kind)()) for name, kind in BATCH.items()])
"""The columns of a batch, numbers as on the wire. `opcode` is 0x57 mutation, 0x58 deletion or 0x59 expiration;
`expiry` the expiration of a mutation, the delete time of a deletion or expiration that carries one (Unix seconds,
0 none); `flags` 0 unless a mutation; `snapshot_start` and `snapshot_end` those of the snapshot the change came in.
There are no nulls."""
SCHEMA_WITH_IDS: Final = SCHEMA.append(pa.field("collection_id", pa.uint32()))
"""The columns on connections with Collections: the collection's id is a column, and the key is the application's own.
"""

BEFORE_FIELDS: Final = tuple(pa.field(name, getattr(pa, kind)()) for name, kind in BEFORE.items())
"""The columns of the version that each change replaced, behind all others."""

ALIGNMENT: Final = 64  # of buffers, as Arrow advises
_METADATA_V5, _RECORD_BATCH = 4, 3

# The flatbuffer: offset of the root; Message (its table of fields, then the fields); RecordBatch (the same); then its
# vectors: nodes, (rows, nulls) of each column, and buffers, (offset, bytes). Offsets count from where they stand.
_HEAD: Final = struct.Struct("<IHHHHHH4x iIhBx q HHHHH2x iqII4x")
_VECTOR: Final = struct.Struct("<I")
_PREFIX_BYTES: Final = 8
_ROWS_AT: Final = _PREFIX_BYTES + 56
_NODES_AT: Final = _PREFIX_BYTES + _HEAD.size + _VECTOR.size


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def metadata(columns: int, buffers: list[tuple[int, int]], body_bytes: int) -> bytes:
    """Return the metadata of a message for a batch without rows: everything before the body.

    Args:
        columns: number of columns.
        buffers: (offset in the body, bytes) of each buffer of each column, with (0, 0) for the absent buffers of nulls.
        body_bytes: size of the body.
    """
    nodes_at = _HEAD.size
    buffers_at = nodes_at + _VECTOR.size + 16 * columns + 4  # its rows must be aligned, like those of the nodes
    head = _HEAD.pack(
        *(20, 12, 20, 8, 10, 4, 12),  # the root is at 20; Message: version, header type, header, body length
        *(20 - 4, 52 - 24, _METADATA_V5, _RECORD_BATCH, body_bytes),
        *(10, 20, 4, 12, 16),  # RecordBatch: length, nodes, buffers
        *(52 - 40, 0, nodes_at - 64, buffers_at - 68),
    )
    nodes = _VECTOR.pack(columns) + bytes(16 * columns)
    rows = _VECTOR.pack(len(buffers)) + b"".join(struct.pack("<qq", *buffer) for buffer in buffers)
    flat = head + nodes + bytes(4) + rows
    total = _padded(_PREFIX_BYTES + len(flat))
    return (struct.pack("<II", 0xFFFF_FFFF, total - _PREFIX_BYTES) + flat).ljust(total, b"\0")


class Block:
    """The memory of a batch's columns, allocated once and used for one batch after another; its pages cost no memory
    until they are written.

    Args:
        with_ids: True for a column of collection ids.
        with_befores: True for columns of replaced versions, whose values get as much room as those of the changes.

    Attributes:
        shape: capacities in rows, bytes of keys, of values and of replaced values.
        columns: memory to write to.
    """

    __slots__ = ("_address", "_length", "_memory", "_nodes", "_schema", "columns", "shape")

    def __init__(
        self, rows: int, key_bytes: int, value_bytes: int, *, with_ids: bool = False, with_befores: bool = False
    ) -> None:
        before_bytes = value_bytes if with_befores else 0
        self.shape: Final = (rows, key_bytes, value_bytes, before_bytes)
        self._schema = schema_of(with_ids=with_ids, with_befores=with_befores)
        lengths = {"key_offsets": rows + 1, "key_data": key_bytes, "value_offsets": rows + 1, "value_data": value_bytes}
        lengths["collection_id"] = rows if with_ids else 0
        lengths |= dict.fromkeys(BEFORE, rows if with_befores else 0)
        lengths |= {"before_value_offsets": rows + 1 if with_befores else 0, "before_value_data": before_bytes}
        kinds = {name: np.dtype(kind) for name, kind in ARRAY_TYPES.items()}
        sizes = [kind.itemsize * lengths.get(name, rows) for name, kind in kinds.items()]
        *starts, body_bytes = accumulate(map(_padded, sizes), initial=0)
        spans = list(zip(starts, sizes, strict=True))
        head = metadata(len(self._schema), _with_nulls(dict(zip(kinds, spans, strict=True)), self._schema), body_bytes)
        self._memory = _aligned(len(head) + body_bytes)
        self._memory[: len(head)] = np.frombuffer(head, np.uint8)
        self._address = int(self._memory.ctypes.data)
        self._length = self._numbers(_ROWS_AT, 1)
        self._nodes = self._numbers(_NODES_AT, len(self._schema))
        body = self._memory[len(head) :]
        arrays: dict[str, NDArray[Any]] = {
            name: body[at : at + size].view(kind) for (name, kind), (at, size) in zip(kinds.items(), spans, strict=True)
        }
        places = [*self.shape, *(array.ctypes.data for array in arrays.values())]
        self.columns: ColumnMemory = ColumnMemory(arrays, np.array(places, np.uint64))

    def _numbers(self, at: int, count: int) -> NDArray[np.int64]:
        return np.ndarray((count,), np.dtype("<i8"), self._memory.data, at, (16,))

    def batch(self, rows: int, lease: object) -> pa.RecordBatch:
        """Return the first rows as a record batch; each of its buffers keeps a reference to `lease`."""
        self._length[0] = rows
        self._nodes[:] = rows
        message = pa.foreign_buffer(self._address, len(self._memory), lease)
        return pa.ipc.read_record_batch(message, self._schema)


def schema_of(*, with_ids: bool, with_befores: bool) -> pa.Schema:
    """Return the columns of a batch, with those of collection ids and of replaced versions if they are requested."""
    schema = SCHEMA_WITH_IDS if with_ids else SCHEMA
    return pa.schema([*schema, *BEFORE_FIELDS]) if with_befores else schema


def _with_nulls(spans: dict[str, tuple[int, int]], schema: pa.Schema) -> list[tuple[int, int]]:
    """Return the buffers in Arrow's order: for each column (0, 0) for the absent buffer of nulls, then its own
    buffers.
    """
    buffers: list[tuple[int, int]] = []
    for name in schema.names:
        names_of_buffers = [name] if name in spans else [f"{name}_offsets", f"{name}_data"]
        buffers += [(0, 0), *(spans[buffer] for buffer in names_of_buffers)]
    return buffers


def _aligned(size: int) -> NDArray[np.uint8]:
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -int(memory.ctypes.data) % ALIGNMENT
    return memory[start : start + size]
