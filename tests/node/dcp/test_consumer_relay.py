"""A mover that knows the address that workers have in common fills vbuckets of all of them, as of one process."""

from __future__ import annotations

import os
import signal
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from harness.nodes import until
from headwater import testing
from headwater.protocol.dcp.window import SMALL_ACK_BYTES
from headwater.testing.node import Node
from headwater.wire import dcp
from headwater.wire.dcp import SnapshotFlag, StreamFlag
from headwater.wire.features import Feature
from headwater.wire.header import Frame, Magic, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.cluster.nodes import command
from tests.node.wire import Client
from tests.node.workers.test_supervising import workers_of

VBUCKETS = 8
ALL = range(VBUCKETS)
LOG = (0x77).to_bytes(8, "big") + bytes(8)
NO_STREAM = (Status.DCP_STREAM_NOT_FOUND, Status.OPAQUE_NO_MATCH)


class Mover(Client):
    """A mover that is the producer, too: it answers what the node asks, and keeps what else it says.

    Attributes: controls (each that was asked, in order), asked (the last stream request of each vbucket), opaques (of
    the streams), acknowledged_bytes, sent_bytes (of counted messages).
    """

    def __init__(self, port: int, name: bytes = b"mover", login: str = "") -> None:
        super().__init__(port)
        self.controls: list[tuple[bytes, bytes]] = []
        self.asked: dict[int, dcp.StreamRequest] = {}
        self.opaques: dict[int, int] = {}
        self.acknowledged_bytes = self.sent_bytes = 0
        self.heard: dict[int, list[Frame]] = defaultdict(list)
        self.ask(Opcode.HELLO, value=int(Feature.XERROR).to_bytes(2, "big"))  # else some errors end the connection
        if login:
            assert self.ask(Opcode.SASL_AUTH, key=b"PLAIN", value=f"\0{login}\0secret".encode()).status == 0
            assert self.ask(Opcode.SELECT_BUCKET, key=b"default").status == 0
        assert self.ask(Opcode.DCP_OPEN, key=name, extras=bytes(8)).status == 0

    def turn(self) -> None:
        """Take the next frame."""
        frame = self.read()
        assert frame is not None, "the node hung up"
        match frame.is_response, frame.opcode:
            case False, Opcode.DCP_CONTROL:
                self.controls.append((frame.key, frame.value))
                self.send(response(frame).encode())
            case False, Opcode.DCP_STREAM_REQ:
                self.asked[frame.vbucket] = dcp.StreamRequest.decode(frame)
                self.opaques[frame.vbucket] = frame.opaque
                self.send(response(frame, value=LOG).encode())
            case False, Opcode.DCP_BUFFER_ACKNOWLEDGEMENT:
                self.acknowledged_bytes += dcp.BufferAck.decode(frame).acked_bytes
                assert self.acknowledged_bytes <= self.sent_bytes
            case _:
                self.heard[frame.opcode].append(frame)

    def wait(self, condition: Callable[[], object]) -> None:
        while not condition():
            self.turn()

    def answers(self, opcode: int, count: int = 1) -> list[Frame]:
        """Wait for answers of an opcode, and take them."""
        self.wait(lambda: len(self.heard[opcode]) >= count)
        return self.heard.pop(opcode)

    def add(self, vb: int, flags: int = 0) -> int:
        """Ask for a stream; the status."""
        self.send(dcp.AddStream(vbucket=vb, opaque=9, flags=flags).encode())
        (answer,) = self.answers(Opcode.DCP_ADD_STREAM)
        assert answer.status or answer.extras == self.opaques[vb].to_bytes(4, "big")
        return answer.status

    def say(self, *messages: bytes) -> None:
        self.sent_bytes += sum(map(len, messages))
        self.send(b"".join(messages))

    def snapshot(self, vb: int, first: int, last: int, value: bytes = b"v", flags: int = SnapshotFlag.MEMORY) -> None:
        """Send a snapshot of changes."""
        self.say(self.marker(vb, first, last, flags), *(self.mutation(vb, at, value) for at in range(first, last + 1)))

    def marker(self, vb: int, first: int, last: int, flags: int = SnapshotFlag.MEMORY) -> bytes:
        opaque = self.opaques[vb]
        return dcp.SnapshotMarker(vbucket=vb, opaque=opaque, start_seqno=first, end_seqno=last, flags=flags).encode()

    def mutation(self, vb: int, seqno: int, value: bytes = b"v", opaque: int | None = None) -> bytes:
        return dcp.Mutation(
            vbucket=vb, opaque=self.opaques[vb] if opaque is None else opaque, key=b"%d-%d" % (vb, seqno), value=value,
            by_seqno=seqno, rev_seqno=1, cas=seqno,
        ).encode()  # fmt: skip

    def set_state(self, vb: int, state: State) -> int:
        """Hand a state over; the status."""
        self.say(dcp.SetVbucketState(vbucket=vb, opaque=self.opaques[vb], state=state).encode())
        (answer,) = self.answers(Opcode.DCP_SET_VBUCKET_STATE)
        return answer.status

    def pass_by(self, opaque: int = 1) -> list[Frame]:
        """Wait until all that was sent is handled; the errors that it brought."""
        self.send(Frame(0x80, Opcode.DCP_NOOP, opaque=opaque).encode())
        (answer,) = self.answers(Opcode.DCP_NOOP)
        assert (answer.status, answer.opaque) == (0, opaque)
        errors = [frame for frames in self.heard.values() for frame in frames if frame.is_response and frame.status]
        self.heard.clear()
        return errors


