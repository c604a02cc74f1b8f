"""Three simulated nodes, their operator, writers and consumers, and the model that judges them.

with SimCluster(seed=7, vbuckets=2) as cluster:
    cluster.set(0, 1, b"key"); cluster.run(0.01); cluster.crash(0, Crash.POWER); ...
    cluster.settle(); cluster.check_everything()
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest import mock

from harness.simulation.callers import Caller
from harness.simulation.consumers import Consumer, Seen
from harness.simulation.histories import Broken, Change, Histories, Ownership
from harness.simulation.host import Crash, Host
from harness.simulation.lines import PLACE
from harness.simulation.observer import Observer
from harness.simulation.scheduler import Schedule, SimLoop
from harness.simulation.sockets import Link, Network
from headwater.node import calling
from headwater.node.connection import Connection
from headwater.node.durable_writes import Copies
from headwater.node.membership import peers
from headwater.node.replication import dialer
from headwater.node.streams.handover import Handover
from headwater.node.streams.stream import Stream
from headwater.protocol.dcp.position import Position
from headwater.wire import leb128
from headwater.wire.features import Feature
from headwater.wire.framing import FrameInfo, RequestInfo, encode_framing
from headwater.wire.header import Frame
from headwater.wire.manifest import COLLECTION_ID_FIRST
from headwater.wire.opcodes import Opcode
from headwater.wire.status import name_of
from headwater.wire.vbucket import State

SETTLE_SECONDS = 200.0
CONSUMER_SECONDS = 120.0
TICK_SECONDS = 5.0


class Errors(logging.Handler):
    """Tracebacks that the node wrote to its log."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(logging.ERROR)
        self._schedule = schedule

    def emit(self, record: logging.LogRecord) -> None:
        """A traceback fails the run."""
        if record.exc_info and record.exc_info[1] is not None:
            self._schedule.failures.append(record.exc_info[1])


