"""A job's record in a SQLite file with the job's tables: both move by one transaction or not at all.

A transaction is on the disk when it is committed (a log beside the file, synced), and SQLite rolls back one that was
cut. The file lies on a disk of this machine: its log is shared memory between the processes that have it open.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.errors import LedgerError, OptionError, TableChanged
from headwater.failpoints import failpoint
from headwater.folders import make_folder

FORMAT = 1
BUSY_SECONDS = 60.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS ledger (
    only INTEGER PRIMARY KEY CHECK (only = 0), format INTEGER NOT NULL, kind TEXT NOT NULL, bucket TEXT NOT NULL,
    shape TEXT NOT NULL, batch INTEGER NOT NULL, stands TEXT NOT NULL, begun TEXT, notes TEXT NOT NULL
)
"""


@dataclass(frozen=True)
class LedgerRecord:
    """The position of a job in its source.

    Attributes:
        bucket: the bucket's name.
        end: the offset up to which the changes are dealt with, as `spark/offsets.py` writes it.
        batch: the number of committed batches.
    """

    bucket: str
    end: Mapping[str, Any]
    batch: int

    @property
    def digest(self) -> str:
        """A short digest of exactly this record."""
        text = json.dumps([self.bucket, self.end, self.batch], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def folder(place: str | Path) -> str:
    """Return a folder as an absolute path.

    Raises:
        OptionError: it is a URL: SQLite needs a disk of this machine.
    """
    if "://" in str(place):
        raise OptionError("place", str(place), "a folder on a disk of this machine")
    return str(Path(place).absolute())


class JobLedger:
    """A job's file; created if there is none.

    Args:
        path: the file; its folder is created, too.
        kind: the kind of the job.
        bucket: the bucket of the changes.
        shape: options that can't change once the file exists; None to accept those of the file.
        beginning: the offset of a new file.
        schema: statements that create the job's tables.

    Raises:
        LedgerError: another job's file, another bucket's, one created with other options, or no SQLite file.
    """

    def __init__(
        self,
        path: str | Path,
        kind: str,
        bucket: str,
        shape: Mapping[str, Any] | None,
        beginning: Mapping[str, Any],
        schema: str = "",
    ) -> None:
        self.path: str = str(path)
        self._lock = threading.RLock()
        make_folder(Path(path).parent)
        try:
            self._database = _connect(self.path)
            with self.transaction() as database:
                database.execute(_SCHEMA)
                values = (FORMAT, kind, bucket, _text(shape or {}), 0, _text(beginning), None, "{}")
                # Of two processes that make the file at once, the first one's row stays, and the second compares its
                # own.
                database.execute("INSERT OR IGNORE INTO ledger VALUES (0, ?, ?, ?, ?, ?, ?, ?, ?)", values)
                for statement in filter(None, map(str.strip, schema.split(";\n"))):
                    database.execute(statement)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise  # locked, full, read-only: that may pass
            raise LedgerError(self.path, f"{error}: no file of ours, or a damaged one; choose another folder") from None
        self._check(kind, bucket, shape)

    def _check(self, kind: str, bucket: str, shape: Mapping[str, Any] | None) -> None:
        row = self._row()
        if row["format"] != FORMAT:
            raise LedgerError(self.path, f"it is of format {row['format']}, and this version writes {FORMAT}")
        if (row["kind"], row["bucket"]) != (kind, bucket):
            message = f'it is the {row["kind"]} of the bucket "{row["bucket"]}", not the {kind} of "{bucket}"'
            raise LedgerError(self.path, f"{message}: choose another folder")
        if shape is not None and (shape_now := self.shape) != json.loads(_text(shape)):
            names = [*shape, *(name for name in shape_now if name not in shape)]
            message = ", ".join(
                f"{name} {shape_now.get(name)!r}" for name in names if shape_now.get(name) != shape.get(name)
            )
            raise LedgerError(self.path, f"it was made with {message}: give the same options, or another folder")

    @property
    def shape(self) -> dict[str, Any]:
        """The options that the file was created with."""
        return dict(json.loads(self._row()["shape"]))

    @property
    def record(self) -> LedgerRecord:
        """The present record."""
        row = self._row()
        return LedgerRecord(row["bucket"], json.loads(row["stands"]), row["batch"])

    @property
    def begun(self) -> dict[str, Any] | None:
        """The end of the batch that `begin` noted, until it is committed; None otherwise."""
        text = self._row()["begun"]
        return None if text is None else dict(json.loads(text))

    @property
    def notes(self) -> dict[str, Any]:
        """Values that the job keeps beside its tables."""
        return dict(json.loads(self._row()["notes"]))

    def note_of_new(self, name: str, value: str) -> str:
        """Return a note that a new file gets before its first batch, and set it to `value` if the file is new.

        Returns: "" for a file that had batches before it had this note.
        """
        with self.transaction() as database:
            notes = self.notes
            if name not in notes and not self.record.batch:
                notes[name] = value
                database.execute("UPDATE ledger SET notes = ?", (_text(notes),))
        return str(notes.get(name, ""))

    def begin(self, end: Mapping[str, Any], notes: Mapping[str, Any]) -> None:
        """Note the end of the next batch, before any of its tasks begins."""
        with self.transaction() as database:
            database.execute("UPDATE ledger SET begun = ?, notes = ?", (_text(end), _text(notes)))

    @contextmanager
    def advance(
        self, after: str, end: Mapping[str, Any], notes: Mapping[str, Any] | None = None
    ) -> Iterator[sqlite3.Connection]:
        """Move the record to `end` together with the changes within the block.

        Args:
            after: digest of the record that the batch was planned from.
            notes: new notes; None to keep the present ones.

        Raises:
            TableChanged: the record is another one by now; nothing was changed.
        """
        with self.transaction() as database:
            # Read within the transaction, in which nobody else writes: what is compared here is what gets replaced.
            record = self.record
            if record.digest != after:
                message = f"it is at batch {record.batch} by now and this one was planned from another place"
                raise TableChanged(self.path, message)
            yield database
            new_notes = self.notes if notes is None else notes
            values = (_text(end), record.batch + 1, _text(new_notes))
            database.execute("UPDATE ledger SET stands = ?, batch = ?, begun = NULL, notes = ?", values)
            failpoint("ledger.before_commit")
        failpoint("ledger.after_commit")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit all changes of the block at its end, or none of them."""
        with self._lock:
            # The lock for writing is taken now: a transaction that begins by reading would be refused it later without
            # a wait.
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:  # a full disk may have ended it
                    self._database.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    def _row(self) -> sqlite3.Row:
        with self._lock:
            row: sqlite3.Row = self._database.execute("SELECT * FROM ledger").fetchone()
        return row


def open_for_reading(path: str | Path) -> sqlite3.Connection:
    """Open a job's file read-only, while the job may be writing to it.

    Raises:
        LedgerError: there is no file.
    """
    if not Path(path).exists():
        raise LedgerError(str(path), "there is no such file")
    return _connect(f"file:{_quoted(str(path))}?mode=ro", uri=True)


def _connect(path: str, *, uri: bool = False) -> sqlite3.Connection:
    # A batch is brought in by whatever thread Spark calls back in; `transaction` keeps them apart.
    database = sqlite3.connect(path, BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=uri)
    database.row_factory = sqlite3.Row
    if not uri:
        # With this log readers see the last commit while a batch is written. FULL syncs it at each commit: a power cut
        # takes back nothing that was reported as done.
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
    return database


def _quoted(path: str) -> str:
    from urllib.parse import quote

    return quote(path)


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True)
