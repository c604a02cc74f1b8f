"""A full-text index in one SQLite file: FTS5 over the texts of documents, and how far it is (ledger.py).

Rows are put in by key, so a batch may come twice. Vbuckets that a failover took back are replaced whole, in the same
transaction. Documents kept aside stand in a table of their own, with the reason.
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from headwater.errors import LedgerError, OptionError
from headwater.pipelines.ledger import JobLedger, folder, open_for_reading

KIND, FILE = "index", "index.sqlite"
TOKENIZERS = {"words": "unicode61 remove_diacritics 2", "english": "porter unicode61 remove_diacritics 2"}
TOKENIZERS["parts"] = "trigram"
SNIPPET_TOKENS = 16
_KINDS: dict[str, Any] = {
    "key": pa.binary(),
    "vbucket": pa.int32(),
    "seqno": pa.int64(),
    "expiry": pa.int64(),
    "deleted": pa.bool_(),
    "text": pa.large_string(),
    "aside": pa.string(),
}
STAGED = pa.schema(list(_KINDS.items()))
"""A task's rows. `text` is null where the text is elsewhere; `aside` says why a document is kept aside."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS documents (
    id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, vbucket INTEGER NOT NULL, seqno INTEGER NOT NULL,
    expiry INTEGER NOT NULL, name TEXT NOT NULL, body TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS documents_of_vbuckets ON documents (vbucket);
