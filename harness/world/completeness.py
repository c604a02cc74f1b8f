"""A reader of a simulated cluster that says up to which time it has everything, and the judge of what it says.

    python -m harness.world --times

What it has said must hold for ever, whatever moves, dies and is promoted, and whatever the machines' clocks say:

    time   no owner makes a change with an older CAS after that
    time   the reader has each document of an owner, as it was or newer, whose CAS is not later
    time   it does not go back
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from harness.simulation.histories import Broken, Change
from headwater.client import aio
from headwater.errors import HeadwaterError
from headwater.protocol.dcp.complete import Completeness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.simulation.histories import Held
    from harness.world.plan import WorldPlan
    from harness.world.readers import WorldReader


class TimedWorld(Protocol):
    """The parts of a world that a reader of the time needs."""

    plan: WorldPlan
    counts: Counter[str]

    def owned(self, vb: int) -> Held:
        """Return the documents of a vbucket on its owner; none if it has none that serves it."""


LOOK_SECONDS = 0.2
AGAIN_SECONDS = 0.3


class Times:
    """The times that a reader has said, and the check of all that is written after them.

    Attributes:
        until: the latest time that was said, as a CAS.
        said: how often that moved on.
    """

    def __init__(self) -> None:
        self.until = self.said = 0
        self._made: set[tuple[int, bytes, int]] = set()

    def wrote(self, who: str, vb: int, change: Change) -> None:
        """Check a change that an owner has made durable."""
        name = vb, change.key, change.cas
        if name in self._made:
            return
        self._made.add(name)
        if change.cas <= self.until:
            behind = (self.until - change.cas) / 1e9
            raise Broken(
                f"time: {who} wrote {change} in vbucket {vb}, {behind:.6f} s before what a reader had complete"
            )

    def says(self, until: int) -> None:
        """Note what a reader says."""
        if until < self.until:
            raise Broken(f"time: a reader that was complete until {self.until} is complete until {until}")
        self.said += until > self.until
        self.until = until


class TimeReader:
    """The program that says up to which time a reader has everything.

    Args:
        reader: the reader of all vbuckets.
        seeds: the nodes.
    """

    def __init__(self, world: TimedWorld, reader: WorldReader, seeds: Sequence[str]) -> None:
        self.times = Times()
        self._world, self._reader, self._seeds = world, reader, seeds
        self._complete = Completeness()

    async def run(self) -> None:
        """Look at the cluster for ever."""
        while True:
            try:
                async with aio.connect(f"couchbase://{','.join(self._seeds)}/default", *self._reader.login) as bucket:
                    while True:
                        await self._look(bucket)
                        await asyncio.sleep(LOOK_SECONDS)
            except HeadwaterError:
                await asyncio.sleep(AGAIN_SECONDS)

    async def _look(self, bucket: aio.AsyncClient) -> None:
        now, wanted = asyncio.get_running_loop().time(), range(self._world.plan.vbuckets)
        held = await bucket.hold_clocks(self._complete.wanted(now))
        self._complete.look(held, await bucket.seqnos(), wanted, now)
        places = {vb: self._reader.position(vb) for vb in wanted}
        seqnos = {vb: at.seqno if at.complete else at.snapshot_start for vb, at in places.items()}
        until = self._complete.until(seqnos, self.times.until)
        if until > self.times.until:
            self._check_held(until)
        self.times.says(until)
        self._world.counts["looks at the time"] += 1
        self._world.counts["times said"] = self.times.said

    def _check_held(self, until: int) -> None:
        """Check that the reader has what the owners have up to a time."""
        for vb in range(self._world.plan.vbuckets):
            mine = self._reader.documents(vb)
            for key, (_, change) in self._world.owned(vb).items():
                if change.value is not None and change.cas <= until and not _covers(mine.get(key), change):
                    raise Broken(f"time: a reader that is complete until {until} lacks {change} of vbucket {vb}")


def _covers(mine: tuple[int, Change] | None, change: Change) -> bool:
    return mine is not None and mine[1].cas >= change.cas
