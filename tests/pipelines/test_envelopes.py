"""The messages of a publication: literal JSON, without a broker."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import pyarrow as pa
import pytest

from headwater import __version__
from headwater.pipelines.envelopes import ChangedDocument, Envelopes
from headwater.pipelines.kafka import KafkaTarget

TARGET = KafkaTarget("k:9092", "changes", "shop-changes")
PLAIN = ChangedDocument(
    3, 17, "00a1b2c3d4e5f607", "mutation", b"ann", b'{"n": 1}', 1796064870490112000, 2, 0, 0, 1796064870490
)


def envelope(change: ChangedDocument, made: Envelopes | None = None, rollback: int | None = None) -> dict[str, Any]:
    (_, _, value, _), *_ = (made or Envelopes("shop-changes", "shop", TARGET)).messages(change, rollback)
    assert value is not None
    told: dict[str, Any] = json.loads(value)
    assert told.pop("ts_ms") > 1_600_000_000_000
    return told


def test_the_envelope_is_debeziums() -> None:
    assert envelope(PLAIN) == {
        "before": None,
        "after": {"n": 1},
        "source": {
            "version": __version__,
            "connector": "headwater",
            "name": "shop-changes",
            "db": "shop",
            "scope": "_default",
            "collection": "_default",
            "ts_ms": 1796064870490,
            "snapshot": "false",
            "key": "ann",
            "vbucket": 3,
            "seqno": 17,
            "vb_uuid": "00a1b2c3d4e5f607",
            "cas": "1796064870490112000",
            "rev": 2,
            "flags": 0,
            "expiry": 0,
            "event": "mutation",
            "rollback": False,
        },
        "op": "u",
    }


def test_a_document_stands_in_the_envelope_byte_for_byte() -> None:
    (_, key, value, _), *_ = Envelopes("n", "shop", TARGET).messages(PLAIN._replace(value=b'{"a":1.50 , "a":2}'))
    assert key == b"ann" and value is not None and value.startswith(b'{"before": null, "after": {"a":1.50 , "a":2}, ')


@pytest.mark.parametrize("value", [b"plain text", b"", b"\xff\x00", b"{", b"NaN", b'"\xc3"'])
def test_what_is_no_json_is_base64_and_the_source_says_so(value: bytes) -> None:
    told = envelope(PLAIN._replace(value=value, before=value))
    assert b64decode(told["after"]) == value == b64decode(told["before"])
    assert told["source"]["after_encoding"] == told["source"]["before_encoding"] == "base64"


def test_the_key_of_the_message_is_the_documents_whatever_it_is() -> None:
    made = Envelopes("n", "shop", TARGET)
    for key, shown in ((b'a"\\b', 'a"\\b'), ("grün".encode(), "grün"), (b"a\nb", "a\nb")):
        change = PLAIN._replace(key=key)
        assert made.messages(change)[0][1] == key
        source = envelope(change)["source"]
        assert source["key"] == shown and "key_encoding" not in source
    source = envelope(PLAIN._replace(key=b"\xff"))["source"]
    assert (source["key"], source["key_encoding"]) == ("/w==", "base64")


def test_behind_a_deletion_comes_a_tombstone() -> None:
    made = Envelopes("n", "shop", TARGET)
    event, tombstone = made.messages(PLAIN._replace(event="expiration", value=None, before=b"1"))
    assert tombstone == ("changes", b"ann", None, event[3])
    told = json.loads(event[2] or b"")
    assert (told["op"], told["before"], told["after"], told["source"]["event"]) == ("d", 1, None, "expiration")


@pytest.mark.parametrize(
    ("change", "op"),
    [
        (PLAIN._replace(operation="create"), "c"),
        (PLAIN._replace(operation="update", revision=1), "u"),
        (PLAIN._replace(revision=1), "c"),
        (PLAIN._replace(revision=2), "u"),
        (PLAIN._replace(seqno=9), "r"),
        (PLAIN._replace(seqno=9, operation="update"), "u"),
        (PLAIN._replace(seqno=9, event="deletion"), "d"),
    ],
)
def test_the_operation_is_known_or_follows_from_the_revision(change: ChangedDocument, op: str) -> None:
    assert envelope(change, Envelopes("n", "shop", TARGET, reads={3: 9}))["op"] == op


def test_what_undoes_something_says_so_in_the_source_and_in_a_header() -> None:
    made = Envelopes("n", "shop", TARGET)
    told = envelope(PLAIN, made, rollback=12)
    assert (told["op"], told["source"]["rollback"], told["source"]["rollback_to"]) == ("u", True, 12)
    assert made.messages(PLAIN, 12)[0][3] == [
        ("headwater.name", b"n"),
        ("headwater.op", b"u"),
        ("headwater.vbucket", b"3"),
        ("headwater.vb_uuid", b"00a1b2c3d4e5f607"),
        ("headwater.seqno", b"17"),
        ("headwater.cas", b"1796064870490112000"),
        ("headwater.rollback", b"12"),
    ]


def test_a_template_names_a_topic_for_each_collection() -> None:
    made = Envelopes("n", "shop", KafkaTarget("k:9092", "x.{bucket}.{scope}.{collection}", "n"), by_collection=True)
    change = PLAIN._replace(collection_id=8, scope="eu%", collection="carts")
    ((topic, _, _, headers),) = made.messages(change)
    assert topic == "x.shop.eu_.carts"
    assert headers[4:6] == [("headwater.collection_id", b"8"), ("headwater.collection", b"eu%.carts")]
    assert envelope(change, made)["source"]["collection"] == "carts"


def test_changes_are_read_from_the_columns_of_the_source() -> None:
    made = Envelopes("n", "shop", TARGET, by_collection=True, before=True)
    rows = {
        "vbucket": pa.array([3, 3], pa.int32()),
        "seqno": pa.array([17, 18], pa.int64()),
        "vb_uuid": ["00a1b2c3d4e5f607"] * 2,
        "event": ["mutation"] * 2,
        "key": pa.array([b"ann", b"bob"], pa.binary()),
        "value": pa.array([b"2", b"3"], pa.binary()),
        "cas": pa.array([1796064870490112000, -1], pa.int64()),
        "rev_seqno": pa.array([2, 1], pa.int64()),
        "flags": pa.array([0, 0], pa.int64()),
        "expiry": pa.array([0, 0], pa.int64()),
        "collection_id": pa.array([8, 9], pa.int64()),
        "scope": ["eu", None],  # nobody knows any more what it was called
        "collection": ["carts", None],
        "before": pa.array([{"value": b"1"}, None], pa.struct([("value", pa.binary())])),
        "operation": ["update", "create"],
    }
    assert tuple(rows) == made.columns
    (change,) = made.changes(pa.RecordBatch.from_pydict(rows))
    assert change == PLAIN._replace(
        value=b"2", collection_id=8, scope="eu", collection="carts", before=b"1", operation="update"
    )
