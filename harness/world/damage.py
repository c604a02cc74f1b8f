"""A bit that flips on one machine's disk, in a synced batch: chosen here, found by the node itself, and replaced.

One machine is damaged at a time, and only where another copy that is up has all that the batch holds, and has reached
the seqno that the map requires: damage of the only copy loses data, and nothing else is promised. Two kinds of bit are
flipped:

    in a value     `v17-` becomes `w17-`: until the node has found it, it serves that, and may copy it to others, under
                   a checksum that is right (docs/reliability.md). The judges read `w17-` as `v17-`, of this one number,
                   and excuse nothing else: a wrong CAS, another value or a missing change is a violation as always.
    in a header    of a batch: nothing wrong is served, and nothing is excused.

The node finds it by the scrubber, by a start, which must be refused, or never, if a compaction leaves it behind. The
operator who replaces the machine follows `cluster status`, and uses no --force. Only where each attempt at the failover
is refused for the same reason the operator uses the option that the refusal proposes, which states its cost:

    --force             the last other member was started anew and waits for the damaged one: writes that the latter
                        acknowledged alone meanwhile
    --accept unknown    an earlier failover broke off before the damaged machine had reported its seqno, and that
                        machine does not answer any more: writes acknowledged by machines that are not members now
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Protocol

import numpy as np

from harness.simulation.histories import Broken, branch_of, has
from harness.simulation.host import Crash
from harness.simulation.scheduler import NOON_SECONDS
from harness.world import operators
from harness.world.operators import Work
from harness.world.programs import ProgramsWorld
from headwater.client.routing import Address
from headwater.cluster.refusals import FailoverRefusal
from headwater.cluster.status import status
from headwater.errors import CorruptStore, HeadwaterError
from headwater.node.storage import batch as batches
from headwater.node.storage.segment import SEGMENT_HEADER_BYTES, Segment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.linearizability.record import Operation
    from harness.simulation.host import Host
    from harness.simulation.observer import Placed
    from harness.world.machines import Machine
    from harness.world.orders import Orders
    from harness.world.steps import Step
    from harness.world.watcher import Watcher
    from headwater.wire.cluster_map import ClusterMap

FOUND_SECONDS = 20.0
"""The time in which a node must find the damage: two intervals of the scrubber, and the waits of its passes."""
REPLACED_SECONDS = 600.0
VALUES = re.compile(rb"v(\d+)-")
NUMBER_AT = 8
"""The offset of a batch's number in the batch's header."""
IN_A_HEADER, AT_ONCE = 0.25, 0.6
"""If a step's amount is below the first, the bit is in a header; if below the second, a pass of the scrubber begins at
once.
"""
POLL_SECONDS = 0.01
AGAIN_SECONDS = 2.0
FAILOVERS = 4
"""The number of refusals of a failover after which an operator uses the proposed option."""


class DamagedWorld(ProgramsWorld, Protocol):
    """The parts of a world that are needed here."""

    machines: list[Machine]
    watcher: Watcher
    orders: Orders | None

    @property
    def leaving(self) -> set[Address]:
        """Return the machines that operators are failing over or removing now."""

    def newest_map(self, bucket: str = operators.BUCKET) -> ClusterMap | None:
        """Return the newest map of a bucket that a running machine has."""

    def complete(self, name: str, work: Callable[[], object], seconds: float) -> object:
        """Run a program to its end."""

    def start(self, node: int) -> None:
        """Start a node."""

    def crash(self, node: int, how: Crash) -> None:
        """Crash a node."""

    def vbucket_of(self, key: str) -> int:
        """Return the vbucket of a key, by its text in histories."""


@dataclass(slots=True)
class Flip:
    """A bit that flipped.

    Attributes:
        node: the machine. at: seconds since the beginning. path, offset: the place on its disk.
        byte: the byte that is there now.
        number: of the value that it lies in, in digits; empty in a batch's header.
        found_at: when the node found it, by a pass of the scrubber or a start; None before.
    """

    node: int
    at: float
    path: Path
    offset: int
    byte: int
    number: str = ""
    found_at: float | None = None

    def is_there(self, host: Host) -> bool:
        """Return True if the disk still has it: a compaction may have left it behind."""
        inode = host.disk._names.get(self.path)
        return inode is not None and self.offset < inode.size and int(inode.memory[self.offset]) == self.byte


@dataclass(frozen=True, slots=True)
class Override:
    """A failover that an operator repeated with an option which may lose acknowledged writes.

    Attributes:
        addresses: of the machines that may have acknowledged these. since: seconds since the beginning.
        vbuckets: the vbuckets of these writes; None for all.
    """

    addresses: frozenset[str]
    since: float
    vbuckets: frozenset[int] | None = None

    def covers(self, address: str, vbucket: int, answered: float) -> bool:
        """Return True if a write that a machine acknowledged at this time may be lost."""
        is_there = self.vbuckets is None or vbucket in self.vbuckets
        return is_there and address in self.addresses and self.since <= answered


@dataclass(slots=True)
class Damages:
    """All flipped bits of a world, of which at most one is current: not found yet, or its machine not replaced.

    Attributes:
        flips: all of them, in order. current: the current one. replacing: True while an operator replaces the machine.
        overrides: the failovers that may have lost acknowledged writes.
    """

    world: DamagedWorld
    flips: list[Flip] = field(default_factory=list)
    current: Flip | None = None
    replacing: bool = False
    overrides: list[Override] = field(default_factory=list)

    # --- flipping -----------------------------------------------------------------------------------------------------

    def begin(self, step: Step) -> Callable[[], None] | None:
        """Flip a bit, if that is allowed now; return the function that lets an operator replace the machine, None if no
        bit was flipped.
        """
        chosen = None if self.current or self.world.leaving else self._choose(step)
        if chosen is None:
            self.world.counts["bits not flipped"] += 1
            return None
        self.world.counts["bits flipped in a value" if chosen.number else "bits flipped in a header"] += 1
        inode = self.world.machines[chosen.node].disk._names[chosen.path]
        for content in (inode.memory, inode.durable):
            content[chosen.offset] = chosen.byte
        self.flips.append(chosen)
        self.current = chosen
        self.world.watcher.branches.flipped.add(chosen.number)
        if step.amount < AT_ONCE:
            self._verify_now(chosen.node)
        return partial(self._replace, chosen)

    def _choose(self, step: Step) -> Flip | None:
        machine = self.world.machines[step.node]
        if not machine.is_up or self._is_alone(step.node):
            return None
        placed = self.world.watcher.placed[step.node]
        random = Random(step.amount)  # noqa: S311 - must be repeatable
        whole = [batch for batch in _batches(placed) if self._is_whole_elsewhere(step.node, *batch)]
        places = [place for each in whole for place in _places(*each, in_values=step.amount >= IN_A_HEADER)]
        if not places:
            return None
        segment, offset, number = random.choice(places)
        byte = int(segment.memory[offset]) ^ 1
        return Flip(step.node, self.world.schedule.now, segment.path, offset, byte, number)

    def _is_whole_elsewhere(self, node: int, segment: Segment, header: batches.BatchHeader) -> bool:
        """Return True if each vbucket here has another copy with all changes of this batch."""
        placed = self.world.watcher.placed[node]
        for vb, ours in sorted(placed.bucket.vbuckets.items()):
            log, last = ours.failover.entries, _last_in(placed, vb, segment, header)
            others = (at for at in range(len(self.world.machines)) if at != node)
            if not any(self._has(at, vb, log, last) for at in others):
                return False
        return True

    def _has(self, at: int, vb: int, log: tuple[tuple[int, int], ...], seqno: int) -> bool:
        """Return True if a machine has, by the present map, a copy that is whole up to a change of this history, and
        that a failover would promote.
        """
        machine, placed = self.world.machines[at], self.world.watcher.placed[at]
        if not machine.is_up:
            return False
        known, theirs = machine.server.first.membership.map, placed.bucket.vbuckets.get(vb)
        newest = self.world.newest_map()
        if known is None or theirs is None or newest is None or known.version != newest.version:
            return False
        is_copy = machine.address in map(str, known.copies(vb)) and known.owner(vb) is not None
        uuid, upto = branch_of(log, seqno), min(theirs.durable_seqno, theirs.complete_seqno)
        is_whole = not seqno or (uuid is not None and has(theirs.failover.entries, upto, uuid, seqno))
        # With its disk the machine loses all it has, and what is not in the batch as well: so by the map, too, the
        # other must have come far enough to be promoted.
        return is_copy and is_whole and not known.is_unknown(vb) and upto >= known.needed_at_least(vb)

    def _verify_now(self, node: int) -> None:
        """Let the scrubber of this machine begin a pass."""
        loop, scrubber = self.world.machines[node].loop, self.world.watcher.placed[node].served.scrubber
        if loop is not None:
            loop.call_soon(lambda: loop.create_task(_pass(scrubber.run)))

    # --- finding ------------------------------------------------------------------------------------------------------

    def is_put_off(self, node: int) -> bool:
        """Return True if a failover of this machine must wait: besides the damaged one, and machines that operators
        are taking out already, it has the only copy of a vbucket.
        """
        flip, known = self.current, self.world.newest_map()
        if flip is None or known is None or node == flip.node:
            return False
        damaged = self.world.addresses[flip.node]
        # Each operator tries for a while: while one waits for a machine to die, another may take out the next copy.
        gone = {damaged, self.world.addresses[node]} | self.world.leaving
        chains = (set(known.copies(vb)) for vb in range(known.vbuckets))
        return any(damaged in chain and not chain - gone for chain in chains)

    def is_removal_put_off(self, node: int) -> bool:
        """Return True if a removal of this machine must wait: it would leave the damaged one alone, with the only
        copies.
        """
        flip, known = self.current, self.world.newest_map()
        if flip is None or known is None or node == flip.node:
            return False
        addresses = self.world.addresses
        return not set(known.servers) - self.world.leaving - {addresses[flip.node], addresses[node]}

    def is_put_off_in_the_second_bucket(self, node: int) -> bool:
        """Return True if a failover of this machine in the second bucket must wait: the damaged one would be left
        alone.
        """
        flip = self.current
        return flip is not None and node != flip.node and self._is_alone(flip.node, node)

    def _is_alone(self, *nodes: int) -> bool:
        """Return True if no other machine is a member of the second bucket, or will be: with these disks all its data
        would be lost.
        """
        known, orders = self.world.newest_map(operators.SECOND_BUCKET), self.world.orders
        gone = {self.world.addresses[node] for node in nodes} | (orders.failing_over if orders is not None else set())
        return known is not None and not set(known.servers) - gone

    def event(self, node: int) -> None:
        """Check, after an event on a machine, whether it has found the damage."""
        flip, placed = self.current, self.world.watcher.placed[node]
        if flip is not None and flip.node == node and flip.found_at is None and placed.store.quarantine.damage:
            self._found(flip, "damage found by the scrubber")

    def start(self, node: int) -> bool:
        """Start a node; one whose disk is damaged must refuse that, and name the file."""
        machine, flip = self.world.machines[node], self.current
        is_damaged = flip is not None and flip.node == node and flip.is_there(machine)
        try:
            is_up = machine.start()
        except CorruptStore as error:
            if flip is None or not is_damaged or str(flip.path) not in str(error):
                raise
            self._found(flip, "starts refused")
            return False
        if is_up and is_damaged:
            raise Broken(f"damage: {machine.name} started, though a bit of {flip} is wrong")
        if is_up and flip is not None and flip.node == node:
            self._gone()
        return is_up

    def _found(self, flip: Flip, how: str) -> None:
        self.world.counts[how] += 1
        if flip.found_at is None:
            flip.found_at = self.world.schedule.now

    def _gone(self) -> None:
        """Note that the damage left the disk with a segment that was no longer needed."""
        self.world.counts["damage left behind by a compaction"] += 1
        self.current = None

    def check_found(self) -> None:
        """Check, with all faults lifted, that the node itself finds the damage and `cluster status` reports it."""
        world, flip = self.world, self.current
        if flip is None:
            return
        machine = world.machines[flip.node]
        if not world.schedule.run(FOUND_SECONDS, lambda: flip.found_at is not None or not flip.is_there(machine)):
            raise Broken(
                f"damage: {machine.name} has not found within {FOUND_SECONDS:g} s that a bit of {flip} is wrong"
            )
        if flip.found_at is None:
            self._gone()
            return
        process = machine.loop if machine.is_up else None
        problems = world.complete("looker", partial(problems_of, world.addresses), FOUND_SECONDS)
        is_hit = process is not None and machine.loop is process and flip.is_there(machine)
        if is_hit and not any(_names_damage(problem, machine.address) for problem in problems):  # type: ignore[attr-defined]
            raise Broken(f"damage: cluster status says nothing of {flip}, but {problems}")

    # --- replacing ----------------------------------------------------------------------------------------------------

    def _replace(self, flip: Flip) -> None:
        """Let an operator replace the machine, if it is known to be damaged."""
        if flip is self.current and flip.found_at is not None and not self.replacing:
            self.replacing = True
            name = f"replacer-{self.world.machines[flip.node].name}-{len(self.flips)}"
            self.world.run(name, partial(self._replacing, flip, Random(flip.at)))  # noqa: S311 - must be repeatable

    def replace_now(self) -> None:
        """Replace the damaged machine, if there is one, with all faults lifted."""
        self.check_found()
        if (flip := self.current) is None:
            return
        if not self.replacing:
            self._replace(flip)
        if not self.world.schedule.run(2 * REPLACED_SECONDS, lambda: self.current is None):
            raise Broken(f"whole: the machine with {flip} can't be replaced")

    async def _replacing(self, flip: Flip, random: Random) -> None:
        """Take the machine out as the guide describes, empty it, and let it join again."""
        node, world = flip.node, self.world
        address, seeds = world.addresses[node], world.addresses
        is_out = False
        if world.machines[node].is_up and random.random() < 0.5:
            is_out = await operators.do(Work.REMOVE, seeds, address, random, attempts=2)
            if is_out and world.orders is not None:
                await world.orders.move_away(address, random)
        await self._outside(lambda: world.crash(node, Crash.KILL))
        while not is_out or not await operators.is_outside(seeds, address):
            world.counts["damaged machines failed over"] += 1
            is_out = await self._fail_over(node, random)
            await self._outside(lambda: world.crash(node, Crash.KILL))
        if world.orders is not None:
            await world.orders.take_out(address, random)
            await self._outside(lambda: world.crash(node, Crash.KILL))
        await self._outside(lambda: self._empty(node))
        await operators.do(Work.ADD, seeds, address, random)
        if world.orders is not None:
            await world.orders.take_in(address, random)

    async def _fail_over(self, node: int, random: Random) -> bool:
        """Fail the machine over, with the option that each refusal proposes; return True if that succeeded."""
        seeds, address = self.world.addresses, self.world.addresses[node]
        refusals = await operators.refusals(Work.FAILOVER, seeds, address, random, attempts=FAILOVERS)
        if len(refusals) < FAILOVERS:
            return True
        proposed = operators.proposed_by_all(refusals)
        if FailoverRefusal.MAJORITY not in proposed and proposed != {FailoverRefusal.UNKNOWN}:
            return False
        if FailoverRefusal.MAJORITY in proposed:
            self.force(node)
        if FailoverRefusal.UNKNOWN in proposed:
            self.go_on_unasked(node)
        work = Work.FORCED_FAILOVER if FailoverRefusal.MAJORITY in proposed else Work.UNASKED_FAILOVER
        self.world.counts[work.value] += 1
        return await operators.do(work, seeds, address, random)

    def force(self, node: int) -> None:
        """Note the writes that may be lost, since an operator is about to fail a machine over with --force."""
        world, address = self.world, self.world.addresses[node]
        theirs, ours = world.newest_map(), world.machines[node].server.first.membership.map
        if theirs is None or ours is None or ours.version <= theirs.version:
            return
        others = (at for at, each in enumerate(world.addresses) if each != address and each in theirs.servers)
        self.overrides.append(Override(frozenset({str(address)}), min(world.watcher.ended[at] for at in others)))

    def go_on_unasked(self, node: int) -> None:
        """Note the writes that may be lost, since an operator is about to fail a machine over whose seqno is
        unknown.
        """
        world = self.world
        if (known := world.newest_map()) is not None:
            lost = {str(address) for address in world.addresses if address not in known.servers} | {
                str(world.addresses[node])
            }
            self.overrides.append(Override(frozenset(lost), 0.0, frozenset(known.unknown)))

    def may_be_lost(self, operation: Operation) -> bool:
        """Return True if an operation was acknowledged by a machine that was failed over at that cost."""
        if operation.answered is None:
            return False
        answered, vbucket = operation.answered - NOON_SECONDS, self.world.vbucket_of(operation.key)
        return any(override.covers(operation.result.node, vbucket, answered) for override in self.overrides)

    def _empty(self, node: int) -> None:
        """Give a machine another disk, and start a node on it."""
        world = self.world
        world.crash(node, Crash.KILL)
        world.machines[node].disk = type(world.machines[node].disk)()
        world.watcher.observers[node].vanished()
        world.counts["machines replaced"] += 1
        self.current, self.replacing = None, False
        world.start(node)

    async def _outside(self, what: Callable[[], None]) -> None:
        """Change a machine between the turns of all processes."""
        done = asyncio.Event()

        def do() -> None:
            what()
            done.set()

        self.world.schedule.after(0.0, do)
        while not done.is_set():
            await asyncio.sleep(POLL_SECONDS)


def _last_in(placed: Placed, vb: int, segment: Segment, header: batches.BatchHeader) -> int:
    """Return the last seqno of a vbucket in a batch; 0 if it has none there."""
    if segment.slot < 0:
        return 0
    low, high = (np.uint64(segment.slot << 40 | at) for at in (header.offset, header.end))
    index = placed.store.index
    columns, rows = index.columns[vb], index.rows(vb)
    inside = (columns.loc[:rows] >= low) & (columns.loc[:rows] < high)
    return int(columns.seq[:rows][inside].max(initial=0))


def _batches(placed: Placed) -> Iterator[tuple[Segment, batches.BatchHeader]]:
    """Yield the durable batches of a store, except the newest: a power cut may tear that one, so its damage would prove
    nothing.
    """
    newest: tuple[Segment, batches.BatchHeader] | None = None
    for segment in placed.store.log.segments:
        data, header = segment.memory.data, segment.header
        offset, number = SEGMENT_HEADER_BYTES, header.first_batch
        for each in batches.walk(data, offset, segment.end, header.salt, number):
            if newest is not None:
                yield newest
            newest = segment, each


def _places(segment: Segment, header: batches.BatchHeader, *, in_values: bool) -> Iterator[tuple[Segment, int, str]]:
    """Yield the bytes of a batch in which a bit may flip, each with the number of the value there."""
    if not in_values:
        yield segment, header.offset + NUMBER_AT, ""
        return
    for value in VALUES.finditer(bytes(segment.memory.data[header.start : header.end])):
        yield segment, header.start + value.start(), value.group(1).decode()


async def _pass(run: Callable[[], object]) -> None:
    try:
        await run()  # type: ignore[misc]
    except HeadwaterError:
        return


async def problems_of(nodes: list[Address]) -> tuple[str, ...]:
    """Return the problems that `headwater cluster status` reports."""
    async with operators.members() as connected:
        return status(await connected.survey(nodes)).problems


def _names_damage(problem: str, address: str) -> bool:
    return problem.startswith(f"{address} has ") and "damaged " in problem
