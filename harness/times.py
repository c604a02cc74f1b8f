"""Random runs of a small cluster whose clocks jump, and a reader that says until when it has everything.

    python -m harness.times --seeds 1000

The rules alone, without sockets and disks: nodes are lists of changes, and everything that may be asked, moved, killed
or lost is one step of a random schedule. What decides is the product's: the promise that a node keeps
(node/buckets/clock_floor.py), the CAS that it gives (wire/times.py), what joining nodes are told (cluster/clocks.py),
and the reader's reckoning (protocol/dcp/complete.py). `python -m harness.world --times` has the whole product instead,
and takes half a minute for each run.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np

from harness.simulation.histories import Broken
from headwater.cluster.clocks import level_clocks
from headwater.kernels import index
from headwater.node.buckets.clock_floor import ClockFloor
from headwater.node.storage.disk import RealDisk
from headwater.protocol.dcp.complete import ClocksHeld, Completeness
from headwater.wire.times import next_cas

VBUCKETS = 3
STEPS = 60
SECOND = 1_000_000_000
NOON = 1_700_000_000 * SECOND
JUMP_SECONDS = 100
"""The most by which a clock is wrong: far more than a run takes, so that nothing comes right by itself."""

MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of a random name in it

Change = tuple[int, int]
"""(seqno, CAS)."""


class Machine:
    """A node: its clock, its promise, and its copies.

    Attributes:
        error: by how much its clock is wrong, in nanoseconds.
        copies: the changes of each vbucket that it has. knows: the version of its cluster map.
    """

    def __init__(self, name: int, folder: Path) -> None:
        self.name = name
        self.folder = folder / str(name)
        self.folder.mkdir()
        self.error = 0
        self.is_up = True
        self.knows = 0
        self.copies: dict[int, list[Change]] = {}
        self.start()

    def start(self) -> None:
        """Start the process, with what is on the disk."""
        self.is_up = True
        self.table = np.zeros((VBUCKETS, index.FIELDS), np.uint64)
        for vb, changes in self.copies.items():
            self.table[vb, index.CAS] = max((cas for _, cas in changes), default=0)
        self.floor = ClockFloor(RealDisk(), self.folder, self.table)

    def write(self, vb: int, now: int) -> Change:
        """Make a change of a vbucket."""
        changes = self.copies[vb]
        seqno = changes[-1][0] + 1 if changes else 1
        change = seqno, next_cas(int(self.table[vb, index.CAS]), now + self.error, seqno)
        self.receive(vb, [change])
        return change

    def receive(self, vb: int, changes: Sequence[Change]) -> None:
        """Add changes to a copy."""
        self.copies.setdefault(vb, []).extend(changes)
        for _, cas in changes:
            self.table[vb, index.CAS] = max(int(self.table[vb, index.CAS]), cas)

    async def clock_held(self) -> int:
        """Return the promise, as `NodeAdmin` does."""
        return self.floor.held

    async def hold_clock(self, cas: int) -> None:
        """Take over another node's promise, as `NodeAdmin` does."""
        await self.floor.promise(cas)


@dataclass(slots=True)
class Map:
    """The cluster map: the members, and the owner and the copies of each vbucket; None for no owner."""

    version: int
    members: tuple[int, ...]
    owners: dict[int, int | None]
    replicas: dict[int, set[int]] = field(default_factory=dict)


