"""The messages that a publication makes of changes: Debezium's envelope in JSON, and the headers that all have.

    {"before": ..., "after": ..., "source": {...}, "op": "u", "ts_ms": ...}

A document that is JSON stands in the envelope as it is, byte for byte: nothing is parsed here and written anew. What is
no JSON is base64, and `source` says so. No dict is made for a change: an envelope is one template of bytes, filled in.
"""

from __future__ import annotations

import json
import re
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater import __version__
from headwater.kernels.json import SCRATCH_BYTES, valid
from headwater.lake.shape import modified_at
from headwater.pipelines.kafka import KafkaTarget, Message

Headers = list[tuple[str, bytes]]

NAME, VBUCKET, VB_UUID, SEQNO, CAS, OP = (
    f"headwater.{each}" for each in ("name", "vbucket", "vb_uuid", "seqno", "cas", "op")
)
COLLECTION_ID, COLLECTION, ROLLBACK = "headwater.collection_id", "headwater.collection", "headwater.rollback"
DELETE: Final = b"d"
_OPERATIONS: Final = {"create": b"c", "update": b"u"}
_COLUMNS = ("vbucket", "seqno", "vb_uuid", "event", "key", "value", "cas", "rev_seqno", "flags", "expiry")
_OF_COLLECTIONS = ("collection_id", "scope", "collection")
_OF_BEFORES = ("before", "operation")
_DEFAULT = "_default"
_U64 = (1 << 64) - 1
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
    def identity(self) -> tuple[int, bytes]:
        """The collection's id and the key: the same document in another change has the same."""
        return self.collection_id, self.key

    @property
    def is_deletion(self) -> bool:
        """True for a deletion or an expiration."""
        return self.event != "mutation"


@dataclass(frozen=True)
class Envelopes:
    """Makes messages of changes; travels to tasks pickled.

    Attributes:
        name: the name of the publication.
        bucket: the name of the bucket.
        target: names the topics.
        by_collection: True if collections are chosen.
        before: True if changes come with what they replaced.
        reads: by vbucket, the seqno up to which documents are read and not watched: "r".
    """

    name: str
    bucket: str
    target: KafkaTarget
    by_collection: bool = False
    before: bool = False
    reads: Mapping[int, int] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the source that are needed."""
        chosen = _OF_COLLECTIONS if self.by_collection else ()
        return (*_COLUMNS, *chosen, *(_OF_BEFORES if self.before else ()))

    def changes(self, batch: pa.RecordBatch) -> Iterator[ChangedDocument]:
        """Yield the changes of a batch of `columns`.

        A collection without a name came and went before anybody could ask for it: its changes are left out.
        """
        plain = [batch.column(name).to_pylist() for name in _COLUMNS]
        plain.append(modified_at(batch.column("cas")).cast(pa.int64()).to_pylist())
        rows = batch.num_rows
        more = [batch.column(name).to_pylist() for name in _OF_COLLECTIONS] if self.by_collection else []
        more = more or [[0] * rows, [_DEFAULT] * rows, [_DEFAULT] * rows]
        if self.before:
            # The value of a version that is none is null.
            more.append(pc.struct_field(batch.column("before"), "value").to_pylist())
            more.append(batch.column("operation").to_pylist())
        for vb, seqno, uuid, event, key, value, cas, rev, flags, expiry, micros, *rest in zip(
            *plain, *more, strict=True
        ):
            if rest[1] is not None:
                time_ = None if micros is None else micros // 1000
                yield ChangedDocument(
                    vb, seqno & _U64, uuid, event, key, value, cas & _U64, rev & _U64, flags, expiry, time_, *rest
                )

    def messages(self, change: ChangedDocument, rollback: int | None = None, topic: str | None = None) -> list[Message]:
        """Return the messages of a change: its event, and behind a deletion a tombstone.

        Args:
            rollback: the seqno to which a failover took the vbucket back, if the event sets right what was lost.
            topic: where to; None for the topic of its collection.
        """
        op = self.operation(change, rollback)
        headers = self.headers(change, op, rollback)
        to = topic if topic is not None else self._topic(change)
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
        results = [
            (NAME, self.name.encode()),
            (VBUCKET, b"%d" % change.vbucket),
            (VB_UUID, change.vb_uuid.encode()),
            (SEQNO, b"%d" % change.seqno),
            (CAS, b"%d" % change.cas),
            (OP, op),
        ]
        if self.by_collection:
            results.append((COLLECTION_ID, b"%d" % change.collection_id))
            results.append((COLLECTION, f"{change.scope}.{change.collection}".encode()))
        if rollback is not None:
            results.append((ROLLBACK, b"%d" % rollback))
        return results

    def envelope(self, change: ChangedDocument, op: bytes, rollback: int | None) -> bytes:
        """Return Debezium's envelope of a change, as JSON."""
        before, marks = (_NULL, b"") if change.before is None else _document(change.before, b"before")
        after = _NULL
        if op != DELETE:
            after, mark = _document(change.value or b"", b"after")
            marks += mark
        key, mark = _key(change.key)
        marks += mark
        if rollback is not None:
            marks += b', "rollback_to": %d' % rollback
        return _template(self.name, self.bucket, change.scope, change.collection) % (
            before,
            after,
            _NULL if change.milliseconds is None else b"%d" % change.milliseconds,
            b"true" if op == b"r" else b"false",
            key,
            change.vbucket,
            change.seqno,
            change.vb_uuid.encode(),
            change.cas,
            change.revision,
            change.flags,
            change.expiry,
            change.event.encode(),
            b"false" if rollback is None else b"true",
            marks,
            op,
            time.time_ns() // 1_000_000,
        )

    def _topic(self, change: ChangedDocument) -> str:
        return self.target.topic_of(self.bucket, change.scope or "", change.collection or "")


@lru_cache(1024)
def _template(name: str, bucket: str, scope: str | None, collection: str | None) -> bytes:
    """Return the envelope of a collection's changes, with places for what differs."""
    known: dict[str, str | None] = {"version": __version__, "connector": "headwater", "name": name, "db": bucket}
    known |= {"scope": scope, "collection": collection}
    source = json.dumps(known).encode().replace(b"%", b"%%").rstrip(b"}")
    return (
        b'{"before": %b, "after": %b, "source": '
        + source
        + b', "ts_ms": %b, "snapshot": "%b", "key": %b, "vbucket": %d, "seqno": %d, "vb_uuid": "%b", "cas": "%d",'
        b' "rev": %d, "flags": %d, "expiry": %d, "event": "%b", "rollback": %b%b}, "op": "%b", "ts_ms": %d}'
    )


def _document(value: bytes, name: bytes) -> tuple[bytes, bytes]:
    """Return a document as JSON, and what the source says of it if that is base64."""
    if value and valid(np.frombuffer(value, np.uint8), _scratch):
        return value, b""
    return b'"%b"' % b64encode(value), b', "%b_encoding": "base64"' % name


def _key(key: bytes) -> tuple[bytes, bytes]:
    """Return a key as JSON, and what the source says of it if that is base64."""
    if _plain(key):
        return b'"%b"' % key, b""
    try:
        return json.dumps(key.decode(), ensure_ascii=False).encode(), b""
    except UnicodeDecodeError:
        return b'"%b"' % b64encode(key), b', "key_encoding": "base64"'
