"""Removals in a table's log, as columns: a checkpoint keeps them and a vacuum reads them; nothing else needs them.

Every batch removes and adds each file that loses a row, so a mirror that runs for days has millions of removals. Most
carry no information: the file had another deletion vector before, is still in the table, and the old vector stood in
the log. A removal serves to keep a file on disk for readers of older versions (PROTOCOL.md, "Add File and Remove File":
"to execute against a stale snapshot"). So only the last removal is kept, of each data file that is no longer in the
table and of each file of vectors (docs/decisions/0099).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as computing

from headwater.lake.log import DataFile, names_of, offset_of

pc: Any = computing  # its stubs know no columns of a table
CHUNK_ROWS = 1 << 16
IN_FILES = ("u", "p")
"""The storage types of vectors that are stored in files."""


def of_checkpoint(removals: pa.Table, live: Mapping[str, DataFile], oldest: float) -> pa.Table:
    """Return the removals that a checkpoint must keep.

    Args:
        removals: all removals, with the columns of a `remove` action.
        live: files of the table, by path as the log writes it.
        oldest: time in milliseconds; removals before it have expired.
    """
    # Delta takes a removal without a time for one of 1970, so it has expired.
    removals = removals.filter(pc.greater_equal(pc.fill_null(removals["deletionTimestamp"], 0), oldest))
    removals = removals.filter(pc.invert(_restored_mask(removals, live)))
    # In the order of time, for `_last` keeps the last row of each name.
    removals = removals.take(pc.sort_indices(removals["deletionTimestamp"]))
    is_removed = pc.invert(pc.is_in(removals["path"], pa.array(list(live), pa.string())))
    vectors = pc.struct_field(removals["deletionVector"].combine_chunks(), ["pathOrInlineDv"])
    return removals.filter(pc.or_(_last(removals["path"], is_removed), _last(vectors, _in_files(removals))))


def names(removals: pa.Table, since_ms: float) -> Iterator[str]:
    """Yield the names of all files, those of vectors included, that were removed at `since_ms` or later (Unix ms)."""
    recent = removals.filter(pc.greater_equal(pc.fill_null(removals["deletionTimestamp"], 0), since_ms))
    for batch in recent.select(["path", "deletionVector"]).to_batches(CHUNK_ROWS):
        for action in batch.to_pylist():
            yield from names_of(action)


def _restored_mask(removals: pa.Table, live: Mapping[str, DataFile]) -> Any:
    """Return a mask of the removals whose file and vector a RESTORE brought back into the table."""
    vectors = {path: file.vector for path, file in live.items() if file.vector}
    restored = [f"{path}\0{vector['pathOrInlineDv']}\0{offset_of(vector)}" for path, vector in vectors.items()]
    vector_structs = removals["deletionVector"].combine_chunks()
    body, offset = (pc.struct_field(vector_structs, [name]) for name in ("pathOrInlineDv", "offset"))
    parts = [removals["path"].combine_chunks(), body, pc.fill_null(offset.cast(pa.string()), "")]
    # A removal without a vector gives null here, which equals no file's vector: a file without one is in `live` by its
    # path only.
    keys = pc.binary_join_element_wise(*parts, "\0", null_handling="emit_null")
    return pc.fill_null(pc.is_in(keys, pa.array(restored, pa.string()), skip_nulls=True), False)


def _in_files(removals: pa.Table) -> Any:
    kinds = pc.struct_field(removals["deletionVector"].combine_chunks(), ["storageType"])
    return pc.is_in(kinds, pa.array(IN_FILES))


def _last(names: Any, among: Any) -> Any:
    """Return a mask of the rows that are the last of their name among the rows in `among`."""
    numbers = pa.array(np.arange(len(names)))
    candidates = pa.table({"name": names, "number": numbers}).filter(among)
    return pc.is_in(numbers, candidates.group_by("name").aggregate([("number", "max")])["number_max"].combine_chunks())
