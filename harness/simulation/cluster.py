"""Three simulated nodes with a bucket or two: their starts and ends, and the way back to rest.

    with SimCluster.running(seed=7, vbuckets=2) as cluster:
        cluster.first.set(0, 1, b"key"); cluster.run(0.01); cluster.crash(0, Crash.POWER); ...
        cluster.make_bucket(); cluster.run(1.0); cluster.second.set(0, 1, b"key"); cluster.drop_bucket(); ...
        cluster.settle(); cluster.check_everything()

A run is decided by its seed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest import mock

from harness.simulation.bucket import SimBucket
from harness.simulation.callers import Caller
from harness.simulation.consumers import Consumer
from harness.simulation.existence import Existence
from harness.simulation.histories import Broken
from harness.simulation.host import FIRST_BUCKET, Crash, Host, later_buckets
from harness.simulation.lines import PLACE
from harness.simulation.scheduler import Schedule, SimLoop
from harness.simulation.sockets import Link, Network
from headwater import invariants
from headwater.errors import InvariantBroken
from headwater.node import calling
from headwater.node.connections.connection import Connection
from headwater.node.membership import own_address, peers
from headwater.node.replication import dialer
from headwater.node.streams.handover import Handover
from headwater.node.streams.stream import Stream
from headwater.transport.backoff import Backoff
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

SECOND_BUCKET = "orders"
SETTLE_SECONDS = 200.0
FINISH_SECONDS = 5.0
FINISH_TRIES = 4
TICK_SECONDS = 5.0


class Errors(logging.Handler):
    """A log handler that fails the run when a node logs a traceback."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(logging.ERROR)
        self._schedule = schedule

    def emit(self, record: logging.LogRecord) -> None:
        """Fail the run if the record has a traceback."""
        if record.exc_info and record.exc_info[1] is not None:
            self._schedule.failures.append(record.exc_info[1])


@contextmanager
def no_broken_invariants(schedule: Schedule) -> Iterator[None]:
    """Fail the run, for a block, when an invariant does not hold, even if the exception is caught."""

    def hear(broken: InvariantBroken, of_node: bool) -> None:
        schedule.failures.insert(0, broken)

    invariants.listeners.append(hear)
    try:
        yield
    finally:
        invariants.listeners.remove(hear)


@contextmanager
def no_exits(schedule: Schedule) -> Iterator[None]:
    """Fail the run, for a block, when a node ends its process, which would otherwise end silently."""

    def ends(status: int) -> None:
        # Before the traceback that led there, for that is no broken promise in itself.
        schedule.failures.insert(0, Broken(f"up: a node ended itself with status {status}, and nothing had killed it"))

    with mock.patch.object(os, "_exit", ends), no_broken_invariants(schedule):
        yield


