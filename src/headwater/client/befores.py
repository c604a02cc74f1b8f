"""The versions that changes replaced, of a drain with `before`: as objects of the events, and as columns of a batch.

    before        struct               the replaced version; null where there was none, or it is not kept any more
    before_known  bool                 False where it is not kept any more
    operation     dictionary<string>   create, update, delete or expire; null for a mutation whose `before` is not known

The kernel's columns (`headwater.kernels.batches.BEFORE_FIELDS`) become these without a copy of a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import repeat
from typing import Any, Final, Literal, TypeAlias, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headwater.client.kv import Valued
from headwater.kernels.batches import BEFORE_FIELDS
from headwater.wire.dcp import BeforeState
from headwater.wire.opcodes import Opcode

Operation: TypeAlias = Literal["create", "update", "delete", "expire"]
"""The effect of a change on its document."""

_PREFIX: Final = "before_"
_FIELDS: Final = [field.with_name(field.name.removeprefix(_PREFIX)) for field in BEFORE_FIELDS[1:]]
_NAMES: Final = frozenset(field.name for field in BEFORE_FIELDS)
# Not of a list: pa.array() would import pandas, half a second in each worker of a job.
_OPERATIONS: Final = pa.StringArray.from_buffers(
    4, pa.py_buffer(np.array([0, 6, 12, 18, 24], np.int32).tobytes()), pa.py_buffer(b"createupdatedeleteexpire")
)
_UNKNOWN: Final = -1
_STATES: Final = np.uint8(len(BeforeState) + 1)
# For each opcode, from mutations on, by the state: 0 (which nobody sends), a version, none, not kept.
_OPERATION_OF: Final = np.array([_UNKNOWN, 1, 0, _UNKNOWN, *[2] * 4, *[3] * 4], np.int8)
COLUMNS: Final = (
    pa.field("before", pa.struct(_FIELDS)),
    pa.field("before_known", pa.bool_()),
    pa.field("operation", pa.dictionary(pa.int8(), pa.string())),
)
"""The columns of a batch of a drain with `before`, behind all others."""


class Lack(Enum):
    """The reason why a change comes without the version that it replaced."""

    NOT_REQUESTED = "not requested"
    """The drain was begun without `before`."""
    NOT_KEPT = "not kept"
    """The node does not keep it any more."""


@dataclass(frozen=True, slots=True)
class Before(Valued):
    """The version of a document that a change replaced.

    Attributes:
        seqno: its place in the vbucket's history, below that of the change. rev_seqno, cas, flags, expiry, datatype,
            value: as in a Mutation.
    """

    seqno: int
    rev_seqno: int
    cas: int
    flags: int
    expiry: int
    datatype: int
    value: bytes


Replaced: TypeAlias = Before | Lack | None
"""The version that a change replaced; None if there was no document."""


def befores_of(records: pa.RecordBatch) -> Iterator[Replaced]:
    """Yield the version that each row replaced."""
    if BEFORE_FIELDS[0].name not in records.schema.names:
        return repeat(Lack.NOT_REQUESTED, len(records))
    columns = (cast("list[Any]", records.column(field.name).to_pylist()) for field in BEFORE_FIELDS)
    return map(_replaced, *columns)


def _replaced(state: int, *version: Any) -> Replaced:
    if state == BeforeState.VERSION:
        return Before(*version)
    return None if state == BeforeState.NONE else Lack.NOT_KEPT


def without_befores(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows without the columns of replaced versions."""
    names = records.schema.names
    return records.select([name for name in names if name not in _NAMES]) if BEFORE_FIELDS[0].name in names else records


def with_befores(rows: pa.RecordBatch, decoded: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with `COLUMNS` added, made from the same rows as they were decoded; if `decoded` has no replaced
    versions, return the rows as they are.
    """
    if BEFORE_FIELDS[0].name not in decoded.schema.names:
        return rows
    state, *version = (decoded.column(field.name) for field in BEFORE_FIELDS)
    states, opcodes = state.to_numpy(), decoded.column("opcode").to_numpy()
    structs = pa.Array.from_buffers(
        COLUMNS[0].type, len(rows), [_bits(states == BeforeState.VERSION)], children=version
    )
    is_known = pa.Array.from_buffers(pa.bool_(), len(rows), [None, _bits(states != BeforeState.NOT_KEPT)])
    operations = _OPERATION_OF[(opcodes - np.uint8(Opcode.DCP_MUTATION)) * _STATES + states]
    buffers = [_bits(operations != _UNKNOWN), pa.py_buffer(operations.tobytes())]
    numbers = pa.Array.from_buffers(pa.int8(), len(rows), [*buffers])
    columns = [*rows.columns, structs, is_known, pa.DictionaryArray.from_arrays(numbers, _OPERATIONS)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*rows.schema, *COLUMNS]))


def _bits(flags: NDArray[np.bool_]) -> pa.Buffer:
    """Return flags as Arrow keeps them, one bit for each, without making Python objects."""
    return pa.py_buffer(np.packbits(flags, bitorder="little").tobytes())
