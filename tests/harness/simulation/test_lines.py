"""A client's connection: whole messages out, bytes in, and one word when it is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.simulation.lines import PLACE, Line
from harness.simulation.scheduler import Schedule, SimLoop
from harness.simulation.sockets import BUFFER_BYTES, Network


class Ends:
    """A line to a place that does nothing by itself."""

    def __init__(self) -> None:
        self.schedule = Schedule(seed=1)
        self.network = Network(self.schedule)
        self.came = bytearray()
        self.lost: list[str] = []
        loop = SimLoop(self.schedule, self.network, PLACE)
        self.line = Line(self.network, loop, received=self.came.extend, lost=self._give_up)

    def _give_up(self, why: str) -> None:
        self.lost.append(why)
        self.line.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    yield Ends()


def test_a_line_to_where_nobody_listens_stays_closed(ends: Ends) -> None:
    assert not ends.line.connect("n0") and not ends.line.is_open
    assert ends.network.sockets[PLACE] == []


def test_what_arrives_is_handed_on_and_not_while_the_line_is_paused(ends: Ends) -> None:
    listener = ends.network.listener("n0")
    assert ends.line.connect("n0") and ends.line.is_open
    far, _ = listener.accept()
    ends.line.send(b"hello")
    ends.line.pause()
    far.send(b"answer")
    ends.schedule.run(1.0)
    assert (far.recv(10), bytes(ends.came)) == (b"hello", b"")
    ends.line.resume()
    ends.schedule.run(1.0)
    assert (bytes(ends.came), ends.lost) == (b"answer", [])


def test_a_node_that_hangs_up_is_told_of_once(ends: Ends) -> None:
    listener = ends.network.listener("n0")
    ends.line.connect("n0")
    far, _ = listener.accept()
    far.send(b"bye")
    far.close()
    ends.schedule.run(1.0)
    assert (bytes(ends.came), ends.lost, ends.line.is_open) == (b"bye", ["its node hung up"], False)


def test_a_node_that_takes_nothing_is_given_up(ends: Ends) -> None:
    ends.network.listener("n0")
    ends.line.connect("n0")
    ends.line.send(b"")
    ends.line.send(bytes(BUFFER_BYTES))
    assert ends.lost == []
    ends.line.send(b"x")
    assert ends.lost == ["its node takes nothing"]
    ends.line.send(b"x")  # nor is there anybody on a closed line
    assert len(ends.lost) == 2


def test_a_line_can_be_opened_again(ends: Ends) -> None:
    listener = ends.network.listener("n0")
    for message in (b"one", b"two"):
        ends.line.connect("n0")
        far, _ = listener.accept()
        ends.line.send(message)
        ends.schedule.run(1.0)
        assert far.recv(10) == message
        ends.line.close()
        ends.schedule.run(1.0)
        assert far.recv(10) == b""
