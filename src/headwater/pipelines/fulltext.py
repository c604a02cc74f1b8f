"""A full-text index in one SQLite file: FTS5 over the texts of documents, and the index's record (ledger.py).

Rows are stored by key, so a batch may come twice. Vbuckets that a failover took back are replaced whole, in the same
transaction. Documents that are kept aside are in a table of their own, with the reason.

An index of collections has their ids and names beside each key, since a key belongs to a collection; `BY_COLLECTION` in
its shape marks it. An index of the default collection has the form of older releases.
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
from typing import Any, Final

import pyarrow as pa
import pyarrow.ipc

from headwater.client.collections import parse_path
from headwater.errors import LedgerError, OptionError
from headwater.pipelines.ledger import JobLedger, folder, open_for_reading

KIND, FILE = "index", "index.sqlite"
BY_COLLECTION = "collections"
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

_OF_COLLECTIONS: dict[str, Any] = {"collection_id": pa.int64(), "scope": pa.string(), "collection": pa.string()}
STAGED_OF_COLLECTIONS = pa.schema(list((_KINDS | _OF_COLLECTIONS).items()))
"""The same of an index of collections."""

# With `content =` FTS5 keeps no texts of its own: to forget a row it needs the texts that it was given, which the
# trigger for removals passes.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS documents (
    id INTEGER PRIMARY KEY, key BLOB NOT NULL{unique}, vbucket INTEGER NOT NULL, seqno INTEGER NOT NULL,
    expiry INTEGER NOT NULL, name TEXT NOT NULL, body TEXT NOT NULL{documents}
);
CREATE INDEX IF NOT EXISTS documents_of_vbuckets ON documents (vbucket);
CREATE TABLE IF NOT EXISTS aside (
    key BLOB{primary}, vbucket INTEGER NOT NULL, seqno INTEGER NOT NULL, reason TEXT NOT NULL{aside}
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
_PLAIN = {"unique": " UNIQUE", "documents": "", "primary": " PRIMARY KEY", "aside": ""}
_NAMED = ", collection_id INTEGER NOT NULL, scope TEXT NOT NULL, collection TEXT NOT NULL"
_COLLECTED = {
    "unique": "",
    "documents": f"{_NAMED}, UNIQUE (collection_id, key)",
    "primary": "",
    "aside": f"{_NAMED}, PRIMARY KEY (collection_id, key)",
}
_SPLIT = re.compile(r'"([^"]*)"|(\S+)')


@dataclass(frozen=True)
class Hit:
    """A document that a search found: its key, its rank (higher is better), and a snippet with the words.

    Attributes:
        scope, collection: its collection; None in an index of the default collection alone.
    """

    key: bytes
    score: float
    snippet: str
    scope: str | None = None
    collection: str | None = None


@dataclass(frozen=True)
class KeptAside:
    """A document that is not in the index, and the reason; `scope` and `collection` as in `Hit`."""

    key: bytes
    reason: str
    scope: str | None = None
    collection: str | None = None


def path_of(place: str | Path) -> str:
    """Return the index's file in its folder."""
    return f"{folder(place)}/{FILE}"


class FullText:
    """An index; created if there is none.

    Args:
        place: the folder of the index.
        bucket: the bucket of the documents.
        shape: the options of a new index, `tokenizer` among them; None to accept those of an existing one.
        beginning: the offset of a new index.

    Raises:
        LedgerError: this Python has no FTS5; or as `JobLedger`.
        OptionError: no such tokenizer, or a place that is no folder.
    """

    def __init__(
        self, place: str | Path, bucket: str, shape: Mapping[str, Any] | None, beginning: Mapping[str, Any]
    ) -> None:
        self.place: str = folder(place)
        tokenizer = (shape or {}).get("tokenizer", "words")
        if tokenizer not in TOKENIZERS:
            raise OptionError("tokenizer", tokenizer, f"one of {', '.join(TOKENIZERS)}")
        check_fts5(self.place)
        layout = _COLLECTED if (shape or {}).get(BY_COLLECTION) else _PLAIN
        schema = "" if shape is None else _SCHEMA.format(tokenizer=TOKENIZERS[tokenizer], **layout)
        self.ledger: Final = JobLedger(path_of(place), KIND, bucket, shape, beginning, schema)
        self.by_collection: Final = bool(self.ledger.shape.get(BY_COLLECTION))

    def close(self) -> None:
        """Close the file."""
        self.ledger.close()


def check_fts5(place: str) -> None:
    """Check that this Python's SQLite has full-text search.

    Raises:
        LedgerError: it has none.
    """
    with closing(sqlite3.connect(":memory:")) as database:
        try:
            database.execute("CREATE VIRTUAL TABLE words USING fts5 (body)")
        except sqlite3.OperationalError:
            message = f"the SQLite {sqlite3.sqlite_version} of this Python was built without FTS5"
            raise LedgerError(place, f"{message}: use another build of Python, such as python.org's") from None


def replace_vbuckets(database: sqlite3.Connection, vbuckets: Iterable[int]) -> None:
    """Remove all rows of some vbuckets."""
    parameters = [(vb,) for vb in vbuckets]
    database.executemany("DELETE FROM documents WHERE vbucket = ?", parameters)
    database.executemany("DELETE FROM aside WHERE vbucket = ?", parameters)


def remove_collections(database: sqlite3.Connection, ids: Iterable[int]) -> int:
    """Remove all documents of dropped collections from an index of collections; return their number."""
    parameters = [(number,) for number in ids]
    if not parameters:  # an index of the default collection has no such column
        return 0
    database.executemany("DELETE FROM aside WHERE collection_id = ?", parameters)
    return database.executemany("DELETE FROM documents WHERE collection_id = ?", parameters).rowcount


