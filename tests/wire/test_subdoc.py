"""Sub-document requests and answers in bytes, both ways."""

import dataclasses

import pytest

from headwater.errors import BadMessage
from headwater.wire import subdoc
from headwater.wire.dialect import decode
from headwater.wire.opcodes import Opcode

HEAD = "00000000 0000000000000000"  # opaque, CAS
LOOKUP = bytes.fromhex(f"80c50001 03000000 00000007 {HEAD} 0003 00 6b 612e62")
UPSERT = bytes.fromhex(f"80c80001 08000000 0000000d {HEAD} 0001 01 0000000a 01 6b 61 227822")
PATHS = bytes.fromhex(f"80d00001 00000000 0000000a {HEAD} 6b c5 04 0001 78 c6 00 0000")
CHANGES = bytes.fromhex(f"80d10001 01000000 0000000c {HEAD} 01 6b c8 00 0001 00000001 61 31")


def test_a_lookup_in_bytes() -> None:
    asked = subdoc.SubdocGet(key=b"k", path_bytes=3, value=b"a.b")
    assert asked.encode() == LOOKUP and decode(LOOKUP) == asked


def test_a_change_in_bytes() -> None:
    asked = subdoc.SubdocDictUpsert(key=b"k", path_bytes=1, flags=1, expiration=10, doc_flags=1, value=b'a"x"')
    assert asked.encode() == UPSERT and decode(UPSERT) == asked


def test_several_paths_in_bytes() -> None:
    asked = subdoc.SubdocMultiLookup(key=b"k", specs=[(Opcode.SUBDOC_GET, 4, b"x"), (Opcode.SUBDOC_EXISTS, 0, b"")])
    assert asked.encode() == PATHS and decode(PATHS) == asked
    changes = subdoc.SubdocMultiMutation(key=b"k", doc_flags=1, specs=[(Opcode.SUBDOC_DICT_UPSERT, 0, b"a", b"1")])
    assert changes.encode() == CHANGES and decode(CHANGES) == changes


def test_answers_in_bytes() -> None:
    lookup, mutation = Opcode.SUBDOC_MULTI_LOOKUP, Opcode.SUBDOC_MULTI_MUTATION
    looked = subdoc.SubdocMultiLookupResponse(opcode=lookup, status=0xCC, results=[(0, b"1"), (0xC0, b"")])
    stored = subdoc.SubdocMultiStored(opcode=mutation, cas=5, results=[(1, 0, b"42")])
    failed = subdoc.SubdocPathFailure(opcode=mutation, status=0xCC, index=2, path_status=0xC9)
    for answer, value in (
        (looked, "0000 00000001 31 00c0 00000000"),
        (stored, "01 0000 00000002 3432"),
        (failed, "02 00c9"),
    ):
        assert answer.frame().value == bytes.fromhex(value) and decode(answer.encode()) == answer


@pytest.mark.parametrize("cut", range(1, 10))
def test_a_spec_that_is_cut_is_told(cut: int) -> None:
    whole = subdoc.SubdocMultiMutation(key=b"k", specs=[(Opcode.SUBDOC_DICT_UPSERT, 0, b"a", b"1")]).frame()
    with pytest.raises(BadMessage, match="bytes expected at offset"):
        decode(dataclasses.replace(whole, value=whole.value[:-cut]))


def test_the_number_of_paths_is_bounded_while_they_are_read() -> None:
    asked = subdoc.SubdocMultiLookup(key=b"k", specs=[(Opcode.SUBDOC_GET, 0, b"a")] * 5000)
    assert len(subdoc.SubdocMultiLookup.decode(asked.encode()).specs) == subdoc.SPECS_MAX + 1