class Cluster:
    """A cluster, its operator, and one reader; each step keeps to what the product's parts keep to.

    Args:
        levels: False to leave out what joining nodes are told, so that the judge has something to find.
    """

    def __init__(self, random: Random, folder: Path, *, levels: bool = True) -> None:
        self._random, self._folder, self._levels = random, folder, levels
        self.now = NOON
        self.machines = [self._machine(number) for number in range(3)]
        self.map = Map(1, (0, 1, 2), dict.fromkeys(range(VBUCKETS)), {})
        for vb in range(VBUCKETS):
            self.map.owners[vb] = vb % 3
            self.map.replicas[vb] = {(vb + 1) % 3}
            for each in (vb % 3, (vb + 1) % 3):
                self.machines[each].copies[vb] = []
        self._publish()
        self.complete, self.until, self.said = Completeness(), 0, 0
        self.read: dict[int, int] = {}
        self._seen_map = self.map

    def _machine(self, number: int) -> Machine:
        made = Machine(number, self._folder)
        made.error = self._random.randrange(-JUMP_SECONDS, JUMP_SECONDS) * SECOND
        return made

    def _publish(self) -> None:
        """Send the map to all members that run."""
        for member in self.map.members:
            if self.machines[member].is_up:
                self.machines[member].knows = self.map.version

    def _next_map(self, members: Sequence[int] | None = None) -> None:
        before = self.map
        replicas = {vb: set(copies) for vb, copies in before.replicas.items()}
        self.map = Map(before.version + 1, tuple(members or before.members), dict(before.owners), replicas)

    # --- what happens -----------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Let one thing happen."""
        self.now += self._random.randrange(SECOND)
        happens = [self.write] * 6 + [self.replicate] * 4 + [self.look] * 6 + [self.jump] * 2
        happens += [self.kill, self.restart, self.fail_over, self.join, self.move, self.leave]
        self._random.choice(happens)()

    def write(self) -> None:
        """Let an owner make a change; judge it."""
        vb = self._random.randrange(VBUCKETS)
        owner = self._owner(vb)
        if owner is not None:
            _, cas = owner.write(vb, self.now)
            if cas <= self.until:
                early = (self.until - cas) / SECOND
                raise Broken(f"time: {owner.name} gave vbucket {vb} a CAS {early} s before what was said")

    def _owner(self, vb: int) -> Machine | None:
        number = self.map.owners[vb]
        return self.machines[number] if number is not None and self.machines[number].is_up else None

    def replicate(self) -> None:
        """Let a copy receive a part of what it lacks."""
        vb = self._random.randrange(VBUCKETS)
        owner = self._owner(vb)
        for number in sorted(self.map.replicas[vb]) if owner is not None else ():
            machine = self.machines[number]
            if machine.is_up and owner is not None:
                missing = owner.copies[vb][len(machine.copies[vb]) :]
                machine.receive(vb, missing[: self._random.randrange(len(missing) + 1)])

    def jump(self) -> None:
        """Let a clock jump."""
        self._random.choice(self.machines).error = self._random.randrange(-JUMP_SECONDS, JUMP_SECONDS) * SECOND

    def kill(self) -> None:
        """Kill a node."""
        self.machines[self._random.choice(self.map.members)].is_up = False

    def restart(self) -> None:
        """Start the nodes that are down; what was written is on their disks."""
        for machine in self.machines:
            if not machine.is_up:
                machine.start()
                if machine.name in self.map.members:
                    machine.knows = self.map.version

    def fail_over(self) -> None:
        """Take a dead node out, and promote the copies that are left; a vbucket without one begins anew."""
        dead = [member for member in self.map.members if not self.machines[member].is_up]
        left = [member for member in self.map.members if member not in dead]
        if not dead or not left:
            return
        self._next_map(left)
        for vb, owner in self.map.owners.items():
            self.map.replicas[vb] -= set(dead)
            if owner in dead:
                chosen = self._random.choice(sorted(self.map.replicas[vb]) or left)
                self.map.owners[vb] = chosen
                self.map.replicas[vb].discard(chosen)
                self.machines[chosen].copies.setdefault(vb, [])
                self._cut(vb, self.machines[chosen])
        self._publish()

    def _cut(self, vb: int, owner: Machine) -> None:
        """Roll the other copies, and the reader, back to what the new owner has."""
        for number in self.map.replicas[vb]:
            copy = self.machines[number].copies[vb]
            shared = sum(1 for mine, theirs in zip(copy, owner.copies[vb], strict=False) if mine == theirs)
            del copy[shared:]
        self.read[vb] = min(self.read.get(vb, 0), len(owner.copies[vb]))

    def join(self) -> None:
        """Let a node join, perhaps one that was a member before: the map first, then what the members promised."""
        if any(not self.machines[member].is_up for member in self.map.members) or len(self.map.members) > 4:
            return
        known = [machine.name for machine in self.machines if machine.name not in self.map.members and machine.is_up]
        if not known or self._random.random() < 0.5:
            self.machines.append(self._machine(len(self.machines)))
            known = [len(self.machines) - 1]
        joining = self._random.choice(known)
        self.machines[joining].copies.clear()
        self._next_map([*self.map.members, joining])
        self._publish()
        if self._levels:
            asyncio.run(level_clocks(self, self.map.members))  # type: ignore[arg-type]
        vb = self._random.randrange(VBUCKETS)
        if self._owner(vb) is not None:
            self._copy_to(vb, joining)

    def admin(self, node: int) -> Machine:
        """Return a node, as `Members` does."""
        return self.machines[node]

    def _copy_to(self, vb: int, number: int) -> None:
        owner = self._owner(vb)
        if owner is not None and owner.name != number and number not in self.map.replicas[vb]:
            self.machines[number].copies[vb] = []
            self.machines[number].receive(vb, owner.copies[vb])
            self._next_map()
            self.map.replicas[vb].add(number)
            self._publish()

    def move(self) -> None:
        """Move a vbucket to another member, which gets all of it first."""
        vb, target = self._random.randrange(VBUCKETS), self._random.choice(self.map.members)
        owner = self._owner(vb)
        if owner is None or not self.machines[target].is_up or target == owner.name:
            return
        copy = self.machines[target].copies.setdefault(vb, [])
        shared = sum(1 for mine, theirs in zip(copy, owner.copies[vb], strict=False) if mine == theirs)
        del copy[shared:]
        self.machines[target].receive(vb, owner.copies[vb][shared:])
        self._next_map()
        self.map.owners[vb] = target
        self.map.replicas[vb] = (self.map.replicas[vb] - {target}) | {owner.name}
        # Not all nodes have the map as soon as the target is the owner.
        if self._random.random() < 0.7:
            self._publish()

    def leave(self) -> None:
        """Let a member without an owned vbucket leave."""
        idle = [member for member in self.map.members if member not in self.map.owners.values()]
        if idle and len(self.map.members) > 2:
            gone = self._random.choice(idle)
            self._next_map([member for member in self.map.members if member != gone])
            for copies in self.map.replicas.values():
                copies.discard(gone)
            self._publish()

    # --- the reader -------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Let the reader ask for promises, then for seqnos, and read some; between these anything else may happen."""
        asked = self._seen_map
        held = self._held(asked)
        if self._random.random() < 0.3:
            self.step()
        seqnos = {vb: len(owner.copies[vb]) for vb in range(VBUCKETS) if (owner := self._owner_by(asked, vb))}
        self.complete.look(held, seqnos, range(VBUCKETS), self.now / SECOND)
        if self._random.random() < 0.3:
            self.step()
        for vb in seqnos:
            owner = self._owner_by(self.map, vb)
            if owner is not None and self._random.random() < 0.9:
                self.read[vb] = max(self.read.get(vb, 0), len(owner.copies[vb]))
        until = self.complete.until(self.read, self.until)
        self.said += until > self.until
        if until < self.until:
            raise Broken(f"time: {until} after {self.until}")
        self.until = until
        self._check_read()

    def _held(self, asked: Map) -> ClocksHeld:
        """Ask all members of the reader's map, as `client.hold_clocks` does."""
        wanted = self.complete.wanted(self.now / SECOND)
        machines = [self.machines[member] for member in asked.members]
        if silent := [machine.name for machine in machines if not machine.is_up]:
            self._seen_map = self.map
            return ClocksHeld(problem=f"{silent} hold no clock")
        for machine in machines:
            asyncio.run(machine.floor.promise(min(wanted, self.now + machine.error)))
        newest = max(machine.knows for machine in machines)
        clocks = min(self.now + machine.error for machine in machines)
        if newest > asked.version:
            self._seen_map = self.map
            return ClocksHeld(now=clocks, problem="there is a newer map")
        return ClocksHeld(min(machine.floor.held for machine in machines), clocks)

    def _owner_by(self, known: Map, vb: int) -> Machine | None:
        """Return the node that answers for a vbucket to a reader with this map: its owner, if that still owns it."""
        number = known.owners[vb]
        owner = self._owner(vb)
        return owner if owner is not None and owner.name == number else None

    def _check_read(self) -> None:
        for vb in range(VBUCKETS):
            owner = self._owner(vb)
            for seqno, cas in owner.copies[vb] if owner is not None else ():
                if cas <= self.until and seqno > self.read.get(vb, 0):
                    raise Broken(f"time: change {seqno} of vbucket {vb} is older than what was said, and not read")


def run(seed: int, *, levels: bool = True) -> int:
    """Run one cluster; return how often the reader's time moved on. Raises Broken."""
    # Syncs of a disk would take all the time, and these runs have no power cuts.
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        cluster = Cluster(Random(seed), Path(folder), levels=levels)  # noqa: S311 - must be repeatable
        for _ in range(STEPS):
            cluster.step()
        return cluster.said


def main(given: Sequence[str] | None = None) -> int:
    """Read the arguments and run; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.times", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first")
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    arguments = parser.parse_args(given)
    said = failed = 0
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        try:
            said += run(seed)
        except Broken as error:
            failed += 1
            print(f"seed {seed}: {error}", flush=True)
    print(f"{arguments.seeds} clusters, a time said {said:,} times, {failed} broken", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
