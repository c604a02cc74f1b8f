"""A client that knows the address that workers have in common gets the streams of all, as from one process."""

from __future__ import annotations

import os
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from harness.nodes import until
from headwater import testing
from headwater.testing.node import Node
from headwater.wire import dcp, upr
from headwater.wire.dcp import EndReason
from headwater.wire.features import Feature
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import vbucket_of
from tests.cluster.nodes import command
from tests.node.wire import Client
from tests.node.workers.test_supervising import workers_of

VBUCKETS = 8
KEYS = [f"key-{number}".encode() for number in range(400)]
ALL = range(VBUCKETS)
U64_MAX = (1 << 64) - 1
SET_EXTRAS = bytes(8)
PRODUCER = bytes(7) + b"\1"


def stream_request(vb: int, start: int = 0, uuid: int = 0, end: int = U64_MAX, value: bytes = b"") -> bytes:
    """A request from a position at which a snapshot ended."""
    return dcp.StreamRequest(
        vbucket=vb,
        opaque=100 + vb,
        start_seqno=start,
        end_seqno=end,
        vb_uuid=uuid,
        snap_start_seqno=start,
        snap_end_seqno=start,
        value=value,
    ).encode()


class Consumer(Client):
    """A consumer of one address; it acknowledges what it reads, unless `holds` is set."""

    def __init__(
        self,
        port: int,
        name: bytes = b"consumer",
        *,
        window_bytes: int = 0,
        login: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(port)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket)
        self.window_bytes, self.unacknowledged, self.most = window_bytes, 0, 0
        self.holds = False
        self.opaques: dict[int, int] = {}
        if login:
            plain = f"\0{login}\0secret".encode()
            assert self.ask(Opcode.SASL_AUTH, key=b"PLAIN", value=plain).status == 0
            assert self.ask(Opcode.SELECT_BUCKET, key=b"default").status == 0
        assert self.ask(Opcode.DCP_OPEN, key=name, extras=PRODUCER).status == 0
        if window_bytes:
            self.control(b"connection_buffer_size", b"%d" % window_bytes)

    def control(self, key: bytes, value: bytes) -> None:
        assert self.ask(Opcode.DCP_CONTROL, key=key, value=value).status == 0

    def request(self, vb: int, start: int = 0, uuid: int = 0, end: int = U64_MAX) -> None:
        self.send(stream_request(vb, start, uuid, end))

    def next(self) -> Frame:
        frame = self.read()
        assert frame is not None, "the node hung up"
        if frame.magic == 0x80 and frame.opcode != Opcode.DCP_NOOP:
            self.unacknowledged += len(frame)
            self.most = max(self.most, self.unacknowledged)
            if self.window_bytes and not self.holds:
                self.acknowledge()
        return frame

    def acknowledge(self) -> None:
        self.send(dcp.BufferAck(acked_bytes=self.unacknowledged).encode())
        self.unacknowledged = 0

    def silence(self) -> bool:
        """True if nothing comes for a moment."""
        before = self.socket.gettimeout()
        self.socket.settimeout(0.3)
        try:
            self.read()
        except TimeoutError:
            return True
        else:
            return False
        finally:
            self.socket.settimeout(before)


def opened(consumer: Consumer, vbs: Iterator[int] | range = ALL) -> dict[int, int]:
    """Ask for streams from the beginning; the uuid of each vbucket."""
    uuids = {}
    for vb in vbs:
        consumer.request(vb)
        answer = consumer.next()
        while answer.opcode != Opcode.DCP_STREAM_REQ:
            answer = consumer.next()
        assert answer.status == 0, vb
        uuids[vb] = int.from_bytes(answer.value[:8], "big")
    return uuids


def store(port: int, values: dict[bytes, bytes]) -> None:
    """Have documents stored, each acknowledged."""
    with Client(port) as client:
        for key, value in values.items():
            vb = vbucket_of(key, VBUCKETS)
            assert client.ask(Opcode.SET, key=key, vbucket=vb, extras=SET_EXTRAS, value=value).status == 0


def drained(consumer: Consumer, wanted: dict[bytes, bytes], vbs: range = ALL) -> dict[int, int]:
    """Read streams until all documents have come as they were stored last, in order of each vbucket's seqnos, in
    snapshots. Returns the last seqno of each vbucket."""
    for vb in vbs:
        consumer.request(vb)
    seen: dict[bytes, bytes] = {}
    last, snapshots = dict.fromkeys(vbs, 0), dict.fromkeys(vbs, (0, 0))
    while seen != wanted:
        frame = consumer.next()
        if frame.magic != 0x80:
            assert frame.status == 0
            continue
        assert frame.opaque == 100 + frame.vbucket
        if frame.opcode == Opcode.DCP_SNAPSHOT_MARKER:
            marker = dcp.SnapshotMarker.decode(frame)
            assert last[frame.vbucket] == snapshots[frame.vbucket][1], "the snapshot before it is whole"
            snapshots[frame.vbucket] = marker.start_seqno, marker.end_seqno
        else:
            change = dcp.Mutation.decode(frame)
            assert last[frame.vbucket] < change.by_seqno <= snapshots[frame.vbucket][1]
            last[frame.vbucket], seen[frame.key] = change.by_seqno, frame.value
    return last


