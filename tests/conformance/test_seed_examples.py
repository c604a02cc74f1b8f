"""Every example of the seeds whose bytes are sound, said to a live node or heard from it, byte for byte.

The documents' opaques are those of conversations long gone. Where the node chooses them, it is led to the documents'
(0x1000, 0x1210) by using up those before; 0xdeadbeef in messages to a consumer is the one number that is replaced, by
the stream's own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headwater.testing import Node, node
from headwater.wire import dcp, upr
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.conformance.seeds import (
    EXAMPLES,
    LOG,
    SOUND,
    Line,
    add_stream,
    become_dcp,
    negotiate,
    open_reader,
    open_upr_consumer,
    reach,
    set_state,
    upr_request,
    with_opaque,
)

VB_OF_DOCUMENTS = 0x210


@pytest.fixture(scope="module")
def live() -> Iterator[Node]:
    with node(vbuckets=1024, vbucket_state="none") as made:
        yield made


@pytest.fixture(scope="module")
def exchanged(live: Node) -> set[str]:
    """The names of the examples that went over a socket, in conversations that make sense of them."""
    names: set[str] = set()
    for vb in (0, 1, 5, VB_OF_DOCUMENTS):
        set_state(live, vb, State.REPLICA)
    for conversation in (
        upr_stream_is_set_up,
        upr_stream_is_requested,
        dcp_stream_is_requested,
        failover_log_is_told,
        upr_stream_is_added,
        dcp_stream_is_added,
        upr_snapshots_end_and_vbuckets_change,
        document_is_deleted,
        document_expires,
    ):
        with Line(live.port, names) as line:
            conversation(line)
    return names


def upr_stream_is_set_up(line: Line) -> None:
    """The node asks us: we send it back to 0, in the bytes as printed, then accept it with the log of the sample."""
    open_upr_consumer(line, 0x1000)
    assert line.ask(dcp.AddStream(opaque=9, flags=0)).opaque == 0x1000
    line.say("upr_stream_req_rollback_as_printed")
    again = line.frame()
    assert (again.opcode, again.opaque, len(again.extras)) == (Opcode.DCP_STREAM_REQ, 0x1000, 40)
    line.say("upr_stream_req_ok_resolved")
    assert line.frame().status == Status.SUCCESS
    line.say("upr_stream_end", 0x1000)
    line.done(Frame(0x80, Opcode.NOOP))


def upr_stream_is_requested(line: Line) -> None:
    """We ask the node: the pair (feeddeca, 0) is not in its log, so back to 0; then it accepts."""
    open_reader(line, b"upr reader")
    line.say("upr_stream_req_first")
    line.hear("upr_stream_req_rollback_resolved")
    line.say("upr_stream_req_retry")
    line.hear("upr_stream_req_ok_resolved")
    line.say("upr_failover_log_req")
    line.hear("upr_failover_log_rsp")


def dcp_stream_is_requested(line: Line) -> None:
    open_reader(line, b"dcp reader")
    line.say("stream_req_first_resolved")
    line.exchanged.add("stream_req_first")
    line.hear("stream_req_rollback_rsp")
    line.say("stream_req_retry_resolved")
    line.hear("stream_req_ok_rsp")


def failover_log_is_told(line: Line) -> None:
    open_reader(line, b"log reader")
    line.say("failover_log_req")
    line.hear("failover_log_rsp")


def upr_stream_is_added(line: Line) -> None:
    open_upr_consumer(line, 0x1000)
    line.say("upr_add_stream_req")
    asked = line.frame()
    assert (asked.opaque, asked.vbucket, asked.extras[:4]) == (0x1000, 5, b"\0\0\0\1")
    line.send(Frame(0x81, Opcode.DCP_STREAM_REQ, value=LOG, opaque=asked.opaque))
    line.hear("upr_add_stream_rsp")
    line.say("upr_close_stream_req")
    closed = line.frame()
    assert (closed.opcode, closed.status, closed.opaque) == (Opcode.DCP_CLOSE_STREAM, 0, 0xDEADBEEF)
    line.send(upr.SnapshotMarker(vbucket=5, opaque=0x1000))  # "let the producer know as soon as it receives a message"
    assert line.frame().status == Status.KEY_ENOENT


def dcp_stream_is_added(line: Line) -> None:
    become_dcp(line)
    line.done(dcp.Open(key=b"dcp consumer", flags=0))
    asked = negotiate(line, Status.SUCCESS)
    line.send(Frame(0x81, Opcode.DCP_STREAM_REQ, vbucket=Status.ETMPFAIL, opaque=asked.opaque))
    assert line.frame().status == Status.ETMPFAIL
    line.send(dcp.AddStream(vbucket=1, opaque=2, flags=0), dcp.CloseStream(vbucket=1, opaque=3))
    used = line.frame().opaque
    assert [line.frame().opcode, line.frame().opcode] == [Opcode.DCP_ADD_STREAM, Opcode.DCP_CLOSE_STREAM]
    reach(line, used, 0x1000)
    line.say("add_stream_req")
    asked = line.frame()
    assert (asked.opaque, asked.vbucket, len(asked.extras)) == (0x1000, 5, 48)
    line.send(Frame(0x81, Opcode.DCP_STREAM_REQ, value=LOG, opaque=asked.opaque))
    line.hear("add_stream_rsp")


def upr_snapshots_end_and_vbuckets_change(line: Line) -> None:
    """A marker, the end of a stream, FLUSH and a state, of vbucket 0: said to the node, and heard from it."""
    open_upr_consumer(line, 0x1000)
    opaque = add_stream(line, 0)
    line.say("upr_snapshot_marker", opaque)
    line.send(upr.Mutation(opaque=opaque, cas=7, key=b"k", value=b"v", by_seqno=1, rev_seqno=1))
    line.say("upr_snapshot_marker", opaque)

    with Line(line.port, line.exchanged) as reader:
        open_reader(reader, b"upr reader of the end")
        reader.accepted(upr_request(0, 0xDEADBEEF, end_seqno=1))
        reader.hear("upr_snapshot_marker")
        assert reader.frame().key == b"k"
        reader.hear("upr_stream_end")

        reader.done(upr_request(0, 0x11))
        assert [reader.frame().opcode, reader.frame().opcode] == [Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION]
        line.say("upr_flush", opaque)
        assert reader.frame().opcode == Opcode.DCP_STREAM_END  # the vbucket it read is not what it was
    line.say("upr_set_vbucket_state_dead", opaque)
    answer = line.frame()
    assert (answer.opcode, answer.status, answer.opaque) == (Opcode.DCP_SET_VBUCKET_STATE, 0, opaque)
    assert line.ask(Frame(0x80, Opcode.GET_VBUCKET)).value == State.DEAD.to_bytes(4)


def document_is_deleted(line: Line) -> None:
    document_ends(line, "upr_deletion")


def document_expires(line: Line) -> None:
    document_ends(line, "upr_expiration")


def document_ends(line: Line, end: str) -> None:
    """A document is stored, then deleted or expired: said to the node in UPR, and heard from it in UPR."""
    line.done(Frame(0x80, Opcode.DEL_VBUCKET, vbucket=VB_OF_DOCUMENTS))
    line.done(Frame(0x80, Opcode.SET_VBUCKET, extras=bytes([State.REPLICA]), vbucket=VB_OF_DOCUMENTS))
    open_upr_consumer(line, 0x1210)
    assert add_stream(line, VB_OF_DOCUMENTS) == 0x1210
    marker = with_opaque(upr.SnapshotMarker(vbucket=VB_OF_DOCUMENTS).encode(), 0x1210)
    line.socket.sendall(marker)
    line.say("upr_mutation")
    line.socket.sendall(marker)

    with Line(line.port, line.exchanged) as reader:
        open_reader(reader, b"upr reader of " + end.encode())
        reader.accepted(upr_request(VB_OF_DOCUMENTS, 0x1210))
        assert reader.read() == marker
        reader.hear("upr_mutation")
        line.say(end)
        line.socket.sendall(marker)
        assert reader.read() == marker
        heard = reader.read()
    # A CAS of 0 is none: the node gave its own (erratum U16).
    assert heard[:16] + bytes(8) + heard[24:] == EXAMPLES[end]
    assert int.from_bytes(heard[16:24])


@pytest.mark.parametrize("name", SOUND)
def test_every_sound_example_works_on_a_live_socket(name: str, exchanged: set[str]) -> None:
    assert name in exchanged


def test_a_request_cut_short_in_print_waits_for_its_missing_bytes(live: Node, exchanged: set[str]) -> None:
    """Erratum S2: 48 bytes of extras are declared, 40 printed. "Never guess": it is a request once 8 more came."""
    with Line(live.port) as line:
        open_reader(line, b"patient")
        line.socket.sendall(EXAMPLES["stream_req_retry_as_printed"])
        line.socket.sendall(bytes(8))
        assert (answer := line.frame()).opcode == Opcode.DCP_STREAM_REQ and answer.opaque == 0x1000
