"""The operating system of a simulated world: sockets, clocks and chance of the process that is running now.

    with simulated(schedule, network, clocks):
        ...                                            everything of headwater that runs in here is simulated

Chance has one source, so a seed decides all of it. Time does not pass while something runs.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import os
import random
import secrets
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol
from unittest import mock

from harness.simulation.cluster import Errors, no_exits
from harness.simulation.host import Clock, later_buckets
from harness.simulation.sockets import SimSocket
from harness.world import blocking
from headwater import tracing
from headwater.kernels import cached
from headwater.node import calling
from headwater.node.buckets.scans import RangeScan
from headwater.node.connections.connection import Connection
from headwater.node.streams.handover import Handover
from headwater.node.streams.stream import Stream
from headwater.transport import channel

if TYPE_CHECKING:
    from harness.simulation.scheduler import Schedule
    from harness.simulation.sockets import Network

HASHED = (Connection, Stream, Handover, RangeScan)
"""Classes of the product whose objects lie in sets: by a number, not by where they are in memory."""


class WallClock(Protocol):
    """A clock of a machine."""

    def time_ns(self) -> int:
        """Unix time in nanoseconds, as that machine has it."""


class System:
    """The operating system, as the process that is running now sees it."""

    def __init__(self, schedule: Schedule, network: Network, clocks: Mapping[str, WallClock]) -> None:
        self._schedule, self._network, self._clocks = schedule, network, clocks
        self._random = random.Random(schedule.random.getrandbits(64))  # noqa: S311 - must be repeatable
        self._right = Clock(schedule)

    @property
    def place(self) -> str:
        """Where the running process is; "nowhere" outside of all."""
        loop: Any = asyncio._get_running_loop()
        return "nowhere" if loop is None else loop.name

    def monotonic(self) -> float:
        """Seconds since the beginning."""
        return self._schedule.now

    def time_ns(self) -> int:
        """Unix time in nanoseconds, as the machine of the running process has it."""
        return self._clocks.get(self.place, self._right).time_ns()

    def clocks(self) -> dict[str, Callable[..., Any]]:
        """The functions of the module `time`."""
        nothing: Callable[[], float] = lambda: 0.0  # noqa: E731
        return {
            "monotonic": self.monotonic,
            "perf_counter": self.monotonic,
            "thread_time": nothing,
            "process_time": nothing,
            "time": lambda: self.time_ns() / 1e9,
            "time_ns": self.time_ns,
            "sleep": blocking.sleep,
        }

    def chances(self) -> dict[str, Callable[..., Any]]:
        """The functions of the module `secrets`."""
        chance = self._random
        return {
            "randbelow": chance.randrange,
            "randbits": chance.getrandbits,
            "token_bytes": lambda size=32: chance.randbytes(size),
            "token_hex": lambda size=32: chance.randbytes(size).hex(),
            "token_urlsafe": lambda size=32: chance.randbytes(size).hex(),
        }

    def replaced(self) -> dict[Any, Any]:
        """The stand-ins of functions of the system that are default arguments somewhere."""
        clocks = self.clocks()
        return {
            time.monotonic: clocks["monotonic"],
            time.perf_counter: clocks["perf_counter"],
            time.thread_time: clocks["thread_time"],
            time.sleep: clocks["sleep"],
            random.random: self._random.random,
            os.urandom: self._random.randbytes,
        }

    def sockets(self) -> SimpleNamespace:
        """The module `socket`, with sockets of the simulated network."""
        network, system = self._network, self

        class ProcessSocket(SimSocket):
            """A socket of the running process."""

            def __init__(self, *_: object) -> None:
                super().__init__(network, system.place)
                network.sockets.setdefault(self.place, []).append(self)

        return SimpleNamespace(**{**vars(socket), "socket": ProcessSocket})


@contextmanager
def simulated(schedule: Schedule, network: Network, clocks: Mapping[str, WallClock]) -> Iterator[System]:
    """In a block: headwater's nodes, clients and operators live in the simulated world."""
    system = System(schedule, network, clocks)
    replaced = system.replaced()  # while the functions of the system are there to be known
    numbers = iter(range(1, 1 << 60))
    with ExitStack() as stack:
        # A kernel that another process compiles just now is waited for outside of the world.
        stack.enter_context(mock.patch.object(cached, "time", SimpleNamespace(**vars(time))))
        for name, function in system.clocks().items():
            stack.enter_context(mock.patch.object(time, name, function))
        for name, chance in system.chances().items():
            stack.enter_context(mock.patch.object(secrets, name, chance))
        stack.enter_context(mock.patch.object(uuid, "uuid4", lambda: uuid.UUID(bytes=system._random.randbytes(16))))
        stack.enter_context(mock.patch.object(hashlib, "pbkdf2_hmac", cache(hashlib.pbkdf2_hmac)))
        stack.enter_context(mock.patch.object(tracing, "_tracer", lambda: None))
        stack.enter_context(_defaults(replaced))
        for module in (calling, channel):
            stack.enter_context(mock.patch.object(module, "socket", system.sockets()))
        for kind in HASHED:
            stack.enter_context(_hashed(kind, numbers))
        stack.enter_context(later_buckets(schedule))
        stack.enter_context(no_exits(schedule))
        stack.enter_context(blocking.waits())
        stack.enter_context(_quiet(schedule))
        yield system


