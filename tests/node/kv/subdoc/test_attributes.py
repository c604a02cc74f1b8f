"""Attributes that are made, and macros."""

import json

import pytest

from headwater.node.kv.subdoc import attributes
from headwater.node.kv.subdoc.attributes import ChangeNumbers
from headwater.node.refused import CommandRefused
from headwater.node.storage.records import StoredDocument
from headwater.wire.status import Status

TOMBSTONE = StoredDocument(b"k", b"", 0, 0, 3 * 10**9, 4, 5, 0, True, 9, True)
CHANGE = ChangeNumbers(0x0102030405060708, 9, b"123456789")


def test_a_macro_is_the_number_that_it_names() -> None:
    assert attributes.expanded(b'"${Mutation.CAS}"', CHANGE, None) == b'"0x0807060504030201"'
    assert attributes.expanded(b'"${Mutation.seqno}"', CHANGE, None) == b'"0x0000000000000009"'
    assert attributes.expanded(b'"${Mutation.value_crc32c}"', CHANGE, None) == b'"0xe3069283"'
    assert attributes.expanded(b'"${$document.revid}"', CHANGE, TOMBSTONE) == b'"4"'


@pytest.mark.parametrize("value", [b"1", b'"${Mutation.cas}"', b'"${$document.nope}"', b'"${', b""])
def test_another_value_is_no_macro(value: bytes) -> None:
    with pytest.raises(CommandRefused) as caught:
        attributes.expanded(value, CHANGE, TOMBSTONE)
    assert caught.value.status == Status.SUBDOC_XATTR_UNKNOWN_MACRO


def test_a_tombstone_is_described() -> None:
    told = json.loads(attributes.document_attribute(TOMBSTONE, b"", 7))
    assert (told["deleted"], told["datatype"], told["last_modified"]) == (True, ["raw"], "3")
    assert (told["value_bytes"], told["value_crc32c"], told["vbucket_uuid"]) == (0, "0x00000000", "0x0000000000000007")


def test_a_name_is_short_and_not_made_up() -> None:
    assert attributes.name_of(("_sync", "rev")) == "_sync"
    for path, status in (
        ((), Status.XATTR_EINVAL),
        ((0,), Status.XATTR_EINVAL),
        (("x" * 16,), Status.XATTR_EINVAL),
        (("a\0b",), Status.XATTR_EINVAL),
        (("$nope",), Status.SUBDOC_XATTR_UNKNOWN_VATTR),
    ):
        with pytest.raises(CommandRefused) as caught:
            attributes.name_of(path)
        assert caught.value.status == status
