"""The publisher of the map: many moves change it at the same time, and every node gets each revision once.

A change that comes while a revision is on its way waits and leaves with the next one, together with all others that
waited (as the group commits of the nodes do). `change` returns when a map with the change is at every node; so
whatever must not happen before the nodes know simply comes after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from headwater.client.routing import Address
from headwater.cluster.members import Members
from headwater.wire.cluster_map import ClusterMap

Nodes = Sequence[Address | None]
Question = Callable[[], Awaitable[int]]


class Publisher:
    """Changes the cluster map and publishes each revision to all nodes, in order.

    Args:
        current: what the nodes have, or will have with the first `change`.
        also: nodes that get every map though they are no members.

    Attributes:
        current: the newest revision made; at the nodes, or on its way to them.
    """

    def __init__(self, members: Members, current: ClusterMap, also: Iterable[Address] = ()) -> None:
        self.current: ClusterMap = current
        self._members, self._also = members, tuple(also)
        self._waiting: dict[int, Nodes] = {}
        self._needed: dict[int, int] = {}
        self._first: set[Address] = set()
        self._questions: dict[int, Question] = {}
        self._next: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()

    async def change(
        self,
        vbucket: int,
        nodes: Nodes,
        *,
        first: Iterable[Address] = (),
        needed: int | None = None,
        question: Question | None = None,
    ) -> None:
        """Let a vbucket be held by other nodes, the owner first; return when all nodes have the map that says so.

        Args:
            first: told before the others: those for whom something changes.
            needed: the seqno up to which a replica must be complete to be promoted; 0: any may be, None: as before.
            question: tells `needed` when those in `first` have the change, and nobody else does.

        Raises:
            ClusterError, TransportError, StatusError: as `Members.send`; the change is in `current` all the same, and
                in every later revision. Or the question has no answer: the change is taken back.
        """
        self._waiting[vbucket] = nodes
        if question is not None:
            self._questions[vbucket] = question
        if needed is not None:
            self._needed[vbucket] = needed
        self._first.update(first)
        await self._sent()

    async def need(self, seqnos: Mapping[int, int]) -> None:
        """Say how far copies must be to be promoted (`ClusterMap.with_needed`); as `change`."""
        self.current = self.current.with_needed(seqnos)
        await self._sent()

    async def _sent(self) -> None:
        if self._next is None:
            self._next = asyncio.create_task(self._send())
        # One caller that is cancelled must not take the others' revision with it.
        await asyncio.shield(self._next)

    async def _send(self) -> None:
        async with self._sending:
            changes, needed, first, questions = self._waiting, self._needed, self._first, self._questions
            self._waiting, self._needed, self._first, self._questions, self._next = {}, {}, set(), {}, None
            before, problem = self.current, None
            self.current = before.with_chains(changes)
            if questions:
                problem = await self._ask(before, first, questions)
            if needed:
                wanted = {**self.current.needed, **needed}
                self.current = self.current.with_needed({vb: seqno for vb, seqno in wanted.items() if seqno})
            await self._members.send(self.current, first=tuple(first), also=self._also)
        if problem is not None:
            raise problem

    async def _ask(
        self, before: ClusterMap, first: Iterable[Address], questions: Mapping[int, Question]
    ) -> BaseException | None:
        """Give those in `first` the changes, and ask; returns why the changes that need an answer are taken back.

        What an owner acknowledged until it had the change lies in copies of the chain before, which is that of all
        others as long. So if it dies now, it is failed over without a question; and killed now, this leaves a map by
        which nobody knows how far copies must be.
        """
        self.current = self.current.with_unknown(questions)
        tellings = (self._members.tell(node, self.current) for node in first)
        results: list[int | BaseException | None] = await asyncio.gather(*tellings, return_exceptions=True)
        if not any(results):
            results = await asyncio.gather(*(ask() for ask in questions.values()), return_exceptions=True)
        known = {vb: seqno for vb, seqno in self.current.needed.items() if vb not in questions}
        problem = next((each for each in results if isinstance(each, BaseException)), None)
        if problem is None:
            answers = {
                vb: seqno for vb, seqno in zip(questions, results, strict=True) if isinstance(seqno, int) and seqno
            }
            self.current = self.current.with_needed({**known, **answers})
            return None
        known |= {vb: before.needed[vb] for vb in questions if vb in before.needed}
        chains = {vb: (before.owner(vb), *before.replicas(vb)) for vb in questions}
        self.current = self.current.with_chains(chains).with_needed(known)
        return problem
