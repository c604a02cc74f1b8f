"""The formats of a publication's messages: Debezium's envelope (envelopes.py), the same with a schema, CloudEvents, and
documents alone.

Whatever the format, a message's headers say whose it is and which change it brings: by these, and by nothing else, a
publication finds in its topics what a failover took back.

CloudEvents come in the binary mode of its binding to Kafka: a document is the value, byte for byte, and the attributes
are headers. An event without data is then a message without a value, hence a tombstone, which in the structured mode it
would not be (kafka-protocol-binding.md, 3.2.2 and 3.3.2).
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Any, ClassVar, Final
from urllib.parse import quote

from headwater.pipelines.envelopes import DELETE, ChangedDocument, Envelopes, HeaderNames, Headers, document, is_json
from headwater.pipelines.kafka import Message

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_plain = re.compile(rb"[ -~]+").fullmatch
"""Matches keys of the letters that nearly all keys have."""
_forbidden = re.compile("[\0-\x1f\x7f-\x9f\ufdd0-\ufdef]").search
"""Finds what a String of CloudEvents can't have, apart from the last two code points of each plane."""
_BYTES: Final = b"application/octet-stream"
_TYPES: Final = {b"c": b"created", b"u": b"updated", b"r": b"read"}
_GONE: Final = {"deletion": b"deleted", "expiration": b"expired"}


@dataclass(frozen=True)
class ConnectEnvelopes(Envelopes):
    """Makes Debezium's envelope with its schema, as Kafka Connect's JsonConverter reads and writes it.

    Connectors that write into tables need a schema, and the same one for all events: so a document is a field of its
    row, a text of JSON, of the type that Debezium's own connectors give to a column of JSON.

    Source: org.apache.kafka.connect.json.JsonConverter, with schemas.enable=true.
    """

    def envelope(self, change: ChangedDocument, op: bytes, rollback: int | None) -> bytes:
        """Return a schema with an envelope."""
        return b"".join((_schema(self.name), super().envelope(change, op, rollback), b"}"))

    def document(self, value: bytes, name: str) -> tuple[bytes, str]:
        """Return a row with the document, and what the source says of it if that is base64."""
        text, mark = document(value, name)
        return b'{"document": %b}' % json.dumps(text.decode(), ensure_ascii=False).encode(), mark

    def unknown(self, op: bytes) -> bytes:
        """Return a row without a document for a deletion: the JDBC sink fails without a row (3.4.0)."""
        return b'{"document": null}' if op == DELETE else super().unknown(op)


def _struct(fields: Mapping[str, Any], **attributes: Any) -> dict[str, Any]:
    """Return the schema of a struct; a name that ends with ? is that of a field which may be missing."""
    fields_ = [
        {
            **({"type": kind} if isinstance(kind, str) else kind),
            "optional": name.endswith("?"),
            "field": name.strip("?"),
        }
        for name, kind in fields.items()
    ]
    return {"type": "struct", "fields": fields_, **attributes}


@lru_cache(16)
def _schema(name: str) -> bytes:
    """Return the beginning of a message: the schema, and the name of what follows it."""
    row = _struct({"document?": {"type": "string", "name": "io.debezium.data.Json"}}, name=f"{name}.Value")
    texts = dict.fromkeys(("version", "connector", "name", "db", "scope?", "collection?"), "string")
    place = {"ts_ms?": "int64", "snapshot?": "string", "key": "string", "vbucket": "int32", "seqno": "int64"}
    place |= {"vb_uuid": "string", "cas": "string", "rev": "int64", "flags": "int64", "expiry": "int64"}
    place |= {"event": "string", "rollback": "boolean", "rollback_to?": "int64"}
    place |= dict.fromkeys(("before_encoding?", "after_encoding?", "key_encoding?"), "string")
    source = _struct({**texts, **place}, name="headwater.Source")
    fields = {"before?": row, "after?": row, "source": source, "op": "string", "ts_ms?": "int64"}
    envelope = _struct(fields, name=f"{name}.Envelope", optional=False)
    return b'{"schema": %b, "payload": ' % json.dumps(envelope, separators=(",", ":")).encode()


@dataclass(frozen=True)
class PlainMessages(Envelopes):
    """Makes messages whose value is the document, byte for byte; a deletion is a tombstone."""

    def messages(self, change: ChangedDocument, rollback: int | None = None, topic: str | None = None) -> list[Message]:
        """Return the message of a change; the arguments as `Envelopes.messages` has them."""
        op = self.operation(change, rollback)
        value = None if op == DELETE else change.value or b""
        to = topic if topic is not None else self.topic(change)
        return [(to, change.key, value, self.headers(change, op, rollback))]


@dataclass(frozen=True)
class CloudEvents(PlainMessages):
    """Makes CloudEvents 1.0 in the binary mode of its binding to Kafka.

    Source: cloudevents/spec 1.0.2, spec.md and bindings/kafka-protocol-binding.md.
    """

    NAMES: ClassVar[HeaderNames] = HeaderNames(
        "ce_publication", "ce_vbucket", "ce_vbuuid", "ce_seqno", "ce_cas", "ce_op",
        "ce_collectionid", "ce_collection", "ce_rollbackto",
    )  # fmt: skip

    def headers(self, change: ChangedDocument, op: bytes, rollback: int | None) -> Headers:
        """Return the attributes of the event, the place of its change among them."""
        kind = _GONE[change.event] if op == DELETE else _TYPES[op]
        results: Headers = [
            ("ce_specversion", b"1.0"),
            ("ce_id", self._id(change, rollback)),
            ("ce_source", _source(self.bucket, change.scope, change.collection)),
            ("ce_type", b"headwater.document." + kind),
            *_subject(change.key),
        ]
        if change.milliseconds is not None:
            results.append(("ce_time", _time(change.milliseconds)))
        if op != DELETE:
            results.append(("content-type", b"application/json" if is_json(change.value or b"") else _BYTES))
        return results + super().headers(change, op, rollback)

    def _id(self, change: ChangedDocument, rollback: int | None) -> bytes:
        """Return an id that no other event of the source has: what undoes something has the seqno of an earlier one."""
        place = b"%d:%b:%d" % (change.vbucket, change.vb_uuid.encode(), change.seqno)
        if rollback is None:
            return place
        return place + b":undo:%d:%b" % (self.batch, blake2b(change.key, digest_size=8).hexdigest().encode())


@lru_cache(1024)
def _source(bucket: str, scope: str | None, collection: str | None) -> bytes:
    return "/".join(["couchbase://", *(quote(name or "", safe="") for name in (bucket, scope, collection))]).encode()


def _subject(key: bytes) -> Headers:
    """Return the key as a subject: base64, which a further attribute says, where it is no String of CloudEvents."""
    if _is_string(key):
        return [("ce_subject", key)]
    return [("ce_subject", b64encode(key)), ("ce_subjectencoding", b"base64")]


def _is_string(key: bytes) -> bool:
    if _plain(key):
        return True
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return False
    return not _forbidden(text) and all(ord(letter) & 0xFFFE != 0xFFFE for letter in text)


def _time(milliseconds: int) -> bytes:
    at = _EPOCH + timedelta(milliseconds=milliseconds)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()


FORMATS: Final[Mapping[str, type[Envelopes]]] = {
    "debezium": Envelopes,
    "connect": ConnectEnvelopes,
    "cloudevents": CloudEvents,
    "plain": PlainMessages,
}
