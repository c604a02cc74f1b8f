"""Waiting until copies are level: with the owner's history, and with all changes that the owner had.

A seqno alone proves nothing: a copy that was promoted once, or was away during a failover, has a history of its own
with seqnos as high. So the newest vb uuid of both must be the same; a replica takes over the owner's failover log when
its stream is accepted, after its rollback (failover.md 1, "replace"). And a copy that fills up has only the newest
version of each key: within a snapshot only the part before it counts (decision 0086).

All waiting callers look at the same moments, so that one request to a node covers all of its copies (inquiry.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from headwater.client.routing import Address
from headwater.cluster.answers import CopyReport
from headwater.cluster.inquiry import Inquiry, lost
from headwater.cluster.members import Members
from headwater.errors import ClusterError, TemporaryFailure
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.vbucket import State

PAUSE_SECONDS = 0.025
PAUSE_SECONDS_MAX = 0.25
STILL_SECONDS_MAX = 60.0
VBUCKETS_AT_ONCE = 32
START_SECONDS_MAX = 10.0
"""The time in which a member that starts has heard from the others that it is still an owner, and serves again."""


class Watch:
    """A wait for level copies.

    Args:
        pause_seconds: the first pause between two looks; it grows for a copy that fills up for long.
        still_seconds_max: the time without progress after which a copy is given up.
    """

    def __init__(
        self,
        members: Members,
        *,
        pause_seconds: float = PAUSE_SECONDS,
        still_seconds_max: float = STILL_SECONDS_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._members, self._clock = members, clock
        self._pause, self._still_max = pause_seconds, still_seconds_max
        self._inquiry = Inquiry(members.admin)

    async def until_level(self, vbucket: int, owner: Address, copies: Iterable[Address]) -> None:
        """Return when all copies have on disk the changes that the owner has now.

        Raises:
            ClusterError: a copy makes no progress.
            TransportError, StatusError: a node does not answer, or the owner has lost the vbucket.
        """
        remaining = list(copies)
        if remaining:
            goal = await self._inquiry.owned_seqno(owner, vbucket)
            await asyncio.gather(*(self._wait_until_level(vbucket, owner, replica, goal) for replica in remaining))

    async def until_all_level(self, cluster_map: ClusterMap) -> None:
        """Return when all replicas of a map have on disk the changes that their owners have now.

        Raises: as `until_level`.
        """
        owned_by_node = {
            node: [vb for vb in range(cluster_map.vbuckets) if cluster_map.owner(vb) == node]
            for node in cluster_map.servers
        }
        seqnos = {
            node: await self._owned_seqnos(node, vbuckets) for node, vbuckets in owned_by_node.items() if vbuckets
        }
        gate = asyncio.Semaphore(VBUCKETS_AT_ONCE)

        async def wait(vbucket: int) -> None:
            owner = cluster_map.owner(vbucket)
            if owner is not None:
                goal = seqnos[owner][vbucket]
                async with gate:
                    await asyncio.gather(
                        *(
                            self._wait_until_level(vbucket, owner, replica, goal)
                            for replica in cluster_map.replicas(vbucket)
                        )
                    )

        await asyncio.gather(*map(wait, range(cluster_map.vbuckets)))

    async def _owned_seqnos(self, owner: Address, vbuckets: Iterable[int]) -> dict[int, int]:
        """Return the seqnos of an owner's vbuckets, with retries for an owner that has just started."""
        began = self._clock()
        while True:
            seqnos: dict[int, int] = {}
            with suppress(TemporaryFailure):
                seqnos = await self._members.admin(owner).seqnos(State.ACTIVE)
            ownerless = [vb for vb in vbuckets if vb not in seqnos]
            if not ownerless:
                return seqnos
            if self._clock() - began > START_SECONDS_MAX:
                raise lost(owner, ownerless[0])
            await asyncio.sleep(self._until_next(began))

    async def _wait_until_level(self, vbucket: int, owner: Address, copy: Address, goal: int) -> None:
        last_seqno, changed_at = -1, self._clock()
        began = changed_at
        while True:
            copy_report = await self._inquiry.copy(copy, vbucket)
            seqno = -1 if copy_report is None else copy_report.seqno
            if copy_report is not None and await self._is_level(vbucket, owner, copy_report, goal):
                return
            # A lower seqno is progress as well: a rollback, from which the copy goes on.
            if seqno != last_seqno:
                last_seqno, changed_at = seqno, self._clock()
            if self._clock() - changed_at > self._still_max:
                raise ClusterError(
                    f"vbucket {vbucket} on {copy} stands at seqno {last_seqno}, {goal} is wanted",
                    f"see the log of {copy} for why it does not follow {owner}, then type this again",
                )
            await asyncio.sleep(self._until_next(began))

    def _until_next(self, began_at: float) -> float:
        """Return the seconds to the next look: a quarter of the wait so far, rounded so that all callers look at the
        same moments.
        """
        if not self._pause:
            return 0.0
        now = self._clock()
        moments = max(1, int(min((now - began_at) / 4, PAUSE_SECONDS_MAX) / self._pause))
        return moments * self._pause - now % self._pause

    async def _is_level(self, vbucket: int, owner: Address, copy_report: CopyReport, goal: int) -> bool:
        """Return True if a copy, as of one moment, has all changes up to a seqno, and the owner's history.

        A copy within a snapshot is not level: it lacks keys that the rest of the snapshot brings. Nor is a dead copy,
        such as a former owner's until it becomes a replica: it follows no node.
        """
        if copy_report.state is State.DEAD or min(copy_report.seqno, copy_report.complete) < goal:
            return False
        # Read after the copy: a failover log only grows at its front, so equal fronts mean that the copy had the newest
        # history then.
        owner_report = await self._inquiry.copy(owner, vbucket)
        if owner_report is None:
            raise lost(owner, vbucket)
        return owner_report.log[0] == copy_report.log[0]