CREATE TABLE IF NOT EXISTS aside (
    key BLOB PRIMARY KEY, vbucket INTEGER NOT NULL, seqno INTEGER NOT NULL, reason TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS aside_of_vbuckets ON aside (vbucket);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (
    name, body, content = 'documents', content_rowid = 'id', tokenize = '{tokenizer}'
);
CREATE TRIGGER IF NOT EXISTS documents_added AFTER INSERT ON documents BEGIN
    INSERT INTO words (rowid, name, body) VALUES (new.id, new.name, new.body); END;
CREATE TRIGGER IF NOT EXISTS documents_removed AFTER DELETE ON documents BEGIN
    INSERT INTO words (words, rowid, name, body) VALUES ('delete', old.id, old.name, old.body); END
"""
_SPLIT = re.compile(r'"([^"]*)"|(\S+)')


@dataclass(frozen=True)
class Hit:
    """A document that was found: its key, how well it fits (the higher the better), and where the words stand."""

    key: bytes
    score: float
    snippet: str


def path_of(place: str | Path) -> str:
    """Return the index's file in its folder."""
    return f"{folder(place)}/{FILE}"


class FullText:
    """An index; made if there is none.

    Args:
        place: its folder.
        bucket: whose documents.
        shape: options that it is made with, `tokenizer` among them; None for one that is there.
        beginning: the offset that a new one stands at.

    Raises:
        LedgerError: this Python has no FTS5; or as `JobLedger`.
        OptionError: no such tokenizer, or a place that is no folder.
    """

    def __init__(
        self, place: str | Path, bucket: str, shape: Mapping[str, Any] | None, beginning: Mapping[str, Any]
    ) -> None:
        self.place = folder(place)
        tokenizer = (shape or {}).get("tokenizer", "words")
        if tokenizer not in TOKENIZERS:
            raise OptionError("tokenizer", tokenizer, f"one of {', '.join(TOKENIZERS)}")
        check_fts5(self.place)
        schema = _SCHEMA.format(tokenizer=TOKENIZERS[tokenizer])
        self.ledger = JobLedger(path_of(place), KIND, bucket, shape, beginning, schema)

    def close(self) -> None:
        """Close the file."""
        self.ledger.close()


def check_fts5(place: str) -> None:
    """Find out whether there is full-text search in this Python's SQLite.

    Raises:
        LedgerError: there is none.
    """
    with closing(sqlite3.connect(":memory:")) as database:
        try:
            database.execute("CREATE VIRTUAL TABLE words USING fts5 (body)")
        except sqlite3.OperationalError:
            told = f"the SQLite {sqlite3.sqlite_version} of this Python was built without FTS5"
            raise LedgerError(place, f"{told}: use another build of Python, such as python.org's") from None


def replace_vbuckets(database: sqlite3.Connection, vbuckets: Iterable[int]) -> None:
    """Take out all that is known of some vbuckets."""
    gone = [(vb,) for vb in vbuckets]
    database.executemany("DELETE FROM documents WHERE vbucket = ?", gone)
    database.executemany("DELETE FROM aside WHERE vbucket = ?", gone)


def apply(database: sqlite3.Connection, rows: pa.RecordBatch) -> None:
    """Put rows in, each key's once at most; `STAGED` says of which kind they are."""
    columns = [rows.column(name).to_pylist() for name in STAGED.names]
    keys = [(key,) for key in columns[0]]
    database.executemany("DELETE FROM documents WHERE key = ?", keys)
    database.executemany("DELETE FROM aside WHERE key = ?", keys)
    documents: list[tuple[Any, ...]] = []
    aside: list[tuple[Any, ...]] = []
    for key, vb, seqno, expiry, deleted, text, why in zip(*columns, strict=True):
        if why is not None:
            aside.append((key, vb, seqno, why))
        elif not deleted and text is not None:
            documents.append((key, vb, seqno, expiry, shown(key), text))
    database.executemany(
        "INSERT INTO documents (key, vbucket, seqno, expiry, name, body) VALUES (?, ?, ?, ?, ?, ?)", documents
    )
    database.executemany("INSERT INTO aside VALUES (?, ?, ?, ?)", aside)


def staged(path: str | Path) -> Iterator[pa.RecordBatch]:
    """Yield the rows that a task wrote."""
    with pa.OSFile(str(path), "rb") as file, pyarrow.ipc.open_stream(file) as reader:
        yield from reader


def shown(key: bytes) -> str:
    """Return a key as text, by which it can be found."""
    return key.decode("utf-8", "replace").replace("\0", " ")


def search(place: str | Path, words: str, *, limit: int = 10, any_of: bool = False) -> list[Hit]:
    """Find documents in an index, the best first. It may be brought forward by another process meanwhile.

    Args:
        words: words that a document must have all; `"several words"` must stand side by side, `wor*` is a beginning.
        any_of: one of them is enough.
        limit: hits at most.

    Raises:
        LedgerError: there is no index.
        OptionError: no words.
    """
    asked = expression(words, any_of=any_of)
    line = (
        "SELECT documents.key, -bm25(words) AS score, snippet(words, -1, '[', ']', '…', ?) AS snippet FROM words "
        "JOIN documents ON documents.id = words.rowid "
        "WHERE words MATCH ? AND (expiry = 0 OR expiry > ?) ORDER BY rank, documents.key LIMIT ?"
    )
    with closing(open_for_reading(path_of(place))) as database:
        rows = database.execute(line, (SNIPPET_TOKENS, asked, int(time.time()), limit)).fetchall()
    return [Hit(row["key"], row["score"], row["snippet"]) for row in rows]


def shape_of(place: str | Path) -> dict[str, Any]:
    """Return the options that an index was made with.

    Raises:
        LedgerError: there is none.
    """
    with closing(open_for_reading(path_of(place))) as database:
        return dict(json.loads(database.execute("SELECT shape FROM ledger").fetchone()["shape"]))


def kept_aside(place: str | Path) -> list[tuple[bytes, str]]:
    """Return the keys of documents that are not in the index though they are in the bucket, each with the reason.

    Raises:
        LedgerError: there is no index.
    """
    with closing(open_for_reading(path_of(place))) as database:
        return [(row["key"], row["reason"]) for row in database.execute("SELECT key, reason FROM aside ORDER BY key")]


def expression(words: str, *, any_of: bool) -> str:
    """Return words as FTS5 wants them: everything quoted, so that nothing in them is an operator.

    Raises:
        OptionError: there are none.
    """
    parts: list[str] = []
    for phrase, word in _SPLIT.findall(words):
        plain = (phrase or word.rstrip("*")).replace('"', "")
        if any(letter.isalnum() for letter in plain):
            parts.append(f'"{plain}"' + "*" * (not phrase and word.endswith("*")))
    if not parts:
        raise OptionError("words", words, "at least one word of letters or digits")
    return (" OR " if any_of else " AND ").join(parts)


def remove_staged(paths: Sequence[str]) -> None:
    """Remove files of tasks whose rows are in."""
    for path in paths:
        Path(path).unlink(missing_ok=True)