def set_states(node: Node, state: State, vbs: range = ALL) -> None:
    with Client(node.port) as client:
        for vb in vbs:
            assert client.ask(Opcode.SET_VBUCKET, vbucket=vb, extras=bytes([state])).status == 0


def values(node: Node, vb: int, count: int) -> list[bytes | None]:
    with Client(node.port) as client:
        answers = [client.ask(Opcode.GET, vbucket=vb, key=b"%d-%d" % (vb, at)) for at in range(1, count + 1)]
        return [None if answer.status == Status.KEY_ENOENT else answer.value for answer in answers]


@pytest.fixture
def node() -> Iterator[Node]:
    """Two workers, all of whose vbuckets are replicas."""
    with testing.node(vbuckets=VBUCKETS, workers=2) as node:
        set_states(node, State.REPLICA)
        yield node


def test_one_connection_feeds_the_vbuckets_of_all_workers_and_acknowledges_what_all_have_taken(node: Node) -> None:
    for name in (b"a", b"b"):  # each worker has some of the connections
        with Mover(node.port, name) as mover:
            assert [mover.add(vb) for vb in ALL] == [0] * VBUCKETS
            assert len(mover.controls) == len(set(mover.controls)), "the client negotiates with one node"
            assert mover.add(3) == Status.KEY_EEXISTS
            start = mover.asked[3].start_seqno
            assert {each.start_seqno for each in mover.asked.values()} == {start}
            for seqno in range(start + 1, start + 11):
                for vb in ALL:
                    mover.snapshot(vb, seqno, seqno, value=bytes(10_000))
            assert mover.pass_by() == []
            mover.wait(lambda: mover.sent_bytes - mover.acknowledged_bytes <= SMALL_ACK_BYTES)
            for vb in ALL:
                mover.send(dcp.CloseStream(vbucket=vb, opaque=mover.opaques[vb]).encode())
            assert [answer.status for answer in mover.answers(Opcode.DCP_CLOSE_STREAM, VBUCKETS)] == [0] * VBUCKETS
            mover.wait(lambda: mover.acknowledged_bytes == mover.sent_bytes)
    set_states(node, State.ACTIVE)
    for vb in ALL:
        assert values(node, vb, 20) == [bytes(10_000)] * 20


def test_vbuckets_of_all_workers_are_taken_over(node: Node) -> None:
    with Mover(node.port) as mover:
        for vb in ALL:
            assert mover.add(vb, StreamFlag.TAKEOVER) == 0
            mover.snapshot(vb, 1, 3, flags=SnapshotFlag.MEMORY | SnapshotFlag.ACK)
        assert {answer.opaque for answer in mover.answers(Opcode.DCP_SNAPSHOT_MARKER, VBUCKETS)} == {
            *mover.opaques.values()
        }
        for vb in ALL:
            assert (mover.set_state(vb, State.PENDING), mover.set_state(vb, State.ACTIVE)) == (0, 0)
            mover.say(dcp.StreamEnd(vbucket=vb, opaque=mover.opaques[vb], status=0).encode())
        assert mover.pass_by() == []
        mover.say(*(mover.mutation(vb, 4) for vb in ALL))
        assert {each.status for each in mover.pass_by()} == {Status.DCP_STREAM_NOT_FOUND}
        assert mover.add(1) == mover.add(2) == Status.NOT_MY_VBUCKET
    for vb in ALL:
        assert values(node, vb, 4) == [b"v", b"v", b"v", None]
        with Client(node.port) as client:
            assert client.ask(Opcode.SET, vbucket=vb, key=b"new", extras=bytes(8)).status == 0
            log = client.ask(Opcode.GET_FAILOVER_LOG, vbucket=vb).value
            assert log == LOG, "a takeover is no new branch"


