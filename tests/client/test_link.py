"""One connection to one node: every wait has an end, and what goes wrong closes it."""

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from headwater.client.link import Link
from headwater.client.routing import Address
from headwater.client.settings import settings_for
from headwater.errors import BadFrame, ConnectionLost, PeerSilent
from headwater.protocol.handshake import Login
from headwater.testing.clock import FakeClock
from headwater.testing.peers import Peer, serve
from headwater.transport.blocking import run, wait
from headwater.transport.waiting import Ready, Resolve, Steps
from headwater.wire.header import Frame, Magic
from headwater.wire.opcodes import Opcode

LOGIN = Login("test", "default")


@pytest.fixture
def linked() -> Iterator[tuple[Link, socket.socket, FakeClock]]:
    """A link whose other end the test holds; nobody greets."""
    clock = FakeClock()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = Link(Address(*listener.getsockname()), clock)
        run(link._connect(clock() + 10), clock)
        other, _ = listener.accept()
        with other:
            yield link, other, clock
        link.close()


def asked_once(steps: Steps[None]) -> Ready:
    """Return the first thing that a generator waits for."""
    asked = next(steps)
    assert isinstance(asked, Ready)
    return asked


def test_a_node_that_greets_is_ready_for_use() -> None:
    with serve(Peer(vbuckets=4)) as address:
        link = Link(settings_for(address).target.seeds[0], FakeClock())
        run(link.open(LOGIN, 10.0), link.clock)
        assert link.is_open
        answer = run(link.ask(Frame(Magic.CLIENT_REQUEST, Opcode.NOOP), link.clock() + 10), link.clock)
        assert (answer.opcode, answer.status) == (Opcode.NOOP, 0)
        link.close()
        link.close()
        assert not link.is_open


def test_nobody_there_is_told_with_the_address() -> None:
    with serve(Peer()) as address:
        pass
    link = Link(settings_for(address).target.seeds[0], FakeClock())
    with pytest.raises(ConnectionLost, match=str(link.address)):
        run(link.open(LOGIN, 10.0), link.clock)
    with pytest.raises(ConnectionLost, match="closed"):
        _ = link.channel


def test_a_frame_is_handed_out_once_it_is_whole(linked: tuple[Link, socket.socket, FakeClock]) -> None:
    link, other, _ = linked
    frame = Frame(Magic.CLIENT_REQUEST, Opcode.NOOP, b"k" * 30)
    for part in (frame.encode()[:10], frame.encode()[10:40]):
        other.sendall(part)
        while not link.fill():
            pass
        assert link.next_frame() is None
    other.sendall(frame.encode()[40:])
    while not link.fill():
        pass
    assert link.next_frame() == frame
    assert link.next_frame() is None


def test_bytes_that_are_no_frames_are_an_error(linked: tuple[Link, socket.socket, FakeClock]) -> None:
    link, other, _ = linked
    other.sendall(bytes(24))
    while not link.fill():
        pass
    with pytest.raises(BadFrame):
        link.next_frame()


def test_silence_until_the_deadline_closes_the_link(linked: tuple[Link, socket.socket, FakeClock]) -> None:
    link, _, clock = linked
    waiting = link.receive(clock() + 5)
    assert asked_once(waiting).deadline == clock() + 5
    clock.advance(5)
    with pytest.raises(PeerSilent, match="5"):
        next(link.receive(clock()))
    assert not link.is_open


def test_who_wakes_earlier_finds_the_link_open(linked: tuple[Link, socket.socket, FakeClock]) -> None:
    link, _, clock = linked
    asked = asked_once(link.receive(clock() + 60, wake_at=clock() + 1))
    assert asked.deadline == clock() + 1
    clock.advance(1)
    assert asked_once(link.receive(clock() + 59, wake_at=clock() + 1)).deadline == clock() + 1
    assert link.is_open


def test_the_other_end_hanging_up_is_told(linked: tuple[Link, socket.socket, FakeClock]) -> None:
    link, other, clock = linked
    other.close()
    with pytest.raises(ConnectionLost, match="closed the connection"):
        run(link.receive(clock() + 60), clock)
    assert not link.is_open


def test_a_question_of_the_peer_is_answered_while_an_answer_is_waited_for(
    linked: tuple[Link, socket.socket, FakeClock],
) -> None:
    link, other, clock = linked
    asking = link.ask(Frame(Magic.CLIENT_REQUEST, Opcode.VERSION), clock() + 60)
    asked_once(asking)
    request = Frame.decode(other.recv(1 << 16))
    other.sendall(Frame(Magic.CLIENT_REQUEST, Opcode.DCP_NOOP, opaque=99).encode())
    other.sendall(Frame(Magic.CLIENT_RESPONSE, Opcode.VERSION, value=b"1", opaque=request.opaque).encode())
    with pytest.raises(StopIteration) as done:
        while True:
            next(asking)
    assert done.value.value.value == b"1"
    answered = Frame.decode(other.recv(1 << 16))
    assert (answered.opcode, answered.is_response, answered.opaque) == (Opcode.DCP_NOOP, True, 99)


@pytest.fixture
def deaf() -> Iterator[tuple[str, int]]:
    """An address that drops every packet: a listener whose queue is full."""
    with socket.socket() as listener, ExitStack() as callers:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        while True:
            caller = callers.enter_context(socket.socket())
            caller.settimeout(0.3)
            try:
                caller.connect(listener.getsockname())
            except TimeoutError:
                break
        yield listener.getsockname()


def test_an_address_that_swallows_everything_leaves_time_for_the_next_one(deaf: tuple[str, int]) -> None:
    clock = FakeClock()
    with serve(Peer(vbuckets=4)) as address:
        link = Link(settings_for(address).target.seeds[0], clock)
        steps = link.open(LOGIN, 10.0)
        assert isinstance(next(steps), Resolve)
        asked = steps.send([(socket.AF_INET, deaf), (socket.AF_INET, tuple(link.address))])
        first = link.channel
        assert isinstance(asked, Ready) and asked.deadline == clock() + 5.0
        with suppress(StopIteration):
            while True:
                if link.channel is first:
                    clock.now += 5.0
                else:
                    wait(asked, clock)
                asked = steps.send(None)
        assert link.is_open
        link.close()


def test_a_system_without_ipv6_goes_on_with_the_address_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutIpv6(socket.socket):
        def __init__(self, family: int = socket.AF_INET, *others: int, **more: int | None) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *others, **more)  # type: ignore[arg-type]

    with serve(Peer(vbuckets=4)) as address:
        link = Link(settings_for(address).target.seeds[0], FakeClock())
        found = [(socket.AF_INET6, ("::1", link.address.port, 0, 0)), (socket.AF_INET, tuple(link.address))]
        monkeypatch.setattr("headwater.transport.blocking.resolve", lambda _: found)
        monkeypatch.setattr("headwater.transport.channel.socket.socket", WithoutIpv6)
        run(link.open(LOGIN, 10.0), link.clock)
        assert link.is_open
        link.close()
        monkeypatch.setattr("headwater.transport.blocking.resolve", lambda _: found[:1])
        with pytest.raises(ConnectionLost, match="address family not supported"):
            run(link.open(LOGIN, 10.0), link.clock)
