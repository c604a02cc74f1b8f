"""Guests' connections and sessions are gone once they close, and nobody has to look for them among all that lives."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from struct import pack

import pytest

from headwater.node.process import garbage
from headwater.node.process.garbage import FEW_OBJECTS, NEVER, YOUNG_OBJECTS, Collector
from headwater.testing.embedded import Embedded, embedded
from headwater.wire import dcp
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from tests.node.wire import Client

DEADLINE_SECONDS = 60.0
ALL = (1 << 64) - 1


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    with embedded(tmp_path_factory.mktemp("node")) as made:
        yield made


def plain(client: Client) -> None:
    client.ask(Opcode.SET, key=b"k", extras=bytes(8), value=b"v")
    client.ask(Opcode.SASL_AUTH, key=b"SCRAM-SHA512", value=b"n,,n=any,r=nonce")


def producer(client: Client) -> None:
    client.ask(Opcode.DCP_OPEN, key=b"a producer", extras=pack(">II", 0, 1))
    asked = dcp.StreamRequest(vbucket=1, start_seqno=0, end_seqno=ALL, snap_start_seqno=0, snap_end_seqno=0)
    client.send(asked.encode())
    client.read()


def consumer(client: Client) -> None:
    client.ask(Opcode.DCP_OPEN, key=b"a consumer", extras=pack(">II", 0, 0))


def tap(client: Client) -> None:
    client.send(Frame(0x80, Opcode.TAP_CONNECT, b"", bytes(4)).encode())
    client.read()


def text(client: Client) -> None:
    client.send(b"version\r\n")
    client.socket.recv(100)


def http(client: Client) -> None:
    client.send(b"GET /pools HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    client.socket.recv(100)


@pytest.mark.parametrize("speak", [plain, producer, consumer, tap, text, http])
def test_a_connection_that_closes_is_gone_without_a_collection(node: Embedded, speak: Callable[[Client], None]) -> None:
    gc.disable()
    try:
        with Client(node.port) as client:
            speak(client)
            (connection,) = node.server.connections
            left = [weakref.ref(connection), weakref.ref(connection.session)]
            del connection
        deadline = time.monotonic() + DEADLINE_SECONDS
        while any(each() is not None for each in left) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [each() for each in left] == [None, None]
    finally:
        gc.enable()


class Loop:
    """A loop of one timer."""

    def __init__(self) -> None:
        self.work: Callable[[], object]

    def call_later(self, _: float, work: Callable[[], object]) -> Loop:
        self.work = work
        return self

    def cancel(self) -> None:
        """There is nothing to wake."""


class Gc:
    """Python's collector, as far as it is asked."""

    def __init__(self) -> None:
        self.threshold: tuple[int, int, int] = (700, 10, 10)
        self.old = self.alive = 0
        self.done: list[object] = []

    def get_threshold(self) -> tuple[int, int, int]:
        return self.threshold

    def set_threshold(self, *threshold: int) -> None:
        self.threshold = (threshold[0], threshold[1], threshold[2])

    def get_count(self) -> tuple[int, int, int]:
        return 1, 1, self.old

    def collect(self, generation: int = 2) -> None:
        self.done.append(generation)

    def freeze(self) -> None:
        self.done.append("freeze")

    def get_objects(self) -> range:
        return range(self.alive)


def test_the_old_are_looked_through_while_they_are_few_and_set_aside_once_they_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, python = Loop(), Gc()
    monkeypatch.setattr(garbage, "gc", python)
    collector = Collector(loop)  # type: ignore[arg-type]
    collector.start()
    assert (python.threshold, python.done) == ((700, 10, NEVER), [2, "freeze"])

    def look(grown: int, alive: int = 0) -> list[object]:
        python.old, python.alive, python.done = grown, alive, []
        loop.work()
        return python.done

    assert look(0) == [], "nothing has grown old"
    assert look(FEW_OBJECTS // YOUNG_OBJECTS, 3000) == [2]
    assert look(FEW_OBJECTS // YOUNG_OBJECTS) == [1, "freeze"], "with those that were alive they are many"
    assert look(1, FEW_OBJECTS) == [2], "what was set aside is not looked through again"
    assert look(1) == [1, "freeze"]
    assert (collector.collected, collector.set_aside) == (2, 2)
    collector.stop()
    assert python.threshold == (700, 10, 10)
