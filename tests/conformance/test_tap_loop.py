"""A TTL stops a loop: two real nodes, both with the vbucket as a replica, and a relay each way between them.

"Each command includes ... a TTL to avoid replication loops" (the TAP seed, Response Commands).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from headwater.client import tap
from headwater.errors import HeadwaterError
from headwater.testing import Node, node
from headwater.testing.proxy import Fault, FaultProxy, Way
from headwater.wire.header import Frame
from headwater.wire.layout import Request
from headwater.wire.opcodes import Opcode
from headwater.wire.tap import Delete, MessageFlag, Mutation, Opaque
from tests.conformance.seeds import SECONDS_MAX, Line

Sent = tuple[bytes, int]
"""Key and TTL of a change."""


class Relay:
    """A mover from one node to another; `sent` collects what passes."""

    def __init__(self, source: Node, target: Node) -> None:
        self.sent: list[Sent] = []
        self._proxy = FaultProxy(source.address, self._note)
        url = f"couchbase://{self._proxy.address}/default"
        self._stream = tap.connect(url, since=tap.NOW, patience_seconds=0)
        self._thread = threading.Thread(target=self._run, args=(target.url,))
        self._thread.start()

    def stop(self) -> None:
        self._proxy.close()
        self._thread.join()

    def _run(self, target: str) -> None:
        with suppress(HeadwaterError):
            tap.relay(self._stream, target)

    def _note(self, way: Way, frame: Frame) -> Fault:
        if way is Way.DOWN and frame.opcode in (Opcode.TAP_MUTATION, Opcode.TAP_DELETE):
            message = (Mutation if frame.opcode == Opcode.TAP_MUTATION else Delete).decode(frame)
            self.sent.append((message.key, message.ttl))
        return Fault.NONE


@pytest.fixture
def loop() -> Iterator[tuple[Node, Node, Relay, Relay]]:
    with replica() as one, replica() as two, relays(one, two) as (there, back):
        yield one, two, there, back


@contextmanager
def replica() -> Iterator[Node]:
    """A node whose one vbucket is a replica."""
    with node(vbuckets=1) as made, made.client() as owner:
        owner.set_vbucket_state(0, "replica")
        yield made


@contextmanager
def relays(one: Node, two: Node) -> Iterator[tuple[Relay, Relay]]:
    there, back = Relay(one, two), Relay(two, one)
    try:
        for each in (one, two):
            until(lambda each=each: "vb_filter" in tap_stats(each) and tap_stats(each)["vb_filter"] == "0")  # type: ignore[misc]
        yield there, back
    finally:
        there.stop()
        back.stop()


def tap_stats(at: Node) -> dict[str, str]:
    with at.client() as reader:
        return {key.rpartition(":")[2]: value for key, value in reader.stats("tap").items()}


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def feed(at: Node, message: Request) -> None:
    with Line(at.port) as line:
        line.done(message)


def high_seqno(at: Node) -> int:
    with at.client() as reader:
        return int(reader.stats("vbucket-details")["vb_0:high_seqno"])


def stored(key: bytes, ttl: int) -> Mutation:
    return Mutation(key=key, value=b"v", ttl=ttl, flags=MessageFlag.ACK)


def test_what_comes_with_a_time_to_live_goes_out_with_one_less_and_not_at_0(
    loop: tuple[Node, Node, Relay, Relay],
) -> None:
    """Everything of vbucket 0 leaves a node in order: with "end" behind it, "round" goes round no more."""
    one, two, there, back = loop
    feed(one, stored(b"round", 3))
    until(lambda: high_seqno(one) >= 2)
    feed(one, stored(b"end", 2))
    until(lambda: (b"end", 1) in there.sent)
    until(lambda: high_seqno(two) >= 2)
    feed(two, stored(b"end", 2))
    until(lambda: (b"end", 1) in back.sent)
    assert there.sent == [(b"round", 2), (b"end", 1)]
    assert back.sent == [(b"round", 1), (b"end", 1)]


def test_a_change_of_this_world_goes_round_as_often_as_a_byte_counts(loop: tuple[Node, Node, Relay, Relay]) -> None:
    one, _, there, back = loop
    feed(one, stored(b"round", 255))
    until(lambda: (b"round", 1) in there.sent + back.sent)
    feed(one, stored(b"end", 2))
    until(lambda: (b"end", 1) in there.sent)
    assert [ttl for key, ttl in there.sent if key == b"round"] == list(range(254, 0, -2))
    assert [ttl for key, ttl in back.sent if key == b"round"] == list(range(253, 0, -2))


@pytest.mark.parametrize("ttl", [1, 2, 255])
def test_a_restart_does_not_begin_a_loop_anew(ttl: int) -> None:
    """The time to live is on disk with the change. From scratch nothing is left out: there the least is 1."""
    with replica() as one:
        feed(one, stored(b"kept", ttl))
        feed(one, stored(b"gone", 255))
        feed(one, Delete(key=b"gone", ttl=ttl, flags=MessageFlag.ACK))
        one.kill()
        one.restart()
        assert backfilled(one) == [(b"kept", max(1, ttl - 1)), (b"gone", max(1, ttl - 1))]


def backfilled(at: Node) -> list[Sent]:
    found: list[Sent] = []
    with tap.connect(at.url) as stream:
        while (message := stream.next(timeout_seconds=SECONDS_MAX)) is not None:
            if isinstance(message, Opaque) and message.code == 8:
                break
            if isinstance(message, Mutation | Delete):
                found.append((message.key, message.ttl))
    return found
