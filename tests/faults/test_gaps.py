"""A replica that refused changes says so, fetches them again where it can, and is not promoted unseen."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from struct import pack

import pytest

from headwater import testing
from headwater.client.routing import Address
from headwater.cluster.failover import Failover
from headwater.cluster.founding import found_cluster
from headwater.cluster.members import Members
from headwater.cluster.promotion import plan_promotion
from headwater.errors import ClusterError
from headwater.node.vbucket.gap import KEYS_MAX
from headwater.testing.node import Node
from headwater.testing.proxy import FaultProxy, Way
from headwater.wire import dcp
from headwater.wire.datatype import Datatype
from headwater.wire.dcp import seqno_of
from headwater.wire.features import Feature
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.faults.test_numbers import Producer
from tests.node.membership.support import stats
from tests.node.replication.support import Line, content, put, until

JSON = 1


def refused_changes(node: Node, vbucket: int = 0) -> int:
    return int(stats(node, f"vbucket-details {vbucket}")[f"vb_{vbucket}:refused_changes"])


def with_a_gap(producer: Producer) -> None:
    """Changes 1 and 3, and a refused one between them."""
    assert (producer.marker(3), producer.change(1)) == (0, 0)
    producer.opaque += 100
    assert producer.change(2) == Status.KEY_EEXISTS
    producer.opaque -= 100
    assert producer.change(3) == 0


def test_a_replica_with_a_gap_counts_what_it_refused_and_is_promoted_by_force_alone() -> None:
    with testing.node(vbuckets=4) as node, closing(Producer(node)) as producer:

        async def planned(*, force: bool) -> int:
            async with Members("default") as members:
                here = Address(node.host, node.port)
                return len((await plan_promotion(members, here, vbuckets=[0], force=force)).vbuckets)

        assert (producer.marker(1), producer.change(1), producer.marker(9)) == (0, 0, 0)
        assert stats(node, "vbucket-details 0")["vb_0:refused_changes"] == "0"
        assert asyncio.run(planned(force=False)) == 1
        producer.opaque += 1
        assert producer.change(2) == Status.KEY_EEXISTS
        producer.opaque -= 1
        assert producer.change(3) == 0
        assert stats(node, "vbucket-details 0")["vb_0:refused_changes"] == "1"
        with pytest.raises(ClusterError, match="refused changes of the vbuckets 0"):
            asyncio.run(planned(force=False))
        assert asyncio.run(planned(force=True)) == 1


@pytest.mark.parametrize("end", [Node.kill, Node.stop])
def test_what_was_refused_is_known_after_a_restart(end: Callable[[Node], object]) -> None:
    with testing.node(vbuckets=4) as node:
        with closing(Producer(node)) as producer:
            with_a_gap(producer)
            assert refused_changes(node) == 1
        put(node, 1, "durable", b"so is the count, which was written before")
        end(node)
        node.start()
        assert refused_changes(node) == 1


def test_a_replica_with_a_gap_becomes_active_when_somebody_says_that_it_shall() -> None:
    with testing.node(vbuckets=4) as node, closing(Producer(node)) as producer, Line(node.port) as line:
        with_a_gap(producer)
        features = pack(">HH", Feature.XERROR, Feature.JSON)
        assert line.call(Opcode.HELLO, b"operator", features).status == 0
        refused = line.call(Opcode.SET_VBUCKET, b"", b"", bytes([State.ACTIVE]))
        assert refused.status == Status.KEY_EEXISTS and b"1 changes" in refused.value and b"force" in refused.value
        assert stats(node, "vbucket")["vb_0"] == "replica"
        line.send(Frame(0x80, Opcode.SET_VBUCKET, extras=bytes([State.DEAD])))
        assert line.read().status == 0
        forced = Frame(0x80, Opcode.SET_VBUCKET, extras=bytes([State.ACTIVE]), value=b'{"force":true}', datatype=JSON)
        line.send(forced)
        assert line.read().status == 0
        assert stats(node, "vbucket")["vb_0"] == "active" and refused_changes(node) == 0


def test_nobody_reads_a_replica_with_a_gap() -> None:
    """A reader would be told a whole snapshot without the change, and go on behind it at the owner."""
    with testing.node(vbuckets=4) as node, closing(Producer(node)) as producer, Line(node.port) as reader:
        assert (producer.marker(1), producer.change(1), producer.marker(3)) == (0, 0, 0)
        assert reader.call(Opcode.DCP_OPEN, b"reader", extras=pack(">II", 0, 1)).status == 0
        request = dcp.StreamRequest(
            vbucket=0, opaque=5, end_seqno=(1 << 64) - 1, start_seqno=0, vb_uuid=0, snap_start_seqno=0, snap_end_seqno=0
        )
        reader.send(request.frame())
        while (frame := reader.read()).opcode != Opcode.DCP_STREAM_END:
            if frame.opcode == Opcode.DCP_MUTATION:
                assert seqno_of(frame.extras) == 1
                producer.opaque += 100
                assert producer.change(2) == Status.KEY_EEXISTS
                producer.opaque -= 100
                assert producer.change(3) == 0
        assert int.from_bytes(frame.extras) == dcp.EndReason.STATE_CHANGED
        reader.send(request.frame())
        assert reader.read().status == Status.ETMPFAIL


def test_a_takeover_by_a_replica_with_a_gap_is_refused() -> None:
    with testing.node(vbuckets=4) as node, closing(Producer(node)) as producer:
        with_a_gap(producer)
        for state in (State.PENDING, State.ACTIVE):  # at the first step, when its owner still serves
            taken = dcp.SetVbucketState(vbucket=0, opaque=producer.opaque, state=state)
            assert producer.tell(taken.frame()) == Status.EINVAL
            assert stats(node, "vbucket")["vb_0"] == "replica"


BAD_SNAPPY = b"\x7fthis is no Snappy"


def feed(producer: Producer, seqno: int, key: bytes, value: bytes = b"v", datatype: int = 0) -> int:
    """A snapshot of one change."""
    marker = dcp.SnapshotMarker(vbucket=0, opaque=producer.opaque, start_seqno=seqno, end_seqno=seqno, flags=1)
    assert producer.tell(marker.frame()) == 0
    told = dcp.Mutation(vbucket=0, opaque=producer.opaque, key=key, by_seqno=seqno, rev_seqno=1, cas=seqno, value=value)
    return producer.tell(replace(told.frame(), datatype=datatype))


@pytest.mark.parametrize("restarts", [False, True])
def test_a_takeover_goes_on_once_what_was_refused_is_written_anew(restarts: bool) -> None:
    """The former owner's store has a document that nobody can read, from before such were refused."""
    with testing.node(vbuckets=4) as node:
        with closing(Producer(node)) as producer:
            assert feed(producer, 1, b"a") == 0
            assert feed(producer, 2, b"spoiled", BAD_SNAPPY, Datatype.SNAPPY) == Status.EINVAL
            assert feed(producer, 3, b"b") == 0
            taken = dcp.SetVbucketState(vbucket=0, opaque=producer.opaque, state=State.ACTIVE)
            assert producer.tell(taken.frame()) == Status.EINVAL
        assert 'the change of "spoiled", seqno 2, was refused' in node.log
        if restarts:
            node.kill()
            node.start()
        with closing(Producer(node)) as producer:
            assert feed(producer, 4, b"spoiled") == 0
            assert refused_changes(node) == 0
            taken = dcp.SetVbucketState(vbucket=0, opaque=producer.opaque, state=State.ACTIVE)
            assert producer.tell(taken.frame()) == 0
        assert sorted(content(node, 0)) == [b"a", b"b", b"spoiled"]


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_change_that_was_refused_last_comes_again_or_its_producer_lost_it(is_lost: bool) -> None:
    """After a failover its key may never be written again: the takeover would be refused for ever."""
    with testing.node(vbuckets=4) as node:
        with closing(Producer(node)) as producer:
            assert (producer.marker(1), producer.change(1)) == (0, 0)
            assert producer.change(2) == Status.ERANGE
            assert refused_changes(node) == 1
        with closing(Producer(node)) as producer:
            assert (producer.asked.start_seqno, refused_changes(node)) == (1, 0)
            if not is_lost:
                assert producer.change(2) == Status.ERANGE
            taken = dcp.SetVbucketState(vbucket=0, opaque=producer.opaque, state=State.ACTIVE)
            assert producer.tell(taken.frame()) == (Status.SUCCESS if is_lost else Status.EINVAL)