@pytest.fixture(scope="module")
def filled() -> Iterator[tuple[Node, dict[bytes, bytes]]]:
    """Two workers with documents, which no test changes."""
    with testing.node(vbuckets=VBUCKETS, workers=2) as node:
        wanted = {key: os.urandom(500) for key in KEYS}
        store(node.port, wanted)
        yield node, wanted


@pytest.mark.parametrize("window_bytes", [0, 1, 3000, 1 << 20])
def test_one_connection_gets_all_that_was_acknowledged(
    filled: tuple[Node, dict[bytes, bytes]], window_bytes: int
) -> None:
    node, wanted = filled
    for _ in range(2):  # each worker has some of them
        with Consumer(node.port, window_bytes=window_bytes) as consumer:
            drained(consumer, wanted)
            assert consumer.silence()


@pytest.mark.parametrize("window_bytes", [1, 3000])
def test_all_workers_have_their_share_of_a_small_window(
    filled: tuple[Node, dict[bytes, bytes]], window_bytes: int
) -> None:
    """Each opening of the window is two turns, one that sends and one that finds it full: by their number the same
    worker went first each time, and the streams of the others waited until its own had sent all."""
    node, _ = filled
    with Consumer(node.port, window_bytes=window_bytes) as consumer:
        opened(consumer)
        seen = list[int]()
        while len(seen) < 120:
            frame = consumer.next()
            if frame.opcode == Opcode.DCP_MUTATION:
                seen.append(frame.vbucket % 2)
        assert 10 <= seen.count(0) <= 110


def test_no_more_is_sent_than_the_window_takes_and_answers_come_all_the_same(
    filled: tuple[Node, dict[bytes, bytes]],
) -> None:
    node, wanted = filled
    with Consumer(node.port, window_bytes=4000) as consumer:
        consumer.holds = True
        for vb in ALL:
            consumer.request(vb)
        sent, answers = 0, 0
        while sent < 4000 or answers < VBUCKETS:
            frame = consumer.next()
            answers += frame.opcode == Opcode.DCP_STREAM_REQ
            sent += len(frame) if frame.magic == 0x80 else 0
        assert sent < 4000 + 700 and consumer.silence()
        logs = [consumer.ask(Opcode.DCP_GET_FAILOVER_LOG, vbucket=vb) for vb in ALL]
        assert [log.status for log in logs] == [0] * VBUCKETS
        closed = [consumer.ask(Opcode.DCP_CLOSE_STREAM, vbucket=vb, opaque=100 + vb) for vb in ALL]
        assert [(each.opcode, each.status) for each in closed] == [(Opcode.DCP_CLOSE_STREAM, 0)] * VBUCKETS
        again = consumer.ask(Opcode.DCP_CLOSE_STREAM, vbucket=0)
        assert again.status == Status.KEY_ENOENT
        consumer.acknowledge()
        assert consumer.silence(), "no message comes of a stream that was closed"
        consumer.holds = False
        drained(consumer, wanted)


def test_a_stream_goes_on_from_a_position_and_a_position_of_another_history_is_rolled_back(
    filled: tuple[Node, dict[bytes, bytes]],
) -> None:
    node, wanted = filled
    with Consumer(node.port) as consumer:
        last = drained(consumer, wanted)
        uuids = {}
        for vb in ALL:
            log = consumer.ask(Opcode.DCP_GET_FAILOVER_LOG, vbucket=vb)
            uuids[vb] = int.from_bytes(log.value[:8], "big")
    with Consumer(node.port) as consumer:
        for vb in ALL:
            consumer.request(vb, last[vb] - 1, uuids[vb], last[vb])
            messages = [consumer.next() for _ in range(4)]
            assert [message.opcode for message in messages] == [
                Opcode.DCP_STREAM_REQ, Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION, Opcode.DCP_STREAM_END,
            ]  # fmt: skip
            assert messages[2].extras[:8] == last[vb].to_bytes(8, "big")
        for vb in ALL:
            consumer.request(vb, last[vb], 77)
            answer = consumer.next()
            assert (answer.status, answer.value) == (Status.ROLLBACK, bytes(8))


