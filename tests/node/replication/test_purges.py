"""Replicas of a node that has purged know of the purge, and send readers back as that node would (decision 0033)."""

from __future__ import annotations

from dataclasses import replace

from headwater.testing.node import Node, node
from headwater.testing.peers import Peer, history, serve
from headwater.wire import dcp
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.replication.support import (
    Line,
    call,
    content,
    failover_log,
    high_seqno,
    leave,
    put,
    replicate,
    set_state,
    state,
    until,
)
from tests.node.replication.test_machine import VB, Passive
from tests.node.streams.support import StreamDesk

OLD_POSITION, PURGED, HIGH = 2, 3, 4


def purge(source: Node) -> None:
    """Seqno 1 stays, the document of 2 is deleted by 3, of which nothing is left, then there is 4."""
    put(source, 0, "a", b"1")
    put(source, 0, "b", b"2")
    assert call(source, Opcode.DELETE, b"b").status == 0
    put(source, 0, "c", b"4")
    assert call(source, Opcode.COMPACT_DB, extras=bytes(16) + b"\1" + bytes(7)).status == 0
    assert purge_seqno(source) == PURGED
    assert b"b" not in content(source, 0)


def purge_seqno(at: Node) -> int:
    """As STAT vbucket-seqno tells it."""
    with Line(at.port) as line:
        line.send(Frame(0x80, Opcode.STAT, b"vbucket-seqno 0"))
        found = -1
        while (frame := line.read()).key:
            found = int(frame.value) if frame.key == b"vb_0:purge_seqno" else found
    return found


def asked_from(at: Node, seqno: int, uuid: int) -> Frame:
    """The answer to a stream request of a consumer that has all up to `seqno`."""
    with Line(at.port) as line:
        line.send(dcp.Open(key=b"late", flags=0x21, opaque=1).frame())
        assert line.read().status == 0
        ask = dcp.StreamRequest(opaque=2, start_seqno=seqno, vb_uuid=uuid, snap_start_seqno=seqno, snap_end_seqno=seqno)
        line.send(ask.frame())
        return line.read()


def test_after_a_takeover_who_stands_below_the_purge_is_sent_back() -> None:
    with node(vbuckets=2) as source, node(vbuckets=2, vbucket_state="none") as target:
        purge(source)
        uuid = failover_log(source, 0)[0][0]
        replicate(target, source.address, "0", takeover=True)
        until(lambda: state(target, 0) is State.ACTIVE, "the takeover")
        put(target, 0, "d", b"5")
        assert purge_seqno(target) == PURGED
        answer = asked_from(target, OLD_POSITION, uuid)
        assert (answer.status, answer.value) == (Status.ROLLBACK, bytes(8))
        assert asked_from(target, PURGED, uuid).status == 0


def test_the_third_of_a_chain_knows_of_a_purge_at_the_first_also_after_a_crash() -> None:
    none = {"vbuckets": 2, "vbucket_state": "none"}
    with node(vbuckets=2) as first, node(**none) as second, node(**none) as third:
        purge(first)
        replicate(second, first.address, "0")
        until(lambda: high_seqno(second, 0) == HIGH, "the second has it")
        leave(second, first.address)
        second.kill()
        second.start()
        assert purge_seqno(second) == PURGED
        replicate(third, second.address, "0")
        until(lambda: high_seqno(third, 0) == HIGH, "the third has it")
        leave(third, second.address)
        set_state(third, 0, State.ACTIVE)
        answer = asked_from(third, OLD_POSITION, failover_log(first, 0)[0][0])
        assert (answer.status, answer.value) == (Status.ROLLBACK, bytes(8))


def test_a_producer_that_knows_none_of_our_controls_is_followed_without() -> None:
    def refuses(frame: Frame) -> bytes:
        is_control = frame.opcode == Opcode.DCP_CONTROL and frame.is_response
        return (replace(frame, vbucket=Status.EINVAL) if is_control else frame).encode()

    older = Peer(vbuckets=2, histories={0: history(5)})
    older.mutate = refuses
    with serve(older) as address, node(vbuckets=2, vbucket_state="none") as target:
        replicate(target, address, "0")
        until(lambda: high_seqno(target, 0) == 5, "the replica is there")
        assert purge_seqno(target) == 0


def test_what_a_mover_brings_teaches_a_replica_in_the_bytes_of_the_marker(desk: StreamDesk) -> None:
    talk = Passive(desk)
    opaque, _ = talk.add()
    marker = (
        f"8056000001000001000000350000000{opaque:x}" + "00" * 8 + "02" + "0000000000000000" + "0000000000000009"
        "00000006" + "00" * 16 + "0000000000000007" + "00" * 8
    )
    assert talk.say(Frame.decode(bytes.fromhex(marker))) == []
    vbucket = desk.bucket.vbuckets[VB]
    assert (vbucket.snapshot_end, vbucket.purge_seqno) == (9, 7)
    desk.commit()
    assert desk.store.index.purge_seqno(VB) == 7
