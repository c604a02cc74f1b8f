"""Numbers at the end of what 64 bits hold: refused where they come in, so that no node is ever at their end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from struct import pack

import pytest

from headwater import testing
from headwater.testing.node import Node
from headwater.wire import dcp
from headwater.wire.features import Feature
from headwater.wire.header import Frame
from headwater.wire.numbers import HELD_MAX
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.replication.support import Line, call, content, failover_log, high_seqno, put, set_state

HALF, END = 1 << 63, (1 << 64) - 1


@pytest.fixture
def node() -> Iterator[Node]:
    with testing.node(vbuckets=4) as running:
        yield running


class Producer:
    """A rogue one: it feeds vbucket 0, a replica, over a connection that it opened itself, as a mover does."""

    def __init__(self, node: Node) -> None:
        set_state(node, 0, State.REPLICA)
        self.line = Line(node.port)
        self.close = self.line.close
        assert self.line.call(Opcode.DCP_OPEN, b"rogue", b"", bytes(8)).status == 0
        self.line.send(dcp.AddStream(vbucket=0, opaque=9, flags=0).frame())
        while (asked := self.line.read()).opcode != Opcode.DCP_STREAM_REQ:
            self.line.send(Frame(0x81, asked.opcode, opaque=asked.opaque, vbucket=Status.UNKNOWN_COMMAND))
        self.opaque, self.asked = asked.opaque, dcp.StreamRequest.decode(asked)
        self.line.send(Frame(0x81, asked.opcode, value=pack(">QQ", 77, 0), opaque=asked.opaque))
        assert self.line.read().opcode == Opcode.DCP_ADD_STREAM

    def tell(self, message: Frame) -> int:
        """The status that a message is answered with; 0 where it is taken in silence."""
        self.line.send(message)
        self.line.send(Frame(0x80, Opcode.NOOP, opaque=99))
        status = Status.SUCCESS
        while (answer := self.line.read()).opaque != 99:
            status = Status(answer.status)
        return status

    def marker(self, end: int) -> int:
        marker = dcp.SnapshotMarker(vbucket=0, opaque=self.opaque, start_seqno=1, end_seqno=end, flags=1)
        return self.tell(marker.frame())

    def change(self, seqno: int, cas: int = 5, rev: int = 1) -> int:
        told = dcp.Mutation(
            vbucket=0, opaque=self.opaque, key=b"k%d" % seqno, by_seqno=seqno, rev_seqno=rev, cas=cas, value=b"v"
        )
        return self.tell(told.frame())


def promote_all_the_same(node: Node, vbucket: int) -> None:
    """Make a replica active that was told of a change and refused it."""
    force = Frame(0x80, Opcode.SET_VBUCKET, b"", bytes([State.ACTIVE]), b'{"force":true}', 1, vbucket)
    with Line(node.port) as line:
        assert line.call(Opcode.HELLO, b"operator", pack(">H", Feature.JSON)).status == 0
        line.send(force)
        assert line.read().status == 0


@pytest.fixture
def rogue(node: Node) -> Iterator[Producer]:
    with closing(Producer(node)) as producer:
        yield producer


def test_a_seqno_that_leaves_no_next_one_is_refused_and_the_store_opens_again(node: Node, rogue: Producer) -> None:
    assert (rogue.marker(END), rogue.marker(HALF)) == (Status.EINVAL, Status.EINVAL)
    assert rogue.change(END) == Status.EINVAL
    promote_all_the_same(node, 0)
    for number in range(3):
        put(node, 0, f"d{number}", b"v")
    assert high_seqno(node, 0) == 3
    node.kill()
    node.start()
    assert sorted(content(node, 0)) == [b"d0", b"d1", b"d2"]


def test_a_vbucket_at_the_end_of_its_seqnos_takes_no_more_and_is_kept(node: Node, rogue: Producer) -> None:
    assert (rogue.marker(HALF - 1), rogue.change(HALF - 1)) == (0, 0)
    set_state(node, 0, State.ACTIVE)
    for opcode in (Opcode.SET, Opcode.ADD):
        assert call(node, opcode, b"one more", b"v", bytes(8)).status == Status.ETMPFAIL
    put(node, 1, "elsewhere", b"v")
    node.kill()
    node.start()
    assert (high_seqno(node, 0), sorted(content(node, 1))) == (HALF - 1, [b"elsewhere"])


@pytest.mark.parametrize(("cas", "rev"), [(END - 1, 1), (5, END)], ids=["CAS", "revision"])
def test_a_producer_tells_no_cas_or_revision_that_leaves_no_next_one(
    node: Node, rogue: Producer, cas: int, rev: int
) -> None:
    assert (rogue.marker(2), rogue.change(1, cas, rev)) == (0, Status.EINVAL)
    assert rogue.change(2) == 0
    with Line(node.port) as line:  # nobody may stream a copy that refused a change
        assert [line.call(Opcode.GET_REPLICA, key).status for key in (b"k1", b"k2")] == [Status.KEY_ENOENT, 0]


def test_a_failover_log_with_a_seqno_that_nobody_can_reach_is_not_believed(node: Node) -> None:
    set_state(node, 0, State.REPLICA)
    with Line(node.port) as line:
        line.call(Opcode.DCP_OPEN, b"rogue", b"", bytes(8))
        line.send(dcp.AddStream(vbucket=0, opaque=9, flags=0).frame())
        while (asked := line.read()).opcode != Opcode.DCP_STREAM_REQ:
            line.send(Frame(0x81, asked.opcode, opaque=asked.opaque, vbucket=Status.UNKNOWN_COMMAND))
        line.send(Frame(0x81, asked.opcode, value=pack(">QQ", 77, END), opaque=asked.opaque))
        with pytest.raises(ConnectionError):
            line.read()
    assert END not in [seqno for _, seqno in failover_log(node, 0)]


@pytest.mark.parametrize(
    ("cas", "rev", "status"),
    [(END, 1, 0x0F), (HELD_MAX + 1, 1, 0x0F), (5, END, Status.EINVAL), (5, HELD_MAX + 1, Status.EINVAL)],
    ids=["CAS", "one more CAS than is held", "revision", "one more than is held"],
)
@pytest.mark.parametrize("opcode", [Opcode.SET_WITH_META, Opcode.ADD_WITH_META, Opcode.DEL_WITH_META])
def test_a_client_gives_no_cas_or_revision_beyond_what_is_taken(
    node: Node, opcode: int, cas: int, rev: int, status: int
) -> None:
    with Line(node.port) as line:
        line.call(Opcode.HELLO, b"guest", pack(">H", 7))
        assert line.call(opcode, b"poison", b"", pack(">IIQQ", 0, 0, rev, cas)).status == status


def test_after_the_highest_cas_of_a_client_it_still_rises_and_the_highest_revision_stays(node: Node) -> None:
    meta = pack(">IIQQ", 0, 0, HALF - 1, HALF - 1)
    seen = [call(node, Opcode.SET_WITH_META, b"high", b"1", meta).cas]
    for opcode, value in ((Opcode.SET, b"2"), (Opcode.APPEND, b"3"), (Opcode.PREPEND, b"1")):
        seen.append(call(node, opcode, b"high", value, bytes(8) if opcode == Opcode.SET else b"").cas)
    assert seen == [HALF - 1, HALF, HALF + 1, HALF + 2]
    assert content(node, 0)[b"high"][1:] == (HALF + 2, HALF - 1, b"123")


@pytest.mark.parametrize("given", [HALF - 1, HELD_MAX - 1, HELD_MAX])
def test_every_cas_that_a_node_gives_is_one_that_another_takes(node: Node, given: int) -> None:
    """A backup whose documents have higher ones could not be restored, nor be replicated."""
    high = call(node, Opcode.SET_WITH_META, b"high", b"1", pack(">IIQQ", 0, 0, 1, given)).cas
    seen = [high, *(call(node, opcode, b"high", b"2", b"").cas for opcode in (Opcode.APPEND, Opcode.PREPEND))]
    for number in range(3):
        put(node, 0, f"k{number}", b"v")
    seen += [content(node, 0)[b"k%d" % number][1] for number in range(3)]
    assert len(set(seen)) == 6
    for cas in seen:
        assert call(node, Opcode.SET_WITH_META, b"copy %d" % cas, b"1", pack(">IIQQ", 0, 0, 1, cas)).status == 0


def test_tap_brings_no_cas_that_leaves_no_next_one(node: Node) -> None:
    set_state(node, 0, State.REPLICA)
    with Line(node.port) as line:
        engine = pack(">Q", 1)
        extras = pack(">HHBBBBII", len(engine), 1, 255, 0, 0, 0, 0, 0)
        line.send(Frame(0x80, Opcode.TAP_MUTATION, b"k", extras, engine + b"v", cas=END - 1, opaque=3))
        assert line.read().status == Status.EINVAL
    assert content(node, 0) == {}