class SimCluster:
    """Three nodes whose first bucket begins without vbuckets, and which may get a second one.

    Attributes:
        first, second: the buckets, each with its model; `second` is the newest of its name, None before there was any.
        existence: the model of where the second must exist.
    """

    def __init__(self, seed: int, *, vbuckets: int = 2, nodes: int = 3, consumers: int = 2) -> None:
        self.schedule = Schedule(seed)
        self.network = Network(self.schedule)
        self.vbuckets = range(vbuckets)
        self.hosts = [Host(self.schedule, self.network, f"n{at}", vbuckets=vbuckets) for at in range(nodes)]
        self.loop = SimLoop(self.schedule, self.network, PLACE)
        self.first = SimBucket(self, FIRST_BUCKET, vbuckets=vbuckets, consumers=consumers)
        self.second: SimBucket | None = None
        self.existence = Existence([host.name for host in self.hosts])
        self._admins = [Caller(self.network, self.loop, host.name) for host in self.hosts]
        self._by_loop: dict[SimLoop, int] = {}
        self._sent = count(1)
        self._numbers = count()
        self.schedule.watch = self._watch
        self._tick()

    @property
    def buckets(self) -> Sequence[SimBucket]:
        """The first bucket and, if there was ever one, the newest second."""
        return [self.first] if self.second is None else [self.first, self.second]

    @property
    def buckets_in_use(self) -> Sequence[SimBucket]:
        """The buckets that have owners, and are not dropped on all nodes."""
        second, existence = self.second, self.existence
        is_gone = not existence.is_wanted and existence.is_as_wanted
        return [self.first] if second is None or is_gone or not second.is_founded else [self.first, second]

    @property
    def consumers(self) -> Sequence[Consumer]:
        """The consumers of all buckets in use."""
        return [consumer for bucket in self.buckets_in_use for consumer in bucket.consumers]

    def bucket(self, which: int) -> SimBucket:
        """Return the first bucket, or the second if that is chosen and in use."""
        return self.buckets_in_use[min(which, len(self.buckets_in_use) - 1)]

    def consumer(self, which: int) -> Consumer:
        """Return a consumer by its number; the last one for all numbers above."""
        return self.consumers[min(which, len(self.consumers) - 1)]

    def next_number(self) -> int:
        """Return a new number, unique over all buckets."""
        return next(self._sent)

    @classmethod
    @contextmanager
    def running(cls, seed: int, **options: int) -> Iterator[SimCluster]:
        """Run a cluster for a block, in which the nodes' operating system is simulated."""
        made = cls(seed, **options)
        with made.patched():
            yield made

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Replace the nodes' sockets and random numbers by the simulation's, for a block."""
        sockets = SimpleNamespace(socket=self._call_from, SOCK_STREAM=1)
        chances = SimpleNamespace(
            randbelow=self.schedule.random.randrange, token_urlsafe=lambda size: "n" * size, token_hex=lambda size: "0"
        )
        log, handler = logging.getLogger("headwater.node"), Errors(self.schedule)
        with ExitStack() as stack:
            stack.callback(self.schedule.close)
            stack.callback(log.setLevel, log.level)
            stack.callback(setattr, log, "propagate", log.propagate)
            stack.callback(log.removeHandler, handler)
            stack.enter_context(mock.patch.object(calling, "socket", sockets))
            for module in (dialer, own_address, peers):
                stack.enter_context(mock.patch.object(module, "secrets", chances, create=True))
            for kind in (Connection, Stream, Handover):
                stack.enter_context(mock.patch.object(kind, "__hash__", lambda thing: self._number_of(thing)))  # noqa: PLW0108 - a method of another class
            stack.enter_context(later_buckets(self.schedule))
            stack.enter_context(no_exits(self.schedule))
            stack.enter_context(mock.patch.object(Backoff.__init__, "__defaults__", self._defaults_of_backoffs()))
            log.addHandler(handler)
            log.propagate = False
            yield

    def _defaults_of_backoffs(self) -> tuple[object, ...]:
        """Return the default arguments of backoffs, with the run's random numbers."""
        given: tuple[object, ...] = Backoff.__init__.__defaults__ or ()
        return tuple(self.schedule.random.random if each is random.random else each for each in given)

    def _number_of(self, thing: Any) -> int:
        """Return a number for an object, in place of its address in memory, so that sets have the same order in each
        run.
        """
        return thing.__dict__.setdefault("simulated_number", next(self._numbers))  # type: ignore[no-any-return]

    def _call_from(self, *_: object) -> object:
        """Return a socket of the process that is running now."""
        loop: Any = asyncio.get_running_loop()
        return self.network.socket(loop.name)

    # --- time and faults --------------------------------------------------------------------------------------------

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass, or until a condition holds; return True if it holds."""
        return self.schedule.run(seconds, until)

    def _hang_up(self, at: int) -> None:
        for bucket in self.buckets:
            bucket.hang_up(at)
        self._admins[at].hang_up()

    def _tick(self) -> None:
        """Let all consumers check their deadlines."""
        for bucket in self.buckets:
            for consumer in bucket.consumers:
                consumer.tick()
        self.schedule.after(TICK_SECONDS, self._tick)

    def _watch(self, loop: SimLoop) -> None:
        at = self._by_loop.get(loop)
        if at is not None:
            for bucket in self.buckets:
                bucket.event(at)
            self._check_existence(at)

    def start(self, at: int) -> None:
        """Start a node that does not run; if its disk fails at that it stays down."""
        host = self.hosts[at]
        if not host.is_up and host.start():
            if host.loop is not None:
                self._by_loop[host.loop] = at
            self.existence.began(host.name)
            for bucket in self.buckets:
                bucket.started(at)
            self._check_existence(at)

    def stop(self, at: int) -> None:
        """Stop a node in order."""
        if self.hosts[at].is_up:
            self.hosts[at].stop()
            for bucket in self.buckets:
                bucket.gone(at)
            self._hang_up(at)

    def crash(self, at: int, how: Crash) -> None:
        """Crash a node."""
        if self.hosts[at].is_up:
            for bucket in self.buckets:
                bucket.gone(at)
            self.hosts[at].crash(how)
            self._hang_up(at)

    # --- the second bucket ------------------------------------------------------------------------------------------

    def make_bucket(self) -> None:
        """Continue creating the second bucket: send the request to nodes that have not confirmed it; when all have,
        give it owners.
        """
        existence = self.existence
        if not existence.is_wanted and existence.is_as_wanted and existence.is_quiet:
            self._leave_the_second()
            self.second = SimBucket(self, SECOND_BUCKET, vbuckets=len(self.vbuckets), consumers=1)
            for at in range(len(self.hosts)):
                self.second.started(at)
            existence.is_wanted = True
        for at, host in enumerate(self.hosts):
            if existence.is_wanted and existence.must[host.name] is not True:
                self._ask(at, makes=True)
        self._found_when_made()

    def drop_bucket(self) -> None:
        """Continue dropping the second bucket: send the request to nodes that have not confirmed it."""
        self.existence.is_wanted = False
        for at, host in enumerate(self.hosts):
            if self.existence.must[host.name] is not False:
                self._ask(at, makes=False)

    def _leave_the_second(self) -> None:
        """Close all connections to the previous second bucket."""
        if self.second is not None:
            for at in range(len(self.hosts)):
                self.second.hang_up(at)
            for consumer in self.second.consumers:
                consumer.disconnect()

    def _ask(self, at: int, *, makes: bool) -> None:
        node = self.hosts[at].name
        asked = self.existence.asks(node, makes=makes)
        fine = (Status.SUCCESS, Status.KEY_EEXISTS if makes else Status.KEY_ENOENT)

        def answered(answer: Frame | None) -> None:
            if answer is not None:
                self.existence.answered(node, asked, done=answer.status in fine)
                self._found_when_made()

        opcode, value = (Opcode.CREATE_BUCKET, b"\0state=none") if makes else (Opcode.DELETE_BUCKET, b"")
        self._admins[at].ask(opcode, answered, key=SECOND_BUCKET.encode(), value=value)

    def _found_when_made(self) -> None:
        existence, second = self.existence, self.second
        if second is not None and existence.is_wanted and existence.is_as_wanted and not second.is_founded:
            second.found()

    def _check_existence(self, at: int) -> None:
        host = self.hosts[at]
        self.existence.check(host.name, is_served=host.served(SECOND_BUCKET) is not None)

    # --- judging ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check the invariants that hold at any time."""
        for bucket in self.buckets:
            bucket.check()

    def settle(self) -> None:
        """Lift all faults, give every vbucket one owner, let all others follow it, and wait until all are equal."""
        for one in range(len(self.hosts)):
            self.network.set_link(self.hosts[one].name, PLACE, Link.UP)
            for other in range(one):
                self.network.set_link(self.hosts[one].name, self.hosts[other].name, Link.UP)
            self._hang_up(one)
            self.hosts[one].disk.heal()
            self.start(one)
        self.run(30.0)  # connections that are dead without knowing it find out
        self._finish_the_second()
        for bucket in self.lasting:
            bucket.give_owners()
        if not self.run(SETTLE_SECONDS, lambda: self.difference() == ""):
            raise Broken(f"equal: {SETTLE_SECONDS:g} s after the last fault: {self.difference()}")
        self.check()

    @property
    def lasting(self) -> Sequence[SimBucket]:
        """The buckets that exist on all nodes and are to stay."""
        return self.buckets if self.existence.is_wanted else [self.first]

    def _finish_the_second(self) -> None:
        """Finish the creation or the drop of the second bucket, so that it is on every node, or on none."""
        for host in self.hosts:
            self.existence.began(host.name)  # whatever was on the way has arrived
        for _ in range(FINISH_TRIES):
            if self.existence.is_wanted:
                self.make_bucket()
            else:
                self.drop_bucket()
            self.run(FINISH_SECONDS)
            if self.existence.is_as_wanted:
                break
        else:
            wanted = "made" if self.existence.is_wanted else "dropped"
            raise Broken(f"bucket: it can't be {wanted}: {self.existence.must}")

    def difference(self) -> str:
        """Return a difference between a replica and its active, in words; empty if all are equal."""
        return next(filter(None, (bucket.difference() for bucket in self.lasting)), "")

    def check_everything(self) -> None:
        """Check all buckets at rest: replicas equal their actives, consumers end equal to the owner, no acknowledged
        write is lost.
        """
        for bucket in self.lasting:
            bucket.check_everything()
        for at, host in enumerate(self.hosts):
            if len(host.folders()) != len(self.lasting) - 1:  # removing failed: "the next start tries again"
                self.stop(at)
                self.start(at)
            if len(folders := host.folders()) != len(self.lasting) - 1:
                raise Broken(f"bucket: {host.name} has {len(self.lasting)} buckets, and the folders {folders}")
