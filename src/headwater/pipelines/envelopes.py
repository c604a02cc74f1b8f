"""The messages that a publication makes of changes: Debezium's envelope in JSON, and the headers that all have.

    {"before": ..., "after": ..., "source": {...}, "op": "u", "ts_ms": ...}

A document that is JSON stands in the envelope as it is, byte for byte: nothing is parsed here and written anew. What is
no JSON is base64, and `source` says so. No dict is made for a change.
"""

from __future__ import annotations

import json
import re
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater import __version__
from headwater.kernels.json import SCRATCH_BYTES, valid
from headwater.lake.shape import modified_at
from headwater.pipelines.kafka import KafkaTarget, Message

Headers = list[tuple[str, bytes]]
Identity = tuple["str | None", "str | None", bytes]
"""Scope, collection and key: what readers of a topic take for the same document."""


class HeaderNames(NamedTuple):
    """Names of the headers by which a publication finds its events in a topic; each format has its own."""

    name: str
    vbucket: str
    vb_uuid: str
    seqno: str
    cas: str
    op: str
    collection_id: str
    collection: str
    rollback: str


HEADWATER: Final = HeaderNames(*(f"headwater.{name}" for name in HeaderNames._fields))
DELETE: Final = b"d"
_OPERATIONS: Final = {"create": b"c", "update": b"u"}
_COLUMNS = ("vbucket", "seqno", "vb_uuid", "event", "key", "value", "cas", "rev_seqno", "flags", "expiry")
_OF_COLLECTIONS = ("collection_id", "scope", "collection")
_OF_BEFORES = ("before", "operation")
_DEFAULT = "_default"
_UNSIGNED = frozenset({"seqno", "cas", "rev_seqno"})
_NULL: Final = b"null"

_plain = re.compile(rb"[ !#-\[\]-~]*").fullmatch
"""Matches keys that are JSON texts as they are."""
_scratch = np.zeros(SCRATCH_BYTES, np.uint8)


class ChangedDocument(NamedTuple):
    """A change of a document, as the source has it; numbers without a sign.

    Attributes:
        milliseconds: the CAS as milliseconds since 1970; None where it is no time.
        before: the value that it replaced; None for none, or where that is not kept.
        operation: `create`, `update`, `delete` or `expire`, with the option `before`; None where it is unknown.
    """

    vbucket: int
    seqno: int
    vb_uuid: str
    event: str
    key: bytes
    value: bytes | None
    cas: int
    revision: int
    flags: int
    expiry: int
    milliseconds: int | None
    collection_id: int = 0
    scope: str | None = _DEFAULT
    collection: str | None = _DEFAULT
    before: bytes | None = None
    operation: str | None = None

    @property
    def identity(self) -> Identity:
        """The names of the collection and the key. The id does not count: a collection that was dropped and made again
        has another one, and its documents take the place of those before in the same topic.
        """
        return self.scope, self.collection, self.key

    @property
    def is_deletion(self) -> bool:
        """True for a deletion or an expiration."""
        return self.event != "mutation"