@pytest.mark.parametrize("lies", [1, 2], ids=["of worker 1", "of worker 0"])
def test_the_stream_whose_opaque_it_has_lacks_a_message_that_names_another_workers_vbucket(
    node: Node, lies: int
) -> None:
    """The message is the stream's next change: the vbucket that it was meant for must not be taken over without it."""
    other = 3 - lies
    with Mover(node.port) as mover:
        for vb in (lies, other):
            assert mover.add(vb, StreamFlag.TAKEOVER) == 0
            mover.snapshot(vb, 1, 3)
        mover.say(mover.mutation(other, 4, opaque=mover.opaques[lies]))
        (error,) = mover.pass_by()
        assert error.status in NO_STREAM
        assert mover.set_state(other, State.PENDING) == 0
        assert mover.set_state(lies, State.PENDING) == Status.EINVAL


def test_messages_without_a_stream_are_refused_by_whichever_worker(node: Node) -> None:
    with Mover(node.port) as mover:
        for vb in (1, 2):
            assert mover.add(vb) == 0
            mover.snapshot(vb, 1, 2)
        mover.say(mover.mutation(1, 3, opaque=77), mover.mutation(2, 3, opaque=77), mover.mutation(4, 1, opaque=77))
        errors = mover.pass_by()
        assert len(errors) == 3 and all(error.status in NO_STREAM for error in errors)
        for vb in (1, 2):
            mover.send(dcp.CloseStream(vbucket=vb, opaque=5).encode())
            mover.say(mover.mutation(vb, 3))
            mover.send(dcp.CloseStream(vbucket=vb, opaque=6).encode())
        statuses = [answer.status for answer in mover.answers(Opcode.DCP_CLOSE_STREAM, 4)]
        assert sorted(statuses) == [0, 0, *[Status.DCP_STREAM_NOT_FOUND] * 2]
        assert [each.status for each in mover.pass_by()] == [Status.DCP_STREAM_NOT_FOUND] * 2
        for vb in (1, 2):
            assert mover.add(vb) == 0 and mover.asked[vb].start_seqno == 2
        mover.send(Frame(0x81, Opcode.DCP_STREAM_REQ, opaque=mover.opaques[1] + 1000, value=LOG).encode())
        while mover.read() is not None:  # an answer to what nobody asked ends the connection
            pass


def test_no_ops_are_answered_in_order_behind_what_came_before_them(node: Node) -> None:
    with Mover(node.port) as mover:
        for vb in (1, 2):
            assert mover.add(vb) == 0
        begun = mover.marker(1, 1, 50) + mover.marker(2, 1, 50)
        mover.say(begun, *(
            mover.mutation(vb, seqno) + Frame(0x80, Opcode.DCP_NOOP, opaque=seqno).encode()
            for seqno in range(1, 51) for vb in (1, 2)
        ))  # fmt: skip
        numbers = [answer.opaque for answer in mover.answers(Opcode.DCP_NOOP, 100)]
        assert numbers == [seqno for seqno in range(1, 51) for _ in range(2)]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_is_killed_amid_a_takeover_ends_the_connection_and_the_next_goes_on(
    node: Node, victim: int
) -> None:
    with Mover(node.port) as mover:
        for vb in (0, 1):
            assert mover.add(vb, StreamFlag.TAKEOVER) == 0
            mover.snapshot(vb, 1, 5, flags=SnapshotFlag.MEMORY | SnapshotFlag.ACK)
        mover.answers(Opcode.DCP_SNAPSHOT_MARKER, 2)
        assert mover.set_state(victim, State.PENDING) == 0
        mover.snapshot(victim, 6, 9)
        os.kill(workers_of(node)[victim], signal.SIGKILL)
        while mover.read() is not None:
            pass
    until(lambda: f"worker {victim} ended by signal 9" in node.log, "its death")

    begun, states = list[int](), list[tuple[int, int]]()

    def is_taken_on() -> bool:
        with suppress(OSError, AssertionError), Mover(node.port) as again:  # the worker may be away still
            if again.add(victim, StreamFlag.TAKEOVER):
                return False
            begun.append(begin := again.asked[victim].start_seqno)
            again.say(again.marker(victim, begin, 9), *(again.mutation(victim, at) for at in range(begin + 1, 10)))
            states.append((again.set_state(victim, State.PENDING), again.set_state(victim, State.ACTIVE)))
            return True
        return False

    until(is_taken_on, "the takeover", seconds=60)
    assert begun[0] >= 5, "what was acknowledged is there"
    assert states == [(0, 0)] and values(node, victim, 9) == [b"v"] * 9


