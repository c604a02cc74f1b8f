"""Machines that are stopped, slow, full, and have the wrong time."""

import pytest

from harness.simulation.scheduler import NOON_SECONDS, Schedule
from harness.simulation.sockets import Network
from harness.world.machines import THREAD_SECONDS, Machine, MachineClock
from harness.world.system import simulated, unwatched


def test_a_clock_jumps_drifts_and_is_set_right() -> None:
    schedule = Schedule(1)
    clock = MachineClock(schedule)
    clock.jump(-5)
    assert clock.time_ns() / 1e9 == NOON_SECONDS - 5
    clock.drift(0.5)
    schedule.run(10)
    assert clock.time_ns() / 1e9 == pytest.approx(NOON_SECONDS + 10)
    clock.set_right()
    assert clock.time_ns() / 1e9 == NOON_SECONDS + 10
    assert clock.monotonic() == 10


def test_a_stopped_process_does_nothing_until_it_goes_on_and_then_all_of_it() -> None:
    schedule = Schedule(1)
    network = Network(schedule)
    machine = Machine(schedule, network, "n0", vbuckets=2)
    with unwatched(), simulated(schedule, network, {}):
        machine.pause(1)  # nothing runs: nothing to stop
        machine.go_on()
        assert machine.start() and machine.loop is not None
        seen: list[float] = []
        machine.loop.call_later(0.1, lambda: seen.append(schedule.now))
        machine.pause(3)
        schedule.run(2.9)
        assert seen == []
        schedule.run(0.2)
        assert seen == [3.0]
        schedule.close()


def test_a_disk_is_slow_or_full_until_it_is_repaired() -> None:
    schedule = Schedule(1)
    network = Network(schedule)
    machine = Machine(schedule, network, "n0", vbuckets=2)
    with unwatched(), simulated(schedule, network, {}):
        machine.slow_down(0.5)
        assert machine.start() and machine.loop is not None
        assert {pool.seconds for pool in machine.loop.pools} == {0.5}
        machine.fill(4096)
        assert machine.disk.free(machine._config.data) <= 4096
        machine.repair()
        assert {pool.seconds for pool in machine.loop.pools} == {THREAD_SECONDS}
        assert machine.disk.capacity is None
        schedule.close()
