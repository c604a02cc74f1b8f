"""A folder in which tasks note the keys of the rows that they yield, so that a later task can undo them.

A failover takes changes back, and the nodes forget them: nobody but the reader knows which documents it has of them.
Each attempt of a task appends to a file of its own (keyfile.py), before it yields. So the files have every row that may
have been delivered, and some that were not: of an attempt that failed, or of a batch that was read more than once.

Which attempt's rows were delivered only Spark knows, and two attempts may differ: a version that one has is left out by
the next if it was replaced above the range meanwhile. So a row is certainly delivered only if all attempts have it that
read there and came to their end; Spark takes no rows of the others.

A folder is one query's: the file `_query` has an id that the query's offsets have, too. So a folder that was lost, or
that two queries share, is noticed before a rollback is undone by the wrong notes.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa

from headwater.errors import NotesError
from headwater.folders import make_folder, sync_folder
from headwater.spark.keyfile import SCHEMA, KeyFile, KeyWriter, Reach, read

FILES_MAX = 64
"""The number of files from which on they are folded into one."""
_SUFFIX, _UNFINISHED = ".keys", ".folding"
_OWNER = "_query"
_LOST = "this machine does not see the notes of what this query has delivered, and a rollback could not be undone"
_BRING_BACK = "bring the folder back, or refresh the table, with an empty folder and a new checkpoint"
_ANOTHER = (
    "the notes here are those of another query, or of an earlier checkpoint; give each query a folder of its own, and"
    " begin a new checkpoint with an empty one"
)

Identity = tuple[str | None, str | None, bytes]
"""A document: scope, collection and key; scope and collection are None for the default one."""


class Delivered(NamedTuple):
    """The last row that was delivered of a document.

    Attributes:
        certain: False if not all attempts have it that read there and ended: it may not have been delivered.
    """

    generation: int
    seqno: int
    deleted: bool
    certain: bool = True


class KeyLog:
    """The files of one query's folder.

    Args:
        folder: a path that the driver and all executors see; it is created by the first writer or claim.
        query: the id of the query whose folder it must be; empty if that is not checked.
    """

    def __init__(self, folder: str, query: str = "") -> None:
        self.folder: Final = Path(folder)
        self.query: Final = query
        self._before: Final = set(self._paths())

    def writer(self, reach: Sequence[Reach] = ()) -> KeyWriter:
        """Return the writer of a file of its own, a context manager.

        Args:
            reach: what the attempt reads.

        Raises:
            NotesError: this machine does not see the folder, or it is another query's.
        """
        if self.query:
            self.check()
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
        return KeyWriter(self.folder / f"{uuid4().hex}{_SUFFIX}", reach)

    def claim(self, *, notes_expected: bool) -> None:
        """Make the folder the query's, if nobody has noted anything in it.

        So a query that stopped between its claim and its first rows, and whose checkpoint a power cut took, may begin
        again; if two begin in one folder, the tasks of the first notice.

        Args:
            notes_expected: True if the query has delivered changes before, so that there must be notes of them.

        Raises:
            NotesError: it is another query's, or there are no notes where there must be.
        """
        if notes_expected and not self._paths():
            raise NotesError(str(self.folder), f"{_LOST}; {_BRING_BACK}")
        make_folder(self.folder)
        if self._owner() not in {None, self.query} and self._paths():
            raise NotesError(str(self.folder), _ANOTHER)
        written = self.folder / f"{uuid4().hex}{_UNFINISHED}"
        with written.open("x") as file:
            file.write(self.query)
            file.flush()
            os.fsync(file.fileno())
        written.replace(self.folder / _OWNER)
        sync_folder(self.folder)

    def check(self) -> None:
        """Check that the folder is there, and the query's.

        Raises:
            NotesError: it is not.
        """
        owner = self._owner()
        if owner is None:
            raise NotesError(str(self.folder), f"{_LOST}; {_BRING_BACK}")
        if owner != self.query:
            raise NotesError(str(self.folder), _ANOTHER)

    def _owner(self) -> str | None:
        """Return the id of the query whose folder it is; None if it is nobody's, or not seen here."""
        try:
            return (self.folder / _OWNER).read_text()
        except FileNotFoundError:
            return None

    def last(self, generations: dict[int, int]) -> dict[int, dict[Identity, Delivered]]:
        """Return, for each vbucket, the last row of each document that was delivered before a generation.

        Args:
            generations: by vbucket, the generation whose rows do not count any more, nor those of later ones.

        Raises:
            NotesError: a file is damaged. OSError: the disk did not read one.
        """
        files = self._read_all()
        before = [
            file
            for file in files
            if not file.reach or any(part.generation < generations.get(part.vbucket, 0) for part in file.reach)
        ]
        tally = _Tally(before)
        for number, file in enumerate(before):
            for vbucket, identity, row, doubtful in _rows(file):
                if row.generation < generations.get(vbucket, 0):
                    tally.add((vbucket, identity), row, number, doubtful=doubtful)
        newest: dict[int, dict[Identity, Delivered]] = {vbucket: {} for vbucket in generations}
        for (vbucket, identity), row in tally.rows():
            newest[vbucket][identity] = row
        return newest

    def fold(self, files_max: int = FILES_MAX) -> None:
        """Replace the files by one if there are more than `files_max`.

        The last row of each generation stays, not the last of all: a batch that runs again must find what it found the
        first time, without its own rows. A file stays to which an attempt may still append: one that has no end, and
        was not there when this object was made.

        Raises:
            NotesError, OSError: as for `last`; nothing was removed.
        """
        paths = self._paths()
        if len(paths) <= files_max:
            return
        read_files = [(path, file) for path in paths if (file := read(path)).ended or path in self._before]
        if len(read_files) <= files_max:
            return
        files = [file for _, file in read_files]
        tally = _Tally(files)
        for number, file in enumerate(files):
            for vbucket, identity, row, doubtful in _rows(file):
                tally.add((vbucket, identity, row.generation), row, number, doubtful=doubtful)
        self._replace(list(tally.rows()), tally.reach())
        for path, _ in read_files:
            path.unlink(missing_ok=True)

    def _replace(self, rows: list[tuple[tuple[int, Identity, int], Delivered]], reach: Sequence[Reach]) -> None:
        unfinished = self.folder / f"{uuid4().hex}{_UNFINISHED}"
        with KeyWriter(unfinished, reach) as writer:
            for certain in (True, False):
                writer.append(_table(entry for entry in rows if entry[1].certain is certain), doubtful=not certain)
        unfinished.rename(unfinished.with_suffix(_SUFFIX))
        sync_folder(self.folder)

    def _read_all(self) -> list[KeyFile]:
        while True:
            try:
                return [read(path) for path in self._paths()]
            except FileNotFoundError:
                pass  # folding has removed it meanwhile: by now a folded file has what it had

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob(f"*{_SUFFIX}"))


