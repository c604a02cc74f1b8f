"""Carry a plan out: from one map to another while clients read and write, never with fewer copies.

For each vbucket, several at a time (failover.md 5):

1. New copies, the next owner's among them, join the chain, and the owner fills them until they are level (decision
   0121). The old copies stay.
2. The owner hands over (a Mover). As soon as the target is active, the map has the new owner, and after it the old
   one.
3. When all copies of the new chain are level with the new owner, the map drops the others. These are deleted when the
   new chain is level once more: until all nodes had the map they counted for majorities. Until then no copy is promoted
   that may lack changes which these acknowledged (decision 0133).

The nodes' maps and states are the only record of the progress. After a run was killed or stopped, the next one begins
with a survey, repairs what the earlier run left unfinished, plans the rest, and comes to the same end.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

from headwater.client.routing import Address
from headwater.cluster.balance import Move
from headwater.cluster.bucket_settings import bring_settings
from headwater.cluster.clocks import level_clocks
from headwater.cluster.collections import refuse_joining, refuse_older, send_newer_manifest
from headwater.cluster.encryption import check_encryption
from headwater.cluster.inquiry import Inquiry
from headwater.cluster.members import Members
from headwater.cluster.mover import Mover
from headwater.cluster.plan import Plan, make_plan
from headwater.cluster.proxied import Limits
from headwater.cluster.publisher import Publisher
from headwater.cluster.repair import repair
from headwater.cluster.watch import Watch
from headwater.errors import HeadwaterError, MoveError, TransportError
from headwater.failpoints import failpoint
from headwater.tracing import span
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.durability import majority_of

VBUCKETS_AT_ONCE = 8
SMALL_AT_ONCE = 8
"""The factor by which more vbuckets are moved at the same time if they are small: then moves wait for answers, not
bytes.
"""
SMALL_BYTES = 4 << 20
"""Vbuckets that are moved at the same time count as small while they hold, together, no more than this times the limit
for vbuckets of any size.
"""


@dataclass(frozen=True, slots=True)
class RebalanceStep:
    """Progress for observers: `done` of `total` vbuckets are in their places, `now` names the present step."""

    done: int
    total: int
    now: str


Progress = Callable[[RebalanceStep], None]


def _ignore_step(_: RebalanceStep) -> None:
    """Ignore a step: the default without an observer."""


class Rebalance:
    """One run of a rebalance.

    Args:
        seeds: nodes to start from.
        add, remove, replicas: as `make_plan`.
        vbuckets_at_once: the number of vbuckets that are moved at the same time; SMALL_AT_ONCE times as many small
            ones.
        limits: the movers' timeouts; `patience_seconds` for replicas, too.
        progress: called with each step.
        stopping: called before each vbucket; True lets running moves finish and begins no other.
    """

    def __init__(
        self,
        members: Members,
        seeds: Sequence[Address],
        *,
        add: Sequence[Address] = (),
        remove: Sequence[Address] = (),
        replicas: int | None = None,
        vbuckets_at_once: int = VBUCKETS_AT_ONCE,
        limits: Limits = Limits(),  # noqa: B008 - a constant
        progress: Progress = _ignore_step,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._members, self._seeds = members, seeds
        self._add, self._remove, self._replicas = tuple(add), tuple(remove), replicas
        self._at_once, self._progress, self._stopping = vbuckets_at_once, progress, stopping
        self._limits = limits
        # However small the vbuckets: more hand-overs at once would refuse writes for longer, and we would pass more
        # copies on.
        self._handing_over = asyncio.Semaphore(vbuckets_at_once)
        self._watch = Watch(members, still_seconds_max=limits.patience_seconds)
        self._inquiry = Inquiry(members.admin)
        self._movers: dict[tuple[Address, Address], Mover] = {}
        self._publisher: Publisher
        self._moves: dict[int, Move] = {}
        self._moves_done = self._total = 0
        self._tls_ports: dict[Address, int] = {}

    async def plan(self) -> Plan:
        """Survey the nodes and return the plan, without changing anything.

        Raises:
            ClusterError, OptionError: as `make_plan`; or the collections of two nodes are not of one bucket.
        """
        return (await self._look_and_plan())[0]

    async def run(self) -> ClusterMap | None:
        """Carry the plan out; return the final map, None if the run was stopped before.

        Raises:
            ClusterError, TransportError, StatusError: a node failed, or another operator is at work. Running moves
                finish first; run it again to continue.
        """
        with span("rebalance") as trace:
            # This look only says on which nodes to be alone: the plan comes from another, made under their leases.
            survey = await self._members.survey((*self._seeds, *self._add))
            async with self._members.alone("rebalance", survey.nodes):
                after = await self._run()
            trace.tell(moves=self._moves_done)
            return after

    async def _run(self) -> ClusterMap | None:
        plan, survey_rev = await self._look_and_plan()
        if not plan.settlement.is_settled:
            plan, survey_rev = await self._settle(plan, survey_rev)
        self._moves = {move.vbucket: move for move in plan.moves}
        self._total = len(plan.moves)
        everybody = tuple(dict.fromkeys((*plan.before.servers, *plan.after.servers)))
        # Joining nodes are members from the first map on, leaving ones until the last: only members own vbuckets, and
        # `settle` relies on that after a run was killed.
        start = plan.before.with_servers(everybody).with_replica_count(plan.after.replica_count)
        start = start.with_tls(self._tls_ports).with_groups({**plan.before.groups, **plan.after.groups})
        check_encryption(start)
        self._publisher = Publisher(self._members, start.after(survey_rev))
        if plan.is_empty:
            return plan.before
        joining = [server for server in plan.after.servers if server not in plan.before.servers]
        await refuse_older(self._members, plan.before.servers, joining)
        # Before the map makes them members: a newer manifest of theirs would drop the collections it lacks in each
        # vbucket that they get.
        await send_newer_manifest(self._members, plan.before.servers, joining)
        await bring_settings(self._members, plan.before.servers, joining)
        await self._members.send(self._publisher.current)
        # Also where none joins: a run that was killed behind its first map has left that to this one.
        await level_clocks(self._members, everybody)
        async with AsyncExitStack() as movers:
            movers.push_async_callback(self._publisher.finish)
            if not await self._move_all(plan.moves, movers):
                return None
        with span("rebalance.finish"):
            return await self._finish(plan)

    # ------------------------------------------------------------------ before and after

    async def _look_and_plan(self) -> tuple[Plan, int]:
        with span("rebalance.plan") as trace:
            plan, rev = await self._plan_and_revision()
            trace.tell(moves=len(plan.moves), servers=len(plan.after.servers))
            return plan, rev

    async def _plan_and_revision(self) -> tuple[Plan, int]:
        survey = await self._members.survey((*self._seeds, *self._add))
        # Only the survey finds the names that belong to ports for TLS.
        self._add, self._remove = (tuple(map(self._members.name_of, nodes)) for nodes in (self._add, self._remove))
        self._tls_ports = survey.tls_ports
        foreign_nodes = [node for node in self._remove if node not in survey.map.servers]
        views = await asyncio.gather(*map(self._members.view, foreign_nodes))
        strangers = dict(zip(foreign_nodes, views, strict=True))
        plan = make_plan(survey, add=self._add, remove=self._remove, replicas=self._replicas, strangers=strangers)
        joining = [node for node in dict.fromkeys(self._add) if node not in survey.map.servers]
        former = [node for node in joining if _is_of(survey.nodes[node].map, survey.map)]
        owners = list(map(self._members.admin, survey.map.servers))
        await refuse_joining(owners, list(map(self._members.admin, joining)), former)
        return plan, survey.latest_rev()

    async def _settle(self, plan: Plan, rev: int) -> tuple[Plan, int]:
        """Repair what an earlier run left unfinished, then survey and plan again."""
        self._report_step("settling what an earlier run left open")
        survey = await self._members.survey((*self._seeds, *self._add))
        publisher = Publisher(self._members, survey.map.after(rev))
        # All members go by one map before states change: one with an older map could follow a node that is no owner.
        await self._members.send(publisher.current)
        # A run that was killed behind its first map may have left a node that has promised no reader anything.
        await level_clocks(self._members, survey.map.servers)
        with span("rebalance.settle"):
            try:
                await repair(self._members, publisher, survey, plan.settlement)
            finally:
                await publisher.finish()
        return await self._look_and_plan()

    async def _finish(self, plan: Plan) -> ClusterMap:
        """Send the last map, with the staying nodes only; then delete the copies outside of it, once all others are
        level.

        A copy with changes that a damaged owner has lost is kept.
        """
        self._report_step("the last map")
        leaving = [node for node in self._publisher.current.servers if node not in plan.after.servers]
        final = self._publisher.current.with_servers(plan.after.servers).with_groups(plan.after.groups)
        # Leaving nodes get it, too: by the map before they would still count as members.
        await self._members.send(final, also=leaving)
        self._report_step("waiting for the last replicas")
        await self._watch.until_all_level(final)
        survey = await self._members.survey((*plan.after.servers, *leaving))
        for address, node in survey.nodes.items():
            strays = [vb for vb in node.states if vb < final.vbuckets and address not in final.copies(vb)]
            # Damage that was found since the plan was made: the next plan tells of it.
            needed_copies = {vb for vb in strays if survey.has_lost_changes(vb, address, final.copies(vb))}
            await self._members.delete(address, [vb for vb in strays if vb not in needed_copies])
        return final

    # ------------------------------------------------------------------ vbuckets

    async def _move_all(self, moves: Sequence[Move], movers: AsyncExitStack) -> bool:
        """Move all vbuckets, a few at a time; return False if the run was stopped."""
        queue, room = deque(_in_mixed_order(moves)), Room(self._at_once)
        failures: list[HeadwaterError] = []

        async def work() -> None:
            while queue and not failures and not self._stopping():
                move = queue.popleft()
                try:
                    size = await self._size(move)
                    async with room.place(size):
                        # The wait for room may have been long. The move goes back, so that the run counts as stopped,
                        # not as done.
                        if failures or self._stopping():
                            queue.append(move)
                            return
                        await self._traced(move, movers)
                # An error that left the task would cancel all others, with vbuckets that are copied or change hands:
                # they finish.
                except HeadwaterError as error:
                    failures.append(error)
                    return
                self._moves_done += 1
                self._report_step(f"vbucket {move.vbucket} is on {move.target}")

        async with asyncio.TaskGroup() as group:
            for _ in range(min(SMALL_AT_ONCE * self._at_once, len(queue))):
                group.create_task(work())
        if failures:
            raise failures[0]
        return not queue

    async def _size(self, move: Move) -> int | None:
        """Return about how many bytes a move copies from node to node; None if the source does not report it."""
        with suppress(TransportError):  # whether the move goes without an answer of the source is for the move to say
            if move.source is not None and (copy := await self._inquiry.copy(move.source, move.vbucket)) is not None:
                return copy.bytes
        return None

    async def _traced(self, move: Move, movers: AsyncExitStack) -> None:
        with span("rebalance.move", vbucket=move.vbucket, source=str(move.source), target=str(move.target)):
            await self._move(move, movers)

    async def _move(self, move: Move, movers: AsyncExitStack) -> None:
        vb, publisher = move.vbucket, self._publisher
        owner, target = move.source, move.target
        if (
            owner is None or target is None
        ):  # nobody owns it: `repair` has seen to that, and `make_plan` refuses the rest
            return
        if new := _joining(move, len(publisher.current.copies(vb))):
            chain = (*publisher.current.copies(vb), *new)
            with span("rebalance.join", vbucket=vb):
                await publisher.change(vb, chain, first=(owner, *new), needed=await self._needed_seqno(vb, owner))
                await self._watch.until_level(vb, owner, new)
            failpoint("rebalance.joined")
        elif move.copied_to and (needed := await self._needed_seqno(vb, owner)):
            # The mover makes a copy on the target, which no chain names before it owns the vbucket.
            await publisher.change(vb, publisher.current.copies(vb), needed=needed)
        if move.changes_owner:
            await self._hand_over(move, owner, target, movers)
        with span("rebalance.narrow", vbucket=vb):
            await self._narrow(move, target, [node for node in move.after[1:] if node is not None])

    async def _narrow(self, move: Move, target: Address, replicas: Sequence[Address]) -> None:
        """Drop copies from the map, and delete them.

        Until the owner has this map these copies are part of its majorities. Changes that only they and the owner
        acknowledged meanwhile would be deleted with them, unless the staying copies have them. So the owner gets the
        map first and reports its seqno then, and no staying copy is promoted before it has reached that seqno.
        """
        vb, publisher = move.vbucket, self._publisher
        await self._watch.until_level(vb, target, replicas)
        cluster_map = publisher.current
        if replicas and not set(cluster_map.copies(vb)) <= set(move.after):
            question = functools.partial(self._lacking_seqno, vb, target, replicas)
            await publisher.change(vb, move.after, first=(target,), question=question)
            failpoint("rebalance.narrowed")
            await self._watch.until_level(vb, target, replicas)
            if publisher.current.needed.get(vb):
                await publisher.change(vb, move.after, needed=0)
        else:
            await publisher.change(vb, move.after, first=(target,), needed=0)
            failpoint("rebalance.narrowed")
            await self._watch.until_level(vb, target, replicas)
        # Last: until all nodes had the map without them, these copies were part of majorities.
        for node in move.dropped_from:
            await self._members.admin(node).delete(vb)

    async def _lacking_seqno(self, vb: int, owner: Address, replicas: Sequence[Address]) -> int:
        """Return the owner's seqno of a vbucket if a replica has not reached it, else 0."""
        seqno = await self._inquiry.owned_seqno(owner, vb)
        copies = await asyncio.gather(*(self._inquiry.copy(node, vb) for node in replicas))
        return seqno if min(0 if copy is None else copy.complete for copy in copies) < seqno else 0

    async def _needed_seqno(self, vb: int, owner: Address) -> int:
        """Return the seqno that a new copy must reach before it may be promoted: the seqno that all other copies have
        reached.

        Without this bound an empty new copy would look like an empty vbucket, and it may be the only copy left when
        several nodes die. The copies in the chain reach the bound already. A copy that holds nothing yet, as after the
        loss of its disk, is left out of the comparison.
        """
        cluster_map = self._publisher.current
        checked_copies = [node for node in cluster_map.copies(vb) if node != owner]
        copies = asyncio.gather(*(self._inquiry.copy(node, vb) for node in checked_copies))
        seqno, other_copies = await asyncio.gather(self._owner_seqno(vb, owner), copies)
        replicas = [copy.complete for copy in other_copies if copy is not None and copy.complete]
        return max(min([seqno, *replicas]), cluster_map.needed.get(vb, 0))

    async def _owner_seqno(self, vb: int, owner: Address) -> int:
        """Return the seqno of a vbucket at its owner, or 0 if the node does not own it."""
        copy = await self._inquiry.copy(owner, vb)
        return copy.seqno if copy is not None and copy.is_active else 0

    async def _hand_over(self, move: Move, owner: Address, target: Address, movers: AsyncExitStack) -> None:
        pair = (owner, target)
        if pair not in self._movers:
            mover = Mover(
                self._members.endpoint(owner),
                self._members.endpoint(target),
                concurrency=self._at_once,
                limits=self._limits,
                on_owned=self._publish_owner,
                operator=self._members.operator,
            )
            self._movers[pair] = mover
            await movers.enter_async_context(mover)
        async with self._handing_over:
            await self._movers[pair].move(move.vbucket, takeover=True)

    async def _publish_owner(self, vbucket: int) -> None:
        """Send the map with the new owner, because the target is active. The old owner stays as a replica if the plan
        keeps it.

        Otherwise the target may be the only node of the new chain with the changes that these two acknowledged: other
        copies must reach its seqno to be promoted.

        Raises:
            MoveError: a node did not get the map.
        """
        move = self._moves[vbucket]
        copies = self._publisher.current.copies(vbucket)
        staying = [node for node in copies if node not in (move.source, move.target)]
        back = [move.source] if move.source in move.after else []
        # These two get the map first: the old owner refuses requests, and a refusal with a map that still names it
        # makes clients repeat for ever (kv 5).
        both = [node for node in (move.target, move.source) if node is not None]
        try:
            needed = await self._owner_seqno(vbucket, move.target) if staying and not back and move.target else 0
            await self._publisher.change(vbucket, (move.target, *staying, *back), first=both, needed=needed or None)
        except HeadwaterError as error:  # not for the mover to try again: a node that is to get the map is gone
            raise MoveError(vbucket, str(error), "start the node, then type this again") from error

    def _report_step(self, now: str) -> None:
        self._progress(RebalanceStep(self._moves_done, self._total, now))


