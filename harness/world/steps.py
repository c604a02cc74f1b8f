"""The faults of a run, and their times: a list that a seed decides, from which steps can be left out.

A step begins at a time, changes a machine, a link, a disk or a clock, or starts an operator, and is undone after a
while. Steps may overlap; nemesis.py carries them out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from random import Random

from harness.world.operators import Work


class Fault(Enum):
    """The kinds of faults; the number is the weight with which each is drawn.

    Faults with weight 0 are drawn separately, for some worlds only, so that the plans of all other worlds stay the
    same.
    """

    KILL = ("the process dies", 4)
    POWER = ("the power goes: what was not synced is lost, sector by sector", 4)
    PAUSE = ("the process is stopped and goes on", 4)
    SLOW_DISK = ("the disk takes its time", 2)
    FULL_DISK = ("the disk is full", 1)
    FAILING_DISK = ("a write or a sync fails", 2)
    STALLED = ("a link takes bytes and lets none through", 3)
    DOWN = ("a link is down", 2)
    ONE_WAY = ("a link lets through one way alone", 3)
    SLOW_LINK = ("a link is slow", 2)
    RESET = ("all connections between two places are reset", 2)
    CLOCK_JUMPS = ("a clock jumps", 1)
    CLOCK_DRIFTS = ("a clock runs too fast or too slow", 1)
    FAILOVER = ("a node is failed over", 5)
    ADD = ("a node joins, or joins again", 5)
    REMOVE = ("a node leaves", 3)
    REPLICAS = ("the number of replicas changes", 1)
    COLLECTION = ("a collection is made or dropped", 1)
    MAKE_BUCKET = ("a bucket is made", 1)
    DROP_BUCKET = ("a bucket is dropped", 1)
    PURGE = ("a node's log is compacted, its tombstones go", 2)
    DUPLICATED = ("connections end for who called, and what he had sent arrives when he has asked again", 0)
    STOP = ("a process beside the nodes is stopped and goes on; a node may start again meanwhile", 0)
    HISTORY = ("the bucket keeps old versions for another time, or of another size", 0)
    FLIP = ("a bit flips on a disk, in a batch that is synced", 0)
    RIGHTS = ("the rights of a guest change", 0)
    ANEW = ("the second bucket is dropped and made anew", 0)
    ORDERS_FAILOVER = ("a node dies, and is failed over in the second bucket alone", 0)
    ORDERS_ADD = ("a node joins the second bucket, or joins it again", 0)
    BACKUP = ("a backup is made", 2)
    FULL_BACKUP = ("a full backup is made", 1)
    MIRROR = ("the lake's mirror is started, or killed and started again", 2)
    LOST_ANSWERS = ("an object store loses requests and answers", 2)


WORKS = {
    Fault.FAILOVER: Work.FAILOVER,
    Fault.ADD: Work.ADD,
    Fault.REMOVE: Work.REMOVE,
    Fault.REPLICAS: Work.REPLICAS,
    Fault.COLLECTION: Work.COLLECTION,
    Fault.MAKE_BUCKET: Work.MAKE_BUCKET,
    Fault.DROP_BUCKET: Work.DROP_BUCKET,
    Fault.PURGE: Work.PURGE,
    Fault.HISTORY: Work.HISTORY,
}


JOBS = frozenset({Fault.BACKUP, Fault.FULL_BACKUP})
"""Backups: work beside the cluster, by processes that may be killed like operators."""
STOPPED = frozenset({*WORKS, *JOBS, Fault.MIRROR, Fault.ANEW, Fault.ORDERS_FAILOVER, Fault.ORDERS_ADD})
"""The faults that begin a process which `Fault.STOP` may stop."""


@dataclass(frozen=True, slots=True)
class Step:
    """One fault.

    Attributes:
        at: seconds after the clients began.
        lasts: seconds until it is undone; of an operator's work: until the operator is killed, 0 for never.
        node: the machine concerned. other: the number from which the other end of a link is chosen.
        amount: 0 to 1, the severity.
    """

    at: float
    fault: Fault
    node: int
    other: int
    lasts: float
    amount: float

    def __str__(self) -> str:
        return f"{self.at:7.3f} {self.fault.name.lower()} n{self.node}/{self.other} {self.lasts:.3f}s {self.amount:.2f}"


def steps_of(random: Random, nodes: int, seconds: float) -> tuple[Step, ...]:
    """Choose the faults of a run, alone and in pairs."""
    found: list[Step] = []
    at = random.uniform(0.2, 2.0)
    mean = random.choice([0.4, 1.0, 2.5])
    faults = _temper(random)
    while at < seconds:
        fault = random.choices(list(faults), list(faults.values()))[0]
        for each in (fault, *_with(random, fault)):
            found.append(_step(random, at + random.choice([0.0, 0.002, 0.1, 1.0]), each, nodes))
        at += random.expovariate(1 / mean)
    return tuple(sorted(found, key=lambda step: step.at))


def duplicates_of(random: Random, nodes: int, seconds: float) -> tuple[Step, ...]:
    """Choose when requests are duplicated: in a third of all worlds, a few times."""
    count = random.choice([0, 0, 1 + int(seconds / 3)])
    steps = (_step(random, random.uniform(0.5, seconds), Fault.DUPLICATED, nodes) for _ in range(count))
    return tuple(steps)


def stops_of(random: Random, steps: Iterable[Step], nodes: int, seconds: float) -> tuple[Step, ...]:
    """Choose when processes of operators, backups and the mirror are stopped, in half of all worlds: soon after some of
    these began, for less or more time than nodes wait for an operator.
    """
    share = random.choice([0.0, 0.0, 0.2, 0.6])
    begun = (step for step in steps if step.fault in STOPPED and random.random() < share)
    found = (
        _step(random, step.at + random.choice([0.01, 0.1, 1.0, 5.0]) * random.random(), Fault.STOP, nodes)
        for step in begun
    )
    lasting = (replace(step, lasts=round(random.choice([0.5, 6.0, 30.0]) * random.random(), 4)) for step in found)
    return tuple(step for step in lasting if step.at < seconds)


def jumps_of(random: Random, nodes: int, seconds: float) -> tuple[Step, ...]:
    """Choose when clocks jump, about every second."""
    count = random.randrange(1 + int(seconds), 3 + 2 * int(seconds))
    return tuple(_step(random, random.uniform(0.2, seconds), Fault.CLOCK_JUMPS, nodes) for _ in range(count))


def histories_of(random: Random, nodes: int, seconds: float) -> tuple[Step, ...]:
    """Choose when an operator says how far back the bucket keeps old versions, the first time soon after the beginning,
    and when a node's log is compacted meanwhile: otherwise nothing is dropped that a history could keep.
    """
    mean = random.choice([1.0, 4.0, 12.0])
    found, at = [], random.choice([0.01, 0.01, 3.0])
    while at < seconds:
        step = _step(random, at, Fault.HISTORY, nodes)
        found.append(replace(step, lasts=random.choice([0.0, 0.0, step.lasts])))
        at += random.expovariate(1 / mean)
    purges = (_step(random, random.uniform(1.0, seconds), Fault.PURGE, nodes) for _ in range(int(seconds / 2)))
    return (*found, *(replace(step, lasts=0.0) for step in purges))


def flips_of(random: Random, nodes: int, seconds: float) -> tuple[Step, ...]:
    """Choose when bits flip: in half of all worlds, once or a few times."""
    count = random.choice([0, 0, 1, 1 + int(seconds / 4)])
    steps = (_step(random, random.uniform(1.0, seconds), Fault.FLIP, nodes) for _ in range(count))
    return tuple(steps)


def rights_of(random: Random, nodes: int, seconds: float) -> tuple[Step, ...]:
    """Choose when an operator changes the rights of a guest: the first are given before anything else happens."""
    mean = random.choice([0.5, 1.0, 3.0])
    found, at = [], 0.01
    while at < seconds:
        step = _step(random, at, Fault.RIGHTS, nodes)
        found.append(replace(step, lasts=random.choice([0.0, 0.0, 0.0, random.uniform(0.0, 0.5)])))
        at += random.expovariate(1 / mean)
    return tuple(found)


def anew_of(random: Random, nodes: int, seconds: float) -> tuple[Step, ...]:
    """Choose when the second bucket is made anew: a few times, with some seconds in between."""
    count = random.randrange(1, 2 + int(seconds / 8))
    steps = (_step(random, random.uniform(1.0, seconds), Fault.ANEW, nodes) for _ in range(count))
    return tuple(replace(step, lasts=random.choice([0.0, 0.0, step.lasts])) for step in steps)


def owners_of(random: Random, nodes: int, seconds: float) -> tuple[Step, ...]:
    """Choose when a node dies and is failed over in the second bucket, and when it joins that again."""
    found: list[Step] = []
    for _ in range(random.randrange(1, 2 + int(seconds / 6))):
        died = _step(random, random.uniform(1.0, seconds), Fault.ORDERS_FAILOVER, nodes)
        died = replace(died, lasts=round(random.uniform(1.0, 8.0), 4))
        joins = _step(random, min(seconds, died.at + random.uniform(2.0, 12.0)), Fault.ORDERS_ADD, nodes)
        found += [died, replace(joins, node=died.node, lasts=random.choice([0.0, 0.0, joins.lasts]))]
    return tuple(found)


def _temper(random: Random) -> dict[Fault, int]:
    """Return the weights of the kinds for a run: some are left out, so that others meet more often."""
    common = [fault for fault in Fault if fault.value[1]]
    left_out = random.sample(common, random.randrange(len(common) - 4))
    kept = {fault: fault.value[1] for fault in common if fault not in left_out}
    return kept | {Fault.FAILOVER: 4, Fault.ADD: 5}


def _with(random: Random, fault: Fault) -> tuple[Fault, ...]:
    """Return the fault that comes together with a fault, alone in a tuple, or () if it comes alone."""
    if fault in JOBS and random.random() < 0.5:
        return (random.choice([Fault.FAILOVER, Fault.KILL, Fault.LOST_ANSWERS]),)
    if fault in WORKS and random.random() < 0.5:
        return (random.choice([Fault.KILL, Fault.POWER, Fault.PAUSE, Fault.STALLED, Fault.ONE_WAY, Fault.FAILOVER]),)
    if fault in {Fault.KILL, Fault.POWER, Fault.PAUSE} and random.random() < 0.4:
        return (Fault.FAILOVER,)
    return ()


def _step(random: Random, at: float, fault: Fault, nodes: int) -> Step:
    if fault in WORKS or fault in JOBS:
        lasts = random.choice([0.0, 0.0, random.uniform(0.0, 0.3), random.uniform(0.1, 5.0)])
    else:
        lasts = random.choice([0.05, 0.5, 3.0, 10.0]) * random.uniform(0.5, 1.5)
    return Step(
        round(at, 4), fault, random.randrange(nodes), random.randrange(nodes + 2), round(lasts, 4), random.random()
    )
