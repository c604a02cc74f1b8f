"""A second bucket in the same cluster: clients of its own on keys of the same names, dropped and created anew
meanwhile.

In half of the worlds with it nodes are failed over in it and join it again, whatever the first bucket's operators do
with them; in the others nobody changes its owners, and its plain writes are kept as well. The bucket is judged life by
life, each from the moment when all machines have confirmed its creation until its next drop is requested. A life begins
empty: a value of an earlier life, or of the other bucket, has no write that explains it.

The time at which a failover took effect is not observed: it may be any moment from its beginning; and answers of the
failed node from then on are old until it has joined again. Such reads are left out, such plain writes are a "maybe".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Protocol

from harness.linearizability import judge as linearizability
from harness.linearizability.model import Model
from harness.linearizability.record import UNANSWERED, Fault, FaultKind, Level, Operation, Outcome, Recorder
from harness.linearizability.window import report
from harness.simulation.histories import Broken
from harness.simulation.scheduler import NOON_SECONDS
from harness.world import operators
from harness.world.operators import SECOND_BUCKET, Work, members
from harness.world.programs import Program, ProgramsWorld
from harness.world.workload import Login, Purpose, WorkloadClient, WorldKey
from headwater.cluster import buckets
from headwater.cluster.refusals import FailoverRefusal
from headwater.errors import HeadwaterError, KeyExists, KeyNotFound
from headwater.wire.vbucket import vbucket_of

if TYPE_CHECKING:
    from harness.world.plan import WorldPlan
    from harness.world.steps import Step
    from headwater.client.routing import Address
    from headwater.cluster.failover import FailoverPlan

CLIENTS = 2
KEYS = 3
PAUSE_SECONDS = 0.1
AGAIN_SECONDS = 1.0
ATTEMPTS = 6
FOUNDING_SECONDS = 30.0
WHOLE_SECONDS = 300.0
POSITIONS_MAX = 300_000


class OrdersWorld(ProgramsWorld, Protocol):
    """The parts of a world that are needed here."""

    recorder: Recorder
    plan: WorldPlan

    def now(self) -> float:
        """Return Unix seconds."""

    def next_number(self) -> int:
        """Return a unique number."""

    def complete(self, name: str, work: Callable[[], object], seconds: float) -> object:
        """Run a program to its end."""

    def holders(self, bucket: str, vb: int) -> list[Address]:
        """Return the machines with a running node that has a copy of a vbucket of a bucket."""

    def without(self, bucket: str) -> list[Address]:
        """Return the machines with a running node that does not serve a bucket."""


@dataclass(slots=True)
class Life:
    """One life of the bucket.

    Attributes:
        began: when the drop of the one before was first requested.
        made: when all machines had confirmed the new one to an operator; None for never.
        is_clean: True if all machines had dropped the one before, and no other request to drop it can be in transit:
            one that was given up may arrive when the next life has begun.
    """

    began: float
    made: float | None = None
    is_clean: bool = False


@dataclass(slots=True)
class OwnersChange:
    """An operator's work on the bucket's owners, of the kind `work`: a failover, or a node that joins again.

    Attributes:
        node: host:port.
        began, ended: in seconds since the beginning; `ended` None for work without an end.
        is_done: True if it succeeded.
    """

    work: Work
    node: str
    began: float
    ended: float | None = None
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class Loss:
    """A machine that was failed over in the bucket at a loss, since its disk was replaced.

    Attributes:
        began, ended: in seconds since the beginning; infinite for work without an end. vbuckets: of the bucket.
        anew: vbuckets of which no copy was left. They begin again, empty.
        lowered: vbuckets whose best copy may lack durable writes: too few of the copies that acknowledged are left.
    """

    began: float
    ended: float | None
    vbuckets: int
    anew: frozenset[int]
    lowered: frozenset[int]

    def begins_anew(self, key: str) -> bool:
        """Return True if all versions of a key are gone."""
        return vbucket_of(key.encode("latin-1"), self.vbuckets) in self.anew

    def lowers(self, operation: Operation) -> bool:
        """Return True if an operation may be lost in spite of its level."""
        is_before = self.ended is None or operation.called - NOON_SECONDS < self.ended
        return is_before and vbucket_of(operation.key.encode("latin-1"), self.vbuckets) in self.lowered


class Orders:
    """The second bucket, its clients and its operator.

    Attributes:
        lives: of the bucket, in order. recorder: of its clients' requests and answers.
        changes: of its owners, in the order in which they began. losses: those with the disks of machines.
    """

    def __init__(self, world: OrdersWorld, random: Random, login: Login) -> None:
        self.lives: list[Life] = []
        self.changes: list[OwnersChange] = []
        self.losses: list[Loss] = []
        self.recorder = Recorder(world.recorder.history().clock_error_seconds)
        self._world, self._random, self._login = world, random, login
        self._programs: list[Program] = []
        self._anew: Program | None = None
        self._failing_over: list[tuple[Program, Address]] = []
        self._is_late = False  # whether a request to drop it may be on its way that nobody waits for any more

    def found(self) -> None:
        """Create the bucket for the first time."""
        self.lives.append(life := Life(self._world.schedule.now, is_clean=True))
        self._world.complete("maker", partial(self._make, life), FOUNDING_SECONDS)

    def begin(self) -> None:
        """Start its clients."""
        for number in range(CLIENTS):
            work = partial(self._client(number).run, 1 << 30, PAUSE_SECONDS)
            self._programs.append(self._world.run(f"orders-{number}", work))

    def _client(self, number: int) -> WorkloadClient:
        world = self._world
        return WorkloadClient(
            number,
            [str(address) for address in world.addresses],
            [WorldKey(b"key-%d" % at, Purpose.REGISTER, is_durable=at % 2 == 0) for at in range(KEYS)],
            recorder=self.recorder,
            random=Random(self._random.getrandbits(64)),  # noqa: S311 - must be repeatable
            now=world.now,
            next_value=world.next_number,
            login=self._login,
            bucket=SECOND_BUCKET,
        )

    def anew(self, step: Step) -> Callable[[], None] | None:
        """Let an operator drop the bucket and create it anew, unless one is doing so; return the function that kills
        the operator.
        """
        if self._anew is not None and not self._anew.is_over:
            return None
        self.lives.append(life := Life(self._world.schedule.now))
        started = self._anew = self._world.run(f"anew-{len(self.lives)}", partial(self._replace, life))

        def kill() -> None:
            self._world.counts["operators killed"] += not started.is_over
            self._is_late |= not started.is_over
            started.kill()

        return kill if step.lasts else None

    def change_owners(self, work: Work, step: Step) -> Callable[[], None]:
        """Let an operator fail a node over in the bucket, or let it join again; return the function that kills the
        operator.
        """
        world = self._world
        node, random = world.addresses[step.node], Random(step.amount)  # noqa: S311 - must be repeatable
        self.changes.append(change := OwnersChange(work, str(node), world.schedule.now))

        async def do() -> None:
            change.is_done = await operators.do(work, self._seeds, node, random, bucket=SECOND_BUCKET)
            change.ended = world.schedule.now
            world.counts[f"second bucket: {work.value}"] += change.is_done

        started = world.run(f"orders-owners-{len(self.changes)}", do)
        if work is Work.FAILOVER:
            self._failing_over.append((started, node))

        def kill() -> None:
            world.counts["operators killed"] += not started.is_over
            started.kill()

        return kill

    @property
    def failing_over(self) -> set[Address]:
        """Return the nodes that an operator is failing over in the bucket."""
        return {node for started, node in self._failing_over if not started.is_over}

    # --- machines that are replaced -----------------------------------------------------------------------------------

    async def move_away(self, node: Address, random: Random) -> None:
        """Move all data of the bucket away from a machine that is about to be replaced, if that is possible."""
        self.changes.append(change := OwnersChange(Work.REMOVE, str(node), self._world.schedule.now))
        seeds = self._seeds
        change.is_done = await operators.do(Work.REMOVE, seeds, node, random, attempts=2, bucket=SECOND_BUCKET)
        change.ended = self._world.schedule.now

    async def take_in(self, node: Address, random: Random) -> None:
        """Create the bucket on a machine with another disk, and let it join again."""
        if not await self._make_on([node]):
            return
        self.changes.append(change := OwnersChange(Work.ADD, str(node), self._world.schedule.now))
        change.is_done = await operators.do(Work.ADD, self._seeds, node, random, bucket=SECOND_BUCKET)
        change.ended = self._world.schedule.now

    async def _make_on(self, nodes: Sequence[Address]) -> bool:
        """Create the bucket on machines that share it with others, or will; return True if it is there."""
        for _ in range(ATTEMPTS):
            try:
                async with members("") as connected:
                    for node in nodes:
                        with suppress(KeyExists):
                            await connected.admin(node).create_bucket(SECOND_BUCKET, is_empty=True)
            except HeadwaterError:
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return True
        return False

    @property
    def _seeds(self) -> list[Address]:
        """Return the machines that an operator may name as members: not those with another disk and no bucket yet."""
        world = self._world
        return [address for address in world.addresses if address not in world.without(SECOND_BUCKET)]

    async def take_out(self, node: Address, random: Random) -> None:
        """Fail a machine over in the bucket before its disk is replaced, at a loss if there is no other way."""
        world, change = self._world, None
        while not await operators.is_outside(self._seeds, node, SECOND_BUCKET):
            if change is None:
                self.changes.append(change := OwnersChange(Work.FAILOVER, str(node), world.schedule.now))
            found = await operators.refusals(
                Work.FAILOVER, self._seeds, node, random, attempts=ATTEMPTS, bucket=SECOND_BUCKET
            )
            if len(found) == ATTEMPTS and operators.proposes_loss(found[-1]):
                await self._take_out_at_a_loss(node, change)
        if change is not None:
            world.counts["second bucket: damaged machines failed over"] += 1
            change.is_done, change.ended = True, world.schedule.now
            self.losses = [replace(loss, ended=loss.ended or change.ended) for loss in self.losses]

    async def _take_out_at_a_loss(self, node: Address, change: OwnersChange) -> None:
        try:
            look = partial(self._lose, node, change)
            await operators.fail_over_at_a_loss(self._seeds, node, SECOND_BUCKET, look)
        except HeadwaterError:
            await asyncio.sleep(AGAIN_SECONDS)

    def _lose(self, node: Address, change: OwnersChange, plan: FailoverPlan) -> None:
        """Note the losses that a failover's plan names, and check that no copy of lost vbuckets is left."""
        world, lost = self._world, frozenset(plan.anew)
        for vb in lost:
            if held := [holder for holder in world.holders(SECOND_BUCKET, vb) if holder in plan.after.servers]:
                told = f"a failover of {node} calls vbucket {vb} of {SECOND_BUCKET} lost, of which {held[0]} has a copy"
                world.schedule.failures.append(Broken(f"buckets: {told}"))
        is_alone = FailoverRefusal.MAJORITY in plan.accepted
        lowered = {promotion.vbucket for promotion in plan.promotions} if is_alone else plan.losses.keys()
        world.counts["second bucket: vbuckets lost with a disk"] += len(lost)
        world.counts["second bucket: vbuckets whose best copy was behind"] += len(lowered)
        self.losses.append(Loss(change.began, None, plan.after.vbuckets, lost, frozenset(lowered)))

    def end(self) -> None:
        """End all clients and operators; an error of one fails the run."""
        for program in self._programs:
            if program.error is not None:
                raise program.error
            program.kill()

    def finish(self) -> None:
        """Bring the bucket together on all nodes, with all faults lifted, and read every key once more."""
        world, life = self._world, self.lives[-1]
        if self._anew is not None:
            world.schedule.run(FOUNDING_SECONDS, lambda: self._anew is None or self._anew.is_over)
        if life.made is None:
            return
        if world.plan.has_flips:
            world.complete("orders-maker", partial(self._make_on, world.without(SECOND_BUCKET)), FOUNDING_SECONDS)
        else:
            world.complete("orders-maker", partial(self._make, Life(world.schedule.now)), FOUNDING_SECONDS)
        whole = partial(operators.make_whole, world.addresses, WHOLE_SECONDS, SECOND_BUCKET)
        if problem := world.complete("orders-healer", whole, 2 * WHOLE_SECONDS):
            raise Broken(f"whole: {SECOND_BUCKET} can't be brought together: {problem}")
        world.complete("orders-reader", self._client(CLIENTS).read_all, FOUNDING_SECONDS)

    async def _replace(self, life: Life) -> None:
        everybody, is_late = self._world.addresses, self._is_late
        for attempt in range(ATTEMPTS):
            try:
                async with members() as connected:
                    dropped = await buckets.drop(connected, everybody, SECOND_BUCKET)
            except KeyNotFound:
                break
            except HeadwaterError:
                self._is_late = True
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                life.is_clean = dropped == len(everybody) and not attempt and not is_late
                break
        await self._make(life)

    async def _make(self, life: Life) -> None:
        everybody = self._world.addresses
        for _ in range(ATTEMPTS):
            try:
                async with members() as connected:
                    made = await buckets.create(connected, everybody, buckets.BucketWish(SECOND_BUCKET))
            except HeadwaterError:
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                life.made = self._world.schedule.now if made == len(everybody) else None
                return

    # --- the judge ----------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        """Check that one order explains all answers of each life."""
        world, history = self._world, self.recorder.history()
        model = Model(plain_may_be_lost=True, clock_error_seconds=history.clock_error_seconds)
        world.counts["operations on the second bucket"] += len(history.operations)
        world.counts["answers of the second bucket"] += sum(
            operation.outcome not in {Outcome.REFUSED, Outcome.MAYBE} for operation in history.operations
        )
        world.counts["lives of the second bucket judged"] += len(list(self._judged()))
        asked = lowered(history.operations, self.losses)
        for life, until, operations in parts(asked, self._judged(), self.losses):
            weighty = weighed(within(operations, life, until), self.changes)
            part = replace(history, operations=tuple(weighty), faults=tuple(faults(self.changes, life, until)))
            for verdict in linearizability.judge(part, model, positions_max=POSITIONS_MAX):
                if verdict.is_violation:
                    told = report(part.of(verdict.key), model, verdict)
                    raise Broken(f"buckets: {SECOND_BUCKET}, made at {life.made} s\n{told}")

    def _judged(self) -> Iterator[tuple[Life, float]]:
        """Yield the lives that began empty on all machines, each with the time at which it may have ended."""
        ends = [*(life.began for life in self.lives[1:]), float("inf")]
        for life, end in zip(self.lives, ends, strict=True):
            if life.made is not None and life.is_clean:
                yield life, end