def test_a_mover_fetches_again_what_lies_behind_a_gap_of_which_no_key_is_known() -> None:
    with testing.node(vbuckets=4) as node:
        with closing(Producer(node)) as producer:
            assert feed(producer, 1, b"a") == 0
            for seqno in range(2, 2 + KEYS_MAX + 1):
                assert feed(producer, seqno, b"spoiled%d" % seqno, BAD_SNAPPY, Datatype.SNAPPY) == Status.EINVAL
            assert feed(producer, 9, b"b") == 0
        with closing(Producer(node)) as producer:
            assert producer.asked.start_seqno == 1
            assert refused_changes(node) == 0


def test_a_change_that_came_too_late_for_a_stream_that_was_closed_is_no_gap() -> None:
    with testing.node(vbuckets=4) as node, closing(Producer(node)) as producer:
        assert (producer.marker(9), producer.change(1)) == (0, 0)
        old = producer.opaque
        assert producer.tell(Frame(0x80, Opcode.DCP_CLOSE_STREAM)) == 0
        producer.line.send(dcp.AddStream(vbucket=0, opaque=9, flags=0).frame())
        asked = producer.line.read()
        producer.line.send(Frame(0x81, asked.opcode, value=pack(">QQ", 77, 0), opaque=asked.opaque))
        assert producer.line.read().opcode == Opcode.DCP_ADD_STREAM
        producer.opaque = old
        assert producer.change(2) == Status.KEY_EEXISTS
        producer.opaque = asked.opaque
        assert (producer.marker(9), producer.change(2)) == (0, 0)
        assert refused_changes(node) == 0


