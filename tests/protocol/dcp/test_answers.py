"""The answers to a stream request, and what is said about a frame that is wrong."""

import pytest

from headwater.errors import RemoteProtocolError
from headwater.kernels.columns import Stop, StreamTable
from headwater.protocol.dcp.answers import complaint, read_failover_log, read_rollback
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

ENTRY = (0xA).to_bytes(8) + (7).to_bytes(8)


def answer(value: bytes = b"", status: int = 0, extras: bytes = b"") -> Frame:
    return Frame(0x81, Opcode.DCP_STREAM_REQ, extras=extras, value=value, vbucket=status)


def test_a_log_is_read_newest_first() -> None:
    assert read_failover_log(answer(ENTRY + bytes(16))) == ((0xA, 7), (0, 0))
    assert len(read_failover_log(answer(ENTRY * 1024))) == 1024


@pytest.mark.parametrize("size", [0, 15, 17, 16 * 1025])
def test_a_log_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"a failover log of {size} bytes; expected 16 each for 1 to 1024"):
        read_failover_log(answer(bytes(size)))


@pytest.mark.parametrize(
    ("frame", "seqno"),
    [
        (answer((400).to_bytes(8), Status.ROLLBACK), 400),
        (answer(b"", Status.ROLLBACK, (400).to_bytes(8)), 400),
        (answer(b"", Status.KEY_ENOENT), 0),
    ],
)
def test_a_rollback_is_found_in_value_and_extras(frame: Frame, seqno: int) -> None:
    assert read_rollback(frame) == seqno


@pytest.mark.parametrize("size", [0, 7, 9, 16])
def test_a_rollback_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"a rollback of {size} bytes, expected 8"):
        read_rollback(answer(bytes(size), Status.ROLLBACK))


def test_a_complaint_tells_the_numbers_of_the_frame_and_of_its_stream() -> None:
    table = StreamTable()
    table.open(3, 77, 5, 5, 5)
    table.enter(3, 6, 9)
    frame = Frame(0x80, Opcode.DCP_MUTATION, b"k", (12).to_bytes(8) + bytes(23), vbucket=3, opaque=77).encode()
    assert complaint(memoryview(frame), Stop.SEQNO_OUTSIDE_SNAPSHOT, table) == (
        "DCP_MUTATION (opcode 0x57): vbucket 3, opaque 77: seqno outside snapshot; extras 31 bytes, seqno 12; "
        "last 5, snapshot 6 to 9, stream 77"
    )


def test_a_header_that_lies_is_not_read_any_further() -> None:
    frame = bytes.fromhex("55570000ff00000000000010") + bytes(12)
    assert complaint(memoryview(frame), Stop.BAD_MAGIC, StreamTable()) == (
        "opcode 0x57: bad magic (magic 0x55, 255 extras, body 16 bytes)"
    )
