"""The operating system of a simulated world."""

import asyncio
import gc
import random
import secrets
import socket
import sys
import time
import uuid
import weakref
from types import ModuleType

import pytest

from harness.simulation.scheduler import NOON_SECONDS, Schedule, SimLoop
from harness.simulation.sockets import Network
from harness.world.machines import MachineClock
from harness.world.system import simulated, unwatched
from headwater.backup import archive
from headwater.cluster.admin import Operator
from headwater.node.connections import connection
from headwater.transport import channel
from headwater.transport.aio import Waiters
from headwater.transport.backoff import Backoff


def test_clocks_and_chance_are_those_of_the_world_and_real_again_behind_it() -> None:
    before = time.monotonic, random.random, secrets.token_hex, uuid.uuid4, Waiters.__init__.__defaults__
    seen = []
    for _ in range(2):
        schedule = Schedule(7)
        with simulated(schedule, Network(schedule), {}):
            schedule.run(2.5)
            assert (time.monotonic(), time.time()) == (2.5, NOON_SECONDS + 2.5)
            assert Waiters()._clock() == 2.5, "default arguments, too"
            seen.append((secrets.token_hex(4), uuid.uuid4(), Backoff().next_seconds()))
    assert seen[0] == seen[1]
    assert before == (time.monotonic, random.random, secrets.token_hex, uuid.uuid4, Waiters.__init__.__defaults__)


def test_clocks_that_a_module_knows_by_name_and_moments_are_those_of_the_world() -> None:
    before = connection.thread_time
    schedule = Schedule(7)
    with simulated(schedule, Network(schedule), {}):
        schedule.run(2.5)
        assert connection.thread_time() == 0.0
        assert archive.fresh_id("full", []) == "20231114T221322Z-full"
        sys.modules["headwater.late"] = late = ModuleType("headwater.late")
        late.__dict__["monotonic"] = time.monotonic  # as by `from time import monotonic` while a world runs
        assert late.monotonic() == 2.5
    del sys.modules["headwater.late"]
    assert connection.thread_time is before
    assert late.monotonic is time.monotonic


def test_no_message_tells_of_the_process_or_machine_that_a_world_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    told = set()
    for number in (7, 123456):
        monkeypatch.setattr("os.getpid", lambda number=number: number)
        monkeypatch.setattr("socket.gethostname", lambda number=number: f"vm-{number}")
        schedule = Schedule(7)
        with simulated(schedule, Network(schedule), {}):
            told.add(Operator.of("rebalance"))
    assert len(told) == 1


def test_a_process_has_the_time_of_its_machine() -> None:
    schedule = Schedule(1)
    network, wrong = Network(schedule), MachineClock(schedule)
    wrong.jump(100)
    seen: dict[str, float] = {}
    with simulated(schedule, network, {"n1": wrong}):
        for name in ("n0", "n1"):
            SimLoop(schedule, network, name).call_soon(lambda name=name: seen.update({name: time.time()}))
        schedule.run(0.1)
    assert seen == {"n0": NOON_SECONDS, "n1": NOON_SECONDS + 100}


def test_a_connection_of_the_product_goes_through_the_simulated_network() -> None:
    schedule = Schedule(1)
    network = Network(schedule)
    with simulated(schedule, network, {}):
        listener, loop = network.listener("n0"), SimLoop(schedule, network, "client")

        async def call() -> str:
            made = channel.Channel("n0", (socket.AF_INET, network.address("n0")))
            while not made.connected():
                await asyncio.sleep(0.001)
            made.send(b"hello")
            return type(made).__name__

        assert loop.complete(call()) == "Channel"
        accepted, address = listener.accept()
        schedule.run(0.1)
        assert (accepted.recv(10), address) == (b"hello", network.address("client"))


def test_what_dead_processes_say_when_they_are_forgotten_is_not_listened_to() -> None:
    hook = sys.unraisablehook
    with unwatched():
        assert sys.unraisablehook is not hook
    assert sys.unraisablehook is hook


class Ring:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_of_a_run_goes_behind_it_and_what_was_there_before_is_left_alone() -> None:
    gc.collect()
    gc.disable()
    try:
        before = weakref.ref(Ring())
        with unwatched():
            left = weakref.ref(Ring())
            assert left() is not None
        assert left() is None
        assert before() is not None
        gc.collect()
        assert before() is None
    finally:
        gc.enable()