def test_a_change_made_later_comes_at_once_from_whichever_worker(filled: tuple[Node, dict[bytes, bytes]]) -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node, Consumer(node.port, window_bytes=10_000) as consumer:
        opened(consumer)
        for round_ in range(3):
            store(node.port, dict.fromkeys(KEYS[:16], b"%d" % round_))
            got = set()
            while len(got) < 16:
                frame = consumer.next()
                if frame.opcode == Opcode.DCP_MUTATION:
                    assert frame.value == b"%d" % round_
                    got.add(frame.key)


@contextmanager
def at_the_other(node: Node, vb: int, **options: object) -> Iterator[Consumer]:
    """A consumer whose connection a worker has that has not the vbucket."""
    consumers = []
    try:
        while True:
            with Client(node.port):
                pass
            consumers.append(consumer := Consumer(node.port, b"at-%d" % len(consumers), **options))  # type: ignore[arg-type]
            config = consumer.ask(Opcode.GET_CLUSTER_CONFIG).value
            entries = config.split(b'"nodesExt":')[1].split(b'"services"')
            if next(at for at, each in enumerate(entries[1:]) if b'"thisNode":true' in each) != vb % 2:
                yield consumer
                return
    finally:
        for each in consumers:
            each.socket.close()


def test_a_worker_that_is_killed_ends_its_streams_and_no_others_and_has_them_again_when_it_is_back() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node:
        wanted = dict.fromkeys(KEYS, b"value")
        store(node.port, wanted)
        with at_the_other(node, 1, window_bytes=100_000) as consumer:
            last = drained(consumer, wanted)
            uuids = {vb: int.from_bytes(consumer.ask(Opcode.DCP_GET_FAILOVER_LOG, vbucket=vb).value[:8]) for vb in ALL}
            os.kill(workers_of(node)[1], signal.SIGKILL)
            ends = [consumer.next() for _ in range(VBUCKETS // 2)]
            assert {(end.opcode, int.from_bytes(end.extras)) for end in ends} == {
                (Opcode.DCP_STREAM_END, EndReason.DISCONNECTED)
            }
            assert {end.vbucket for end in ends} == {1, 3, 5, 7}
            assert all(end.opaque == 100 + end.vbucket for end in ends)
            own = next(key for key in KEYS if vbucket_of(key, VBUCKETS) == 2)
            stored = consumer.ask(Opcode.SET, key=own, vbucket=2, extras=SET_EXTRAS, value=b"later")
            assert stored.status == 0 or stored.opcode != Opcode.SET
            seen = [consumer.next() for _ in range(2)]
            assert {each.vbucket for each in seen} <= {0, 2}, "the other streams go on"

            def is_back() -> bool:
                consumer.request(1, last[1], uuids[1])
                answer = consumer.next()
                while answer.opcode != Opcode.DCP_STREAM_REQ:
                    answer = consumer.next()
                return answer.status == 0

            until(is_back, "the worker streams again")


def test_a_name_belongs_to_the_newest_connection_at_whichever_workers_they_are(
    filled: tuple[Node, dict[bytes, bytes]],
) -> None:
    node, _ = filled
    for _ in range(4):
        with Consumer(node.port, b"same") as older, Consumer(node.port, b"same") as newer:
            assert older.read() is None
            opened(newer)


def test_settings_hold_at_all_workers_though_they_were_made_before_a_stream(
    filled: tuple[Node, dict[bytes, bytes]],
) -> None:
    node, _ = filled
    with Client(node.port) as client:
        features = (Feature.COLLECTIONS, Feature.XERROR)
        client.ask(Opcode.HELLO, value=b"".join(int(feature).to_bytes(2, "big") for feature in features))
        assert client.ask(Opcode.DCP_OPEN, key=b"set", extras=PRODUCER).status == 0
        for vb in ALL:  # with Collections no-ops are needed
            client.send(stream_request(vb, end=0))
            answer = client.read()
            assert answer is not None and answer.status == Status.NOT_SUPPORTED
        for key, value in ((b"enable_noop", b"true"), (b"enable_stream_id", b"true")):
            assert client.ask(Opcode.DCP_CONTROL, key=key, value=value).status == 0
        for vb in ALL:
            for stream in (1, 2):
                value = b'{"sid": %d}' % stream
                client.send(stream_request(vb, value=value))
                answer = client.read()
                while answer is not None and answer.opcode != Opcode.DCP_STREAM_REQ:
                    answer = client.read()
                assert answer is not None and answer.status == 0


def test_a_upr_consumer_is_served_whole_too(filled: tuple[Node, dict[bytes, bytes]]) -> None:
    node, wanted = filled
    for _ in range(2):
        with Client(node.port) as client:
            assert client.ask(Opcode.DCP_OPEN, key=b"upr", extras=PRODUCER).status == 0
            for vb in ALL:
                client.send(
                    upr.StreamRequest(
                        vbucket=vb, opaque=vb, start_seqno=0, end_seqno=U64_MAX, vb_uuid=0, high_seqno=0
                    ).encode()
                )
            seen, markers = {}, 0
            while seen != wanted or markers < VBUCKETS:
                frame = client.read()
                assert frame is not None and (frame.magic == 0x80 or frame.status == 0)
                if frame.opcode == Opcode.DCP_SNAPSHOT_MARKER:
                    assert not frame.extras
                    markers += 1
                elif frame.opcode == Opcode.DCP_MUTATION:
                    seen[frame.key] = frame.value


def test_who_may_not_stream_sees_nothing_and_who_loses_the_right_is_cut_at_all_workers() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node:
        store(node.port, dict.fromkeys(KEYS[:32], b"value"))
        secret = node.data.parent / "password"
        secret.write_text("secret")
        secret.chmod(0o600)
        for name, roles in (("ann", "administer"), ("bob", "stream"), ("eve", "read")):
            line = ("user", "add", name, "--roles", roles, "--data", str(node.data), "--password-file", str(secret))
            assert command(*line)[0] == 0
        until(lambda: node.log.count("eve") >= 2, "all workers know them")
        with Client(node.port) as stranger, Client(node.port) as eve:
            assert stranger.ask(Opcode.DCP_OPEN, key=b"n", extras=PRODUCER).status == Status.EACCESS
            eve.ask(Opcode.HELLO, value=int(Feature.XERROR).to_bytes(2, "big"))
            assert eve.ask(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0eve\0secret").status == 0
            assert eve.ask(Opcode.SELECT_BUCKET, key=b"default").status == 0
            assert eve.ask(Opcode.DCP_OPEN, key=b"n", extras=PRODUCER).status == Status.EACCESS
        with Consumer(node.port, login="bob") as bob:
            drained(bob, dict.fromkeys(KEYS[:32], b"value"))
            assert command("user", "roles", "bob", "read", "--data", str(node.data))[0] == 0
            while (frame := bob.read()) is not None:
                assert frame.opcode in (Opcode.DCP_STREAM_END, Opcode.DCP_NOOP)


def test_streams_of_all_workers_come_by_tls() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2, tls=True) as node:
        wanted = {key: os.urandom(3000) for key in KEYS[:100]}
        store(node.port, wanted)
        assert node.certificates is not None and node.tls_port is not None
        context = ssl.create_default_context(cafile=str(node.certificates.trust_store))
        context.check_hostname = False
        for _ in range(2):
            with Consumer(node.tls_port, tls=context) as consumer:
                drained(consumer, wanted)


def test_a_node_that_is_told_to_stop_ends_streams_and_calls_and_itself() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node:
        with Consumer(node.port, b"a") as first, Consumer(node.port, b"b", window_bytes=100) as second:
            opened(first)
            second.holds = True
            opened(second)
            assert node.stop() == 0
            while first.read() is not None:
                pass
        assert node.start().is_running
        with Consumer(node.port) as again:
            opened(again)


def test_a_consumer_that_ends_its_input_gets_the_answers_of_all_workers(
    filled: tuple[Node, dict[bytes, bytes]],
) -> None:
    node, _ = filled
    for name in (b"a", b"b"):
        with Consumer(node.port, name) as consumer:
            for vb in ALL:
                consumer.send(Frame(0x80, Opcode.DCP_GET_FAILOVER_LOG, vbucket=vb, opaque=vb).encode())
                consumer.send(stream_request(vb, start=9, uuid=5))
            consumer.socket.shutdown(socket.SHUT_WR)
            answers = set()
            while (frame := consumer.read()) is not None:
                answers.add((frame.opcode, frame.opaque, frame.status))
            logs = {(Opcode.DCP_GET_FAILOVER_LOG, vb, Status.SUCCESS) for vb in ALL}
            assert answers == logs | {(Opcode.DCP_STREAM_REQ, 100 + vb, Status.ROLLBACK) for vb in ALL}


def test_a_worker_that_does_not_answer_holds_up_its_own_requests_and_nobody_else() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node, at_the_other(node, 1) as consumer:
        opened(consumer)
        stopped = workers_of(node)[1]
        os.kill(stopped, signal.SIGSTOP)
        try:
            asked = Frame(0x80, Opcode.DCP_GET_FAILOVER_LOG, vbucket=1, opaque=9).encode()
            consumer.socket.settimeout(0.3)
            sent = 0
            with pytest.raises(TimeoutError):  # what waits for it here has an end
                while sent < 256 << 20:
                    sent += consumer.socket.send(asked * 1000)
            with Client(node.port) as other:  # the worker that is stopped accepts nobody
                assert other.ask(Opcode.NOOP).status == 0
        finally:
            os.kill(stopped, signal.SIGCONT)