class SimCluster:
    """Three nodes that begin without vbuckets, and the model.

    Attributes: hosts, consumers, owners (by vbucket), histories, network, schedule; acknowledged: writes answered.
    """

    def __init__(self, seed: int, *, vbuckets: int = 2, nodes: int = 3, consumers: int = 2) -> None:
        self.schedule = Schedule(seed)
        self.network = Network(self.schedule)
        self.histories = Histories()
        self.owners = {vb: Ownership(vb) for vb in range(vbuckets)}
        self.vbuckets = range(vbuckets)
        self.hosts = [Host(self.schedule, self.network, f"n{at}", vbuckets=vbuckets) for at in range(nodes)]
        self.observers = [Observer(host, self.histories, self.owners) for host in self.hosts]
        self.acknowledged = 0
        self._loop = SimLoop(self.schedule, self.network, PLACE)
        self.callers = [Caller(self.network, self._loop, host.name) for host in self.hosts]
        self.admins = [Caller(self.network, self._loop, host.name) for host in self.hosts]
        self.aware = [Caller(self.network, self._loop, host.name, Feature.COLLECTIONS) for host in self.hosts]
        self.collections: dict[int, str] = {}
        self.durable_answers: Counter[str] = Counter()
        self._manifests = self._collection = 0
        self.consumers = [Consumer(self.network, self._loop, f"c{at}", self.vbuckets) for at in range(consumers)]
        self._by_loop: dict[SimLoop, Observer] = {}
        self._values = 0
        self._numbers = count()
        self._cas: dict[tuple[int, int, bytes], int] = {}
        for consumer in self.consumers:
            consumer.on_seen = self._seen
        self.schedule.watch = self._watch
        self._tick()

    @classmethod
    @contextmanager
    def running(cls, seed: int, **options: int) -> Iterator[SimCluster]:
        """A cluster in a block: what nodes take from the operating system is simulated within it."""
        made = cls(seed, **options)
        with made.patched():
            yield made

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Sockets and chance of calls that nodes make are the simulation's."""
        sockets = SimpleNamespace(socket=self._call_from, SOCK_STREAM=1)
        random = SimpleNamespace(
            randbelow=self.schedule.random.randrange, token_urlsafe=lambda size: "n" * size, token_hex=lambda size: "0"
        )
        log, handler = logging.getLogger("headwater.node"), Errors(self.schedule)
        with ExitStack() as stack:
            stack.callback(log.setLevel, log.level)
            stack.callback(setattr, log, "propagate", log.propagate)
            stack.callback(log.removeHandler, handler)
            stack.enter_context(mock.patch.object(calling, "socket", sockets))
            for module in (dialer, peers):
                stack.enter_context(mock.patch.object(module, "secrets", random, create=True))
            for kind in (Connection, Stream, Handover):
                stack.enter_context(mock.patch.object(kind, "__hash__", lambda thing: self._number_of(thing)))  # noqa: PLW0108 - a method of another class
            log.addHandler(handler)
            log.propagate = False
            yield

    def _number_of(self, thing: Any) -> int:
        """In place of an address in memory, so that sets have the same order in each run."""
        return thing.__dict__.setdefault("simulated_number", next(self._numbers))  # type: ignore[no-any-return]

    def _call_from(self, *_: object) -> object:
        """A socket of the process that is running now."""
        loop: Any = asyncio.get_running_loop()
        return self.network.socket(loop.name)

    # --- time and faults --------------------------------------------------------------------------------------------

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass."""
        return self.schedule.run(seconds, until)

    def _hang_up(self, at: int) -> None:
        for caller in (self.callers[at], self.admins[at], self.aware[at]):
            caller.hang_up()

    def _tick(self) -> None:
        """Consumers look at the clock."""
        for consumer in self.consumers:
            consumer.tick()
        self.schedule.after(TICK_SECONDS, self._tick)

    def _watch(self, loop: SimLoop) -> None:
        observer = self._by_loop.get(loop)
        if observer is not None:
            observer.event()

    def start(self, at: int) -> None:
        """Start a node that does not run; if its disk fails at that it stays down."""
        host, observer = self.hosts[at], self.observers[at]
        if not host.is_up and host.start():
            if host.loop is not None:
                self._by_loop[host.loop] = observer
            others = frozenset(each.address for each in self.hosts if each is not host)
            host.bucket.durable_writes.copies_of = lambda _: Copies(len(self.hosts), others)
            observer.started()

    def stop(self, at: int) -> None:
        """Stop a node in order."""
        if self.hosts[at].is_up:
            self.hosts[at].stop()
            self.observers[at].gone()
            self._hang_up(at)

    def crash(self, at: int, how: Crash) -> None:
        """Let a node die."""
        if self.hosts[at].is_up:
            self.observers[at].gone()
            self.hosts[at].crash(how)
            self._hang_up(at)

    # --- the operator -----------------------------------------------------------------------------------------------

    def set_state(self, at: int, vb: int, state: State) -> None:
        """Send SET_VBUCKET."""
        owner, name = self.owners[vb], self.hosts[at].name
        request = owner.promise(name) if state is State.ACTIVE else 0

        def answered(answer: Frame | None) -> None:
            if answer is not None:
                owner.settled(name, request)

        self.admins[at].ask(Opcode.SET_VBUCKET, answered, extras=bytes([state]), vbucket=vb)

    def delete_vbucket(self, at: int, vb: int) -> None:
        """Send DEL_VBUCKET."""
        self.admins[at].ask(Opcode.DEL_VBUCKET, lambda _: None, vbucket=vb)

    def follow(self, at: int, source: int, vb: int, *, takeover: bool = False) -> None:
        """Let a vbucket follow another node, or take it over from there."""
        asked = {"from": self.hosts[source].address, "vbuckets": str(vb), "takeover": takeover}
        self.admins[at].ask(Opcode.IOCTL_SET, lambda _: None, key=b"replicate", value=json.dumps(asked).encode())

    def leave(self, at: int, source: int) -> None:
        """Follow a node no more."""
        asked = {"from": self.hosts[source].address}
        self.admins[at].ask(Opcode.IOCTL_SET, lambda _: None, key=b"replicate.stop", value=json.dumps(asked).encode())

    def compact(self, at: int, vb: int, *, everything: bool) -> None:
        """COMPACT_DB: with or without all tombstones that can go."""
        extras = bytes(16) + bytes([everything]) + bytes(7)
        self.admins[at].ask(Opcode.COMPACT_DB, lambda _: None, extras=extras, vbucket=vb)

    def change_collections(self, *, drop: bool) -> None:
        """Make a collection that never was, or drop the oldest, on all nodes, as `headwater collection` does."""
        if drop and self.collections:
            del self.collections[min(self.collections)]
        else:
            self._collection += 1
            self.collections[COLLECTION_ID_FIRST + self._collection] = f"c{self._collection}"
        self._manifests += 1
        named = [{"uid": f"{number:x}", "name": name} for number, name in self.collections.items()]
        scope = {"uid": "0", "name": "_default", "collections": [{"uid": "0", "name": "_default"}, *named]}
        value = json.dumps({"uid": f"{self._manifests:x}", "scopes": [scope]}).encode()
        for admin in self.admins:
            admin.ask(Opcode.COLLECTIONS_SET_MANIFEST, lambda _: None, value=value)

    # --- writers ----------------------------------------------------------------------------------------------------

    def set_in_collection(self, at: int, vb: int, key: bytes) -> None:
        """SET in the newest collection there is, also where the node does not know it yet or any more."""
        number = max(self.collections, default=COLLECTION_ID_FIRST)
        self._values += 1
        sections = {"key": leb128.join_key(number, key), "value": b"%d" % self._values, "extras": bytes(8)}
        self.aware[at].ask(Opcode.SET, lambda _: None, vbucket=vb, **sections)

    def set_durably(self, at: int, vb: int, key: bytes, *, level: int, timeout_ms: int) -> None:
        """SET a value that nobody sent before, and wait for a majority."""
        self._values += 1
        value = b"%d" % self._values
        self.histories.sent(vb, key, value)
        asked = FrameInfo(RequestInfo.DURABILITY, bytes([level]) + timeout_ms.to_bytes(2))
        self._write(at, vb, key, Opcode.SET, value=value, extras=bytes(8), framing=encode_framing([asked]))

    def delete_durably(self, at: int, vb: int, key: bytes) -> None:
        """DELETE, and wait for a majority."""
        asked = FrameInfo(RequestInfo.DURABILITY, bytes([1]) + (200).to_bytes(2))
        self._write(at, vb, key, Opcode.DELETE, framing=encode_framing([asked]))

    def set(self, at: int, vb: int, key: bytes, *, expiry: int = 0, cas: bool = False, size: int = 0) -> None:
        """SET a value that nobody sent before; with `cas`, only over the version that was answered last."""
        self._values += 1
        value = b"%d" % self._values + b"x" * size
        self.histories.sent(vb, key, value)
        given = self._cas.get((at, vb, key), 0) if cas else 0
        extras = self._values.to_bytes(4) + expiry.to_bytes(4)
        self._write(at, vb, key, Opcode.SET, value=value, extras=extras, cas=given)

    def delete(self, at: int, vb: int, key: bytes) -> None:
        """Send DELETE."""
        self._write(at, vb, key, Opcode.DELETE)

    def _write(self, at: int, vb: int, key: bytes, opcode: int, **sections: bytes | int) -> None:
        def answered(answer: Frame | None) -> None:
            if answer is not None and "framing" in sections:
                self.durable_answers[name_of(answer.status)] += 1
            if answer is not None and answer.status == 0:
                self.acknowledged += 1
                self._cas[at, vb, key] = answer.cas
                uuid, seqno = int.from_bytes(answer.extras[:8]), int.from_bytes(answer.extras[8:16])
                self.owners[vb].acked(uuid, seqno)

        self.callers[at].ask(opcode, answered, key=key, vbucket=vb, **sections)

    def _seen(self, consumer: Consumer, seen: Seen, position: Position) -> None:
        change = Change(seen.key, seen.value, seen.cas, seen.rev_seqno, seen.flags, seen.expiry)
        self.histories.shown(consumer.name, seen.vbucket, position.failover_log, seen.seqno, change)

    # --- judging ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check the invariants that hold at any time."""
        for host, observer in zip(self.hosts, self.observers, strict=True):
            if host.is_up:
                observer.check()
        for consumer in self.consumers:
            for vb in self.vbuckets:
                self._check_consumer(consumer, vb)

    def _check_consumer(self, consumer: Consumer, vb: int) -> None:
        position = consumer.position(vb)
        if position.complete and position.seqno:
            held = {
                seen.key: (seen.seqno, Change(seen.key, seen.value, seen.cas, seen.rev_seqno, seen.flags, seen.expiry))
                for seen in consumer.told[vb]
            }
            self.histories.check_complete(consumer.name, vb, position.failover_log, held, position.seqno)

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
        self._give_owners()
        if not self.run(SETTLE_SECONDS, lambda: self.difference() == ""):
            raise Broken(f"equal: {SETTLE_SECONDS:g} s after the last fault: {self.difference()}")
        self.check()

    def holder(self, vb: int) -> int:
        """The node that should own a vbucket: who was made its owner last; if it was demoted, one that is active."""
        official = [host.name for host in self.hosts].index(self.owners[vb].holder)
        actives = [at for at, host in enumerate(self.hosts) if host.is_up and host.bucket.is_active(vb)]
        return actives[0] if actives and self.owners[vb].is_vacant else official

    def _give_owners(self) -> None:
        nodes = range(len(self.hosts))
        for at in nodes:
            for source in nodes:
                self.leave(at, source)
        self.run(1.0)
        holders = {vb: self.holder(vb) for vb in self.vbuckets}
        for vb, holder in holders.items():
            if not self.hosts[holder].bucket.is_active(vb):
                self.set_state(holder, vb, State.ACTIVE)
            elif self.owners[vb].is_vacant:
                found = self.hosts[holder].bucket.vbuckets[vb]
                self.owners[vb].chosen(self.hosts[holder].name, found.failover.entries, found.high_seqno)
            for at in nodes:
                if at != holder:
                    self.set_state(at, vb, State.REPLICA)
        self.run(1.0)
        for vb, holder in holders.items():
            for at in nodes:
                if at != holder:
                    self.follow(at, holder, vb)

    def difference(self) -> str:
        """Say where a replica differs from its active; empty when all are equal."""
        for vb in self.vbuckets:
            owner = self.hosts[self.holder(vb)].bucket.vbuckets.get(vb)
            for host in self.hosts:
                found = host.bucket.vbuckets.get(vb)
                if owner is None or found is None:
                    return f"vbucket {vb} is not at {host.name}"
                shown = (found.durable_seqno, found.failover.entries)
                wanted = (owner.high_seqno, owner.failover.entries)
                if shown != wanted:
                    return f"vbucket {vb} at {host.name} is {shown}, its owner's is {wanted}"
                if found.prepares.pending:
                    return f"vbucket {vb} at {host.name}: {found.prepares.pending} still wait"
        return ""

    def check_everything(self) -> None:
        """At rest: replicas equal their actives, consumers end equal to the owner, no acknowledged write is lost."""
        for vb in self.vbuckets:
            holder = self.holder(vb)
            owner = self.hosts[holder].bucket.vbuckets[vb]
            self.owners[vb].check_kept(owner_name := self.hosts[holder].name, owner.failover.entries, owner.high_seqno)
            held = self.observers[holder].held(vb)
            for host, observer in zip(self.hosts, self.observers, strict=True):
                unequal = set(observer.held(vb).items()) ^ set(held.items())
                if any(not self.histories.may_be_missing(vb, *change) for _, change in unequal):
                    raise Broken(f"equal: vbucket {vb} of {host.name} differs from {owner_name}: {unequal}")
            self._check_collections(vb, holder)
            self._drain_to_the_end(vb, holder)

    def _check_collections(self, vb: int, holder: int) -> None:
        """All copies have the same collections, and the same documents in those that there are."""
        alive = self.hosts[holder].bucket.vbuckets[vb].collections.alive
        for host, observer in zip(self.hosts, self.observers, strict=True):
            known = host.bucket.vbuckets[vb].collections
            if known.alive != alive:
                raise Broken(f"equal: vbucket {vb} of {host.name} has the collections {known.alive}, not {alive}")
            for number in alive:
                if number and observer.held(vb, number) != self.observers[holder].held(vb, number):
                    raise Broken(f"equal: collection {number} of vbucket {vb} differs at {host.name}")

    def _drain_to_the_end(self, vb: int, holder: int) -> None:
        with self.hosts[holder].store.view(vb) as view:
            high = view.end_seqno  # of what consumers without collections are shown
        for consumer in self.consumers:
            consumer.resume()
            if not consumer.is_connected or consumer.target != self.hosts[holder].name:
                consumer.connect(self.hosts[holder].name)

            def level(consumer: Consumer = consumer) -> bool:
                if not consumer.is_connected:
                    consumer.connect(self.hosts[holder].name)
                elif vb in consumer.idle_vbuckets():
                    consumer.ask([vb])
                position = consumer.position(vb)
                return consumer.streams(vb) and position.complete and position.seqno == high

            if not self.run(CONSUMER_SECONDS, level):
                told = f"{consumer.name} is at {consumer.position(vb)} after {CONSUMER_SECONDS:g} s, not at {high}"
                raise Broken(f"equal: {told}: {consumer.error}")
            self._check_consumer(consumer, vb)
