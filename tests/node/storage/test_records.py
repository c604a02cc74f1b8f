"""Stored frames, byte by byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.node.storage.records import (
    ControlOpcode,
    StoredDocument,
    VBucketRecord,
    clean_frame,
    control_of,
    deletion_frame,
    drop_frame,
    mutation_frame,
    record_frame,
    rollback_frame,
)

HEAD = "{} 0001 {} 00 0007 {} 00000000 0000000000000002 0000000000000001 0000000000000003"
MUTATION = bytes.fromhex(
    "8057 0001 1f 01 0007 00000021 00000000 0000000000000002 0000000000000001 0000000000000003 00000004 00000005"
    "00000000 0000 00 6b 76".replace(" ", "")
)
DELETION = bytes.fromhex(HEAD.format("8058", "15", "00000016").replace(" ", "") + "00000004 00 6b".replace(" ", ""))
EXPIRATION = bytes.fromhex(HEAD.format("8059", "14", "00000015").replace(" ", "") + "00000004 6b".replace(" ", ""))
u64 = st.integers(0, (1 << 64) - 1)
u32 = st.integers(0, (1 << 32) - 1)


def test_a_document_is_stored_as_dcp_sends_it() -> None:
    frame = mutation_frame(7, b"k", b"v", seqno=1, cas=2, rev_seqno=3, flags=4, expiry=5, datatype=1)
    assert frame == MUTATION
    assert StoredDocument.decode(frame, True) == StoredDocument(b"k", b"v", 4, 5, 2, 3, 1, 1, False, 0, True)


def test_a_tombstone_is_stored_with_its_time() -> None:
    assert deletion_frame(7, b"k", seqno=1, cas=2, rev_seqno=3, delete_time=4) == DELETION
    assert deletion_frame(7, b"k", seqno=1, cas=2, rev_seqno=3, delete_time=4, expired=True) == EXPIRATION
    for frame, expired in ((DELETION, False), (EXPIRATION, True)):
        expected = StoredDocument(b"k", b"", 0, 0, 2, 3, 1, 0, True, 4, False, expired=expired)
        assert StoredDocument.decode(frame, False) == expected


@given(st.binary(max_size=300), st.binary(max_size=300), u64, u64, u64, u32, u32, st.integers(0, 255))
def test_documents_come_back_as_they_went(
    key: bytes, value: bytes, seqno: int, cas: int, rev: int, flags: int, expiry: int, datatype: int
) -> None:
    frame = mutation_frame(
        3, key, value, seqno=seqno, cas=cas, rev_seqno=rev, flags=flags, expiry=expiry, datatype=datatype
    )
    expected = StoredDocument(key, value, flags, expiry, cas, rev, seqno, datatype, False, 0, True)
    assert StoredDocument.decode(frame, True) == expected


def test_control_frames_and_what_they_say() -> None:
    record = VBucketRecord(1, ((10, 5), (9, 0)), 1, 2, 3, 4, 5, 6, consistent=((1, 2),))
    assert control_of(record_frame(7, record)) == (ControlOpcode.RECORD, record)
    assert rollback_frame(7, 9, 8) == bytes.fromhex(
        "80f1000010000007 00000010 00000000 0000000000000000"
    ) + bytes.fromhex("0000000000000009 0000000000000008")
    assert control_of(rollback_frame(7, 9, 8)) == (ControlOpcode.ROLLBACK, (9, 8))
    assert drop_frame(7) == bytes.fromhex("80f2000000000007 00000000 00000000 0000000000000000")
    assert control_of(drop_frame(7)) == (ControlOpcode.DROP, None)
    assert clean_frame() == bytes.fromhex("80f3000000000000 00000000 00000000 0000000000000000")
    assert control_of(clean_frame()) == (ControlOpcode.CLEAN, None)


@pytest.mark.parametrize(
    "frame",
    [
        record_frame(7, VBucketRecord(1))[:-1],
        record_frame(7, VBucketRecord(1)).replace(b"state", b"stats"),
        record_frame(7, VBucketRecord(1))[:24] + b"\xff",
        record_frame(7, VBucketRecord(1))[:24] + b"[]",
        rollback_frame(7, 9, 8)[:-1],
        b"\x80\xf9" + bytes(22),
    ],
)
def test_a_control_frame_that_makes_no_sense_is_a_value_error(frame: bytes) -> None:
    with pytest.raises(ValueError, match="can't be read"):
        control_of(frame)