class Room:
    """A limit on the vbuckets that are moved at the same time.

    Args:
        move_count_max: the most vbuckets, whatever their size.
    """

    def __init__(self, move_count_max: int) -> None:
        self._count_max = move_count_max
        self._count = self._bytes = 0
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def place(self, size: int | None) -> AsyncIterator[None]:
        """Enclose the move of a vbucket of `size` bytes (None: unknown); wait first until there is room."""
        bytes_ = self._count_max * SMALL_BYTES + 1 if size is None else size  # no small one
        async with self._freed:
            await self._freed.wait_for(lambda: self._has_room(bytes_))
            self._count, self._bytes = self._count + 1, self._bytes + bytes_
        try:
            yield
        finally:
            self._count, self._bytes = self._count - 1, self._bytes - bytes_
            async with self._freed:
                self._freed.notify_all()

    def _has_room(self, size: int) -> bool:
        are_small = self._bytes + size <= self._count_max * SMALL_BYTES
        return self._count < (SMALL_AT_ONCE * self._count_max if are_small else self._count_max)


def _in_mixed_order(moves: Sequence[Move]) -> list[Move]:
    """Return the moves in an order in which neighbours use different pairs of nodes."""
    by_pair: dict[tuple[Address | None, Address | None], list[Move]] = {}
    for move in moves:
        by_pair.setdefault((move.source, move.target), []).append(move)
    rounds = itertools.zip_longest(*by_pair.values())
    return [move for together in rounds for move in together if move is not None]


def _joining(move: Move, copies: int) -> list[Address]:
    """Return the new copies that join the chain before the vbucket changes hands: the owner fills these without the
    mover.

    The next owner is left to the mover if its joining would make durable writes wait for copies that fill up: if a
    majority with it needs more copies than there are now, than a majority without it, and than a majority in the end.
    """
    fillers = [node for node in move.copied_to if node != move.target]
    allowed = max(copies, majority_of(copies + len(fillers)), majority_of(len(move.after)))
    return list(move.copied_to) if majority_of(copies + len(move.copied_to)) <= allowed else fillers


def _is_of(map_: ClusterMap | None, other: ClusterMap) -> bool:
    """Return True if a map is of the same cluster; False for None."""
    return map_ is not None and map_.uuid == other.uuid