@pytest.mark.parametrize("late", [10, 7, 2])
def test_a_change_that_comes_again_is_no_gap(late: int) -> None:
    """Such a change is here, or its producer has said that without it the snapshot is whole."""
    with testing.node(vbuckets=4) as node, closing(Producer(node)) as producer:
        assert producer.marker(10) == 0
        assert [producer.change(seqno) for seqno in range(5, 11)] == [0] * 6
        assert producer.change(late) == Status.ERANGE
        assert refused_changes(node) == 0
        assert (producer.marker(11), producer.change(11)) == (0, 0)  # the stream goes on
        with Line(node.port) as line:
            assert line.call(Opcode.SET_VBUCKET, b"", b"", bytes([State.ACTIVE])).status == 0


def test_a_change_heard_twice_inside_of_a_snapshot_is_no_gap_and_one_that_was_overtaken_is() -> None:
    with testing.node(vbuckets=4) as node, closing(Producer(node)) as producer:
        assert (producer.marker(9), producer.change(1), producer.change(3)) == (0, 0, 0)
        assert producer.change(1) == producer.change(3) == Status.ERANGE
        assert refused_changes(node) == 0
        assert producer.change(2) == Status.ERANGE
        assert refused_changes(node) == 1


def test_a_change_outside_of_any_snapshot_is_lacking_though_nothing_lies_behind_it() -> None:
    with testing.node(vbuckets=4) as node, closing(Producer(node)) as producer:
        assert (producer.marker(1), producer.change(1)) == (0, 0)
        assert producer.change(20) == Status.ERANGE
        assert refused_changes(node) == 1
        taken = dcp.SetVbucketState(vbucket=0, opaque=producer.opaque, state=State.ACTIVE)
        assert producer.tell(taken.frame()) == Status.EINVAL


