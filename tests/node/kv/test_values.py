"""Values as they are stored and as a connection may see them."""

import tracemalloc

import pytest

from headwater.node.kv import values
from headwater.node.refused import CommandRefused
from headwater.node.storage.records import StoredDocument
from headwater.wire import snappy, xattr
from headwater.wire.features import Feature

BODY = b'{"body":"' + b"b" * 100 + b'"}'
WITH_XATTRS = xattr.join({"_system": b"1", "user": b"2"}, BODY)


def document(value: bytes, datatype: int) -> StoredDocument:
    return StoredDocument(b"k", value, 0, 0, 1, 1, 1, datatype, False, 0, True)


@pytest.mark.parametrize(
    ("features", "value", "datatype"),
    [
        ((), BODY, 0),
        ((Feature.JSON,), BODY, 1),
        ((Feature.XATTR,), BODY, 0),
        ((Feature.SNAPPY,), BODY, 0),
        ((Feature.XATTR, Feature.JSON), BODY, 1),
        ((Feature.XATTR, Feature.JSON, Feature.SNAPPY), BODY, 1),
    ],
)
def test_what_was_not_negotiated_is_taken_away_and_attributes_always(
    features: tuple[int, ...], value: bytes, datatype: int
) -> None:
    stored = document(snappy.compress(WITH_XATTRS), 7)
    assert values.representation(stored, frozenset(features)) == (value, datatype)


def test_a_compressed_body_without_attributes_is_shown_as_it_is() -> None:
    stored = document(snappy.compress(BODY), 3)
    assert values.representation(stored, frozenset({Feature.SNAPPY, Feature.JSON})) == (snappy.compress(BODY), 3)


def test_the_json_bit_is_about_the_body() -> None:
    assert values.accepted(WITH_XATTRS, 4) == 5
    assert values.accepted(xattr.join({"u": b"{}"}, b"{"), 5) == 4
    assert values.accepted(snappy.compress(BODY), 2) == 3
    assert values.accepted(b"", 1) == 0


def test_a_deletion_keeps_system_attributes_only() -> None:
    assert values.system_attributes(document(WITH_XATTRS, 4)) == xattr.join({"_system": b"1"})
    assert values.system_attributes(document(snappy.compress(WITH_XATTRS), 6)) == xattr.join({"_system": b"1"})
    assert values.system_attributes(document(BODY, 1)) == b""


@pytest.mark.parametrize(
    ("value", "datatype", "status"),
    [
        (b"\xff\xff\xff\xff\x0f", 2, 4),
        (b"", 2, 4),
        (b"\0\0\0\x09abc", 4, 0x87),
        (b"", 4, 0x87),
        (xattr.join({"$virtual": b"1"}), 4, 0x87),
        (xattr.join({"_s": bytes(xattr.SYSTEM_BYTES_MAX).replace(b"\0", b"1")}), 4, 3),
    ],
)
def test_values_that_lie_about_themselves_are_refused(value: bytes, datatype: int, status: int) -> None:
    with pytest.raises(CommandRefused) as caught:
        values.accepted(value, datatype)
    assert caught.value.status == status


@pytest.mark.parametrize(("pairs", "datatype"), [({}, 2), ({"user": b"2"}, 6)], ids=["plain", "with attributes"])
def test_a_large_compressed_value_is_looked_into_without_a_copy_of_what_it_inflates_to(
    pairs: dict[str, bytes], datatype: int
) -> None:
    body = b'"' + b"b" * (1 << 20) + b'"'
    squeezed = snappy.compress(xattr.join(pairs, body) if pairs else body)
    tracemalloc.start()
    try:
        assert values.accepted(squeezed, datatype) == datatype | 1
        assert tracemalloc.get_traced_memory()[1] < len(body) // 2
    finally:
        tracemalloc.stop()
