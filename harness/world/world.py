"""A simulated world: its machines, programs and watcher; from the founding until all copies are level.

run.py runs one and has it judged.
"""

from __future__ import annotations

import hashlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from harness.linearizability.record import CLOCK_ERROR_SECONDS, History, Recorder, to_lines
from harness.linearizability.second import Word
from harness.simulation.histories import Broken, Held
from harness.simulation.host import Crash
from harness.simulation.scheduler import NOON_SECONDS, Schedule, SimLoop
from harness.simulation.sockets import Link, Network
from harness.world import operators
from harness.world.befores import BeforesJudge
from harness.world.blocking import BlockingProgram
from harness.world.completeness import TimeReader
from harness.world.damage import Damages
from harness.world.guests import Guests
from harness.world.machines import Machine
from harness.world.objects import ObjectServer, served
from harness.world.operators import Work
from harness.world.orders import Orders
from harness.world.plan import WorldPlan
from harness.world.programs import Program
from harness.world.readers import WorldReader
from harness.world.rights import APPLICATION, KNOWN
from harness.world.system import simulated
from harness.world.tenants import Tenants
from harness.world.watcher import Watcher
from harness.world.workload import Login, WorkloadClient, keys_of
from headwater.client.routing import Address
from headwater.wire.vbucket import vbucket_of

if TYPE_CHECKING:
    from harness.world.steps import Step
    from harness.world.system import WallClock
    from headwater.node.vbucket.vbucket import VBucket
    from headwater.wire.cluster_map import ClusterMap

J = TypeVar("J")
FOUNDING_SECONDS = 30.0
OVERTIME_SECONDS = 120.0
WHOLE_SECONDS = 300.0
LEVEL_SECONDS = 120.0
LOOK_SECONDS = 0.25
TURN_SECONDS = 1e-7
WORKERS = ("operator-", "anew-", "orders-owners-", "backup-", "mirror-")
"""The beginnings of the names of the processes that may be stopped for a while."""
Begin: TypeAlias = "Callable[[World, Step], Callable[[], None] | None]"
"""Carries a step out, and returns what undoes it."""


