"""Waiting until copies are level: the same history as the owner's, and everything in it that the owner had.

A seqno alone says nothing: a copy that was promoted once, or was away during a failover, has a history of its own with
seqnos as high. So the newest vb uuid of both must be the same; a replica takes the owner's failover log over when its
stream is accepted, after it has rolled back what it had to (failover.md 1, "replace"). And a copy that fills up has the
newest version of each key only: within a snapshot it counts up to where it was complete before (decision 0086).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from headwater.client.routing import Address
from headwater.cluster.members import Members
from headwater.errors import ClusterError
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.vbucket import State

PAUSE_SECONDS = 0.05
STILL_SECONDS_MAX = 60.0
VBUCKETS_AT_ONCE = 32


class Watch:
    """Looks at seqnos, for all vbuckets of a node with one request.

    Args:
        pause_seconds: a node is asked no more often.
        still_seconds_max: a copy that does not come on for so long is given up.
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
        self._asked_at: dict[Address, float] = {}
        self._seqnos: dict[Address, dict[int, int]] = {}
        self._asking: dict[Address, asyncio.Lock] = {}

    async def until_level(self, vbucket: int, owner: Address, copies: Iterable[Address]) -> None:
        """Return when all copies have on disk what the owner has now.

        Raises:
            ClusterError: a copy does not come on.
            TransportError, StatusError: a node does not answer, or the owner has lost the vbucket.
        """
        waiting = list(copies)
        if waiting:
            goal = self._goal(vbucket, owner, await self._members.admin(owner).seqnos(State.ACTIVE))
            await asyncio.gather(*(self._until(vbucket, owner, each, goal) for each in waiting))

    async def until_all_level(self, wanted: ClusterMap) -> None:
        """Return when all replicas of a map have on disk what their owners have now.

        Raises: as `until_level`.
        """
        seqnos = {node: await self._members.admin(node).seqnos(State.ACTIVE) for node in wanted.servers}
        gate = asyncio.Semaphore(VBUCKETS_AT_ONCE)

        async def wait(vbucket: int) -> None:
            owner = wanted.owner(vbucket)
            if owner is not None:
                goal = self._goal(vbucket, owner, seqnos[owner])
                async with gate:
                    await asyncio.gather(
                        *(self._until(vbucket, owner, each, goal) for each in wanted.replicas(vbucket))
                    )

        await asyncio.gather(*map(wait, range(wanted.vbuckets)))

    def _goal(self, vbucket: int, owner: Address, seqnos: Mapping[int, int]) -> int:
        if vbucket not in seqnos:
            raise ClusterError(f"{owner} does not own vbucket {vbucket} any more", "type this again")
        return seqnos[vbucket]

    async def _until(self, vbucket: int, owner: Address, copy: Address, goal: int) -> None:
        seen, changed_at = -1, self._clock()
        while True:
            seqno = (await self._latest(copy)).get(vbucket, -1)
            if seqno >= goal and await self._is_level(vbucket, owner, copy, goal):
                return
            if seqno != seen:
                seen, changed_at = seqno, self._clock()
            if self._clock() - changed_at > self._still_max:
                raise ClusterError(
                    f"vbucket {vbucket} on {copy} stands at seqno {seen}, {goal} is wanted",
                    f"see the log of {copy} for why it does not follow {owner}, then type this again",
                )
            await asyncio.sleep(self._pause)

    async def _is_level(self, vbucket: int, owner: Address, copy: Address, goal: int) -> bool:
        """The history first, then the seqno afresh: one seen before the copy rolled back would say too much. And one
        within a snapshot, too: what is there by then lacks keys that its rest brings."""
        ours, theirs = await asyncio.gather(
            *(self._members.admin(each).failover_log(vbucket) for each in (owner, copy))
        )
        return ours[0] == theirs[0] and (await self._members.admin(copy).complete(vbucket)).get(vbucket, -1) >= goal

    async def _latest(self, node: Address) -> dict[int, int]:
        async with self._asking.setdefault(node, asyncio.Lock()):
            if self._clock() - self._asked_at.get(node, -self._pause) >= self._pause:
                self._seqnos[node] = await self._members.admin(node).seqnos()
                self._asked_at[node] = self._clock()
        return self._seqnos[node]