class Tampering(FaultProxy):
    """A proxy that passes other frames on than those that come."""

    tamper: Callable[[Frame], Frame]

    def _pass(self, way: Way, frame: Frame, target: socket.socket, pair: tuple[socket.socket, socket.socket]) -> bool:
        return super()._pass(way, self.tamper(frame) if way is Way.DOWN else frame, target, pair)


def follow(node: Node, source: str) -> None:
    with Line(node.port) as line:
        told = json.dumps({"from": source, "vbuckets": "0"}).encode()
        assert line.call(Opcode.IOCTL_SET, b"replicate", told).status == 0


def reaches(node: Node, seqno: int) -> None:
    until(lambda: stats(node, "vbucket-details").get("vb_0:high_seqno") == str(seqno), f"it has come to seqno {seqno}")


def test_a_replica_fetches_what_it_refused_again_by_itself() -> None:
    """Each change reaches it under a wrong opaque once, and all come in the end."""
    seen: set[int] = set()

    def tamper(frame: Frame) -> Frame:
        if frame.opcode == Opcode.DCP_MUTATION and not frame.is_response and seqno_of(frame.extras) % 5 == 3:
            seqno = seqno_of(frame.extras)
            if seqno not in seen:
                seen.add(seqno)
                return replace(frame, opaque=frame.opaque + 1000)
        return frame

    with testing.node(vbuckets=4) as owner, testing.node(vbuckets=4, vbucket_state="none") as replica:
        for number in range(20):
            put(owner, 0, f"k{number}", b"v")
        with Tampering(owner.address) as proxy:
            proxy.tamper = tamper
            follow(replica, proxy.address)
            reaches(replica, 20)
            put(owner, 0, "later", b"v")
            reaches(replica, 21)
        assert content(replica, 0) == content(owner, 0)
        assert len(seen) == 4 and refused_changes(replica) == 0


def test_one_that_is_never_given_a_change_rightly_goes_on_behind_the_gap_and_says_so() -> None:
    def tamper(frame: Frame) -> Frame:
        wrong = frame.opcode == Opcode.DCP_MUTATION and not frame.is_response and frame.key == b"\0k3"
        return replace(frame, opaque=frame.opaque + 1000) if wrong else frame

    with testing.node(vbuckets=4) as owner, testing.node(vbuckets=4, vbucket_state="none") as replica:
        for number in range(6):
            put(owner, 0, f"k{number}", b"v")
        with Tampering(owner.address) as proxy:
            proxy.tamper = tamper
            follow(replica, proxy.address)
            reaches(replica, 6)
            assert refused_changes(replica) == 1
            with Line(replica.port) as line:
                found = [line.call(Opcode.GET_REPLICA, b"k%d" % number).status for number in range(6)]
            assert found == [0, 0, 0, Status.KEY_ENOENT, 0, 0]
            assert "changes were refused" in str(stats(replica, "replication"))


def test_a_dead_members_vbucket_goes_on_from_a_replica_with_a_gap_by_force_alone() -> None:
    with testing.node(vbuckets=4, vbucket_state="none") as one, testing.node(vbuckets=4, vbucket_state="none") as two:
        nodes = [Address(each.host, each.port) for each in (one, two)]

        async def founded() -> None:
            async with Members("default") as members:
                await found_cluster(members, nodes, 1)

        async def failed_over(*, force: bool) -> int:
            async with Members("default") as members:
                return len((await Failover(members, nodes[1:], nodes[:1], force=force).run()).promotions)

        asyncio.run(founded())
        until(lambda: stats(two, "vbucket").get("vb_0") == "replica", "the second node follows it")
        one.kill()
        with closing(Producer(two)) as producer:
            with_a_gap(producer)
        with pytest.raises(ClusterError, match="refused changes of the vbuckets 0"):
            asyncio.run(failed_over(force=False))
        assert asyncio.run(failed_over(force=True)) == 2
        assert set(stats(two, "vbucket").values()) == {"active"}
