"""Converts the client's batches to the rows that Spark sees, column by column, without an object for each row.

schema.py describes the conversion of 64-bit numbers. Spark accepts a batch only if names, order, types and nullability
are exactly those of its schema, so every batch is built under one fixed Arrow schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headwater.errors import OptionError
from headwater.lake.shape import modified_at
from headwater.protocol.dcp.position import FailoverLog
from headwater.spark.history import branches
from headwater.spark.offsets import HEX_DIGITS, hex_uuid
from headwater.spark.planner import Range
from headwater.spark.schema import ON_REQUEST, types
from headwater.wire.documents import TRANSACTIONS
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import VBUCKET_NUMBERS

ARROW: dict[str, Any] = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string(), "binary": pa.binary()}
ARROW |= {"timestamp": pa.timestamp("us", "UTC"), "boolean": pa.bool_()}
MUTATION, ROLLBACK = int(Opcode.DCP_MUTATION), "rollback"
_EVENTS = ("mutation", "deletion", "expiration")


def arrow_type(kind: str) -> Any:
    """Return the type in Arrow of a column's type in Spark."""
    if not kind.startswith("struct<"):
        return ARROW[kind]
    pairs = (pair.split(":") for pair in kind.removeprefix("struct<").removesuffix(">").split(","))
    return pa.struct([(name, ARROW[type_]) for name, type_ in pairs])


@dataclass
class _Branches:
    """The branches of one vbucket by its stream's failover log.

    Attributes:
        begins: first seqno minus one of each branch, ascending.
        codes: the number of each branch in the maker's list of vb uuids.
    """

    begins: NDArray[np.uint64]
    codes: NDArray[np.int32]


