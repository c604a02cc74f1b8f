"""A vbucket at one point in time, for streams.

A view copies nothing: it refers to the columns, whose rows do not change, and has the number of rows at that time. A
version that is superseded later still is the newest among those rows, so the view shows it. Growth, rollback and
compaction give the vbucket new columns, and the view keeps the old ones; the segments into which these point stay until
the view is closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headwater.invariants import invariant
from headwater.kernels import choices, index
from headwater.kernels import gather as kernels
from headwater.node.storage.columns import Columns
from headwater.node.storage.slots import Slots
from headwater.wire.flags import BeforeState
from headwater.wire.header import cas_of

__all__ = ["DEFAULT_ONLY", "UNKNOWN", "Filled", "PlainSpan", "Replaced", "Shown", "View"]

Shown: TypeAlias = "NDArray[np.uint64]"
"""The changes of a vbucket with collections that a reader sees, as sorted choices; see kernels/choices.py."""
DEFAULT_ONLY: Final[Shown] = np.zeros(1, np.uint64)
_ALL: Final[Shown] = np.zeros(0, np.uint64)


class PlainSpan(NamedTuple):
    """A range of seqnos in which some collections have no history.

    Attributes:
        after: the seqno after which the range begins.
        last: the last seqno of the range.
        collections: the ids of these collections, sorted, uint64.
    """

    after: int
    last: int
    collections: NDArray[np.uint64]


class Filled(NamedTuple):
    """The result of View.fill.

    Attributes:
        bytes: the number of bytes written to `out`.
        frames: the number of frames among them.
        done: True if no visible row is left.
        plain: True if the next frame must be encoded in Python (`View.next_frame`), because its datatype has a bit of
            `slow`, or it is larger than `out`.
    """

    bytes: int
    frames: int
    done: bool
    plain: bool


_unlinked: NDArray[np.uint32] = np.zeros(0, np.uint32)


def _nothing_superseded(rows: int) -> NDArray[np.uint32]:
    """Return the array that kernels read in place of the column NEXT if every version is shown. It says that no row has
    a newer version.

    All views share one array, which is as large as the largest view needs.
    """
    global _unlinked  # noqa: PLW0603 - nothing in it ever changes
    if len(_unlinked) < rows:
        _unlinked = np.full(max(rows, 2 * len(_unlinked)), index.NIL, np.uint32)
    return _unlinked


def _newest_superseded(
    spans: Sequence[PlainSpan], columns: Columns, slots: Slots, first: int, rows: int
) -> tuple[int, NDArray[np.uint32]]:
    """Return the array that kernels read in place of the column NEXT if every version is shown, except that of some
    collections only the newest version in each span is shown.

    Returns:
        The first row for which the array is valid (that of the first span, or `first`), and the array.
    """
    seqs = columns.seq[:rows]
    ends = [(*seqs.searchsorted(np.array(span[:2], np.uint64), "right").tolist(), span.collections) for span in spans]
    first = min(first, ends[0][0])
    links = np.empty(rows, np.uint32)
    links[first:] = index.NIL
    for begin, end, collections in ends:
        choices.link_newest(columns.loc, columns.next, begin, end, slots.table, collections, links)
    return first, links


class Replaced(NamedTuple):
    """The version that the next change of a view replaced.

    Attributes:
        state: says whether the version is known, and whether it is a document.
        stored: the document in its stored form; empty if there is none. This is memory of the segment: release it
            before the present turn of the event loop ends.
    """

    state: BeforeState
    stored: memoryview


_NOTHING: Final = memoryview(b"")
UNKNOWN: Final = Replaced(BeforeState.NOT_KEPT, _NOTHING)
"""The value for a change that is not the next one of its view."""


class View:
    """The changes of one vbucket after one seqno and up to another, in seqno order: the newest change of each key, or
    all changes that the log has of collections with a history. `Store.view` creates it.

    Close a view when it is done: it keeps memory and disk space that compaction could free.

    Attributes:
        vbucket: the vbucket's number.
        cursor: the seqno up to which the view was read; at first the seqno after which it begins.
        end_seqno: the seqno of the last change in the view; if the view is empty, the seqno after which it begins.
    """

    def __init__(  # noqa: PLR0917 - called in one place
        self,
        slots: Slots,
        vbucket: int,
        columns: Columns,
        first: int,
        rows: int,
        after_seqno: int,
        choice: Shown | None = None,
        last_seqno: int | None = None,
        every_version: bool = False,
        plain: Sequence[PlainSpan] = (),
        befores: int = kernels.NO_BEFORES,
    ) -> None:
        self.vbucket = vbucket
        self._befores = befores
        self.cursor: int = after_seqno
        self._visible = choice
        self._slots = slots
        self._columns: Columns | None = columns
        self._rows = max(rows, first)
        self._nexts = columns.next
        self._merged_from = self._rows
        if every_version and plain:
            self._merged_from, self._nexts = _newest_superseded(plain, columns, slots, first, self._rows)
        elif every_version:
            self._nexts = _nothing_superseded(self._rows)
        self._first, self._after_seqno = first, after_seqno
        # Known without reading the rows: there may be ten million changes of other collections after `after_seqno`.
        is_empty = last_seqno is not None and last_seqno <= after_seqno
        self._row = self._rows if is_empty else self._next_visible(columns, first)
        self.end_seqno: Final = self._last_seqno(columns, after_seqno) if last_seqno is None or is_empty else last_seqno
        end = self.end_seqno
        invariant(end >= after_seqno, "vbucket {}: a view from {} ends at {}", vbucket, after_seqno, end)
        # No segment is retired within one turn of the loop, so all segments of rows up to `_rows` are retired after
        # this ticket was taken, and are kept for it.
        self._ticket = slots.enter()

    @property
    def nothing(self) -> bool:
        """True if no visible row is left."""
        return self._row >= self._rows

    @property
    def holds_removed_files(self) -> bool:
        """True if the store keeps files for this view that a compaction has replaced."""
        return self._columns is not None and self._slots.is_held_by(self._ticket)

    @property
    def befores(self) -> bool:
        """True if the view says, for each change, which version it replaced."""
        return self._befores != kernels.NO_BEFORES

    def count(self) -> tuple[int, int]:
        """Return the number of changes left, and their stored bytes. Takes time: reads the row of each change."""
        columns, choice = self._open(), self._visible
        ahead = columns.loc, self._nexts, self._row, self._rows, self._slots.table
        frames, total = kernels.count_visible(*ahead) if choice is None else choices.count_shown(*ahead, choice)
        return int(frames), int(total)

    def fill(
        self, out: NDArray[np.uint8], opaque: int, encoding: int = 0, budget_bytes: int = 1 << 62, slow: int = 0
    ) -> Filled:
        """Copy changes into `out`, as frames of the stream `opaque`.

        Args:
            out: the memory to fill, with as many whole frames as fit.
            encoding: the sum of flags from kernels.gather: DELETE_TIMES, EXPIRY_OPCODE, NO_VALUE or KEEP_DATATYPE,
                NO_DELETES.
            budget_bytes: stop once so many bytes are reached; the last frame may exceed them.
            slow: stop before a frame whose datatype has one of these bits.

        Returns:
            See Filled. If it has no bytes, and neither `done` nor `plain` is True, the budget was 0.
        """
        columns = self._open()
        row, count, frames, stop = kernels.gather(
            columns.seq,
            columns.loc,
            columns.prev,
            self._nexts,
            self._row,
            self._rows,
            self._slots.table,
            out,
            np.uint32(opaque),
            encoding,
            slow,
            budget_bytes,
            _ALL if self._visible is None else self._visible,
            int(self._visible is not None),
            self._befores,
            self._merged_from,
        )
        self._move(columns, int(row))
        invariant(count <= len(out), "vbucket {}: {} bytes filled of {}", self.vbucket, count, len(out))
        return Filled(int(count), int(frames), self._row >= self._rows, bool(stop == kernels.PLAIN))

    def replaced(self) -> Replaced:
        """Return the version that the next change replaced.

        Raises:
            IndexError: no change is left.
        """
        columns = self._open()
        if self.nothing:
            raise IndexError(f"the view of vbucket {self.vbucket} has no change after seqno {self.cursor}")
        rows = self._nexts, self._row, self._rows, self._merged_from
        known_by = self._slots.table, self._befores
        state, place = kernels.find_replaced(columns.seq, columns.loc, columns.prev, *rows, *known_by)
        before_state = BeforeState(int(state))
        return Replaced(
            before_state, self._slots.frame(int(place)) if before_state is BeforeState.VERSION else _NOTHING
        )

    def next_frame(self) -> memoryview:
        """Return the next change in its stored form (records.py), and move past it.

        The result is memory of the segment: release it before the present turn of the event loop ends.

        Raises:
            IndexError: no change is left.
        """
        columns = self._open()
        if self.nothing:
            raise IndexError(f"the view of vbucket {self.vbucket} has no change after seqno {self.cursor}")
        frame = self._slots.frame(int(columns.loc[self._row]))
        self._move(columns, self._row + 1)
        return frame

    @property
    def is_next_superseded(self) -> bool:
        """True if the next change has a newer version among the rows of the view."""
        return not self.nothing and self._open().next.item(self._row) < self._rows

    def next_cas(self) -> int:
        """Return the CAS of the next change, whose upper bits are the time of the write in Unix nanoseconds.

        Raises:
            IndexError: no change is left.
        """
        columns = self._open()
        if self.nothing:
            raise IndexError(f"the view of vbucket {self.vbucket} has no change after seqno {self.cursor}")
        with self._slots.frame(int(columns.loc[self._row])) as frame:
            return cas_of(frame)

    def rewind(self) -> None:
        """Return to the first change."""
        columns = self._open()
        self.cursor = self._after_seqno
        self._row = self._next_visible(columns, self._first)

    def change(self, seqno: int) -> memoryview:
        """Return the change with this seqno, in its stored form, without moving; otherwise like `next_frame`."""
        columns = self._open()
        row = int(columns.seq[: self._rows].searchsorted(np.uint64(seqno), "left"))
        return self._slots.frame(int(columns.loc[row]))

    def has(self, seqno: int) -> bool:
        """Return True if the view has the change with this seqno, and it is the newest one of its key in the view."""
        columns = self._open()
        row = int(columns.seq[: self._rows].searchsorted(np.uint64(seqno), "left"))
        return row < self._rows and columns.seq.item(row) == seqno and columns.next.item(row) >= self._rows

    def close(self) -> None:
        """Free the memory and files that this view keeps; may be called again."""
        if self._columns is not None:
            self._slots.leave(self._ticket)
            self._columns = None
            self._row = self._rows

    def __enter__(self) -> View:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _open(self) -> Columns:
        if self._columns is None:
            raise ValueError(f"the view of vbucket {self.vbucket} is closed")
        return self._columns

    def _move(self, columns: Columns, row: int) -> None:
        """Move to the first visible row from `row` on."""
        if row > self._row:
            before, rows = self.cursor, self._rows
            invariant(row <= rows, "vbucket {}: row {} of a view of {}", self.vbucket, row, rows)
            # The seqno of the last row passed, visible or not: the marker's end need not be an item that is sent (dcp
            # 8.2).
            self.cursor = columns.seq.item(row - 1)
            invariant(self.cursor >= before, "vbucket {}: seqno {} behind {}", self.vbucket, self.cursor, before)
        self._row = self._next_visible(columns, row)

    def _next_visible(self, columns: Columns, row: int) -> int:
        """Return the first visible row from `row` on; the number of rows if none is visible."""
        rows = self._rows
        if self._visible is not None:
            ahead = columns.loc, self._nexts, row, rows, self._slots.table
            return int(choices.next_shown(*ahead, self._visible))
        if row >= rows or self._nexts.item(row) >= rows:
            return min(row, rows)
        return int(kernels.next_visible(self._nexts, row, rows))

    def _last_seqno(self, columns: Columns, after_seqno: int) -> int:
        """Return the seqno of the last change that the view will return; the last row of a view is always visible."""
        if self.nothing:
            return after_seqno
        if self._visible is None:
            return columns.seq.item(self._rows - 1)
        ahead = columns.loc, self._nexts, self._row, self._rows, self._slots.table
        return columns.seq.item(int(choices.last_shown(*ahead, self._visible)))
