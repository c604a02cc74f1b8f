"""Finding the message a frame is."""

import pytest

from headwater.errors import BadFrame, BadMessage
from headwater.testing.strategies import FAMILIES
from headwater.wire import dcp, documents, tap
from headwater.wire.dialect import Dialect, decode, messages
from headwater.wire.failure import Failure
from headwater.wire.header import Frame, Magic
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status


def test_a_dialect_reads_its_own_families():
    connect = tap.Connect(key=b"node1").frame()
    assert decode(connect, Dialect.TAP) == decode(connect) == tap.Connect(key=b"node1")
    with pytest.raises(BadMessage, match=r"TAP_CONNECT \(opcode 0x40\): no such request in this dialect"):
        decode(connect, Dialect.DCP)
    assert decode(documents.Get(key=b"k").frame(), Dialect.DCP) == documents.Get(key=b"k")


@pytest.mark.parametrize(
    ("opcode", "status"),
    [(0xEE, Status.UNKNOWN_COMMAND), (0x30, Status.NOT_SUPPORTED), (Opcode.DOWNLOAD_SNAPSHOT, Status.NOT_SUPPORTED)],
)
def test_what_is_not_read_says_how_to_answer(opcode, status):
    with pytest.raises(BadMessage, match="no such request") as caught:
        decode(Frame(Magic.CLIENT_REQUEST, opcode), Dialect.KV)
    assert caught.value.status == status


def test_the_status_chooses_among_answers():
    log, back = dcp.StreamResponse(failover_log=[(1, 2)]), dcp.StreamRollback(rollback_seqno=3)
    refused = Failure(opcode=0x53, status=Status.ERANGE)
    for answer in (log, back, refused):
        assert decode(answer.encode(), Dialect.DCP) == answer


def test_an_answer_with_its_own_class_for_all_statuses_keeps_it():
    late = dcp.AddStreamResponse(status=Status.ROLLBACK, stream_opaque=0)
    early = dcp.AddStreamResponse(status=Status.NOT_MY_VBUCKET, value=b"{}")
    assert decode(late.encode()) == late and decode(early.encode()) == early


def test_what_no_version_accepts_is_told_with_all_their_lengths():
    with pytest.raises(BadMessage, match="extras are 19 bytes, expected 18; or extras are 19 bytes, expected 21"):
        decode(Frame(Magic.CLIENT_REQUEST, 0x58, key=b"k", extras=bytes(19)), Dialect.DCP)


def test_bytes_that_are_no_frame_are_refused_as_such():
    with pytest.raises(BadFrame, match="24 bytes of header"):
        decode(b"\x80")


def test_every_named_dcp_and_tap_command_has_its_messages():
    declared = {message.layout.opcode for family in FAMILIES for message in messages(family)}
    streaming = [each for each in Opcode if each.name.startswith(("DCP_", "TAP_"))]
    assert [each.name for each in streaming if each not in declared] == []
