"""The documents of a bucket at one time, in a file without a name, from which `export` makes its own file.

A key may come twice while a bucket is read, once in each snapshot, and a document may be deleted again: which rows
count is known only at the end. The keys of a vbucket's first snapshot come once, so only those of later ones are
remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from headwater.wire.manifest import DEFAULT
from headwater.wire.opcodes import Opcode

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.client import ChangeBatch

KEPT = ("vbucket", "seqno", "cas", "rev_seqno", "datatype", "flags", "expiry", "key", "value", "opcode")
DEFAULT_ID = 0
VBUCKETS = 1 << 16  # as many as two bytes can name


class Spool:
    """Documents between the reading and the writing; a context.

    Args:
        file: the file to write to and to read from; it is closed at the end.
        prefix: the prefix of the documents' keys.
    """

    def __init__(self, file: IO[bytes], prefix: bytes = b"") -> None:
        self._file: Any = file
        self._prefix = prefix
        self._writer: Any = None
        self._first_end = np.zeros(VBUCKETS, np.uint64)
        self._highest = np.zeros(VBUCKETS, np.uint64)
        self._newest_seqnos: dict[tuple[int, int, bytes], int] = {}
        self._dropped_collections: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def reached(self) -> int:
        """The number of seqnos read so far, of all vbuckets together."""
        return int(self._highest.sum())

    def add(self, batch: ChangeBatch) -> None:
        """Add a batch; other rows may replace its documents later."""
        from headwater.client import CollectionDropped

        for _, event in batch.collection_events:
            if isinstance(event, CollectionDropped):
                self._dropped_collections.add(event.collection_id)
        if len(batch):
            self._remember(batch.records)
            self._write(batch.records)

    def _remember(self, records: pa.RecordBatch) -> None:
        vbuckets, ends = records.column("vbucket").to_numpy(), records.column("snapshot_end").to_numpy()
        seqnos = records.column("seqno").to_numpy()
        np.maximum.at(self._highest, vbuckets, seqnos)
        unseen, first = np.unique(vbuckets, return_index=True)
        is_new = self._first_end[unseen] == 0
        self._first_end[unseen[is_new]] = ends[first[is_new]]
        later = np.flatnonzero(ends > self._first_end[vbuckets])
        if len(later):
            ids, keys = _ids(records), records.column("key")
            for row in later.tolist():
                self._newest_seqnos[int(vbuckets[row]), int(ids[row]), keys[row].as_py()] = int(seqnos[row])

    def _write(self, records: pa.RecordBatch) -> None:
        import pyarrow as pa
        from pyarrow import compute, ipc

        ask: Any = compute
        is_stored = ask.equal(records.column("opcode"), int(Opcode.DCP_MUTATION))
        if self._prefix:
            is_stored = ask.and_(is_stored, ask.starts_with(records.column("key"), pattern=self._prefix))
        stored_records: Any = records.filter(is_stored)
        columns = {name: stored_records.column(name) for name in KEPT if name != "opcode"}
        columns["collection_id"] = pa.array(_ids(stored_records))
        for name in ("scope", "collection"):
            default = pa.array([DEFAULT] * len(stored_records), pa.string())  # of none at all it would have no type
            columns[name] = (
                stored_records.column(name).cast(pa.string()) if name in stored_records.schema.names else default
            )
        batch = pa.RecordBatch.from_pydict(columns)
        if self._writer is None:
            self._writer = ipc.new_stream(self._file, batch.schema)
        self._writer.write_batch(batch)

    def end(self) -> None:
        """Note that all batches were added."""
        if self._writer is not None:
            self._writer.close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the valid rows, in the order in which they came; may be called again."""
        from pyarrow import ipc

        if self._writer is None:
            return
        self._file.seek(0)
        for batch in ipc.open_stream(self._file):
            rows = self._counting(batch)
            if len(rows):
                yield rows

    def _counting(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        if not self._newest_seqnos and not self._dropped_collections:
            return batch
        names = ("vbucket", "collection_id", "key", "seqno")
        columns: list[list[Any]] = [batch.column(name).to_pylist() for name in names]
        counts = [
            # The newest row of a key counts: of a deletion that came later there is no row, so none does.
            collection not in self._dropped_collections
            and self._newest_seqnos.get((vbucket, collection, key), seqno) <= seqno
            for vbucket, collection, key, seqno in zip(*columns, strict=True)
        ]
        return batch.filter(pa.array(counts, pa.bool_()))


def _ids(records: pa.RecordBatch) -> Any:
    if "collection_id" in records.schema.names:
        return records.column("collection_id").to_numpy()
    return np.full(len(records), DEFAULT_ID, np.uint32)


def read_into(spool: Spool, batches: Iterator[ChangeBatch], tell: Callable[[int], None]) -> None:
    """Read all batches of a drain; `tell` is called with the number of seqnos read so far."""
    for batch in batches:
        spool.add(batch)
        tell(spool.reached)
    spool.end()