@dataclass(frozen=True)
class Envelopes:
    """Makes messages of changes, in Debezium's envelope; travels to tasks pickled. formats.py has the other formats.

    Attributes:
        name: the name of the publication.
        bucket: the name of the bucket.
        target: names the topics.
        by_collection: True if collections are chosen.
        before: True if changes come with what they replaced.
        reads: by vbucket, the seqno up to which documents are read and not watched: "r".
        batch: the number of the batch.
    """

    NAMES: ClassVar[HeaderNames] = HEADWATER

    name: str
    bucket: str
    target: KafkaTarget
    by_collection: bool = False
    before: bool = False
    reads: Mapping[int, int] = field(default_factory=dict)
    batch: int = 0
    _known: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Topics and headers that many messages share."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the source that are needed."""
        extra = _OF_COLLECTIONS if self.by_collection else ()
        return (*_COLUMNS, *extra, *(_OF_BEFORES if self.before else ()))

    def changes(self, batch: pa.RecordBatch) -> Iterator[ChangedDocument]:
        """Yield the changes of a batch of `columns`.

        A collection without a name came and went before anybody could ask for it: its changes are left out.
        """
        rows = batch.num_rows
        columns: list[Iterable[Any]] = [_values(batch.column(name), unsigned=name in _UNSIGNED) for name in _COLUMNS]
        columns.append(_values(pc.divide(modified_at(batch.column("cas")).cast(pa.int64()), 1000)))
        if self.by_collection:
            columns += [_values(batch.column(name)) for name in _OF_COLLECTIONS]
        else:
            columns += [repeat(0, rows), repeat(_DEFAULT, rows), repeat(_DEFAULT, rows)]
        if self.before:
            # The value of a version that is none is null.
            columns.append(pc.struct_field(batch.column("before"), "value").to_pylist())
            columns.append(batch.column("operation").to_pylist())
        else:
            columns += [repeat(None, rows), repeat(None, rows)]
        changes = map(ChangedDocument._make, zip(*columns, strict=True))
        if self.by_collection and batch.column("scope").null_count:
            return (change for change in changes if change.scope is not None)
        return changes

    def messages(self, change: ChangedDocument, rollback: int | None = None, topic: str | None = None) -> list[Message]:
        """Return the messages of a change: its event, and behind a deletion a tombstone.

        Args:
            rollback: the seqno to which a failover took the vbucket back, if the event sets right what was lost.
            topic: where to; None for the topic of its collection.
        """
        op = self.operation(change, rollback)
        headers = self.headers(change, op, rollback)
        to = topic if topic is not None else self.topic(change)
        event = (to, change.key, self.envelope(change, op, rollback), headers)
        return [event, (to, change.key, None, headers)] if op == DELETE else [event]

    def operation(self, change: ChangedDocument, rollback: int | None = None) -> bytes:
        """Return c, u, d or r. Where nobody knows whether a document was there, the first revision of a key is c."""
        if change.is_deletion:
            return DELETE
        if rollback is not None:
            return b"u"
        if change.operation is not None:
            return _OPERATIONS[change.operation]
        if change.seqno <= self.reads.get(change.vbucket, 0):
            return b"r"
        return b"c" if change.revision == 1 else b"u"

    def headers(self, change: ChangedDocument, op: bytes, rollback: int | None) -> Headers:
        """Return the headers: whose the message is, and the place of the change in the history of its vbucket."""
        names, header_key = self.NAMES, (op, change.vbucket, change.vb_uuid, change.collection_id, change.collection)
        fixed = self._known.get(header_key)
        if fixed is None:
            fixed = self._known[header_key] = self._fixed(change, op)
        results = [*fixed, (names.seqno, b"%d" % change.seqno), (names.cas, b"%d" % change.cas)]
        if rollback is not None:
            results.append((names.rollback, b"%d" % rollback))
        return results

    def _fixed(self, change: ChangedDocument, op: bytes) -> Headers:
        """Return the headers that many messages share: those are made once, and travel to the driver once."""
        names = self.NAMES
        results = [
            (names.name, self.name.encode()),
            (names.op, op),
            (names.vbucket, b"%d" % change.vbucket),
            (names.vb_uuid, change.vb_uuid.encode()),
        ]
        if self.by_collection:
            results.append((names.collection_id, b"%d" % change.collection_id))
            results.append((names.collection, f"{change.scope}.{change.collection}".encode()))
        return results

    def envelope(self, change: ChangedDocument, op: bytes, rollback: int | None) -> bytes:
        """Return Debezium's envelope of a change, as JSON."""
        before, marks = (self.unknown(op), "") if change.before is None else self.document(change.before, "before")
        after = _NULL
        if op != DELETE:
            after, mark = self.document(change.value or b"", "after")
            marks += mark
        key, mark = _key(change.key)
        marks += mark
        if rollback is not None:
            marks += f', "rollback_to": {rollback}'
        vb, seqno, vb_uuid, event, _, _, cas, revision, flags, expiry, milliseconds, _, scope, collection, *_ = change
        place = (
            f', "source": {_source(self.name, self.bucket, scope, collection)}, "ts_ms": '
            f"{'null' if milliseconds is None else milliseconds}, "
            f'"snapshot": "{"true" if op == b"r" else "false"}", "key": {key}, "vbucket": {vb}, "seqno": {seqno}, '
            f'"vb_uuid": "{vb_uuid}", "cas": "{cas}", "rev": {revision}, "flags": {flags}, "expiry": {expiry}, '
            f'"event": "{event}", "rollback": {"false" if rollback is None else "true"}{marks}}}, '
            f'"op": "{op.decode()}", "ts_ms": {time.time_ns() // 1_000_000}}}'
        )
        return b"".join((b'{"before": ', before, b', "after": ', after, place.encode()))

    def document(self, value: bytes, name: str) -> tuple[bytes, str]:
        """Return (the document as JSON, the source block's member for a document in base64; otherwise "")."""
        return document(value, name)

    def unknown(self, op: bytes) -> bytes:
        """Return the JSON in place of a replaced version that did not exist, or that no node has kept."""
        return _NULL

    def topic(self, change: ChangedDocument) -> str:
        """Return the topic of a change's collection."""
        topics, path = self._known, (change.scope, change.collection)
        if path not in topics:
            topics[path] = self._topic_name(change)
        topic: str = topics[path]
        return topic

    def _topic_name(self, change: ChangedDocument) -> str:
        return self.target.topic_of(self.bucket, change.scope or "", change.collection or "")


@lru_cache(1024)
def _source(name: str, bucket: str, scope: str | None, collection: str | None) -> str:
    """Return the part of the source that is the same for all changes of a collection, as JSON that is not closed."""
    fields: dict[str, str | None] = {"version": __version__, "connector": "headwater", "name": name, "db": bucket}
    return json.dumps({**fields, "scope": scope, "collection": collection}).rstrip("}")


def _values(column: Any, *, unsigned: bool = False) -> list[Any]:
    """Return the values of a column; of numbers those without a sign, if so wanted."""
    if column.null_count or not pa.types.is_integer(column.type):
        results: list[Any] = column.to_pylist()
    else:
        numbers = column.to_numpy()
        results = (numbers.view(np.uint64) if unsigned else numbers).tolist()
    return results


def is_json(value: bytes) -> bool:
    """Return True for a JSON text."""
    return bool(value) and bool(valid(np.frombuffer(value, np.uint8), _scratch))


def document(value: bytes, name: str) -> tuple[bytes, str]:
    """Return (the document as JSON, the source block's member for a document in base64; otherwise "")."""
    if is_json(value):
        return value, ""
    return b'"%b"' % b64encode(value), f', "{name}_encoding": "base64"'


def _key(key: bytes) -> tuple[str, str]:
    """Return (the key as JSON, the member that the source block gets if the key is base64; otherwise "")."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f'"{b64encode(key).decode()}"', ', "key_encoding": "base64"'
    return (f'"{text}"' if _plain(key) else json.dumps(text, ensure_ascii=False)), ""
