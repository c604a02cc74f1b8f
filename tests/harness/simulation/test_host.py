"""A simulated machine: what its disk keeps when the process ends, is killed, or the power goes."""

from __future__ import annotations

import pytest

from harness.simulation.callers import Caller
from harness.simulation.host import Crash, Host
from harness.simulation.lines import PLACE
from harness.simulation.scheduler import Schedule, SimLoop
from harness.simulation.sockets import Network
from headwater.errors import CorruptStore
from headwater.testing.faults import FaultyDisk
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import State


class Machine:
    """A host with one active vbucket, and somebody who writes."""

    def __init__(self, seed: int = 1) -> None:
        self.schedule = Schedule(seed)
        network = Network(self.schedule)
        self.host = Host(self.schedule, network, "n0", vbuckets=1)
        self._caller = Caller(network, SimLoop(self.schedule, network, PLACE), "n0")
        self.answered = 0
        assert self.host.start()
        self._caller.ask(Opcode.SET_VBUCKET, lambda _: None, extras=bytes([State.ACTIVE]))
        self.schedule.run(1.0)

    def write(self) -> None:
        self._caller.ask(Opcode.SET, self._answered, key=b"key", extras=bytes(8))

    def _answered(self, answer: object) -> None:
        self.answered += answer is not None


@pytest.mark.parametrize("how", [None, *Crash])
def test_what_was_answered_is_there_again_however_the_process_ended(how: Crash | None) -> None:
    machine = Machine()
    host = machine.host
    machine.write()
    machine.schedule.run(1.0)
    assert machine.answered == 1
    if how is None:
        host.stop()
    else:
        host.crash(how)
    assert not host.is_up
    assert host.start() and host.starts == 2
    assert host.store.clean is (how is None)
    assert host.bucket.is_active(0) and host.store.index.durable_seqno(0) == 1


@pytest.mark.parametrize("how", Crash)
def test_what_was_on_its_way_to_the_disk_may_be_there_or_not(how: Crash) -> None:
    """Half of the crashes come before the thread has begun to write."""
    found = set()
    for seed in range(12):
        machine = Machine(seed)
        machine.write()
        assert machine.schedule.run(1.0, lambda host=machine.host: host.store.index.high_seqno(0) == 1)  # type: ignore[misc]
        machine.schedule.run(1.0, lambda host=machine.host: bool(host.under_way))  # type: ignore[misc]
        machine.host.crash(how)
        assert machine.answered == 0
        machine.host.start()
        found.add(machine.host.store.index.high_seqno(0))
    assert found == {0, 1}


def test_nothing_runs_in_a_process_that_has_crashed() -> None:
    machine = Machine()
    loop = machine.host.loop
    machine.host.crash(Crash.KILL)
    machine.host.crash(Crash.POWER)  # it is dead already
    assert loop is not None and loop.is_dead and machine.host.loop is None


def test_a_node_whose_disk_fails_at_the_start_stays_down_and_can_be_started_again() -> None:
    machine = Machine()
    host = machine.host
    host.crash(Crash.KILL)
    host.disk.fail(1)  # what the page cache alone has is made durable first
    assert not host.start() and not host.is_up
    host.disk.heal()
    assert host.start() and host.bucket.is_active(0)


def test_a_store_that_is_damaged_is_an_error_not_a_fault_of_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    host = machine.host
    host.stop()

    def damaged(*_: object) -> bytes:
        raise CorruptStore("/store/1", 7, "made up")

    monkeypatch.setattr(FaultyDisk, "read", damaged)
    with pytest.raises(CorruptStore):
        host.start()
