"""Work on the documents of a bucket where they are stored: dropping tombstones, or all documents."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from headwater.cluster.work.buckets import NO_WAY_BACK
from headwater.cluster.work.declared import DeclaredWork, WorkOutcome, WorkPlan, WorkRun
from headwater.errors import OptionError
from headwater.options import option

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.cluster.members import Members

__all__ = ["Compact", "Flush"]

HOURS_MAX = 24 * 365 * 10


@dataclass(frozen=True)
class Compact(DeclaredWork):
    """Nodes compact their logs by themselves. This does it now, and drops old tombstones of one vbucket."""

    KIND: ClassVar[str] = "compaction"
    HEADING: ClassVar[str] = "Compaction"
    TITLE: ClassVar[str] = "Compaction, dropping tombstones of vbucket {0.vbucket} older than {0.hours} h"
    CONFIRMATION: ClassVar[str] = "yes"
    HARMED: ClassVar[str] = "{bucket}"
    REMARKS: ClassVar[tuple[str, ...]] = (
        "Its log is read and written anew where that frees room; requests go on. Readers that were away for longer than"
        " that begin again.",
    )

    vbucket: int = option(..., "Its owner compacts.", least=0, most=1023)
    hours: int = option(..., "Tombstones that are older go.", least=0, most=HOURS_MAX)

    async def plan(self, members: Members, seeds: Sequence[Address]) -> WorkPlan:
        """Return the node that would compact."""
        return WorkPlan((f"{self.title}, on {await self._owner(members, seeds)}",))

    async def run(self, members: Members, seeds: Sequence[Address], run: WorkRun) -> WorkOutcome:
        """Let the owner compact its log."""
        owner = await self._owner(members, seeds)
        run.step(f"{owner} compacts its log", 0, 0)
        await members.admin(owner).purge(self.vbucket, int(time.time()) - 3600 * self.hours)
        return WorkOutcome(f"{owner} has compacted its log")

    async def _owner(self, members: Members, seeds: Sequence[Address]) -> Address:
        async for address in _owners(members, seeds):
            states = await members.admin(address).states()
            if self.vbucket in states and states[self.vbucket].name == "ACTIVE":
                return address
        raise OptionError("vbucket", self.vbucket, "one that a node has active")


@dataclass(frozen=True)
class Flush(DeclaredWork):
    """Delete every document of the bucket."""

    KIND: ClassVar[str] = "flush"
    HEADING: ClassVar[str] = "Flush"
    TITLE: ClassVar[str] = "Flush: delete every document"
    CONFIRMATION: ClassVar[str] = "{bucket}"
    HARMED: ClassVar[str] = "{bucket}"
    REMARKS: ClassVar[tuple[str, ...]] = ("Streams and replicas see the deletions.", NO_WAY_BACK)
    HARMS: ClassVar[bool] = True

    async def plan(self, members: Members, seeds: Sequence[Address]) -> WorkPlan:
        """Return the nodes that have documents."""
        owners = [str(owner) async for owner in _owners(members, seeds)]
        return WorkPlan((f"Every document of this bucket is deleted, on {', '.join(owners)}",))

    async def run(self, members: Members, seeds: Sequence[Address], run: WorkRun) -> WorkOutcome:
        """Let each owner delete its documents, under the leases of all nodes.

        A vbucket that was handed over meanwhile could keep its documents: it may have no owner at that moment, or go to
        a node that has deleted its own before.
        """
        async with members.alone("flush", await _nodes(members, seeds)):
            owners = [owner async for owner in _owners(members, seeds)]
            for count, owner in enumerate(owners):
                run.step(f"{owner} deletes its documents", count, len(owners))
                await members.admin(owner).flush()
        run.done = run.total
        return WorkOutcome(f"{len(owners)} nodes have deleted their documents")


async def _owners(members: Members, seeds: Sequence[Address]) -> AsyncIterator[Address]:
    """Yield the nodes that have active vbuckets."""
    for address in await _nodes(members, seeds):
        if any(state.name == "ACTIVE" for state in (await members.admin(address).states()).values()):
            yield address


async def _nodes(members: Members, seeds: Sequence[Address]) -> list[Address]:
    """Return the given nodes, and all members of the bucket that they lead to."""
    from headwater.cluster.known import bucket_nodes

    return list(dict.fromkeys([*await members.identified(seeds), *await bucket_nodes(members, seeds)]))