class _Tally:
    """The last row of each document, and the files that have it.

    Args:
        files: by number, which is the number of their bits.
    """

    def __init__(self, files: Sequence[KeyFile]) -> None:
        self._rows: dict[Any, tuple[Delivered, int]] = {}
        self._parts: dict[tuple[int, int], list[tuple[Reach, int]]] = {}
        self._ended = 0
        for number, file in enumerate(files):
            if file.reach and not file.ended:
                continue
            self._ended |= 1 << number
            for part in file.reach:
                self._parts.setdefault((part.vbucket, part.generation), []).append((part, 1 << number))
        self._steps = {place: _steps(parts) for place, parts in self._parts.items()}

    def add(self, key: Any, row: Delivered, number: int, *, doubtful: bool) -> None:
        """Keep a row unless a later one is known. Of one seqno, one that deletes counts last: it undid the other.

        Args:
            key: begins with the vbucket.
            number: that of the file that has the row.
            doubtful: True if the file says that the row may not have been delivered.
        """
        mask = 0 if doubtful else self._ended & 1 << number
        last, has = self._rows.get(key, (None, 0))
        if last is None or last < row:
            self._rows[key] = row, mask
        elif last == row:
            self._rows[key] = row, has | mask

    def rows(self) -> Iterator[tuple[Any, Delivered]]:
        """Yield key and last row of each document."""
        for key, (row, has) in self._rows.items():
            yield key, row._replace(certain=has != 0 and not self._readers(key[0], row) & ~has)

    def reach(self) -> list[Reach]:
        """Return what the attempts that ended have read together: of each generation all up to the last seqno."""
        ends = {place: max(part.end for part, _ in parts) for place, parts in self._parts.items()}
        for key, (row, _) in self._rows.items():
            place = key[0], row.generation
            ends[place] = max(ends.get(place, 0), row.seqno)
        return [Reach(vbucket, generation, -1, end) for (vbucket, generation), end in sorted(ends.items())]

    def _readers(self, vbucket: int, row: Delivered) -> int:
        """Return the files whose attempts read where a row is, and ended, as bits."""
        ends, masks = self._steps.get((vbucket, row.generation), ([], [0]))
        return masks[bisect_left(ends, row.seqno)]


def _steps(parts: Sequence[tuple[Reach, int]]) -> tuple[list[int], list[int]]:
    """Return the seqnos at which the readers change, ascending, and the readers up to each, and behind the last."""
    bounds = sorted({bound for part, _ in parts for bound in (part.above, part.end)})
    masks = [reduce(or_, (mask for part, mask in parts if part.above < bound <= part.end), 0) for bound in bounds]
    return bounds, [*masks, 0]


def _rows(file: KeyFile) -> Iterator[tuple[int, Identity, Delivered, bool]]:
    for batch, doubtful in file.rows:
        columns = (batch.column(name).to_pylist() for name in SCHEMA.names)
        for vbucket, generation, seqno, scope, collection, key, deleted in zip(*columns, strict=True):
            yield vbucket, (scope, collection, key), Delivered(generation, seqno, deleted), doubtful


def _table(entries: Iterable[tuple[tuple[int, Identity, int], Delivered]]) -> pa.RecordBatch:
    rows = [
        (vbucket, generation, row.seqno, *identity, row.deleted) for (vbucket, identity, generation), row in entries
    ]
    columns = zip(*rows, strict=True) if rows else ([] for _ in SCHEMA)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
