"""Guests that take more than their share of memory or time: they are held to it, and nobody else notices."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from struct import pack

import pytest

from headwater import testing
from headwater.testing.node import Node
from headwater.wire import dcp
from headwater.wire.header import HEADER, Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.faults.test_strangers import is_hung_up, resident
from tests.node.membership.support import stats
from tests.node.replication.support import Line, call, until
from tests.node.wire import Client

MIB = 1 << 20
NOOP = Frame(0x80, Opcode.NOOP).encode()
SHORT_SECONDS = 0.05


class Watch(threading.Thread):
    """A bystander who asks for a no-op again and again and is answered each time; and how the loop's time was shared.

    All in processor time of the node's loop, of which others on this machine take nothing.

    Attributes:
        longest_seconds: of the longest turn. total_seconds: of all of them.
    """

    def __init__(self, node: Node) -> None:
        super().__init__(daemon=True)
        self.longest_seconds = self.total_seconds = 0.0
        self._asked = 0
        self._error: BaseException | None = None
        self._node = node
        self._over = threading.Event()

    def __enter__(self) -> Watch:
        self.start()
        until(lambda: self._asked > 5, "it watches")
        stats(self._node, "loop reset")
        self.total_seconds = -self._loop_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        self.total_seconds += self._loop_seconds()
        self.longest_seconds = int(stats(self._node, "loop")["ep_loop_busy_max"]) / 1e6
        self._over.set()
        self.join(120)
        assert self._error is None and not self.is_alive()

    def _loop_seconds(self) -> float:
        """Processor time of the node's first thread, which runs the loop."""
        return int(Path(f"/proc/{self._node.pid}/task/{self._node.pid}/schedstat").read_text().split()[0]) / 1e9

    def run(self) -> None:
        try:
            with Client(self._node.port) as client:
                while not self._over.is_set():
                    assert client.ask(Opcode.NOOP).status == 0
                    self._asked += 1
        except BaseException as error:  # `__exit__` tells
            self._error = error

    def saw_turns(self) -> bool:
        """Whether the work was done in several turns of the loop, none of which took most of the time.

        Compared, since processors differ; what takes no longer than a few slices altogether is short in any case.
        """
        return self.longest_seconds < max(SHORT_SECONDS, self.total_seconds / 2)


def test_a_hundred_half_requests_stay_under_the_bound_and_the_node_serves() -> None:
    with testing.node(vbuckets=4, memory_mib=100) as node, ExitStack() as stack:
        before = resident(node)
        claim = HEADER.pack(0x80, Opcode.SET, 1, 8, 0, 0, 20 * MIB, 0, 0) + bytes(9)
        for _ in range(30):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", node.port), 120))
            try:
                sock.sendall(claim + bytes(19 * MIB))
            except OSError:
                continue
        assert resident(node) - before < 250 * MIB  # what is held, a copy while a buffer grows, and the heap's rest
        assert call(node, Opcode.SET, b"k", b"v", bytes(8)).status == 0
        told = stats(node, "")
        assert int(told["ep_connections_memory"]) <= 100 * MIB == int(told["ep_connections_memory_max"])
        assert int(told["ep_connections_dropped_for_memory"]) > 10
        until(lambda: "all connections together hold more than" in node.log, "it is told")


def test_memory_of_guests_who_left_goes_back_to_the_system_though_others_hold_what_lies_between() -> None:
    size, count = 800 << 10, 40
    unread = Frame(0x80, Opcode.GET, b"k").encode() * 12
    half = HEADER.pack(0x80, Opcode.SET, 1, 8, 0, 0, 200_000, 0, 0) + bytes(100_000)
    with testing.node(vbuckets=4) as node, ExitStack() as modest, Line(node.port) as line:
        assert line.call(Opcode.SET, b"k", bytes(size), bytes(8)).status == 0
        before = resident(node)
        with ExitStack() as greedy:
            for _ in range(count):
                deaf = greedy.enter_context(socket.create_connection(("127.0.0.1", node.port), 120))
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
                deaf.sendall(unread)
                assert line.call(Opcode.NOOP).status == 0
                modest.enter_context(socket.create_connection(("127.0.0.1", node.port), 120)).sendall(half)
                assert line.call(Opcode.NOOP).status == 0
            until(lambda: resident(node) > before + 100 * MIB, "they hold much")
        until(lambda: resident(node) < before + 50 * MIB, "it was given back")


