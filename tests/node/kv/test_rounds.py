"""Rounds of the kernel over real sockets: what clients get is what they get without rounds, at every step."""

from __future__ import annotations

import asyncio
import random
import select
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.kernels import rounds as kernel
from headwater.node.connections.connection import Connection
from headwater.node.connections.inbox import ConnectionInbox
from headwater.node.kv.api import FastRequests, Session
from headwater.node.kv.fast import FastPath
from headwater.node.kv.rounds import ServedRounds
from headwater.node.kv.session import KvSession
from headwater.node.kv.text import TextSession
from headwater.node.process.run_queue import RunQueue
from headwater.wire.address import Address
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.node.support import Desk, SteppedCommitter

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="there are no rounds without epoll")

TURNS = 6
"""Iterations of the loop in which everything that can happen has happened."""


class Batches(SteppedCommitter):
    """Commits in two steps, and wakes who waits."""

    in_flight = 0
    _batch: Any = None

    def gate(self) -> int:
        return self.open if self.dirty else self.in_flight

    def begin(self) -> None:
        """Freeze what gathered: from here on it is being written."""
        if not self.in_flight and self.dirty:
            self._batch = self.store.freeze()
            self.in_flight, self.open, self.dirty = self.open, self.open + 1, False

    def end(self) -> None:
        """Let it be on disk."""
        if self.in_flight:
            if self._batch is not None:
                self.store.write(self._batch)
                self.store.settle(self._batch)
            self.durable, self.in_flight = self.in_flight, 0
            self._wake()
            for callback in self.on_durable:
                callback()

    def lose(self) -> None:
        """Fail to write it: what gathered meanwhile is lost as well."""
        if not self.in_flight or self._batch is None:
            return
        error = OSError("no")
        lost = self.store.abandon(self._batch, error)
        passed, self.open = self.open, self.open + 1
        self.in_flight, self.dirty = 0, False
        waiting, self.waiting = self.waiting, set()
        for each in waiting:
            each.drop("its batch could not be written", fault=False)  # type: ignore[attr-defined]
        for callback in self.on_failure:
            callback(error, lost)  # type: ignore[operator]
        self.durable = passed

    def _wake(self) -> None:
        waiting, self.waiting = self.waiting, set()
        for each in waiting:
            each.flush()  # type: ignore[attr-defined]


class Stage(Desk):
    """A desk whose sessions have real sockets, with rounds or without."""

    def __init__(self, path: Path, *, has_rounds: bool) -> None:
        super().__init__(path)
        committer = Batches(self.store)
        committer.durable, committer.open = self.committer.durable, self.committer.open
        committer.on_failure = self.committer.on_failure
        self.committer = self.bucket.committer = committer
        self.loop = asyncio.get_running_loop()
        self.run_queue = RunQueue(self.loop)
        self.run_queue.slice_seconds = 1000.0  # what happens is not for the machine's speed to say
        self.arena = np.zeros(1 << 16, np.uint8)
        self.rounds = ServedRounds(self, self.bucket, committer, self.requests, self.workspace)  # type: ignore[arg-type]
        self.has_rounds = has_rounds
        self.ends: list[socket.socket] = []
        committer.on_durable.append(lambda: self.requests.settled(committer.durable))
        committer.on_failure.append(self._drop_writers)

    def _drop_writers(self, *_: object) -> None:
        """Drop who has quiet writes in a lost batch, as a node does (served.py)."""
        self.requests.lost()
        for connection in tuple(self.connections):
            if connection.session.written_gate > self.committer.durable:  # type: ignore[attr-defined]
                connection.drop("its batch could not be written", fault=False)  # type: ignore[attr-defined]

    def fast_path(self, session: Session) -> FastRequests:
        return FastPath(session, self.bucket, self.workspace, self.rounds if self.has_rounds else None)

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)

    def end_trial(self, connection: Connection, *, is_trusted: bool) -> None:
        """Do nothing: nobody is on trial."""

    def warn(self, peer: str, cause: str) -> None:
        self.warnings.append(cause)

    def connect(self, small: bool = False) -> Peer:
        """A client with a plain session."""
        ours, theirs = socket.socketpair()
        self.ends.append(theirs)
        for each in (ours, theirs):
            each.setblocking(False)
        if small:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        connection = Connection(self, ours, "peer:1", ConnectionInbox(self.arena.data))  # type: ignore[arg-type]
        connection.session = session = KvSession(connection, self)  # type: ignore[arg-type]
        connection.start()
        self.connections.add(connection)
        return Peer(theirs, connection, session)

    async def store_one(self) -> None:
        """Store a document; the first one is Python's, for its vbucket has no room in the index yet."""
        one = self.connect()
        one.send(put(b"first", b"1"))
        await self.commit()
        assert answers(one.heard())[0].status == 0
        one.connection.drop("it has had its answer", fault=False)
        one.socket.close()

    async def commit(self) -> None:
        """Carry out what was sent, and commit it."""
        await self.settle()
        self.committer.begin()  # type: ignore[attr-defined]
        self.committer.end()  # type: ignore[attr-defined]
        await self.settle()

    async def settle(self) -> None:
        """Let everything happen that can."""
        for _ in range(TURNS):
            await asyncio.sleep(0)

    def close(self) -> None:
        for connection in tuple(self.connections):
            connection.drop("over", fault=False)  # type: ignore[attr-defined]
        for end in self.ends:
            end.close()
        self.rounds.close()
        super().close()