def apply(database: sqlite3.Connection, rows: pa.RecordBatch) -> None:
    """Add rows, at most one for each key; `STAGED` lists the kinds of rows."""
    names = rows.schema.names
    collection_columns = [name for name in _OF_COLLECTIONS if name in names]
    by = ["key", *collection_columns[:1]]
    found_rows = [
        dict(zip(names, values, strict=True))
        for values in zip(*(rows.column(name).to_pylist() for name in names), strict=True)
    ]
    condition = " AND ".join(f"{name} = :{name}" for name in by)
    for table in ("documents", "aside"):
        # From both tables: a document may have gone from the index into those kept aside, or come back.
        database.executemany(f"DELETE FROM {table} WHERE {condition}", found_rows)  # noqa: S608 -- names of our own
    for row in found_rows:
        row["name"], row["body"], row["reason"] = key_text(row["key"]), row["text"], row["aside"]
    document_rows = [
        row for row in found_rows if row["aside"] is None and not row["deleted"] and row["text"] is not None
    ]
    _insert(
        database, "documents", ("key", "vbucket", "seqno", "expiry", "name", "body", *collection_columns), document_rows
    )
    aside_rows = [row for row in found_rows if row["aside"] is not None]
    _insert(database, "aside", ("key", "vbucket", "seqno", "reason", *collection_columns), aside_rows)


def _insert(database: sqlite3.Connection, table: str, columns: Sequence[str], rows: list[dict[str, Any]]) -> None:
    places = ", ".join(f":{name}" for name in columns)
    line = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})"  # noqa: S608 -- names of our own
    database.executemany(line, rows)


def staged(path: str | Path) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, from its file."""
    with pa.OSFile(str(path), "rb") as file, pyarrow.ipc.open_stream(file) as reader:
        yield from reader


def key_text(key: bytes) -> str:
    """Return a key as the text under which a search finds it."""
    return key.decode("utf-8", "replace").replace("\0", " ")


def search(
    place: str | Path,
    words: str,
    *,
    limit: int = 10,
    any_of: bool = False,
    collections: Sequence[str] = (),
    scope: str | None = None,
) -> list[Hit]:
    """Find documents in an index, the best first. Another process may update it meanwhile.

    Args:
        words: words that a document must all have; `"several words"` must be adjacent, `wor*` is a prefix.
        any_of: True if one of the words is enough.
        limit: the most hits.
        collections: the collections to search, "scope.collection"; none for all that the index has.
        scope: the scope to search.

    Raises:
        LedgerError: there is no index.
        OptionError: no words; or a choice of collections in an index of the default one.
    """
    query = expression(words, any_of=any_of)
    with closing(open_for_reading(path_of(place))) as database:
        by_collection = bool(_shape(database).get(BY_COLLECTION))
        condition, parameters = _collection_condition(by_collection, collections, scope)
        columns = ", documents.scope, documents.collection" if by_collection else ""
        line = (
            "SELECT documents.key, -bm25(words) AS score, snippet(words, -1, '[', ']', '…', ?) AS snippet"  # noqa: S608
            # Documents expire between two batches, and the deletion comes only when the node has noticed.
            f"{columns} FROM words JOIN documents ON documents.id = words.rowid "
            f"WHERE words MATCH ? AND (expiry = 0 OR expiry > ?){condition} ORDER BY rank, documents.key LIMIT ?"
        )
        rows = database.execute(line, (SNIPPET_TOKENS, query, int(time.time()), *parameters, limit)).fetchall()
    return [Hit(*row) for row in rows]


def _collection_condition(by_collection: bool, collections: Sequence[str], scope: str | None) -> tuple[str, list[str]]:
    """Return the SQL condition for some collections, and its parameters."""
    check_within(by_collection, collections, scope)
    if scope is not None:
        return " AND documents.scope = ?", [scope]
    if not collections:
        return "", []
    pairs = [part for path in collections for part in parse_path(path)]
    either = " OR ".join(["(documents.scope = ? AND documents.collection = ?)"] * len(collections))
    return f" AND ({either})", pairs


def check_within(by_collection: bool, collections: Sequence[str], scope: str | None) -> None:
    """Check a choice of collections against the index.

    Raises:
        OptionError: the index has only the default collection; or both `collections` and `scope` are given.
    """
    if not (collections or scope is not None):
        return
    name, value = ("collections", ",".join(collections)) if collections else ("scope", scope)
    if not by_collection:
        raise OptionError(name, value, "possible: this index was made without --collections, of the default one alone")
    if collections and scope is not None:
        raise OptionError("scope", scope, "given without collections: it is one or the other")


def shape_of(place: str | Path) -> dict[str, Any]:
    """Return the options of an index, as it was created.

    Raises:
        LedgerError: there is no index.
    """
    with closing(open_for_reading(path_of(place))) as database:
        return _shape(database)


def _shape(database: sqlite3.Connection) -> dict[str, Any]:
    return dict(json.loads(database.execute("SELECT shape FROM ledger").fetchone()["shape"]))


def kept_aside(place: str | Path) -> list[KeptAside]:
    """Return the documents that are not in the index though they are in the bucket, each with the reason.

    Raises:
        LedgerError: there is no index.
    """
    with closing(open_for_reading(path_of(place))) as database:
        columns = ", scope, collection" if _shape(database).get(BY_COLLECTION) else ""
        return [KeptAside(*row) for row in database.execute(f"SELECT key, reason{columns} FROM aside ORDER BY key")]  # noqa: S608


def expression(words: str, *, any_of: bool) -> str:
    """Return words as an FTS5 expression, all quoted, so that none is taken for an operator.

    Raises:
        OptionError: there are no words.
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
    """Remove the files of tasks whose rows are in the index."""
    for path in paths:
        Path(path).unlink(missing_ok=True)