@dataclass
class RowMaker:
    """A converter from a task's batches to Spark's rows.

    Args:
        names: wanted columns, in order.
        key_format, value_format: "binary" or "string".
        transaction_records: True to get rows of the records that SDKs keep of their transactions.
    """

    names: tuple[str, ...]
    key_format: str
    value_format: str
    transaction_records: bool = True
    uuids: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        kinds = types(self.key_format, self.value_format, collections=True, befores=True)
        kinds |= {name: kind for name, (kind, _) in ON_REQUEST.items()}
        self.schema: pa.Schema = pa.schema([(name, arrow_type(kinds[name])) for name in self.names])
        self._bounds, self._lasts = np.zeros(VBUCKET_NUMBERS, np.uint64), np.zeros(VBUCKET_NUMBERS, np.uint64)
        self._floors = np.zeros(VBUCKET_NUMBERS, np.uint64)
        self._codes = np.full(VBUCKET_NUMBERS, -1, np.int32)  # the branch of all rows; -1: several, look into _branches
        self._branches: dict[int, _Branches] = {}
        # Made when they are needed: the first array that Arrow makes imports pandas, and planners make none.
        self._mutations: Any = None
        self._offsets: NDArray[np.int32] = np.zeros(1, np.int32)

    def expect(self, part: Range, log: FailoverLog, last: int, above: int = 0) -> None:
        """Set which rows of a vbucket are wanted, and the branches that they belong to.

        Args:
            part: the range to read.
            log: failover log of the stream that reads it.
            last: the last wanted seqno: the end of the history that this log shares with the one the range was planned
                on; later rows belong to another branch and wait until the planner has handled it.
            above: all wanted rows have higher seqnos than this.
        """
        begins, uuids = branches(log)
        codes = [self._code(uuid) for uuid in uuids]
        self._bounds[part.vbucket], self._floors[part.vbucket] = last, above
        branch_begins = np.array(begins, np.uint64)
        # A branch has the seqnos above its own beginning, up to that of the next: so the place before the first
        # beginning that is not below.
        lowest, highest = np.searchsorted(branch_begins, np.array([part.start_seqno + 1, last], np.uint64)) - 1
        lowest, highest = max(int(lowest), 0), max(int(highest), 0)
        self._codes[part.vbucket] = codes[lowest] if lowest == highest else -1
        self._branches[part.vbucket] = _Branches(branch_begins, np.array(codes, np.int32))

    def last_of(self, vbucket: int) -> int:
        """Return the highest seqno received of a vbucket, wanted or not."""
        return int(self._lasts[vbucket])

    def _code(self, vb_uuid: int) -> int:
        text = hex_uuid(vb_uuid)
        if text not in self.uuids:
            self.uuids.append(text)
        return self.uuids.index(text)

    def rows(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the wanted rows of a client's batch: none above the range, none of another branch than planned, and
        none that the reader has already.

        Raises:
            OptionError: a key or value is not UTF-8 though its format is `string`.
        """
        vbuckets, seqnos = records.column("vbucket").to_numpy(), records.column("seqno").to_numpy()
        last = _run_ends(vbuckets)
        # Within a vbucket seqnos only rise: what holds for the last row of a run holds for all.
        self._lasts[vbuckets[last]] = seqnos[last]
        if not (seqnos[last] <= self._bounds[vbuckets[last]]).all():
            records = records.filter(pa.array(seqnos <= self._bounds[vbuckets]))
        if self._floors.any():
            vbuckets, seqnos = records.column("vbucket").to_numpy(), records.column("seqno").to_numpy()
            records = records.filter(pa.array(seqnos > self._floors[vbuckets]))
        if not self.transaction_records:
            records = _without_transactions(records)
        return pa.RecordBatch.from_arrays([self._column(name, records) for name in self.names], schema=self.schema)

    def rollbacks(self, parts: Sequence[Range]) -> pa.RecordBatch:
        """Return the rows for lost branches: `seqno` is the seqno to return to, all columns of a document are null.
        `snapshot_end` is higher if deletions up to it were purged before they were read."""
        rollback_parts = [part for part in parts if part.rollback]
        seqnos = [_signed(part.start_seqno) for part in rollback_parts]
        values: Mapping[str, list[Any]] = {
            "vbucket": [part.vbucket for part in rollback_parts],
            "seqno": seqnos,
            "vb_uuid": [hex_uuid(part.vb_uuid) for part in rollback_parts],
            "event": [ROLLBACK] * len(rollback_parts),
            "snapshot_start": seqnos,
            "snapshot_end": [_signed(max(part.start_seqno, part.purged)) for part in rollback_parts],
        }
        arrays = [pa.array(values.get(kind.name, [None] * len(rollback_parts)), kind.type) for kind in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _column(self, name: str, records: pa.RecordBatch) -> Any:
        if name == "event":
            return self._events(records.column("opcode").to_numpy())
        if name == "vb_uuid":
            return self._uuid_column(records)
        if name == "modified_at":
            return modified_at(records.column("cas").view(pa.int64()))
        column = records.column(name)
        if name in ("key", "value"):
            return self._bytes(name, column, records)
        kind = self.schema.field(name).type
        return self._version(column, kind, records) if name == "before" else _number(column, kind)

    def _version(self, column: Any, kind: Any, records: pa.RecordBatch) -> Any:
        """Return the versions that changes replaced."""
        fields = [kind.field(at) for at in range(kind.num_fields)]
        parts = dict(zip([field.name for field in fields], column.flatten(), strict=True))
        try:
            arrays = [_number(parts[field.name], field.type) for field in fields]
        except pa.ArrowInvalid:
            raise self._not_text("value", parts["value"], records) from None
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=column.is_null())

    def _events(self, opcodes: NDArray[np.uint8]) -> Any:
        if (opcodes == MUTATION).all():  # the usual batch: a slice of the same word over and over
            if self._mutations is None or len(self._mutations) < len(opcodes):
                self._mutations = pa.array(["mutation"] * 2 * len(opcodes), pa.string())
            return self._mutations.slice(0, len(opcodes))
        # The three opcodes follow one another (0x57 to 0x59): the distance from the first is the place in the list.
        return pa.array(_EVENTS, pa.string()).take(pa.array(opcodes - np.uint8(MUTATION), pa.uint8()))

    def _uuid_column(self, records: pa.RecordBatch) -> Any:
        """Return the vb uuid of each row as text, 16 characters a row, as an Arrow array built run by run."""
        codes, counts = self._branch_runs(records)
        rows = records.num_rows
        if len(self._offsets) <= rows:
            self._offsets = np.arange(0, (2 * rows + 1) * HEX_DIGITS, HEX_DIGITS, dtype=np.int32)
        text = np.array(self.uuids, f"S{HEX_DIGITS}")[codes].repeat(counts)
        buffers = [None, pa.py_buffer(self._offsets[: rows + 1].data), pa.py_buffer(text.data)]
        return pa.Array.from_buffers(pa.string(), rows, buffers)

    def _branch_runs(self, records: pa.RecordBatch) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the runs of rows of one branch: the index of the branch's vb uuid in `uuids`, and the number of rows
        of each run.
        """
        vbuckets = records.column("vbucket").to_numpy()
        last = _run_ends(vbuckets)
        codes: NDArray[np.int32] = self._codes[vbuckets[last]]
        if (codes < 0).any():
            return self._branch_codes(vbuckets, records.column("seqno").to_numpy()), np.ones(len(vbuckets), np.int64)
        return codes, np.diff(last, prepend=-1)

    def _branch_codes(self, vbuckets: NDArray[np.uint16], seqnos: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Return the index in `uuids` of each row's branch, also where a vbucket's rows are of several branches."""
        codes: NDArray[np.int32] = self._codes[vbuckets]
        for vb in np.unique(vbuckets[codes < 0]):
            is_of_vbucket, branches = vbuckets == vb, self._branches[int(vb)]
            places = np.searchsorted(branches.begins, seqnos[is_of_vbucket]).astype(np.int64) - 1
            # A log may not reach back to the first change: what is older counts to its oldest branch.
            codes[is_of_vbucket] = branches.codes[np.maximum(places, 0)]
        return codes

    def _bytes(self, name: str, column: Any, records: pa.RecordBatch) -> Any:
        if name == "value":
            opcodes = records.column("opcode").to_numpy()
            if (opcodes != MUTATION).any():  # a deletion has no value, rather than an empty one
                lengths = pc.binary_length(column).to_numpy()
                bare = pa.array((opcodes != MUTATION) & (lengths == 0))
                column = pc.if_else(bare, pa.scalar(None, pa.binary()), column)
        if self.schema.field(name).type == pa.binary():
            return column
        try:
            return column.cast(pa.string())
        except pa.ArrowInvalid:
            raise self._not_text(name, column, records) from None

    @staticmethod
    def _not_text(name: str, column: Any, records: pa.RecordBatch) -> OptionError:
        for row, value in enumerate(column.to_pylist()):
            try:
                (value or b"").decode()
            except UnicodeDecodeError:
                vb, seqno = records.column("vbucket")[row], records.column("seqno")[row]
                possible = f"possible: the {name} of vbucket {vb}, seqno {seqno} is not UTF-8; read it as binary"
                return OptionError(f"{name}Format", "string", possible)
        return OptionError(f"{name}Format", "string", f"possible for these {name}s; read them as binary")


def _number(column: Any, kind: Any) -> Any:
    """Return a column in Spark's type; of numbers of 64 bits the same bits."""
    return column.view(kind) if kind == pa.int64() and column.type == pa.uint64() else column.cast(kind)


def _without_transactions(records: pa.RecordBatch) -> pa.RecordBatch:
    is_record = pc.starts_with(records.column("key"), TRANSACTIONS.decode())
    return records.filter(pc.invert(is_record)) if is_record.true_count else records


def _run_ends(vbuckets: NDArray[np.uint16]) -> NDArray[np.int64]:
    """Return the index of the last row of each run of the same vbucket; a stream sends long runs."""
    if not len(vbuckets):
        return np.zeros(0, np.int64)
    return np.append(np.flatnonzero(vbuckets[1:] != vbuckets[:-1]), len(vbuckets) - 1)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
