"""DCP_OPEN: the literal bytes of a real client, and everything that is refused."""

import struct

import pytest

from headwater.errors import BadMessage
from headwater.protocol.dcp.opening import negotiated_by, read_open
from headwater.wire.dcp import Open
from headwater.wire.features import Feature
from headwater.wire.header import Frame

CAPTURED = bytes.fromhex("8050000e080000000000001650505050000000000000000000000000000000016361702d70726f64756365722d31")


def opening(
    key: bytes = b"name", flags: int = 1, *, extras: bytes | None = None, value: bytes = b"", datatype: int = 0
) -> Frame:
    return Frame(0x80, 0x50, key, struct.pack(">II", 0, flags) if extras is None else extras, value, datatype, opaque=7)


def test_the_open_of_a_real_client() -> None:
    assert read_open(Frame.decode(CAPTURED)) == Open(opaque=0x50505050, key=b"cap-producer-1", seqno=0, flags=1)


@pytest.mark.parametrize("flags", [0x01, 0x00, 0x05, 0x09, 0x21, 0x41, 0x105, 0x201, 0x365])
def test_flags_that_go_together(flags: int) -> None:
    assert read_open(opening(flags=flags)).flags == flags


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (0x03, "0x2 are unknown or retired"),
        (0x11, "0x10 are unknown"),
        (0x81, "0x80 are unknown"),
        (0x8000_0001, "0x80000000 are unknown"),
        (0x49, "exclude each other"),
        (0x101, "0x100 needs flag 0x04"),
        (0x200, "0x200 needs flag 0x01"),
    ],
)
def test_flags_that_are_refused(flags: int, problem: str) -> None:
    with pytest.raises(BadMessage, match=problem):
        read_open(opening(flags=flags))


@pytest.mark.parametrize("size", [1, 200])
def test_a_name_has_1_to_200_bytes(size: int) -> None:
    assert len(read_open(opening(key=b"n" * size)).key) == size


@pytest.mark.parametrize("size", [0, 201])
def test_other_names_are_refused(size: int) -> None:
    with pytest.raises(BadMessage, match=f"{size} bytes"):
        read_open(opening(key=b"n" * size))


@pytest.mark.parametrize("size", [0, 4, 7, 9])
def test_extras_are_8_bytes(size: int) -> None:
    with pytest.raises(BadMessage):
        read_open(opening(extras=bytes(size)))


@pytest.mark.parametrize(
    ("flags", "value", "datatype", "problem"),
    [
        (0, b'{"consumer_name":"b"}', 0, "JSON has datatype 1"),
        (0, b"", 1, "JSON has datatype 1"),
        (0, b"{", 1, "not JSON"),
        (0, b"[" * 100_000, 1, "not JSON"),
        (0, b"[]", 1, "not a JSON object"),
        (0, b'{"consumer_name":1}', 1, "not a string"),
        (0, b'{"other":"b"}', 1, "'other' has no meaning"),
        (1, b'{"consumer_name":"b"}', 1, "'consumer_name' has no meaning"),
        (1, b"", 0xFF, "0xff"),
        (1, b"x", 2, "0x02"),
    ],
)
def test_values_that_are_refused(flags: int, value: bytes, datatype: int, problem: str) -> None:
    with pytest.raises(BadMessage, match=problem):
        read_open(opening(flags=flags, value=value, datatype=datatype))


def test_a_consumer_is_told_its_name() -> None:
    assert read_open(opening(flags=0, value=b'{"consumer_name":"b"}', datatype=1)).value


def test_hello_and_open_settle_what_follows() -> None:
    negotiated = negotiated_by(read_open(opening(b"me", flags=0x125)), frozenset({Feature.SNAPPY, Feature.XERROR}))
    assert (negotiated.snappy, negotiated.xerror, negotiated.collections) == (True, True, False)
    assert (negotiated.xattrs, negotiated.delete_times, negotiated.deleted_user_xattrs) == (True, True, True)
    assert negotiated.connection_name == "me"