def test_a_worker_that_is_stopped_holds_up_no_ops_and_the_clients_sending(node: Node) -> None:
    with Mover(node.port) as mover:
        for vb in (0, 1):
            assert mover.add(vb) == 0
        stopped = workers_of(node)[1]
        os.kill(stopped, signal.SIGSTOP)
        try:
            mover.socket.settimeout(0.5)
            mover.send(Frame(0x80, Opcode.DCP_NOOP, opaque=5).encode())
            with pytest.raises(TimeoutError):
                mover.turn()
            value, sent = bytes(1 << 16), 0
            changes = mover.marker(1, 1, 1000) + b"".join(mover.mutation(1, at, value) for at in range(1, 1001))
            with pytest.raises(TimeoutError):  # what waits for it has an end
                while sent < len(changes):
                    sent += mover.socket.send(changes[sent : sent + len(value)])
            with Client(node.port) as other:
                assert other.ask(Opcode.NOOP).status == 0
        finally:
            os.kill(stopped, signal.SIGCONT)
        mover.socket.settimeout(60)
        mover.sent_bytes = 1 << 40  # which are not counted here
        assert mover.answers(Opcode.DCP_NOOP)[0].opaque == 5


def test_a_name_is_the_newest_connections_whoever_consumes(node: Node) -> None:
    for _ in range(4):
        with Mover(node.port, b"same") as older:
            until(lambda: older.add(1) == 0, "the connection before it has left it")
            until(lambda: older.add(2) == 0, "the connection before it has left it")
            with Mover(node.port, b"same") as newer:
                while older.read() is not None:
                    pass
                until(lambda: newer.add(1) == 0, "the older connection has left it")
                until(lambda: newer.add(2) == 0, "the older connection has left it")


def test_who_may_not_replicate_is_refused_and_who_loses_the_right_is_cut_at_all_workers(node: Node) -> None:
    secret = node.data.parent / "password"
    secret.write_text("secret")
    secret.chmod(0o600)
    for name, roles in (("ann", "administer"), ("bob", "replicate"), ("eve", "stream")):
        line = ("user", "add", name, "--roles", roles, "--data", str(node.data), "--password-file", str(secret))
        assert command(*line)[0] == 0
    until(lambda: node.log.count("eve") >= 2, "all workers know them")
    with Client(node.port) as eve:
        eve.ask(Opcode.HELLO, value=int(Feature.XERROR).to_bytes(2, "big"))
        assert eve.ask(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0eve\0secret").status == 0
        assert eve.ask(Opcode.SELECT_BUCKET, key=b"default").status == 0
        assert eve.ask(Opcode.DCP_OPEN, key=b"n", extras=bytes(8)).status == Status.EACCESS
    with Mover(node.port, login="bob") as bob:
        assert bob.add(1) == bob.add(2) == 0
        assert command("user", "roles", "bob", "read", "--data", str(node.data))[0] == 0
        while bob.read() is not None:
            pass


def test_a_client_that_ends_its_input_hears_all_that_it_is_owed(node: Node) -> None:
    with Mover(node.port) as mover:
        for vb in ALL:
            assert mover.add(vb) == 0
            mover.say(mover.marker(vb, 1, 2, SnapshotFlag.MEMORY | SnapshotFlag.ACK))
        mover.say(*(mover.mutation(vb, seqno, bytes(30_000)) for seqno in (1, 2) for vb in ALL))
        mover.say(*(mover.mutation(vb, 2) for vb in ALL))
        mover.socket.shutdown(socket.SHUT_WR)
        markers, errors = [], []
        while (frame := mover.read()) is not None:
            if frame.magic == Magic.CLIENT_RESPONSE:
                (markers if frame.opcode == Opcode.DCP_SNAPSHOT_MARKER else errors).append(frame)
        assert {marker.opaque for marker in markers} == {*mover.opaques.values()}
        assert [error.status for error in errors] == [Status.ERANGE] * VBUCKETS


def test_statistics_count_the_streams_of_all_workers(node: Node) -> None:
    with Mover(node.port) as mover, Client(node.port) as client:
        for vb in ALL:
            assert mover.add(vb) == 0

        def told(name: bytes) -> list[bytes]:
            client.send(Frame(0x80, Opcode.STAT, b"dcp").encode())
            lines = list[bytes]()
            while (frame := client.read()) is not None and frame.key:
                lines += [frame.value] if frame.key.endswith(name) else []
            return lines

        assert told(b"num_streams") == [b"%d" % VBUCKETS] and told(b"ep_dcp_consumer_count") == [b"1"]
        mover.say(dcp.StreamEnd(vbucket=1, opaque=mover.opaques[1], status=0).encode())
        mover.send(dcp.CloseStream(vbucket=2, opaque=0).encode())
        mover.send(dcp.CloseStream(vbucket=3, opaque=0).encode())
        mover.answers(Opcode.DCP_CLOSE_STREAM, 2)
        assert mover.pass_by() == []
        assert told(b"num_streams") == [b"%d" % (VBUCKETS - 3)]