class World:
    """The machines, the programs beside them, and the watcher.

    Attributes:
        plan, schedule, network, machines, watcher, recorder, clients, readers, damage: the parts of the world.
        clocks: of all machines, by name. store: an object store.
        judged, verdicts: the history as our search judged it, and its verdict about each key.
    """

    def __init__(self, plan: WorldPlan) -> None:
        self.plan = plan
        self.schedule = Schedule(plan.seed)
        self.schedule.turn_seconds = TURN_SECONDS
        self.network = Network(self.schedule)
        users = KNOWN if plan.has_users else {}
        self.machines = [
            Machine(self.schedule, self.network, f"n{at}", vbuckets=plan.vbuckets, users=users)
            for at in range(plan.nodes)
        ]
        self.watcher = Watcher(self.machines, plan.vbuckets, lambda: self.schedule.now)
        self.recorder = Recorder(CLOCK_ERROR_SECONDS + 2 * plan.clock_error_seconds + 2.0)
        self.clients: list[WorkloadClient] = []
        self.readers: list[WorldReader] = []
        self.counts: Counter[str] = Counter()
        self.damage = Damages(self)
        self.guests: Guests | None = None
        self.tenants: Tenants | None = None
        self.orders: Orders | None = None
        self.times: TimeReader | None = None
        self.judged = History()
        self.verdicts: dict[str, Word] = {}
        self._random = Random(self.schedule.random.getrandbits(64))  # noqa: S311 - must be repeatable
        self._by_loop: dict[SimLoop, int] = {}
        self._programs: list[Program] = []
        self._blocking: list[BlockingProgram] = []
        self._working: list[Program] = []
        self._reading: list[Program] = []
        self._taking_out: list[tuple[Program, Address]] = []
        self._numbers = count(1)
        self._vbuckets: dict[str, int] = {}
        self._dead: list[SimLoop] = []
        self.clocks: dict[str, WallClock] = {machine.name: machine.clock for machine in self.machines}
        self.store = ObjectServer(self.schedule)
        self._jobs: dict[Callable[[World], Any], Any] = {}
        self.schedule.watch = self._watch

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Run headwater in this world, for a block."""
        with simulated(self.schedule, self.network, self.clocks), served(self.store):
            yield

    # --- names ------------------------------------------------------------------------------------------------------

    @property
    def addresses(self) -> list[Address]:
        """Return the addresses of all machines."""
        return [Address(*self.network.address(machine.name)) for machine in self.machines]

    @property
    def url(self) -> str:
        """Return the connection string of the bucket."""
        return f"couchbase://{','.join(map(str, self.addresses))}/{operators.BUCKET}"

    def name(self, node: int) -> str:
        """Return a machine's place in the network."""
        return self.machines[node].name

    def place(self, node: int, other: int) -> str:
        """Return another place for a link: a machine, a client or the operators'."""
        if other < len(self.machines) and other != node:
            return self.name(other)
        return f"client-{other % len(self.clients)}"

    def name_of(self, address: str) -> str:
        """Return the machine at an address, host:port; "" for none."""
        found = (machine.name for machine in self.machines if machine.address == address)
        return next(found, "")

    def vbucket_of(self, key: str) -> int:
        """Return the vbucket of a key."""
        if key not in self._vbuckets:
            self._vbuckets[key] = vbucket_of(key.encode("latin-1"), self.plan.vbuckets)
        return self._vbuckets[key]

    def copies(self, vb: int) -> list[int]:
        """Return the machines that hold a vbucket by the first machine's map, the owner first."""
        known = self.machines[0].server.first.membership.map
        names = {address: at for at, address in enumerate(self.addresses)}
        return [] if known is None else [names[copy] for copy in known.copies(vb)]

    def owner(self, vb: int) -> VBucket:
        """Return a vbucket on its owner."""
        return self.watcher.placed[self.copies(vb)[0]].bucket.vbuckets[vb]

    def owned(self, vb: int) -> Held:
        """Return the documents of a vbucket on its owner by the newest map, if that serves it; else none."""
        known = self.newest_map()
        owner = None if known is None else known.owner(vb)
        at = self.addresses.index(owner) if owner in self.addresses else None
        serves = at is not None and self.name(at) in self.watcher.serving(vb)
        return self.watcher.observers[at].held(vb) if serves and at is not None else {}

    def holders(self, bucket: str, vb: int) -> list[Address]:
        """Return the machines with a running node that has a copy of a vbucket of a bucket."""
        served = ((address, each.served(bucket)) for address, each in zip(self.addresses, self.machines, strict=True))
        return [address for address, found in served if found is not None and vb in found.bucket.vbuckets]

    def without(self, bucket: str) -> list[Address]:
        """Return the machines with a running node that does not serve a bucket."""
        machines = zip(self.addresses, self.machines, strict=True)
        return [address for address, each in machines if each.is_up and each.served(bucket) is None]

    def newest_map(self, bucket: str = operators.BUCKET) -> ClusterMap | None:
        """Return the newest map of a bucket that a running machine has."""
        served = (machine.served(bucket) for machine in self.machines if machine.is_up)
        known = (each.membership.map for each in served if each is not None)
        return max((each for each in known if each is not None), key=lambda each: each.version, default=None)

    def next_number(self) -> int:
        """Return a unique number."""
        return next(self._numbers)

    def now(self) -> float:
        """Return the true Unix seconds."""
        return NOON_SECONDS + self.schedule.now

    # --- machines ---------------------------------------------------------------------------------------------------

    def start(self, node: int) -> None:
        """Start a node that does not run; if its disk fails at that it stays down."""
        machine = self.machines[node]
        if not machine.is_up and self.damage.start(node):
            if machine.loop is not None:
                self._by_loop[machine.loop] = node
            self.watcher.started(node)

    def crash(self, node: int, how: Crash) -> None:
        """Crash a node."""
        machine = self.machines[node]
        if machine.is_up:
            self.counts[how.name.lower()] += 1
            self.watcher.gone(node)
            self._dead += [machine.loop] if machine.loop is not None else []
            machine.crash(how)

    def _watch(self, loop: SimLoop) -> None:
        at = self._by_loop.get(loop)
        if at is not None:
            self.watcher.event(at)
            self.damage.event(at)

    def close(self) -> None:
        """End all processes, and release those that were killed, so that no code of theirs runs later."""
        for each in self._blocking:
            each.kill()
        loops = [*self._dead, *(program.loop for program in self._programs), *self.schedule.loops]
        self.schedule.close()
        for loop in loops:
            for task in loop.tasks:
                work = task.get_coro()
                if inspect.iscoroutine(work):
                    with suppress(Exception):  # of a `finally` that wants to go on
                        work.close()

    # --- programs ---------------------------------------------------------------------------------------------------

    def employ(self, work: Work, node: int, killed_after: float) -> Callable[[], None] | None:
        """Let an operator begin a piece of work; return the function that kills the operator, None for one that is to
        live.
        """
        self.counts[work.value] += 1
        random = Random(self._random.getrandbits(64))  # noqa: S311 - must be repeatable
        started = self.run(
            f"operator-{next(self._numbers)}",
            partial(operators.do, work, self.addresses, self.addresses[node], random),
        )
        if work in (Work.FAILOVER, Work.REMOVE):
            self._taking_out.append((started, self.addresses[node]))

        def kill() -> None:
            self.counts["operators killed"] += not started.is_over
            started.kill()

        return kill if killed_after else None

    @property
    def leaving(self) -> set[Address]:
        """Return the machines that operators are failing over or removing now."""
        return {address for operator, address in self._taking_out if not operator.is_over}

    def has_newest_map_alone(self, node: int) -> bool:
        """Return True if a failover of this machine must wait: no other member would be left that has the newest map.

        Of two members, one that was failed over while it was paused or cut off must have heard of that before the other
        is failed over to it (docs/howto/cluster.md): what that one acknowledged alone would be lost.
        """
        known, address = (self.newest_map(), self.watcher.newest), self.addresses[node]
        newest = max(filter(None, known), key=lambda each: each.version, default=None)
        # Of more members each that lives has the map by which one was failed over, before anybody is promoted.
        if newest is None or address not in newest.servers or len(newest.servers) > 2:
            return False
        others = [each for at, each in enumerate(self.machines) if at != node and each.is_up]
        maps = (other.server.first.membership.map for other in others)
        is_known = any(each is not None and each.version == newest.version for each in maps)
        # Each operator tries for a while: while one waits for a machine to die, another may take out the other one.
        return not is_known or (len(newest.servers) == 2 and set(newest.servers) <= self.leaving | {address})

    def run(self, name: str, work: Callable[[], object]) -> Program:
        """Start a program, at a place of that name."""
        made = Program(self.schedule, self.network, name, work)  # type: ignore[arg-type]
        self._programs.append(made)
        return made

    def job(self, kind: Callable[[World], J]) -> J:
        """Return the work beside the cluster of this kind, of which there is one; it is begun at its first use."""
        if kind not in self._jobs:
            self._jobs[kind] = kind(self)
        found: J = self._jobs[kind]
        return found

    def run_blocking(self, name: str, work: Callable[[], object]) -> BlockingProgram:
        """Run code that blocks, as a process of its own."""
        made = BlockingProgram(self.schedule, self.network, f"{name}-{next(self._numbers)}", work)
        self._blocking.append(made)
        return made

    @property
    def _processes(self) -> Iterator[Program | BlockingProgram]:
        """Yield all processes beside the nodes, in the order in which they began, those that block last."""
        yield from self._programs
        yield from self._blocking

    def stop(self, step: Step) -> bool:
        """Stop a process of an operator, a backup or the mirror (SIGSTOP), until the step is over; return False if none
        runs.
        """
        awake = [
            program
            for program in self._processes
            if program.name.startswith(WORKERS)
            and not program.is_over
            and program.loop.sleeps_until <= self.schedule.now
        ]
        if awake:
            chosen = awake[int(step.amount * len(awake))]
            chosen.loop.sleeps_until = self.schedule.now + step.lasts
            self.counts[f"stopped: {chosen.name.rstrip('-0123456789')}"] += 1
        return bool(awake)

    def complete(self, name: str, work: Callable[[], object], seconds: float) -> object:
        """Run a program to its end."""
        made = self.run(name, work)
        if not self.schedule.run(seconds, lambda: made.is_over):
            raise Broken(f"whole: {name} has not come to an end within {seconds:g} s")
        if made.error is not None:
            raise made.error
        return made.result

    # --- the run ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Found the cluster, and let clients and readers begin."""
        for node in range(len(self.machines)):
            self.start(node)
        make = partial(operators.make_cluster, self.addresses, self.plan.replicas)
        self.complete("founder", make, FOUNDING_SECONDS)
        self.watcher.turns.clear()
        keys = keys_of(self._random, self.plan.keys)
        login = APPLICATION if self.plan.has_users else (None, None)
        seeds = [str(address) for address in self.addresses]
        for number in range(self.plan.clients):
            random = Random(self._random.getrandbits(64))  # noqa: S311 - must be repeatable
            made = WorkloadClient(
                number,
                seeds,
                keys,
                recorder=self.recorder,
                random=random,
                now=self.now,
                next_value=self.next_number,
                login=login,
            )
            self.clients.append(made)
        for number in range(2):
            random = Random(self._random.getrandbits(64))  # noqa: S311 - must be repeatable
            shown = self.watcher.branches.shown
            self.readers.append(WorldReader(f"reader-{number}", seeds, self.plan.vbuckets, random, shown, login=login))
        if self.plan.has_history:
            self.readers.append(self._reader_of_versions(seeds, login))
        if self.plan.has_times:
            self.times = TimeReader(self, self.readers[0], seeds)
            self.watcher.branches.on_wrote = self.times.times.wrote
        if self.plan.has_users:
            self.guests = Guests(self, Random(f"guests {self.plan.seed}"))  # noqa: S311 - must be repeatable
        if self.plan.has_tenants:
            self.tenants = Tenants(self, Random(f"tenants of {self.plan.seed}"))  # noqa: S311 - must be repeatable
            self.tenants.found()
        if self.plan.has_orders:
            chance = Random(f"orders {self.plan.seed}")  # noqa: S311 - must be repeatable
            self.orders = Orders(self, chance, login)
            self.orders.found()

    def _reader_of_versions(self, seeds: list[str], login: Login) -> WorldReader:
        """Return a reader of every version, and in some worlds of what each replaced."""
        branches = self.watcher.branches
        judge = BeforesJudge(branches, self.counts).judge if self.plan.has_befores else None
        return WorldReader(
            "reader-of-versions",
            seeds,
            self.plan.vbuckets,
            Random(f"history of {self.plan.seed}"),  # noqa: S311 - must be repeatable
            branches.shown,
            login=login,
            history=True,
            on_replaced=judge,
        )

    def happen(self, begin: Begin) -> None:
        """Let clients send requests while faults come, until both are done; `begin` carries a step out."""
        plan = self.plan
        each, pause = plan.operations // plan.clients, plan.seconds * plan.clients / plan.operations
        working = [self.run(f"client-{one.number}", partial(one.run, each, pause)) for one in self.clients]
        self._reading = [self.run(reader.name, reader.run) for reader in self.readers]
        if self.times is not None:
            self._reading.append(self.run("reader-of-the-time", self.times.run))
        for part in self._parts:
            part.begin()
        for step in plan.steps:
            self.schedule.after(step.at, partial(self._begin, begin, step))
        self.schedule.run(plan.seconds)
        self.schedule.run(OVERTIME_SECONDS, lambda: all(one.is_over for one in working))
        self._working = working
        _check(working)
        for part in self._parts:
            part.end()

    @property
    def _parts(self) -> Iterator[Guests | Tenants | Orders]:
        return (each for each in (self.guests, self.tenants, self.orders) if each is not None)

    def _begin(self, begin: Begin, step: Step) -> None:
        self.counts[step.fault.name.lower()] += 1
        undo = begin(self, step)
        if undo is not None:
            self.schedule.after(step.lasts, undo)

    def heal(self) -> None:
        """Lift all faults, and let an operator bring the cluster together."""
        self.network.links.clear()
        self.network.deaf.clear()
        self.network.slow.clear()
        self.store.lost = 0.0
        names = sorted(self.network.sockets)
        for at, one in enumerate(names):
            for other in names[:at]:
                self.network.set_link(one, other, Link.UP)
        for node, machine in enumerate(self.machines):
            machine.go_on()
            machine.repair()
            self.start(node)
        for program in self._processes:
            program.loop.sleeps_until = 0.0
        self.schedule.run(5.0)
        self.damage.replace_now()
        problem = self.complete(
            "healer", partial(operators.make_whole, self.addresses, WHOLE_SECONDS), WHOLE_SECONDS * 2
        )
        if problem:
            raise Broken(f"whole: the cluster can't be brought together: {problem}")

    def finish(self) -> None:
        """Let clients send their remaining requests, read every key once more, and let readers come to the end."""
        self._hear_clients()
        reader = self.clients[0]
        self.complete("last-reader", reader.read_all, OVERTIME_SECONDS)
        if self.orders is not None:
            self.orders.finish()
        until = self.schedule.now + LEVEL_SECONDS
        while (difference := self.difference()) and self.schedule.now < until:
            self.schedule.run(LOOK_SECONDS)
        _check(self._reading)
        if difference:
            raise Broken(f"equal: {LEVEL_SECONDS:g} s after the last fault: {difference}")

    def _hear_clients(self) -> None:
        """Run until the clients are done; a cluster in which nobody could write for long is healed before that."""
        if not self.schedule.run(OVERTIME_SECONDS, lambda: all(one.is_over for one in self._working)):
            late = [one.name for one in self._working if not one.is_over]
            raise Broken(f"whole: {OVERTIME_SECONDS:g} s after the last fault {late} still ask")
        _check(self._working)

    def difference(self) -> str:
        """Return a difference between a copy and its owner, or a reader that is behind, in words; empty if all is
        level.
        """
        if self.machines[0].server.first.membership.map is None:
            return "the first machine has no map"
        return next(filter(None, map(self._difference_of, range(self.plan.vbuckets))), "")

    def _difference_of(self, vb: int) -> str:
        serving, copies = self.watcher.serving(vb), self.copies(vb)
        if serving != [self.name(at) for at in copies[:1]]:
            return f"vbucket {vb} is served by {serving}, its copies are on {[self.name(at) for at in copies]}"
        ours, *others = (self.watcher.placed[at].bucket.vbuckets.get(vb) for at in copies)
        if ours is None or ours.prepares.pending or ours.durable_seqno != ours.high_seqno:
            return f"writes of vbucket {vb} are under way"
        for at, theirs in zip(copies[1:], others, strict=True):
            if theirs is None or theirs.failover.entries != ours.failover.entries:
                return f"{self.name(at)} has another history of vbucket {vb} than {serving[0]}"
            if theirs.durable_seqno != ours.durable_seqno:
                return f"{self.name(at)} has vbucket {vb} to {theirs.durable_seqno}, {serving[0]} to {ours.high_seqno}"
        documents = self.watcher.branches.documents
        shown = documents(self.watcher.observers[copies[0]].held(vb))
        for reader in self.readers:
            if documents(reader.documents(vb)) != shown:
                return f"{reader.name} ({reader.problem}) has not what {serving[0]} has of vbucket {vb}"
        return ""

    def digest(self) -> str:
        """Return a digest of all events."""
        found = hashlib.sha256()
        for line in to_lines(self.recorder.history()):
            found.update(line.encode())
        self.counts.update(self.store.counts)
        found.update(f"{self.schedule.events} {self.schedule.now} {sorted(self.counts.items())}".encode())
        for reader in self.readers:
            found.update(f"{reader.seen} {reader.rollbacks}".encode())
        return found.hexdigest()[:16]


def _check(programs: Iterable[Program]) -> None:
    """Raise the error of the first of these programs that ended with one."""
    for program in programs:
        if program.error is not None:
            raise program.error
