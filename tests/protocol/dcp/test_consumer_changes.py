"""Markers and changes before they are believed, and the form in which changes are kept."""

import pytest

from headwater.errors import BadMessage
from headwater.protocol.dcp.consumer_changes import (
    CAS_ALL_ONES,
    Change,
    check_change,
    check_durable,
    read_change,
    read_marker,
)
from headwater.wire import snappy, xattr
from headwater.wire.datatype import Datatype
from headwater.wire.header import VALUE_BYTES_MAX, Frame
from headwater.wire.opcodes import Opcode

SYSTEM, USER = {"_sync": b'{"rev":1}'}, {"tag": b'"x"'}


def deletion(value: bytes = b"", datatype: int = 0) -> Frame:
    return Frame(0x80, Opcode.DCP_DELETION, b"k", bytes(21), value, datatype)


@pytest.mark.parametrize(
    ("extras", "value", "read"),
    [
        ("0000000000000001000000000000000900000005", "", (1, 9, 5, 0, 0)),
        ("00", "0000000000000001000000000000000900000005" + "00" * 16, (1, 9, 5, 0, 0)),
        (
            "02",
            "0000000000000001000000000000000900000005" + "ff" * 16 + "0000000000000004" + "00" * 7 + "08",
            (1, 9, 5, 4, 8),
        ),
    ],
)
def test_a_marker_is_read_in_each_of_its_layouts(extras: str, value: str, read: tuple[int, ...]) -> None:
    frame = Frame(0x80, Opcode.DCP_SNAPSHOT_MARKER, extras=bytes.fromhex(extras), value=bytes.fromhex(value))
    assert read_marker(frame) == read


@pytest.mark.parametrize(("extras", "value"), [(b"\1", 36), (b"\0", 35), (b"\2", 36), (bytes(19), 0), (bytes(20), 1)])
def test_a_marker_of_another_layout_is_refused(extras: bytes, value: int) -> None:
    with pytest.raises(BadMessage):
        read_marker(Frame(0x80, Opcode.DCP_SNAPSHOT_MARKER, extras=extras, value=bytes(value)))


@pytest.mark.parametrize(
    ("opcode", "extras"),
    [
        (Opcode.DCP_MUTATION, 31),
        (Opcode.DCP_MUTATION, 30),
        (Opcode.DCP_DELETION, 18),
        (Opcode.DCP_DELETION, 21),
        (Opcode.DCP_EXPIRATION, 20),
        (Opcode.DCP_EXPIRATION, 18),
    ],
)
def test_every_known_length_of_extras_is_taken_and_no_other(opcode: Opcode, extras: int) -> None:
    check_change(Frame(0x80, opcode, b"k", bytes(extras)))
    for wrong in (17, 19, 22, 29, 32):
        with pytest.raises(BadMessage, match=f"{wrong} bytes of extras"):
            check_change(Frame(0x80, opcode, b"k", bytes(wrong)))


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (Frame(0x80, Opcode.DCP_MUTATION, b"", bytes(31)), "a key of 0 bytes"),
        (Frame(0x80, Opcode.DCP_MUTATION, b"k" * 251, bytes(31)), "a key of 251 bytes"),
        (Frame(0x80, Opcode.DCP_MUTATION, b"k", bytes(28) + b"\0\3\0"), "3 bytes of extended metadata"),
        (Frame(0x80, Opcode.DCP_DELETION, b"k", bytes(16) + b"\1\0"), "256 bytes of extended metadata"),
        (Frame(0x80, Opcode.DCP_MUTATION, b"k", bytes(31), datatype=8), "datatype 0x08"),
        (Frame(0x80, Opcode.DCP_DELETION, b"k", bytes(21), datatype=1), "a deletion of datatype 0x01"),
        (Frame(0x80, Opcode.DCP_EXPIRATION, b"k", bytes(20), datatype=3), "a deletion of datatype 0x03"),
    ],
)
def test_what_a_change_can_not_be_is_named(frame: Frame, problem: str) -> None:
    with pytest.raises(BadMessage, match=problem):
        check_change(frame)