def test_who_watches_maps_and_never_reads_is_let_go() -> None:
    with testing.node(vbuckets=4) as node, ExitStack() as stack:
        deaf = []
        for _ in range(3):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", node.port), 120))
            sock.sendall(b"GET /pools/default/bucketsStreaming/default HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            deaf.append(sock)
        before = resident(node)
        with Line(node.port) as line:
            revision = time.time_ns() // 1_000_000 + 60_000
            for number in range(100):
                config = b'{"pad":"%b",' % (b"x" * (900 << 10))
                config += b'"vBucketServerMap":{"serverList":["a:1"],"vBucketMap":[[0],[0],[0],[0]]}}'
                line.send(Frame(0x80, Opcode.SET_CLUSTER_CONFIG, b"", pack(">QQ", 1, revision + number), config))
                assert line.read().status == 0
        assert resident(node) - before < 250 * MIB
        until(lambda: "bytes of memory" in node.log, "it is told")


def test_a_consumers_name_is_no_place_to_keep_megabytes() -> None:
    with testing.node(vbuckets=4) as node, Line(node.port) as line:
        assert line.call(Opcode.DCP_OPEN, b"guest", b"", pack(">II", 0, 1)).status == 0
        line.send(dcp.Control(key=b"consumer_name", value=b"n" * 201).frame())
        assert line.read().status == Status.EINVAL
        line.send(dcp.Control(key=b"consumer_name", value=b"n" * 200).frame())
        assert line.read().status == 0


@pytest.fixture(scope="module")
def large() -> Iterator[Node]:
    with testing.node(vbuckets=1024, loop_watch_ms=2) as running:
        with Client(running.port) as client:
            writes = (Frame(0x80, Opcode.SETQ, b"key-%d" % n, bytes(8), b"v") for n in range(100_000))
            client.send(b"".join(write.encode() for write in writes))
            assert client.ask(Opcode.NOOP).status == 0
        yield running


def test_a_hundred_pipelined_statistics_hold_nobody_up(large: Node) -> None:
    with Watch(large) as watch, Client(large.port) as guest:
        guest.send(Frame(0x80, Opcode.STAT, b"vbucket-details").encode() * 40)
        for _ in range(40):
            while (answer := guest.read()) is not None and answer.key:
                pass
    assert watch.saw_turns()


def test_observe_takes_a_bounded_list_in_slices(large: Node) -> None:
    keys = b"".join(pack(">HH", 0, len(key)) + key for key in (b"key-%d" % n for n in range(4000)))
    with Watch(large) as watch, Client(large.port) as guest:
        for _ in range(20):
            answer = guest.ask(Opcode.OBSERVE, value=keys)
            assert (answer.status, answer.value.count(b"key-")) == (0, 4000)
        assert guest.ask(Opcode.OBSERVE, value=keys * 20).status in (Status.E2BIG, Status.EINVAL)
    assert watch.saw_turns()


def test_keys_of_a_large_vbucket_are_looked_for_in_slices(large: Node) -> None:
    with Watch(large) as watch, Client(large.port) as guest:
        guest.send(Frame(0x80, Opcode.GET_KEYS, b"key-5", pack(">I", 3)).encode() * 10)
        for _ in range(10):
            answer = guest.read()
            first = (b"key-5", b"key-50", b"key-500")
            assert answer is not None
            assert answer.value == b"".join(pack(">H", len(key)) + key for key in first)
    assert watch.saw_turns()


def test_a_document_has_a_thousand_attributes_at_most(large: Node) -> None:
    pairs = b"".join(pack(">I", 9) + b"k%06d\0\0" % n for n in range(200_000))
    with Watch(large) as watch, Client(large.port) as guest:
        assert guest.ask(Opcode.HELLO, value=pack(">HHH", 6, 7, 11)).status == 0
        told = {"extras": bytes(8), "datatype": 4, "key": b"x"}
        assert guest.ask(Opcode.SET, value=pack(">I", len(pairs)) + pairs, **told).status == Status.XATTR_EINVAL
        few = pairs[: 13 * 1000]
        assert guest.ask(Opcode.SET, value=pack(">I", len(few)) + few, **told).status == 0
    assert watch.saw_turns()


def test_ten_thousand_pipelined_requests_of_the_plain_path_hold_nobody_up(large: Node) -> None:
    with Watch(large) as watch, Client(large.port) as guest:
        guest.send(Frame(0x80, Opcode.GET_META, b"key-1").encode() * 10_000)
        for _ in range(10_000):
            assert guest.read() is not None
    assert watch.saw_turns()


def test_a_crowd_of_busy_guests_shares_each_turn_of_the_loop() -> None:
    with testing.node(vbuckets=64, loop_watch_ms=2) as node, Watch(node) as watch, ExitStack() as stack:
        guests = [stack.enter_context(Client(node.port)) for _ in range(60)]
        for guest in guests:
            guest.send(Frame(0x80, Opcode.STAT, b"vbucket-details").encode() * 10)
            guest.send(Frame(0x80, Opcode.GET_META, b"key-1").encode() * 500)
        for guest in guests:
            while (answer := guest.read()) is not None and answer.opcode == Opcode.STAT:
                pass
    assert watch.saw_turns()


def test_statistics_of_many_tap_sessions_hold_nobody_up() -> None:
    with testing.node(vbuckets=1024, loop_watch_ms=2, tap_keep_alive_seconds=60) as node:
        for number in range(120):
            with Client(node.port) as guest:
                guest.send(Frame(0x80, Opcode.TAP_CONNECT, b"left-%d" % number, pack(">I", 16)).encode())
                assert guest.read() is not None
        with Watch(node) as watch:
            assert stats(node, "tap")["ep_tap_count"] == "120"
    assert watch.saw_turns()


def test_tap_sessions_whose_clients_are_away_count_and_those_that_hold_most_go() -> None:
    with testing.node(vbuckets=1024, memory_mib=64, tap_keep_alive_seconds=600) as node:
        for number in range(120):
            with Client(node.port) as guest:
                guest.send(Frame(0x80, Opcode.TAP_CONNECT, b"left-%d" % number, pack(">I", 16)).encode())
                assert guest.read() is not None
        until(lambda: "whose client is away, is over: all connections" in node.log, "a session goes")
        told = stats(node, "")
        assert 32 * MIB < int(told["ep_tap_kept_memory"]) <= int(told["ep_connections_memory"]) <= 64 * MIB
        assert int(stats(node, "tap")["ep_tap_count"]) < 100


def test_what_the_system_keeps_for_sockets_counts_and_the_guest_that_holds_most_goes() -> None:
    with testing.node(vbuckets=4, memory_mib=64) as node, ExitStack() as stack:
        assert call(node, Opcode.SET, b"k", bytes(100 << 10), bytes(8)).status == 0
        for _ in range(100):  # with so small a window of their own, nearly all waits on the node's side, none in it
            deaf = stack.enter_context(socket.socket())
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", node.port))
            deaf.sendall(Frame(0x80, Opcode.GET, b"k").encode() * 12)
        told = stats(node, "")
        until(lambda: int(stats(node, "")["ep_connections_dropped_for_memory"]) > 0, "one of them goes")
        told = stats(node, "")
        assert int(told["ep_kernel_memory"]) > 32 * MIB
        assert int(told["ep_connections_memory"]) <= 64 * MIB


def test_sessions_with_nothing_to_say_are_let_go_and_those_with_no_ops_stay() -> None:
    with testing.node(vbuckets=4, idle_seconds=2) as node, ExitStack() as stack:
        silent = stack.enter_context(socket.create_connection(("127.0.0.1", node.port), 120))
        half = stack.enter_context(socket.create_connection(("127.0.0.1", node.port), 120))
        half.sendall(b"GET /pools HTTP/1.1\r\n")
        stream = stack.enter_context(Line(node.port))
        assert stream.call(Opcode.DCP_OPEN, b"quiet", b"", pack(">II", 0, 1)).status == 0
        watcher = stack.enter_context(socket.create_connection(("127.0.0.1", node.port), 120))
        watcher.sendall(b"GET /pools/default/bucketsStreaming/default HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        for each in (silent, half, stream.sock):
            assert is_hung_up(each)
        watcher.settimeout(0.2)
        with pytest.raises(TimeoutError):
            while watcher.recv(1 << 16):
                pass


def test_an_idle_limit_is_on_by_default() -> None:
    with testing.node(vbuckets=1) as node:
        told = stats(node, "config")
        assert (told["idle_seconds"], told["login_seconds"]) == ("360", "30")


def test_a_short_request_is_answered_before_those_of_a_crowd_that_wants_a_large_document() -> None:
    """All of them are there at once, the short one last: the node is stopped while they are sent, and counted then."""
    with testing.node(vbuckets=4) as node, ExitStack() as stack:
        bystander = stack.enter_context(Client(node.port))
        for key, size in ((b"large", 10 * MIB), (b"short", 10)):
            assert bystander.ask(Opcode.SET, key=key, extras=bytes(8), value=bytes(size)).status == 0
        crowd = [stack.enter_context(Client(node.port)) for _ in range(100)]
        assert {each.ask(Opcode.NOOP).status for each in crowd} == {0}
        os.kill(node.pid, signal.SIGSTOP)
        for each in crowd:
            each.send(Frame(0x80, Opcode.GET, b"large").encode())
        bystander.send(Frame(0x80, Opcode.GET, b"short").encode())
        os.kill(node.pid, signal.SIGCONT)
        answer = bystander.read()
        os.kill(node.pid, signal.SIGSTOP)
        served, _, _ = select.select([each.socket for each in crowd], [], [], 0)
        os.kill(node.pid, signal.SIGCONT)
        assert answer is not None and answer.value == bytes(10)
        assert len(served) < 50, f"{len(served)} of 100 were served before"