def lowered(operations: Iterable[Operation], losses: Sequence[Loss]) -> list[Operation]:
    """Return the operations; those whose durability a loss may have undone get the level NONE, as plain writes."""

    def as_held(each: Operation) -> Operation:
        is_plain = any(loss.lowers(each) for loss in losses)
        return replace(each, argument=replace(each.argument, level=Level.NONE)) if is_plain else each

    return list(map(as_held, operations))


def parts(
    operations: Sequence[Operation], lives: Iterable[tuple[Life, float]], losses: Sequence[Loss]
) -> Iterator[tuple[Life, float, Sequence[Operation]]]:
    """Yield lives, the time at which each may have ended, and their operations; the keys of a vbucket that began anew
    have a life of their own.
    """
    for life, end in lives:
        keys = sorted({operation.key for operation in operations})
        lost = {key: [loss for loss in losses if loss.began < end and loss.begins_anew(key)] for key in keys}
        yield life, end, [operation for operation in operations if not lost[operation.key]]
        for key in (key for key in keys if lost[key]):
            own, begun = [operation for operation in operations if operation.key == key], life
            for loss in lost[key]:
                yield begun, loss.began, own
                begun = Life(loss.began, made=loss.ended, is_clean=True)
            yield begun, end, own


def within(operations: Sequence[Operation], life: Life, until: float) -> Iterator[Operation]:
    """Yield the operations of a life; those that overlap its beginning or its end may belong to it, or not."""
    for operation in operations:
        called = operation.called - NOON_SECONDS
        ended = float("inf") if operation.answered is None else operation.answered - NOON_SECONDS
        made = until if life.made is None else life.made
        if called >= until or ended < life.began:
            continue
        if called >= made and ended < until:
            yield operation
        elif not operation.is_read and operation.outcome is not Outcome.REFUSED:
            yield replace(operation, result=UNANSWERED, answered=None)


