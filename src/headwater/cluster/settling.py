"""Reads both nodes' copies of a vbucket, lets recovery.py decide, and carries the decision out.

A copy between owners is read after a barrier: a request to set the state that it has anyway is answered once all
earlier writes are durable, so a write that is being acknowledged can't be overlooked. Source: failover 4.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from headwater.client.routing import ClusterMap, parse, read_map
from headwater.cluster.admin import NO_SUCH_GROUP, Endpoint, NodeAdmin
from headwater.cluster.answers import FollowingReport
from headwater.cluster.inquiry import Inquiry
from headwater.cluster.patience import CopyPosition
from headwater.cluster.recovery import Action, CopyState, Situation, Verdict, decide
from headwater.errors import (
    HeadwaterError,
    KeyNotFound,
    MoveError,
    RemoteProtocolError,
    StatusError,
    TransportError,
)
from headwater.failpoints import failpoint
from headwater.protocol.dcp.consumer_stream import Phase
from headwater.wire.vbucket import State

_BETWEEN = frozenset({State.DEAD, State.PENDING})
_ADVICE = {
    Action.WAIT: "start the node or see what its log says, then ask for the same move again",
    Action.REFUSE: "look at both nodes (headwater cluster status), then set the states by hand",
}


class Settling:
    """A repairer of broken hand-overs between two nodes.

    Attributes:
        active_sent: for vbuckets whose hand-over broke off: True if the mover passed the order to become active on,
            False if not, None if it can't know.
        followed: the vbuckets in which the target keeps following the source by its own connection.
    """

    def __init__(self, source: NodeAdmin, target: NodeAdmin) -> None:
        self.active_sent: dict[int, bool | None] = {}
        self.followed: set[int] = set()
        self._source, self._target = source, target
        self._inquiry = Inquiry({source.address: source, target.address: target}.__getitem__)

    async def settle(self, vbucket: int, *, follows: bool = False) -> bool:
        """Decide which node owns a vbucket and set both states by that; needs open proxied connections, so that no
        other mover acts.

        Args:
            follows: True if the replica may keep following the source by its own connection (`followed`), until
                `let_go`.

        Returns: True if the target owns it now; False if the source does and the target is a replica that no other
        stream feeds.

        Raises:
            MoveError: neither is possible.
        """
        situation = await self._look_at_vbucket(vbucket)
        return await self._act(vbucket, decide(situation), situation, follows=follows)

    async def let_go(self, vbucket: int) -> None:
        """Let the target stop following the source by its own connection."""
        self.followed.discard(vbucket)
        await self._target.stop_replicating(self._source.endpoint, [vbucket])

    async def settle_alone(self, vbucket: int, problem: HeadwaterError) -> None:
        """Repair without a proxied connection, only if a node does not answer; return if the target owns the vbucket.

        Raises:
            HeadwaterError: `problem`, or the error of the repair.
        """
        situation = await self._look_at_vbucket(vbucket)
        verdict = decide(situation)
        # Both nodes answer, so only our connection failed: an older mover may still pass frames between them, and
        # nothing but a hand-over that is over can be relied on.
        if situation.source is not None and situation.target is not None and verdict.action is not Action.DONE:
            raise problem
        if verdict.action is Action.BEGIN or not await self._act(vbucket, verdict, situation):
            raise problem

    async def held(self, vbucket: int) -> CopyPosition | None:
        """Return the state of the target's copy of a vbucket; None if the target does not answer or has no copy.

        This uses no barrier, which would set a state: without a connection of ours, the copy may just be becoming
        active.
        """
        try:
            copy = await self._inquiry.copy(self._target.address, vbucket)
        except (TransportError, StatusError):
            return None
        return None if copy is None else CopyPosition(copy.log[0][0], copy.seqno)

    async def _look_at_vbucket(self, vb: int) -> Situation:
        copies = await asyncio.gather(self._copy_at(self._source, vb), self._copy_at(self._target, vb))
        source, target = (copy if isinstance(copy, CopyState) else None for copy in copies)
        owner = ""
        if State.ACTIVE not in (source and source.state, target and target.state):
            owner = await self._owner_elsewhere(vb)
        return Situation(source, target, self.active_sent.get(vb), owner, *(str(copy) for copy in copies))

    async def _copy_at(self, node: NodeAdmin, vb: int) -> CopyState | TransportError:
        """Return a node's copy of a vbucket, read after a barrier if it is between owners; or the error of a node that
        does not answer.
        """
        try:
            copy = await self._inquiry.copy(node.address, vb)
            if copy is not None and copy.state in _BETWEEN:
                # The barrier: it is answered when all earlier writes are durable, so the seqno is read once more behind
                # it.
                await node.set_state(vb, copy.state)
                copy = await self._inquiry.copy(node.address, vb)
        except TransportError as error:
            return error
        if copy is None:
            return CopyState(None)
        flaw = copy.flaw if copy.state in _BETWEEN else ""
        return CopyState(copy.state, copy.seqno, tuple(copy.log), flaw)

    async def _act(self, vb: int, verdict: Verdict, situation: Situation, *, follows: bool = False) -> bool:
        match verdict.action:
            case Action.WAIT | Action.REFUSE:
                retriable = verdict.action is Action.WAIT
                raise MoveError(vb, verdict.reason, _ADVICE[verdict.action], retriable)
            case Action.FINISH:
                # Failover 4: "finish by setting B active (only if B has everything; new entry)".
                await self._target.set_state(vb, State.ACTIVE)
            case Action.GIVE_BACK:
                await self._give_back(vb, verdict, situation)
            case Action.BEGIN:
                await self._prepare(vb, situation.target, follows=follows)
        self.active_sent.pop(vb, None)
        return verdict.action in (Action.FINISH, Action.DONE)

    async def _give_back(self, vb: int, verdict: Verdict, situation: Situation) -> None:
        """Make the source active again, then the target a replica.

        If this run is killed in between, the next one finds the source active and the target pending, a clear case.
        """
        is_flawed = situation.source is not None and situation.source.flaw != ""
        # `decide` gives a flawed copy back only where the target lacks changes that this one has: the node's own
        # refusal is overridden.
        await self._source.set_state(vb, State.ACTIVE, force=is_flawed)
        failpoint("move.given_back")
        self.active_sent.pop(vb, None)
        if situation.target is None:
            raise MoveError(vb, verdict.reason, _ADVICE[Action.WAIT], retriable=True)
        await self._prepare(vb, situation.target)

    async def _prepare(self, vb: int, target: CopyState | None, *, follows: bool = False) -> None:
        """Prepare the target (failover 5, step 1); end its own stream, unless it `follows` the source by it."""
        self.followed.discard(vb)
        is_replica = target is not None and target.state is State.REPLICA
        for report in (await self._following(vb)).values():
            if vb in report.vbuckets:
                source = parse(report.source)
                producer = Endpoint(source.seeds[0], source.bucket)
                if follows and is_replica and self._feeds(report, vb, producer):
                    self.followed.add(vb)
                    return
                # It may have ended by itself since the report.
                with suppress(KeyNotFound):
                    await self._target.stop_replicating(producer, [vb])
        if not is_replica:
            # This also makes a vbucket that is not there (failover 5, step 1).
            await self._target.set_state(vb, State.REPLICA)

    def _feeds(self, report: FollowingReport, vb: int, producer: Endpoint) -> bool:
        """Return True if the target follows the source by its own connection, and the stream is open and no
        takeover.
        """
        is_ours = str(producer) == str(self._source.endpoint)
        return is_ours and report.vbuckets[vb] == Phase.OPEN and vb not in report.takeovers

    async def _following(self, vb: int) -> dict[str, FollowingReport]:
        try:
            return await self._target.replication(vb)
        except NO_SUCH_GROUP:
            return {}

    async def _owner_elsewhere(self, vb: int) -> str:
        """Return the owner by the newer of both nodes' maps, if that is a third node; "" otherwise."""
        maps = await asyncio.gather(*(_map(node) for node in (self._source, self._target)))
        newest = max((map_ for map_ in maps if map_ is not None), key=lambda map_: map_.version, default=None)
        owner = newest.owner(vb) if newest is not None and len(newest.servers) > 1 else None
        return "" if owner in (None, self._source.address, self._target.address) else str(owner)


async def _map(node: NodeAdmin) -> ClusterMap | None:
    try:
        config = await node.config()
        return read_map(config, node.address) if config else None
    except (TransportError, RemoteProtocolError):
        return None
