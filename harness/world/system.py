"""The operating system of a simulated world: sockets, clocks and random numbers of the process that is running now.

    with simulated(schedule, network, clocks):
        ...                                            everything of headwater that runs in here is simulated

Random numbers have one source, so a seed decides everything. Time does not pass while code runs.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import importlib
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
from datetime import datetime, tzinfo
from functools import cache
from itertools import product
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, Self
from unittest import mock

from harness.simulation.cluster import Errors, no_exits
from harness.simulation.host import Clock, later_buckets
from harness.simulation.sockets import SimSocket
from harness.world import blocking
from headwater import tracing
from headwater.backup import archive, prune
from headwater.cluster import admin
from headwater.kernels import builds
from headwater.node import calling
from headwater.node.buckets.scans import RangeScan
from headwater.node.connections.connection import Connection
from headwater.node.kv import stats
from headwater.node.streams.handover import Handover
from headwater.node.streams.stream import Stream
from headwater.transport import channel

if TYPE_CHECKING:
    from harness.simulation.scheduler import Schedule
    from harness.simulation.sockets import Network

CALLABLE = (BuiltinFunctionType, FunctionType, MethodType)
PROCESS, MACHINE = 4711, "world"
HASHED = (Connection, Stream, Handover, RangeScan)
"""Classes of the product whose objects lie in sets: by a number, not by where they are in memory."""


class WallClock(Protocol):
    """A clock of a machine."""

    def time_ns(self) -> int:
        """Return Unix time in nanoseconds, as that machine has it."""


class System:
    """The operating system, as the process that is running now sees it."""

    def __init__(self, schedule: Schedule, network: Network, clocks: Mapping[str, WallClock]) -> None:
        self._schedule, self._network, self._clocks = schedule, network, clocks
        self._random = random.Random(schedule.random.getrandbits(64))  # noqa: S311 - must be repeatable
        self._right = Clock(schedule)
        self.clocks, self.chances = self._clock_functions(), self._chance_functions()

    @property
    def place(self) -> str:
        """Return the place of the running process; "nowhere" outside of all."""
        loop: Any = asyncio._get_running_loop()
        return "nowhere" if loop is None else loop.name

    def monotonic(self) -> float:
        """Return seconds since the beginning."""
        return self._schedule.now

    def perf_counter(self) -> float:
        """Return seconds since the beginning, as `monotonic`: each function of the system has a replacement of its
        own.
        """
        return self._schedule.now

    def time_ns(self) -> int:
        """Return Unix time in nanoseconds, as the machine of the running process has it."""
        return self._clocks.get(self.place, self._right).time_ns()

    def _clock_functions(self) -> dict[str, Callable[..., Any]]:
        """Return the replacements of the functions of the module `time`."""
        return {
            "monotonic": self.monotonic,
            "perf_counter": self.perf_counter,
            "thread_time": lambda: 0.0,
            "process_time": lambda: 0.0,
            "time": lambda: self.time_ns() / 1e9,
            "time_ns": self.time_ns,
            "sleep": blocking.sleep,
        }

    def _chance_functions(self) -> dict[str, Callable[..., Any]]:
        """Return the replacements of the functions of the module `secrets`."""
        chance = self._random
        return {
            "randbelow": chance.randrange,
            "randbits": chance.getrandbits,
            "token_bytes": lambda size=32: chance.randbytes(size),
            "token_hex": lambda size=32: chance.randbytes(size).hex(),
            "token_urlsafe": lambda size=32: chance.randbytes(size).hex(),
        }

    def replaced(self) -> dict[Any, Any]:
        """Return the replacements of the system's functions, by these functions."""
        clocks = {getattr(time, name): stand_in for name, stand_in in self.clocks.items()}
        chances = {getattr(secrets, name): stand_in for name, stand_in in self.chances.items()}
        return clocks | chances | {random.random: self._random.random, os.urandom: self._random.randbytes}

    def datetime(self) -> type[datetime]:
        """Return a class `datetime` whose `now` is the time of the running process."""
        time_ns = self.time_ns

        class ProcessDatetime(datetime):
            """A datetime with simulated `now`."""

            @classmethod
            def now(cls, tz: tzinfo | None = None) -> Self:
                """Return the present time of the running process."""
                return cls.fromtimestamp(time_ns() / 1e9, tz)

        return ProcessDatetime

    def sockets(self) -> SimpleNamespace:
        """Return a module `socket` with sockets of the simulated network."""
        network, system = self._network, self

        class ProcessSocket(SimSocket):
            """A socket of the running process."""

            def __init__(self, *_: object) -> None:
                super().__init__(network, system.place)
                network.sockets.setdefault(self.place, []).append(self)

        return SimpleNamespace(**{**vars(socket), "socket": ProcessSocket})