def faults(changes: Sequence[OwnersChange], life: Life, until: float) -> Iterator[Fault]:
    """Yield the changes of owners that may have taken back plain writes of a life; a rebalance may end a failover."""
    for change in changes:
        if change.began < until and (change.ended is None or change.ended >= life.began):
            ended = None if change.ended is None else NOON_SECONDS + change.ended
            yield Fault(
                FaultKind.FAILOVER, NOON_SECONDS + change.began, ended, text=f"{change.work.value} {change.node}"
            )


def weighed(operations: Iterable[Operation], changes: Sequence[OwnersChange]) -> Iterator[Operation]:
    """Yield the operations without answers of a node that may have been failed over, except durable writes."""
    for operation in operations:
        is_durable = operation.outcome is Outcome.DONE and operation.argument.level
        if is_durable or operation.outcome is Outcome.MAYBE or not _may_be_old(operation, changes):
            yield operation
        elif not operation.is_read and operation.outcome is not Outcome.REFUSED:
            yield replace(operation, result=UNANSWERED, answered=None)


def _may_be_old(operation: Operation, changes: Sequence[OwnersChange]) -> bool:
    called = operation.called - NOON_SECONDS
    ended = called if operation.answered is None else operation.answered - NOON_SECONDS
    about = [change for change in changes if change.node == operation.result.node]
    joined = max((each.began for each in about if each.work is Work.ADD and _is_done_by(each, called)), default=-1.0)
    return any(each.work is Work.FAILOVER and each.began <= ended and joined < (each.ended or ended) for each in about)


def _is_done_by(change: OwnersChange, at: float) -> bool:
    return change.is_done and change.ended is not None and change.ended < at
