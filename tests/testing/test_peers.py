"""The scripted peer tells the truth when nobody tells it to lie."""

import socket

import pytest

from headwater.testing.clock import FakeClock
from headwater.testing.peers import UUID, Peer, history, serve
from headwater.wire import dcp
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.records import encode_log
from headwater.wire.status import Status


def asked(peer: Peer, **numbers: int) -> list[Frame]:
    fields = {"start_seqno": 0, "end_seqno": 7, "vb_uuid": UUID, "snap_start_seqno": 0, "snap_end_seqno": 0}
    return list(peer.answers(dcp.StreamRequest(vbucket=0, opaque=9, **(fields | numbers)).frame()))


def test_a_stream_is_its_answer_its_snapshots_and_its_end():
    frames = asked(Peer(histories={0: history(7)}))
    assert frames[0].value == encode_log([(UUID, 0)]) and frames[-1].opcode == Opcode.DCP_STREAM_END
    assert [frame.opcode for frame in frames].count(Opcode.DCP_SNAPSHOT_MARKER) == 2
    assert {frame.opaque for frame in frames} == {9}


def test_a_history_it_does_not_share_is_rolled_back():
    frames = asked(Peer(histories={0: history(7)}), start_seqno=5, snap_start_seqno=5, snap_end_seqno=5, vb_uuid=1)
    assert [(frame.status, frame.value) for frame in frames] == [(Status.ROLLBACK, bytes(8))]


def test_a_connection_is_cut_after_so_many_bytes():
    with serve(Peer(cuts=[30])) as address:
        host, port = address.split(":")
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(Frame(0x80, Opcode.NOOP).encode() * 2)
            received = b""
            while data := sock.recv(100):
                received += data
    assert len(received) == 30


@pytest.mark.parametrize("many", [1, 40])
def test_all_that_was_said_before_the_end_is_seen(many):
    """The last acknowledgements of a client that is done are read by the peer's thread when it has its turn."""
    request = Frame(0x80, Opcode.DCP_BUFFER_ACKNOWLEDGEMENT).encode()
    for _ in range(20):
        with serve(peer := Peer()) as address, socket.create_connection(address.split(":")) as sock:
            sock.sendall(Frame(0x80, Opcode.NOOP).encode())
            assert sock.recv(100)
            sock.sendall(request * many)
        assert len(peer.seen) == 1 + many


def test_time_passes_when_it_is_told_to_and_never_backwards():
    clock = FakeClock(5.0)
    assert (clock(), clock.advance(2.5), clock()) == (5.0, 7.5, 7.5)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)
