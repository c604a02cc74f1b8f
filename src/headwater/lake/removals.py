"""Removals that a table's log remembers, as columns: a checkpoint carries them on, a vacuum asks them, nobody else.

Every batch takes out and puts in each file that loses a row, so a mirror that runs for days has millions of them. Most
say nothing: that a file had another deletion vector before, while the file itself is in the table still and the old
vector stood in the log. What a removal is for is the time for which a file has to stay for readers of older versions
(PROTOCOL.md, "Add File and Remove File": "to execute against a stale snapshot"). So of each file that is no longer in
the table, and of each file of vectors, only the last removal is kept (docs/decisions/0099).
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
"""The storage types of vectors that lie in files."""


def kept(removed: pa.Table, live: Mapping[str, DataFile], oldest: float) -> pa.Table:
    """Return the removals that a checkpoint has to have.

    Args:
        removed: all, with the columns of a `remove` action.
        live: the files of the table, by path as the log writes it.
        oldest: milliseconds; those from before have expired.
    """
    removed = removed.filter(pc.greater_equal(pc.fill_null(removed["deletionTimestamp"], 0), oldest))
    removed = removed.filter(pc.invert(_back_again(removed, live)))
    removed = removed.take(pc.sort_indices(removed["deletionTimestamp"]))
    gone = pc.invert(pc.is_in(removed["path"], pa.array(list(live), pa.string())))
    vectors = pc.struct_field(removed["deletionVector"].combine_chunks(), ["pathOrInlineDv"])
    return removed.filter(pc.or_(_last(removed["path"], gone), _last(vectors, _in_files(removed))))


def names(removed: pa.Table, since: float) -> Iterator[str]:
    """Yield the files that removals name, those of vectors too, from a time on (milliseconds)."""
    recent = removed.filter(pc.greater_equal(pc.fill_null(removed["deletionTimestamp"], 0), since))
    for batch in recent.select(["path", "deletionVector"]).to_batches(CHUNK_ROWS):
        for action in batch.to_pylist():
            yield from names_of(action)


def _back_again(removed: pa.Table, live: Mapping[str, DataFile]) -> Any:
    """Which removals are of a file, with its vector, that is in the table again: a RESTORE brought it back."""
    vectors = {path: file.vector for path, file in live.items() if file.vector}
    known = [f"{path}\0{vector['pathOrInlineDv']}\0{offset_of(vector)}" for path, vector in vectors.items()]
    described = removed["deletionVector"].combine_chunks()
    body, offset = (pc.struct_field(described, [name]) for name in ("pathOrInlineDv", "offset"))
    parts = [removed["path"].combine_chunks(), body, pc.fill_null(offset.cast(pa.string()), "")]
    mine = pc.binary_join_element_wise(*parts, "\0", null_handling="emit_null")
    return pc.fill_null(pc.is_in(mine, pa.array(known, pa.string()), skip_nulls=True), False)


def _in_files(removed: pa.Table) -> Any:
    kinds = pc.struct_field(removed["deletionVector"].combine_chunks(), ["storageType"])
    return pc.is_in(kinds, pa.array(IN_FILES))


def _last(names: Any, among: Any) -> Any:
    """Which rows are the last of their name, of those `among` which it is asked."""
    numbers = pa.array(np.arange(len(names)))
    mine = pa.table({"name": names, "number": numbers}).filter(among)
    return pc.is_in(numbers, mine.group_by("name").aggregate([("number", "max")])["number_max"].combine_chunks())