@contextmanager
def _hashed(kind: type, numbers: Iterator[int]) -> Iterator[None]:
    def number_of(thing: Any) -> int:
        found = thing.__dict__.get("simulated_number")
        if found is None:
            found = thing.__dict__["simulated_number"] = next(numbers)
        return found  # type: ignore[no-any-return]

    with mock.patch.object(kind, "__hash__", number_of):
        yield


@contextmanager
def _defaults(replaced: Mapping[Any, Any]) -> Iterator[None]:
    """Exchange default arguments: a function that was one when a module was loaded is known to nobody by name."""
    kept: list[tuple[FunctionType, tuple[Any, ...] | None, dict[str, Any] | None]] = []
    for function in _functions():
        given, named = function.__defaults__, function.__kwdefaults__
        is_given = given is not None and any(_is_one(each, replaced) for each in given)
        is_named = named is not None and any(_is_one(each, replaced) for each in named.values())
        if is_given or is_named:
            kept.append((function, given, named))
            if given is not None:
                function.__defaults__ = tuple(_of(each, replaced) for each in given)
            if named is not None:
                function.__kwdefaults__ = {name: _of(each, replaced) for name, each in named.items()}
    try:
        yield
    finally:
        for function, given, named in kept:
            function.__defaults__, function.__kwdefaults__ = given, named


def _is_one(value: Any, replaced: Mapping[Any, Any]) -> bool:
    return callable(value) and getattr(value, "__hash__", None) is not None and value in replaced


def _of(value: Any, replaced: Mapping[Any, Any]) -> Any:
    return replaced[value] if _is_one(value, replaced) else value


def _functions() -> Iterator[FunctionType]:
    """All functions and methods of headwater's modules that are loaded."""
    for name, module in list(sys.modules.items()):
        if name == "headwater" or name.startswith("headwater."):
            for thing in list(vars(module).values()):
                if isinstance(thing, FunctionType):
                    yield thing
                elif isinstance(thing, type) and thing.__module__ == name:
                    yield from (each for each in vars(thing).values() if isinstance(each, FunctionType))


@contextmanager
def _quiet(schedule: Schedule) -> Iterator[None]:
    """Tracebacks in a log fail the run, lines are not printed."""
    log, handler = logging.getLogger("headwater"), Errors(schedule)
    propagate, level = log.propagate, log.level
    log.addHandler(handler)
    log.propagate = False
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = propagate
        log.setLevel(level)


@contextmanager
def unwatched() -> Iterator[None]:
    """Around all of a run: garbage is collected behind it, and what dead processes say to that is not listened to.

    When the collector runs is nothing that a seed decides; and a coroutine that goes runs its `finally`, in a process
    that is no more. What was there before is frozen meanwhile: to look through all modules takes longer than through
    all that a run leaves.
    """
    hook, collects = sys.unraisablehook, gc.isenabled()
    gc.disable()
    gc.freeze()
    sys.unraisablehook = lambda _: None
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()
        sys.unraisablehook = hook
        if collects:
            gc.enable()