LIES = [
    (b"no Snappy", Datatype.SNAPPY),
    (snappy.compress(bytes(VALUE_BYTES_MAX + 1)), Datatype.SNAPPY),
    (b"\0\0\1\0{}", Datatype.XATTR),
    (snappy.compress(b"\0\0\1\0{}"), Datatype.XATTR | Datatype.SNAPPY),
    (xattr.join({f"a{number}": b"1" for number in range(xattr.PAIRS_MAX + 1)}), Datatype.XATTR),
]


@pytest.mark.parametrize(("value", "datatype"), LIES)
def test_a_value_that_is_not_what_its_datatype_says_is_refused(value: bytes, datatype: int) -> None:
    with pytest.raises(BadMessage):
        check_change(Frame(0x80, Opcode.DCP_MUTATION, b"k", bytes(31), value, datatype))
    with pytest.raises(BadMessage):
        check_durable(Frame(0x80, Opcode.DCP_PREPARE, b"k", bytes(31), value, datatype))


@pytest.mark.parametrize(("value", "datatype"), [lie for lie in LIES if lie[1] & Datatype.XATTR])
def test_a_tombstone_whose_attributes_can_not_be_read_is_refused_before_it_is_applied(
    value: bytes, datatype: int
) -> None:
    """Such a tombstone ended the connection and came first on the next one, so that no later change ever came."""
    with pytest.raises(BadMessage):
        check_change(deletion(value, datatype))


def test_delete_times_are_not_taken_for_metadata() -> None:
    check_change(Frame(0x80, Opcode.DCP_DELETION, b"k", bytes(16) + b"\xff" * 5))


def test_a_mutation_is_kept_as_it_is() -> None:
    extras = bytes.fromhex("00000000000000060000000000000003020000066b49d20000000000000000")
    frame = Frame(0x80, Opcode.DCP_MUTATION, b"hello", extras, b"world", datatype=1, cas=77)
    expected = Change(b"hello", b"world", 6, 3, 77, 1, flags=0x0200_0006, expiry=1_800_000_000)
    assert read_change(frame, deleted_user_xattrs=False) == expected


def test_a_cas_of_all_ones_is_made_anew() -> None:
    frame = Frame(0x80, Opcode.DCP_MUTATION, b"k", bytes(31), cas=CAS_ALL_ONES)
    assert read_change(frame, deleted_user_xattrs=False).cas == 0


@pytest.mark.parametrize(
    ("opcode", "extras", "expired", "time"),
    [
        (Opcode.DCP_DELETION, bytes(18), False, None),
        (Opcode.DCP_DELETION, bytes(16) + (9).to_bytes(4) + b"\0", False, 9),
        (Opcode.DCP_EXPIRATION, bytes(16) + (9).to_bytes(4), True, 9),
        (Opcode.DCP_EXPIRATION, bytes(18), True, None),
    ],
)
def test_a_tombstone_tells_its_time_where_it_has_one(
    opcode: Opcode, extras: bytes, expired: bool, time: int | None
) -> None:
    made = read_change(Frame(0x80, opcode, b"k", extras), deleted_user_xattrs=False)
    assert (made.deleted, made.expired, made.delete_time) == (True, expired, time)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("pairs", "keeps_user", "kept"),
    [
        (SYSTEM | USER, False, SYSTEM),
        (SYSTEM | USER, True, SYSTEM | USER),
        (USER, False, {}),
        (USER, True, USER),
        ({}, True, {}),
    ],
)
def test_of_a_tombstones_value_only_xattrs_survive(
    pairs: dict[str, bytes], keeps_user: bool, kept: dict[str, bytes], compressed: bool
) -> None:
    value, datatype = xattr.join(pairs, b"body"), Datatype.XATTR
    if compressed:
        value, datatype = snappy.compress(value), datatype | Datatype.SNAPPY
    made = read_change(deletion(value, datatype), deleted_user_xattrs=keeps_user)
    assert (made.value, made.datatype) == ((xattr.join(kept), Datatype.XATTR) if kept else (b"", 0))


def test_a_tombstones_body_without_xattrs_is_dropped() -> None:
    assert read_change(deletion(b"body"), deleted_user_xattrs=True).value == b""


@pytest.mark.parametrize(("value", "datatype"), [(b"\0\0\0\xff", Datatype.XATTR), (b"\xff\xff", 0x06)])
def test_a_value_that_can_not_be_read_is_malformed(value: bytes, datatype: int) -> None:
    with pytest.raises(BadMessage):
        read_change(deletion(value, datatype), deleted_user_xattrs=False)
