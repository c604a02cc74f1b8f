"""The publisher of the map: many moves change it at the same time, and every node gets each revision once.

A change that comes while a revision is being sent waits and leaves with the next one, together with all others that
waited (as the group commits of the nodes do). `change` returns when every node has a map with the change; a step that
needs this simply comes after it.

A change may have a question, whose answer the map needs: until it is answered, only the owner gets the change. The
owner has maps of its own meanwhile: those of all others, with the new chains. The other changes don't wait for the
answer, nor fail with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from headwater.client.routing import Address
from headwater.cluster.members import Members, NewerMap
from headwater.errors import HeadwaterError
from headwater.wire.cluster_map import ClusterMap

Nodes = Sequence[Address | None]
Question = Callable[[], Awaitable[int]]


OWN_MAPS_MAX: Final = 1 << 16
"""The revisions by which an owner with open questions may be ahead of all other nodes are fewer than this. Each
question uses one revision up, and so does each map for all nodes, each owner's own map beside it, and each change that
is taken back. A failover of an owner that can't report its revision skips so many: with a newer map than all others,
the owner would serve when it is back.
"""
TRIES = 3


class Publisher:
    """The cluster map of a run; it sends each revision to all nodes, in order.

    Args:
        current: the map that the nodes have, or will have with the first `change`.
        also: nodes that get every map although they are no members.

    Attributes:
        current: the newest map that all nodes have, or that is being sent to them. Its revision is the highest used.
    """

    def __init__(self, members: Members, current: ClusterMap, also: Iterable[Address] = ()) -> None:
        self.current: ClusterMap = current
        self._members, self._extra_nodes = members, tuple(also)
        self._waiting_changes: dict[int, Nodes] = {}
        self._needed_seqnos: dict[int, int] = {}
        self._first: set[Address] = set()
        self._next: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()
        self._open: dict[int, Nodes] = {}
        """The chains that only their owners have: the question is open, or its answer leaves with the next map."""
        self._to_open: dict[Address, dict[int, Nodes]] = {}
        self._telling: dict[Address, asyncio.Task[None]] = {}
        self._tasks = set[asyncio.Task[None]]()

    async def finish(self) -> None:
        """Wait until no map is on its way, and send none that waits; call it before the leases are released.

        Maps are sent in tasks of their own, which a cancelled run leaves behind. A map that reached a node after the
        next operator's look could have the revision of that operator's map, and the two maps would never agree.
        """
        if self._next is not None:
            self._next.cancel()
            self._next = None
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def change(
        self,
        vbucket: int,
        nodes: Nodes,
        *,
        first: Iterable[Address] = (),
        needed: int | None = None,
        question: Question | None = None,
    ) -> None:
        """Assign a vbucket to other nodes, the owner first; return when all nodes have a map with that.

        Args:
            first: the nodes that get the map before the others: those that the change concerns.
            needed: the seqno up to which a replica must be complete to be promoted; 0 for none, None to keep the
                present one.
            question: returns `needed`; called when only the owner has the change.

        Raises:
            ClusterError, TransportError, StatusError: as `Members.send`; the change is in `current` all the same, and
                in every later revision. Or the owner did not accept a change with a question, or the question failed:
                that change is taken back, and no other.
        """
        if question is not None:
            needed = await self._answer(vbucket, nodes, question)
        self._waiting_changes[vbucket] = nodes
        if needed is not None:
            self._needed_seqnos[vbucket] = needed
        self._first.update(first)
        await self._wait_until_sent()

    async def need(self, seqnos: Mapping[int, int]) -> None:
        """Set the seqnos that copies must reach to be promoted (`ClusterMap.with_needed`); as `change`."""
        self.current = self.current.with_needed(seqnos)
        await self._wait_until_sent()

    async def _wait_until_sent(self) -> None:
        if self._next is None:
            self._next = self._begin(self._send())
        # One caller that is cancelled must not take the others' revision with it.
        await asyncio.shield(self._next)

    async def _send(self) -> None:
        async with self._sending:
            changes, needed, first = self._waiting_changes, self._needed_seqnos, self._first
            self._waiting_changes, self._needed_seqnos, self._first, self._next = {}, {}, set(), None
            # A chain that all nodes get now is no owner's own any more.
            self._open = {vb: chain for vb, chain in self._open.items() if vb not in changes}
            new_map = self.current.with_chains(changes)
            if needed:
                seqnos = {**new_map.needed, **needed}
                new_map = new_map.with_needed({vb: seqno for vb, seqno in seqnos.items() if seqno})
            # Kept even if a node refuses it: others have this map already, and no later one may lack what it says.
            self.current = new_map
            await self._sent_to_all(first)

    async def _sent_to_all(self, first: set[Address]) -> None:
        """Send `current` to all nodes. An owner with an open question gets a map of its own, and before the others get
        theirs: it could otherwise take theirs over.

        Members take over newer maps from each other, so another member may already have such an owner's map: then all
        nodes get newer ones.
        """
        for tries_left in reversed(range(TRIES)):
            new_map, owners = self.current, {chain[0] for chain in self._open.values()}
            instead = {owner: self._own_map(owner) for owner in new_map.servers if owner in owners}
            try:
                return await self._members.send(
                    new_map, first=(*first, *instead), also=self._extra_nodes, instead=instead
                )
            except NewerMap as error:
                node_map = await self._members.map_of(error.node)
                if (
                    not tries_left
                    or node_map is None
                    or all(node_map.version != new.version for new in instead.values())
                ):
                    raise
            self.current = replace(self.current, rev=self.current.rev + 1)
        return None

    # ------------------------------------------------------------------ an owner alone

    async def _answer(self, vbucket: int, nodes: Nodes, question: Question) -> int:
        """Send the change to the owner alone, and return the answer to the question; take the change back if that
        fails.

        Changes that the owner acknowledged before it had the map are in copies of the old chain, which is still in the
        maps of all others. So if the owner dies now, it is failed over without a question; and if this run is killed
        now, the owner has a map in which the seqno that copies must reach is unknown.
        """
        if (owner := nodes[0]) is None:
            raise ValueError(f"vbucket {vbucket} has no owner that could be asked")
        try:
            await self._reach_alone(owner, vbucket, nodes)
            return await question()
        except BaseException as error:
            self._to_open.get(owner, {}).pop(vbucket, None)
            self._open.pop(vbucket, None)
            # A cancelled run sends nothing more: the next one finds the owner's map, in which the seqno is unknown.
            if isinstance(error, Exception):
                with suppress(HeadwaterError):  # the first failure is told
                    await self._wait_until_sent()
            raise

    async def _reach_alone(self, owner: Address, vbucket: int, nodes: Nodes) -> None:
        self._to_open.setdefault(owner, {})[vbucket] = nodes
        if owner not in self._telling:
            self._telling[owner] = self._begin(self._tell_alone(owner))
        await asyncio.shield(self._telling[owner])

    async def _tell_alone(self, owner: Address) -> None:
        """Send an owner a map with the chains that wait for it.

        Maps for all nodes wait until this map is made, not until the owner answers; a node gets maps in the order in
        which they are made.
        """
        async with self._sending:
            del self._telling[owner]
            self._open |= self._to_open.pop(owner)
            telling = asyncio.create_task(self._members.tell(owner, self._own_map(owner)))
        await telling

    def _own_map(self, owner: Address) -> ClusterMap:
        """Return the next map for an owner with open questions, in which the seqnos that their copies must reach are
        unknown.
        """
        chains = {vb: chain for vb, chain in self._open.items() if chain[0] == owner}
        narrower = self.current.with_chains(chains).with_unknown(chains)
        # The number is used up, whatever becomes of this map: two different maps with one revision would never agree.
        self.current = replace(self.current, rev=self.current.rev + 1)
        return replace(narrower, rev=self.current.rev)