@contextmanager
def simulated(schedule: Schedule, network: Network, clocks: Mapping[str, WallClock]) -> Iterator[System]:
    """Run headwater's nodes, clients and operators in the simulated world, for a block."""
    system = System(schedule, network, clocks)
    replaced = system.replaced()  # while the functions of the system are there to be known
    numbers = iter(range(1, 1 << 60))
    with ExitStack() as stack:
        stack.enter_context(_real_compiler())
        for name, function in system.clocks.items():
            stack.enter_context(mock.patch.object(time, name, function))
        for name, chance in system.chances.items():
            stack.enter_context(mock.patch.object(secrets, name, chance))
        stack.enter_context(mock.patch.object(uuid, "uuid4", lambda: uuid.UUID(bytes=system._random.randbytes(16))))
        stack.enter_context(mock.patch.object(hashlib, "pbkdf2_hmac", _quick(hashlib.pbkdf2_hmac)))
        stack.enter_context(mock.patch.object(tracing, "_tracer", lambda: None))
        stack.enter_context(_known_by_name(replaced))
        stack.enter_context(_same_process())
        for module in (archive, prune):
            stack.enter_context(mock.patch.object(module, "datetime", system.datetime()))
        for module in (calling, channel):
            stack.enter_context(mock.patch.object(module, "socket", system.sockets()))
        for kind in HASHED:
            stack.enter_context(_hashed(kind, numbers))
        stack.enter_context(later_buckets(schedule))
        stack.enter_context(no_exits(schedule))
        stack.enter_context(blocking.waits())
        stack.enter_context(_quiet(schedule))
        yield system


def _quick(pbkdf2_hmac: Callable[..., bytes]) -> Callable[..., bytes]:
    """Return PBKDF2 with one iteration, whatever the number requested: each start of a node would need some hundred
    thousand, and in a simulation nobody guesses passwords.
    """

    @cache
    def quick(hash_name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        return pbkdf2_hmac(hash_name, password, salt, 1)

    return quick


@contextmanager
def _real_compiler() -> Iterator[None]:
    """Compile kernels outside of the world, for a block, or wait there for another process that does.

    To be entered before time and random numbers are replaced. The files of the cache have random names: each new file
    would draw from the world's random numbers, and change the run of a seed that meets a cold cache.
    """
    if not builds.compiling():
        yield
        return
    compiler = [builds.numbas("jit"), *map(importlib.import_module, ("numba.core.caching", "numba.core.dispatcher"))]
    with ExitStack() as stack:
        for module, name in product(compiler, ("time", "uuid")):
            if isinstance(given := getattr(module, name, None), ModuleType):
                stack.enter_context(mock.patch.object(module, name, SimpleNamespace(**vars(given))))
        yield


@contextmanager
def _same_process() -> Iterator[None]:
    """Give the process the same id in each run, and its machine the same name, for a block.

    Operators and statistics report both, and a message that is longer by a digit is cut elsewhere on its way.
    """
    system = SimpleNamespace(**{**vars(os), "getpid": lambda: PROCESS})
    sockets = SimpleNamespace(**{**vars(socket), "gethostname": lambda: MACHINE})
    with mock.patch.multiple(admin, os=system, socket=sockets), mock.patch.object(stats, "os", system):
        yield


@contextmanager
def _hashed(kind: type, numbers: Iterator[int]) -> Iterator[None]:
    def number_of(thing: Any) -> int:
        number = thing.__dict__.get("simulated_number")
        if number is None:
            number = thing.__dict__["simulated_number"] = next(numbers)
        return number  # type: ignore[no-any-return]

    with mock.patch.object(kind, "__hash__", number_of):
        yield


@contextmanager
def _known_by_name(replaced: Mapping[Any, Any]) -> Iterator[None]:
    """Replace clocks and random functions, for a block, in default arguments and in modules that imported them by name.

    Afterwards they are restored, also in modules that were loaded in the block, which would keep the time of a past
    world.
    """
    _exchange(replaced)
    try:
        yield
    finally:
        _exchange({stand_in: given for given, stand_in in replaced.items()})


def _exchange(replaced: Mapping[Any, Any]) -> None:
    for module in _modules():
        for name, thing in list(vars(module).items()):
            if isinstance(thing, CALLABLE) and thing in replaced:
                setattr(module, name, replaced[thing])
    for function in _functions():
        given, named = function.__defaults__, function.__kwdefaults__
        if given is not None and any(_is_one(each, replaced) for each in given):
            function.__defaults__ = tuple(_of(each, replaced) for each in given)
        if named is not None and any(_is_one(each, replaced) for each in named.values()):
            function.__kwdefaults__ = {name: _of(each, replaced) for name, each in named.items()}


def _is_one(value: Any, replaced: Mapping[Any, Any]) -> bool:
    return isinstance(value, CALLABLE) and value in replaced


def _of(value: Any, replaced: Mapping[Any, Any]) -> Any:
    return replaced[value] if _is_one(value, replaced) else value


def _modules() -> list[ModuleType]:
    """Return headwater's loaded modules."""
    loaded = list(sys.modules.items())
    return [module for name, module in loaded if name == "headwater" or name.startswith("headwater.")]


def _functions() -> Iterator[FunctionType]:
    """Yield all functions and methods of headwater's loaded modules."""
    for module in _modules():
        for thing in list(vars(module).values()):
            if isinstance(thing, FunctionType):
                yield thing
            elif isinstance(thing, type) and thing.__module__ == module.__name__:
                yield from (var for var in vars(thing).values() if isinstance(var, FunctionType))


@contextmanager
def _quiet(schedule: Schedule) -> Iterator[None]:
    """Fail the run for tracebacks in a log, for a block, and print no lines."""
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
    """Collect garbage after a run only, and ignore the errors of dead processes meanwhile.

    No seed decides when the collector runs; and a coroutine that is collected runs its `finally`, in a process that is
    gone. Older objects are frozen meanwhile: scanning all modules takes longer than scanning all that a run leaves.
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