@dataclass
class Peer:
    """A client's end of a connection."""

    socket: socket.socket
    connection: Connection
    session: KvSession

    def send(self, data: bytes) -> None:
        with suppress(ConnectionError):
            self.socket.sendall(data)

    def heard(self) -> bytes | None:
        """Return the bytes that have come; None once the other end is closed."""
        data = b""
        while True:
            try:
                piece = self.socket.recv(1 << 20)
            except BlockingIOError:
                return data
            except ConnectionError:
                return None
            if not piece:
                return data or None
            data += piece


@contextmanager
def stage(has_rounds: bool = True) -> Iterator[Stage]:
    with TemporaryDirectory() as folder:
        made = Stage(Path(folder), has_rounds=has_rounds)
        try:
            yield made
        finally:
            made.close()


def run(story: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        with stage() as made:
            await asyncio.wait_for(story(made), 120)

    asyncio.run(main())


def put(key: bytes, value: bytes, *, opcode: int = Opcode.SET, cas: int = 0) -> bytes:
    return Frame(0x80, opcode, key, bytes(8), value, cas=cas, opaque=7).encode()


def get(key: bytes, opcode: int = Opcode.GET) -> bytes:
    return Frame(0x80, opcode, key, opaque=8).encode()


def answers(data: bytes | None) -> list[Frame]:
    assert data is not None
    return FrameBuffer().receive_data(data)


# --- the same bytes ---------------------------------------------------------------------------------------------------

keys = st.sampled_from([b"a", b"b", b"c"])
values = st.sampled_from([b"", b"x", b'{"a":1}', b"y" * 300, b"z" * 3000])
frames = st.one_of(
    st.builds(put, keys, values, opcode=st.sampled_from([Opcode.SET, Opcode.SETQ, Opcode.ADD, Opcode.REPLACE])),
    st.builds(get, keys, st.sampled_from([Opcode.GET, Opcode.GETQ, Opcode.GETK])),
    st.builds(get, keys),
    st.builds(put, keys, values),
    st.builds(lambda key: Frame(0x80, Opcode.DELETE, key).encode(), keys),
    st.sampled_from(
        [
            Frame(0x80, Opcode.NOOP).encode(),
            Frame(0x80, Opcode.VERSION).encode(),
            Frame(0x80, Opcode.GET, b"a", vbucket=77).encode(),
            Frame(0x80, Opcode.GET, b"k" * 251).encode(),
            Frame(0x80, Opcode.HELLO, b"me", value=bytes.fromhex("0004000b")).encode(),
            Frame(0x80, Opcode.HELLO, b"me", value=bytes.fromhex("0012")).encode(),
            Frame(0x80, Opcode.GET_LOCKED, b"a", extras=(1).to_bytes(4, "big")).encode(),
            Frame(0x80, Opcode.APPEND, b"a", value=b"+").encode(),
            Frame(0x80, Opcode.TOUCH, b"a", extras=bytes(4)).encode(),
            Frame(0x08, Opcode.GET, b"a").encode(),
        ]
    ),
)
CLIENTS = 3
steps = st.one_of(
    st.tuples(
        st.just("send"), st.integers(0, CLIENTS - 1), st.lists(frames, min_size=1, max_size=3), st.integers(0, 99)
    ),
    st.tuples(st.just("send"), st.integers(0, CLIENTS - 1), st.lists(frames, min_size=1, max_size=1), st.just(0)),
    st.tuples(st.sampled_from(["begin", "end", "later", "notice", "busy"])),
    st.tuples(st.sampled_from(["leave", "pause", "resume", "look up"]), st.integers(0, CLIENTS - 1)),
    st.tuples(st.just("lose")),
)


async def told(has_rounds: bool, story: Sequence[tuple[Any, ...]]) -> tuple[list[Any], dict[str, Any], int]:
    """Return what every client has heard after each step, what the node has counted, and how many answers were kept."""
    seen: list[Any] = []
    with stage(has_rounds) as made:
        clients = [made.connect() for _ in range(CLIENTS)]
        rests = [b""] * CLIENTS
        for step in story:
            if step[0] == "send":
                _, who, sent, cut = step
                data = rests[who] + b"".join(sent)
                left = min(cut, len(data))
                clients[who].send(data[: len(data) - left])
                rests[who] = data[len(data) - left :]
            elif step[0] == "leave":
                clients[step[1]].socket.close()
                await made.settle()
                clients[step[1]], rests[step[1]] = made.connect(), b""
            elif step[0] in {"pause", "resume"}:
                getattr(clients[step[1]].connection, step[0])("a handler")
            elif step[0] == "look up":
                clients[step[1]].session.users_changed()
            elif step[0] == "busy":
                made.run_queue.spend(1.0)  # what comes in this iteration of the loop has to wait in line
            elif step[0] == "later":
                made.clock.seconds += 2
            elif step[0] == "notice":
                clients[0].connection.send(b"notice", made.committer.gate())
            else:
                getattr(made.committer, step[0])()
            if step[0] != "busy":
                await made.settle()
            seen.append([client.heard() for client in clients])
            for who, client in enumerate(clients):
                if client.connection.is_closed:
                    clients[who], rests[who] = made.connect(), b""
        for client, rest in zip(clients, rests, strict=True):
            client.connection.resume("a handler")
            client.send(rest)
        for _ in range(3):
            made.committer.begin()  # type: ignore[attr-defined]
            made.committer.end()  # type: ignore[attr-defined]
            await made.settle()
        seen.append([client.heard() for client in clients])
        requests = made.requests
        counts = {
            "totals": dict(made.bucket.counters),
            "requests": requests.counts(),
            "durations": {opcode: durations.at_most()[-1][1] for opcode, durations in requests.durations.items()},
            "bytes": (requests.received_bytes, requests.sent_bytes),
            "memory": made.budget.held_bytes,
            "gates": [client.session.gate for client in clients],
            "warnings": made.warnings,
        }
        served = made.rounds._fields[kernel.TAIL]
        for client in clients:
            client.socket.close()
    return seen, counts, served


@settings(max_examples=100, deadline=None)
@given(st.lists(steps, max_size=30))
def test_at_each_step_every_client_has_heard_the_same_with_rounds_and_without(story: list[tuple[Any, ...]]) -> None:
    async def both() -> None:
        seen, counts, _ = await told(True, story)
        plain, plainly, _ = await told(False, story)
        assert seen == plain
        assert counts == plainly

    asyncio.run(both())


unread = st.one_of(
    st.tuples(st.just("send"), st.integers(0, CLIENTS - 1), frames),
    st.tuples(st.sampled_from(["get large", "read", "pause", "resume"]), st.integers(0, CLIENTS - 1), st.none()),
    st.tuples(st.sampled_from(["begin", "end"]), st.none(), st.none()),
)


async def heard_of_slow_readers(has_rounds: bool, story: Sequence[tuple[Any, ...]]) -> list[bytes]:
    """Return all that each client has heard: their sockets take little, and they read at the steps that say so."""
    with stage(has_rounds) as made:
        await made.store_one()
        clients, heard = [made.connect(small=True) for _ in range(CLIENTS)], [b""] * CLIENTS
        clients[0].send(put(b"large", b"L" * 3000))
        await made.commit()
        for what, who, sent in story:
            if what in {"begin", "end"}:
                getattr(made.committer, what)()
            elif what == "read":
                heard[who] += clients[who].heard() or b""
            elif what in {"pause", "resume"}:
                getattr(clients[who].connection, what)("a handler")
            else:
                clients[who].send(get(b"large") if what == "get large" else sent)
            await made.settle()
        for client in clients:
            client.connection.resume("a handler")
        for _ in range(len(story) + 2):
            await made.commit()
            heard = [before + (client.heard() or b"") for before, client in zip(heard, clients, strict=True)]
        return heard


@settings(max_examples=100, deadline=None)
@given(st.lists(unread, max_size=40))
def test_who_reads_slowly_gets_the_same_bytes_in_the_end(story: list[tuple[Any, ...]]) -> None:
    async def both() -> None:
        assert await heard_of_slow_readers(True, story) == await heard_of_slow_readers(False, story)

    asyncio.run(both())


def test_a_thousand_steps_of_one_request_each_are_the_same_and_most_writes_wait_in_the_rounds() -> None:
    chance = random.Random(5)
    story: list[tuple[Any, ...]] = []
    for _ in range(1000):
        key = chance.choice([b"a", b"b", b"c"])
        request = get(key) if chance.random() < 0.5 else put(key, b"v" * chance.randrange(60))
        story.append(("send", chance.randrange(CLIENTS), [request], 0))
        story += [(chance.choice(["begin", "end"]),)] if chance.random() < 0.5 else []

    async def both() -> None:
        seen, counts, kept = await told(True, story)
        assert (seen, counts) == (await told(False, story))[:2]
        assert kept > 100

    asyncio.run(both())


# --- joins ------------------------------------------------------------------------------------------------------------


def test_an_answer_leaves_when_its_batch_is_on_disk_and_a_read_of_it_as_well() -> None:
    async def story(made: Stage) -> None:
        await made.store_one()
        one, two = made.connect(), made.connect()
        one.send(put(b"a", b"1"))
        await made.settle()
        made.committer.begin()  # type: ignore[attr-defined]
        two.send(get(b"a"))
        await made.settle()
        assert (one.heard(), two.heard()) == (b"", b"")
        assert made.committer.waiting == {made.rounds}
        made.committer.end()  # type: ignore[attr-defined]
        (stored,), (found,) = answers(one.heard()), answers(two.heard())
        assert (stored.status, found.value, found.cas) == (0, b"1", stored.cas)

    run(story)


def test_a_read_of_what_gathers_waits_for_that_batch_and_not_for_the_one_in_flight() -> None:
    async def story(made: Stage) -> None:
        await made.store_one()
        one, two, three = made.connect(), made.connect(), made.connect()
        one.send(put(b"a", b"1"))
        await made.settle()
        made.committer.begin()  # type: ignore[attr-defined]
        two.send(put(b"a", b"2"))
        three.send(get(b"a"))  # in one round
        await made.settle()
        three.send(Frame(0x80, Opcode.NOOP).encode())  # its answer is taken back, with the batch that it waits for
        await made.settle()
        made.committer.end()  # type: ignore[attr-defined]
        await made.settle()
        assert answers(one.heard())[0].status == 0 and (two.heard(), three.heard()) == (b"", b"")
        made.committer.begin()  # type: ignore[attr-defined]
        made.committer.end()  # type: ignore[attr-defined]
        await made.settle()
        assert answers(three.heard())[0].value == b"2"

    run(story)


def test_whose_batch_is_lost_is_dropped_without_an_answer_and_the_others_go_on() -> None:
    async def story(made: Stage) -> None:
        await made.store_one()
        writer, reader, other = made.connect(), made.connect(), made.connect()
        writer.send(put(b"a", b"1"))
        await made.settle()
        made.committer.begin()  # type: ignore[attr-defined]
        reader.send(get(b"a"))
        await made.settle()
        made.committer.lose()  # type: ignore[attr-defined]
        await made.settle()
        assert (writer.heard(), reader.heard()) == (None, None)
        other.send(get(b"a"))
        await made.settle()
        assert answers(other.heard())[0].status == Status.KEY_ENOENT
        other.send(put(b"a", b"2"))
        await made.commit()
        assert answers(other.heard())[0].status == 0

    run(story)


def test_who_takes_the_descriptor_of_one_that_left_never_gets_its_answer() -> None:
    async def story(made: Stage) -> None:
        await made.store_one()
        one = made.connect()
        number = one.connection._fd
        one.send(put(b"a", b"1"))
        await made.settle()
        one.connection.drop("gone", fault=False)
        one.socket.close()
        two = made.connect()
        assert two.connection._fd == number
        two.send(put(b"b", b"2"))
        await made.commit()
        assert len(answers(two.heard())) == 1

    run(story)


@pytest.mark.parametrize("before", [b"", put(b"a", b"1")])
def test_what_is_for_python_after_a_pause_is_answered_with_what_the_kernel_has_done_before_it(before: bytes) -> None:
    async def story(made: Stage) -> None:
        await made.store_one()
        one = made.connect()
        one.connection.pause("a handler")
        one.connection.resume("a handler")
        await made.settle()
        one.send(before + Frame(0x80, Opcode.VERSION).encode())
        await made.commit()
        assert [answer.opcode for answer in answers(one.heard())] == [Opcode.SET] * bool(before) + [Opcode.VERSION]

    run(story)


def test_what_comes_behind_a_kept_answer_stands_behind_it() -> None:
    async def story(made: Stage) -> None:
        await made.store_one()
        one = made.connect()
        one.send(put(b"a", b"1"))
        await made.settle()
        one.send(get(b"nothing"))
        await made.settle()
        assert one.heard() == b"" and one.session.gate == 1 + made.committer.durable
        one.connection.send(b"notice")
        made.committer.begin()  # type: ignore[attr-defined]
        made.committer.end()  # type: ignore[attr-defined]
        await made.settle()
        data = one.heard()
        assert data is not None and data.endswith(b"notice")
        assert [frame.opcode for frame in answers(data[:-6])] == [Opcode.SET, Opcode.GET]

    run(story)


def test_what_the_node_says_unasked_stands_behind_a_kept_answer() -> None:
    async def story(made: Stage) -> None:
        await made.store_one()
        one = made.connect()
        one.send(put(b"a", b"1"))
        await made.settle()
        one.connection.send(b"notice")
        assert one.heard() == b""
        await made.commit()
        data = one.heard()
        assert data is not None and data.endswith(b"notice") and answers(data[:-6])[0].opcode == Opcode.SET

    run(story)


@pytest.mark.parametrize("ends", ["finish", "shut"])
def test_who_ends_while_an_answer_is_kept_gets_it_first(ends: str) -> None:
    async def story(made: Stage) -> None:
        await made.store_one()
        one = made.connect()
        one.send(put(b"a", b"1"))
        await made.settle()
        if ends == "finish":
            one.connection.finish()
        else:
            one.socket.shutdown(socket.SHUT_WR)
        await made.settle()
        assert one.heard() == b"" and not one.connection.is_closed
        made.committer.begin()  # type: ignore[attr-defined]
        made.committer.end()  # type: ignore[attr-defined]
        await made.settle()
        assert answers(one.heard())[0].status == 0 and one.connection.is_closed

    run(story)


def test_a_bucket_that_only_the_plain_path_may_serve_is_served_by_it() -> None:
    async def story(made: Stage) -> None:
        one = made.connect()
        one.send(put(b"a", b"1"))
        await made.commit()
        one.heard()
        made.bucket.traffic_disabled = True
        one.send(get(b"a"))
        await made.settle()
        assert answers(one.heard())[0].status == Status.ETMPFAIL

    run(story)


def test_who_loses_the_right_to_write_is_refused_by_the_next_request() -> None:
    async def story(made: Stage) -> None:
        await made.store_one()
        one = made.connect()
        quick = one.session.quick
        assert quick is not None
        one.session.refresh_access()
        assert one.session.quick is not quick and one.connection._watching.quick is one.session.quick
        made.rounds.allow(one.connection._fd, 0)
        one.send(put(b"a", b"1"))
        await made.settle()
        assert made.rounds._fields[kernel.TAIL] == 0  # the kernel may not write for it: it was for Python

    run(story)


def test_an_answer_that_the_socket_does_not_take_whole_waits_in_the_outbox_in_its_place() -> None:
    async def story(made: Stage) -> None:
        one = made.connect(small=True)
        one.send(put(b"large", b"L" * 50_000))
        for _ in range(20):
            await made.commit()
        one.heard()
        for _ in range(3):
            one.send(get(b"large"))
            await made.settle()
        one.send(Frame(0x80, Opcode.NOOP).encode())
        heard = b""
        for _ in range(200):
            await made.settle()
            heard += one.heard() or b""
        frames = answers(heard)
        assert [frame.opcode for frame in frames] == [Opcode.GET] * 3 + [Opcode.NOOP]
        assert {frame.value for frame in frames[:3]} == {b"L" * 50_000}

    run(story)


def test_more_answers_than_the_ring_has_room_for_wait_with_their_connections() -> None:
    async def story(made: Stage) -> None:
        await made.store_one()
        made.rounds._fields[kernel.TAIL] = kernel.KEPT - 2  # as if so many, all of connections that have left, waited
        clients = [made.connect() for _ in range(4)]
        for client in clients:
            client.send(put(b"a", b"1"))
        await made.settle()
        assert made.rounds._fields[kernel.TAIL] == kernel.KEPT
        assert sum(client.connection._outbox.queued_bytes > 0 for client in clients) == 2
        made.committer.begin()  # type: ignore[attr-defined]
        made.committer.end()  # type: ignore[attr-defined]
        await made.settle()
        assert all(answers(client.heard())[0].status == 0 for client in clients)

    run(story)


def test_a_connection_counts_as_stirred_by_what_the_kernel_answered() -> None:
    async def story(made: Stage) -> None:
        one = made.connect()
        one.connection._stirred_at = 0.0
        one.send(get(b"a"))
        await made.settle()
        assert one.connection.stirred_at > 0.0
        one.connection.pause("test")
        assert one.connection.stirred_at > 0.0

    run(story)


def test_a_dropped_bucket_watches_nothing_and_its_last_batch_ends_in_peace() -> None:
    async def story(made: Stage) -> None:
        await made.store_one()
        one = made.connect()
        one.send(put(b"a", b"1"))
        await made.settle()
        one.connection.drop("its bucket was dropped", fault=False)
        made.rounds.close()
        await made.commit()
        assert one.heard() is None and made.rounds._epoll is None and not made.rounds._connections

    run(story)


def test_who_speaks_text_or_has_a_part_of_another_worker_is_called_for_each_request() -> None:
    async def story(made: Stage) -> None:
        one = made.connect()
        assert one.session.quick is not None
        assert TextSession(one.connection, made).quick is None  # type: ignore[arg-type]
        relays = {Address("127.0.0.1", 1): "/tmp/another"}
        assert KvSession(one.connection, made, relays=relays).quick is None  # type: ignore[arg-type]

    run(story)


def test_where_there_is_no_descriptor_left_for_rounds_the_loop_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError("too many open files")

    async def story(made: Stage) -> None:
        monkeypatch.setattr(select, "epoll", refuse)
        one = made.connect()
        one.send(get(b"a"))
        await made.settle()
        assert answers(one.heard())[0].status == Status.KEY_ENOENT and one.connection._watching.rounds is None

    run(story)


def test_others_have_their_turn_while_every_connection_has_something_to_ask() -> None:
    async def story(made: Stage) -> None:
        one = made.connect()
        made.run_queue.spend(1.0)  # this iteration is used up
        one.send(get(b"a"))
        order: list[str] = []
        made.run_queue.first(lambda: order.append("first in line"))
        made.loop.call_soon(lambda: None)
        await made.settle()
        assert order == ["first in line"] and answers(one.heard())[0].status == Status.KEY_ENOENT

    run(story)
