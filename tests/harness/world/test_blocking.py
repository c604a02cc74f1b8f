"""Processes whose code blocks: they wait in simulated time, take turns, and are killed where they wait."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from harness.simulation.scheduler import Schedule
from harness.simulation.sockets import Network
from harness.world.blocking import BlockingProgram, Killed, SimulatedPool, wait_for
from harness.world.system import simulated
from headwater.transport import blocking, channel
from headwater.transport.waiting import Ready, Steps


class Place:
    """A schedule, and a network in which processes are begun."""

    def __init__(self) -> None:
        self.schedule = Schedule(1)
        self.network = Network(self.schedule)

    def begin(self, name: str, work: Callable[[], object]) -> BlockingProgram:
        return BlockingProgram(self.schedule, self.network, name, work)


@pytest.fixture(name="place")
def a_place() -> Iterator[Place]:
    place = Place()
    with simulated(place.schedule, place.network, {}):
        yield place


def test_a_process_sleeps_in_simulated_time_and_ends_with_its_result_or_its_error(place: Place) -> None:
    def answers() -> float:
        time.sleep(2.0)
        return time.monotonic()

    good, bad = place.begin("good", answers), place.begin("bad", lambda: {}["no"])
    place.schedule.run(1.0)
    assert (good.is_over, good.error, bad.is_over) == (False, None, True)
    assert isinstance(bad.error, KeyError)
    place.schedule.run(2.0)
    assert (good.is_over, good.result) == (True, 2.0)


def test_a_thread_of_a_library_that_has_no_part_in_the_simulation_really_sleeps(place: Place) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            time.sleep(0)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not errors
    with pytest.raises(AssertionError, match="only a process whose code blocks"):
        time.sleep(0)


def test_processes_take_turns_where_they_wait(place: Place) -> None:
    seen: list[str] = []

    def counts(name: str) -> None:
        for number in range(2):
            seen.append(f"{name}{number}")
            time.sleep(1.0)

    for name in "ab":
        place.begin(name, lambda name=name: counts(name))  # type: ignore[misc]
    place.schedule.run(5.0)
    assert seen == ["a0", "b0", "a1", "b1"]


def test_a_process_that_is_killed_hears_of_it_where_it_waits_and_waits_no_more(place: Place) -> None:
    seen: list[str] = []

    def works() -> None:
        try:
            time.sleep(5.0)
        finally:
            seen.append("goes up")
            try:
                time.sleep(5.0)
            except Killed:
                seen.append("no rest")

    program = place.begin("p", works)
    place.schedule.run(1.0)
    program.kill()
    assert seen == ["goes up", "no rest"]
    assert (program.is_over, program.is_killed, program.error) == (True, True, None)


def test_a_process_that_is_killed_before_it_began_never_does(place: Place) -> None:
    seen: list[int] = []
    program = place.begin("p", lambda: seen.append(1))
    program.kill()
    place.schedule.run(1.0)
    assert not seen


def test_the_blocking_transport_waits_for_the_simulated_network(place: Place) -> None:
    def hears() -> Steps[bytes]:
        made = channel.Channel("n0", (socket.AF_INET, place.network.address("n0")))
        while not made.connected():
            yield Ready((made,))
        made.send(b"hello")
        room = memoryview(bytearray(10))
        while (size := made.receive_into(room)) is None:
            yield Ready((made,), time.monotonic() + 1.0)
        return bytes(room[:size])

    listener = place.network.listener("n0")
    program = place.begin("client", lambda: blocking.run(hears()))
    place.schedule.run(0.5)
    accepted, _ = listener.accept()
    assert accepted.recv(10) == b"hello"
    place.schedule.run(3.0)  # the deadline passes: it looks again, and waits on
    assert not program.is_over
    accepted.send(b"world")
    place.schedule.run(0.5)
    assert program.result == b"world"


def test_work_of_a_pool_is_done_beside_its_maker(place: Place) -> None:
    seen: list[str] = []

    def works(name: str) -> str:
        time.sleep(1.0)
        seen.append(name)
        return name

    def asks() -> list[str]:
        pool = SimulatedPool(1, "name")
        futures = [pool.submit(works, name) for name in "ab"]
        seen.append("asked")
        wait_for(futures, 1.5)
        seen.append("looked")
        pool.shutdown()
        return [future.result() for future in futures]

    program = place.begin("p", asks)
    place.schedule.run(5.0)
    assert seen == ["asked", "a", "looked", "b"]
    assert program.result == ["a", "b"]
