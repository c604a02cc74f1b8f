"""Messages that are no envelope: literal headers and values, without a broker. With one they are in test_publish.py."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import pytest

from headwater.options import options_of
from headwater.pipelines.envelopes import ChangedDocument
from headwater.pipelines.formats import FORMATS, CloudEvents, ConnectEnvelopes, PlainMessages
from headwater.pipelines.jobs import Publish
from headwater.pipelines.kafka import KafkaTarget

TARGET = KafkaTarget("k:9092", "changes", "shop-changes")
PLAIN = ChangedDocument(
    3, 17, "00a1b2c3d4e5f607", "mutation", b"ann", b'{"n": 1}', 1796064870490112000, 2, 0, 0, 1796064870490
)
EVENTS = CloudEvents("shop-changes", "shop", TARGET, batch=4)
DOCUMENTS = PlainMessages("shop-changes", "shop", TARGET)


def attributes(change: ChangedDocument, rollback: int | None = None) -> dict[str, bytes]:
    ((_, _, _, headers),) = EVENTS.messages(change, rollback)
    assert len(dict(headers)) == len(headers)
    return dict(headers)


def test_each_format_of_the_option_has_its_messages() -> None:
    (format_,) = [each for each in options_of(Publish) if each.name == "format"]
    assert set(format_.choices) == set(FORMATS)


def test_a_cloud_event_has_the_document_as_its_value_and_attributes_as_headers() -> None:
    ((topic, key, value, headers),) = EVENTS.messages(PLAIN)
    assert (topic, key, value) == ("changes", b"ann", b'{"n": 1}')
    assert headers == [
        ("ce_specversion", b"1.0"),
        ("ce_id", b"3:00a1b2c3d4e5f607:17"),
        ("ce_source", b"couchbase:///shop/_default/_default"),
        ("ce_type", b"headwater.document.updated"),
        ("ce_subject", b"ann"),
        ("ce_time", b"2026-11-30T18:54:30.490Z"),
        ("content-type", b"application/json"),
        ("ce_publication", b"shop-changes"),
        ("ce_op", b"u"),
        ("ce_vbucket", b"3"),
        ("ce_vbuuid", b"00a1b2c3d4e5f607"),
        ("ce_seqno", b"17"),
        ("ce_cas", b"1796064870490112000"),
    ]


def test_names_of_attributes_are_what_cloud_events_allow() -> None:
    change = PLAIN._replace(key=b"\xff", collection_id=8, scope="eu%", collection="carts")
    made = CloudEvents("n", "shop", TARGET, by_collection=True)
    ((_, _, _, headers),) = made.messages(change, 12)
    names = [name.removeprefix("ce_") for name, _ in headers if name.startswith("ce_")]
    assert all(name.isalnum() and name.islower() and name.isascii() and len(name) <= 20 for name in names)
    assert {"collectionid", "collection", "rollbackto", "subjectencoding"} < set(names)
    assert dict(headers)["ce_source"] == b"couchbase:///shop/eu%25/carts"


@pytest.mark.parametrize(
    ("event", "operation", "kind"),
    [
        ("mutation", "create", b"created"),
        ("mutation", "update", b"updated"),
        ("deletion", "delete", b"deleted"),
        ("expiration", "expire", b"expired"),
    ],
)
def test_the_type_of_a_cloud_event_says_what_happened(event: str, operation: str, kind: bytes) -> None:
    assert attributes(PLAIN._replace(event=event, operation=operation))["ce_type"] == b"headwater.document." + kind
    read = CloudEvents("n", "shop", TARGET, reads={3: 17})
    assert dict(read.messages(PLAIN)[0][3])["ce_type"] == b"headwater.document.read"


@pytest.mark.parametrize("made", [EVENTS, DOCUMENTS])
def test_a_deletion_is_a_tombstone_and_the_empty_document_is_none(made: PlainMessages) -> None:
    ((_, key, value, headers),) = made.messages(PLAIN._replace(event="deletion", value=None, before=b"1"))
    assert (key, value) == (b"ann", None)
    assert dict(headers)[made.NAMES.op] == b"d" and "content-type" not in dict(headers)
    assert made.messages(PLAIN._replace(value=b""))[0][2] == b""


@pytest.mark.parametrize("value", [b"plain text", b"\xff\x00", b"{", b'{"before": null, "op": "d"}'])
def test_a_document_is_the_value_byte_for_byte_whatever_it_is(value: bytes) -> None:
    change = PLAIN._replace(value=value, key=b"\xff")
    assert DOCUMENTS.messages(change)[0][1:3] == EVENTS.messages(change)[0][1:3] == (b"\xff", value)
    wanted = b"application/json" if value[:2] == b'{"' else b"application/octet-stream"
    assert attributes(change)["content-type"] == wanted


@pytest.mark.parametrize("key", [b"\xff", b"a\nb", b"\xc2\x80", "\ufffe".encode(), "\U0001ffff".encode(), b"\x7f"])
def test_a_key_that_is_no_string_of_cloud_events_is_base64_and_an_attribute_says_so(key: bytes) -> None:
    there = attributes(PLAIN._replace(key=key))
    assert b64decode(there["ce_subject"]) == key and there["ce_subjectencoding"] == b"base64"


@pytest.mark.parametrize("key", [b"ann", b'a"\\b', "grün".encode(), "\ufffd".encode()])
def test_other_keys_are_the_subject_as_they_are(key: bytes) -> None:
    there = attributes(PLAIN._replace(key=key))
    assert there["ce_subject"] == key and "ce_subjectencoding" not in there


def test_what_undoes_something_is_marked_and_has_an_id_of_its_own() -> None:
    there = attributes(PLAIN, 12)
    assert there["ce_rollbackto"] == b"12" and there["ce_op"] == b"u"
    ids = {attributes(change, to)["ce_id"] for to in (None, 12) for change in (PLAIN, PLAIN._replace(key=b"bob"))}
    assert len(ids) == 3  # without a rollback no two documents have the same seqno
    assert dict(DOCUMENTS.messages(PLAIN, 12)[0][3])["headwater.rollback"] == b"12"


def test_a_time_that_is_none_is_left_out() -> None:
    assert "ce_time" not in attributes(PLAIN._replace(milliseconds=None))


def connect(change: ChangedDocument, rollback: int | None = None) -> Any:
    """Read a message as JsonConverter does: only fields of the schema, and each that is not optional must be there."""
    ((_, _, value, _), *_) = ConnectEnvelopes("n", "shop", TARGET).messages(change, rollback)
    told = json.loads(value or b"")
    return converted(told["schema"], told["payload"])


def converted(schema: dict[str, Any], value: Any) -> Any:
    if value is None:
        assert schema["optional"]
        return None
    if schema["type"] != "struct":
        kinds = {"string": str, "boolean": bool, "int32": int, "int64": int}
        assert isinstance(value, kinds[schema["type"]])
        return value
    return {field["field"]: converted(field, value.get(field["field"])) for field in schema["fields"]}


def test_an_envelope_for_connect_follows_its_schema_and_a_document_is_a_text_of_json() -> None:
    told = connect(PLAIN._replace(value=b'{"n": "gr\xc3\xbcn"}', before=b"1"))
    assert (told["before"], told["after"]) == ({"document": "1"}, {"document": '{"n": "gr\xfcn"}'})
    assert told["source"]["rollback_to"] is None and told["op"] == "u"
    told = connect(PLAIN._replace(value=b"\xff", key=b"\xff", milliseconds=None, scope=None), 12)
    assert told["after"] == {"document": '"/w=="'}
    source = told["source"]
    assert (source["after_encoding"], source["key_encoding"], source["rollback_to"]) == ("base64", "base64", 12)
    gone = connect(PLAIN._replace(event="deletion", value=None))
    # Debezium's sink for JDBC fails at a deletion without a row.
    assert (gone["before"], gone["after"], gone["op"]) == ({"document": None}, None, "d")


def test_the_schema_of_an_envelope_names_it_so_that_sinks_know_it() -> None:
    ((_, _, value, _),) = ConnectEnvelopes("n", "shop", TARGET).messages(PLAIN)
    schema = json.loads(value or b"")["schema"]
    assert schema["name"] == "n.Envelope"
    (after,) = [each for each in schema["fields"] if each["field"] == "after"]
    assert after["fields"] == [
        {"type": "string", "name": "io.debezium.data.Json", "optional": True, "field": "document"}
    ]
