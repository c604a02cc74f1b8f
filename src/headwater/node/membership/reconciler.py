"""The reconciler gives vbuckets their roles by the map, as soon as possible.

roles.py determines the roles. Vbuckets wait here for the end of a handover, or, if they need a new record, for room in
the batch or on the disk. A vbucket that must not be served meanwhile stays fenced (`Bucket.fenced`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from headwater.invariants import node_invariant
from headwater.node.membership.following import Following
from headwater.node.membership.roles import AS_IT_IS, News, role
from headwater.node.reporting.log_lines import event
from headwater.node.storage.staging import RECORD_BYTES
from headwater.wire.address import Address
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.kv.api import Services

MOVING_AGAIN_SECONDS = 0.05
NO_ROOM_SECONDS = 1.0
LOST_SECONDS = 0.25
"""The delay before a role that was lost with its batch is set again, because the disk may still fail."""

log: Final = logging.getLogger(__name__)


class Reconciler:
    """Gives the vbuckets of a node their roles by the map, and the replicas their streams.

    Args:
        server: the node with the bucket.
        following: the streams of replicas.

    Attributes:
        known: the map; None if there is none.
        serves: True if the fence is open, so that vbuckets that this node has by the map may be served.
        moving: the vbuckets that wait for the end of a handover.
    """

    def __init__(self, server: Services, following: Following) -> None:
        self.known: ClusterMap | None = None
        self.serves = False
        self.moving: set[int] = set()
        self._server = server
        self._bucket = server.bucket
        self._following = following
        self._todo: dict[int, News] = {}
        self._given_up: dict[int, int] = {}  # by vbucket that a map took away: the batch with its new state
        self._timer: asyncio.TimerHandle | None = None
        self._looking = self._is_stopped = False
        server.bucket.committer.on_failure.append(self._lost)

    @property
    def waiting(self) -> list[int]:
        """The vbuckets whose owner has changed in the map, and that do not have their new role yet."""
        return [vb for vb, news in self._todo.items() if news is News.OWNER]

    def ask(self, vbuckets: Iterable[int], news: News = News.NONE) -> None:
        """Reconcile vbuckets at the next `look` or `reconcile`. `news` is the change of their entries; if a vbucket
        already waits with a greater change, that one counts.
        """
        for vb in () if self._is_stopped else vbuckets:
            # The greater change counts: a vbucket that waits for room to be given up must still be given up after a map
            # that only changed its chain.
            self._todo[vb] = max(news, self._todo.get(vb, News.NONE))

    def overruled(self, vbucket: int) -> None:
        """Note that an operator has set the vbucket's state, which overrides map and fence."""
        self._bucket.unfence(vbucket)
        self._given_up.pop(vbucket, None)

    def look(self) -> None:
        """Reconcile the waiting vbuckets, now, and later in a task whenever there is room again."""
        self._timer = None
        if not self.reconcile() and not self._looking:
            self._looking = True
            self._server.loop.create_task(self._look_on())

    def stop(self) -> None:
        """Stop reconciling: forget the waiting vbuckets, and all that are asked for later."""
        self._is_stopped = True
        self._todo.clear()
        if self._timer is not None:
            self._timer.cancel()

    async def _look_on(self) -> None:
        try:
            while not self.reconcile():
                await self.room()
        finally:
            self._looking = False

    async def room(self) -> None:
        """Wait until records can probably be staged again."""
        if self._bucket.store.full:
            await asyncio.sleep(NO_ROOM_SECONDS)
            return
        has_room = asyncio.Event()
        self._bucket.committer.when_room(has_room.set)
        await has_room.wait()

    def reconcile(self) -> bool:
        """Give the waiting vbuckets their roles; return False if some still wait for room for their records.

        A vbucket that keeps its role needs no record. Vbuckets that are being handed over wait, but do not count.
        """
        cluster_map, sources, changed = self.known, dict[int, Address | None](), list[int]()
        self._given_up = self._not_durable()
        owned = len(self._given_up)
        self.moving.clear()
        if cluster_map is None:
            return True
        has_room = True
        for vb in sorted(self._todo):
            # A new role in the middle of a handover could lead to two owners, or none.
            if self.is_moving(vb):
                self.moving.add(vb)
                continue
            has_room = has_room and self._has_room()
            # Without room, only roles that change nothing are set: these vbuckets must be served even on a full disk.
            if not has_room and role(cluster_map, vb, self._bucket.state(vb), self._todo[vb]) != AS_IT_IS:
                continue
            news = self._todo.pop(vb)
            sources[vb] = self._take_role(cluster_map, vb, news)
            changed += [vb] if news else []
        # After all states are set, because only a replica may follow a node.
        self._following.obey(sources, news=changed)
        if len(self._given_up) > owned:
            given_count = len(self._given_up) - owned
            told_with = event("map.moved", version=cluster_map.version, vbuckets=given_count)
            log.warning("map %s gives %d vbuckets to other nodes", cluster_map.version, given_count, extra=told_with)
        if self.moving and self._timer is None:
            self._timer = self._server.loop.call_later(MOVING_AGAIN_SECONDS, self.look)
        return self._todo.keys() <= self.moving

    def _take_role(self, cluster_map: ClusterMap, vb: int, news: News) -> Address | None:
        """Give a vbucket its role; return the node that it must follow, or None."""
        new_role = role(cluster_map, vb, self._bucket.state(vb), news)
        if new_role.state is not None:
            self._become(vb, new_role.state)
        # An entry without an owner does not take a vbucket away; only another owner does (roles.py).
        is_ours = cluster_map.here is not None and cluster_map.owner(vb) in (None, cluster_map.here)
        if (is_ours and self.serves) or self._bucket.state(vb) is not State.ACTIVE:
            self._bucket.unfence(vb)
        return new_role.source

    def _become(self, vb: int, state: State) -> None:
        node_invariant(state is not State.ACTIVE, "a map makes vbucket {} active", vb)
        vbucket = self._bucket.vbuckets.get(vb)
        if vbucket is None:
            self._bucket.create_vbucket(vb, state)
            return
        was_active = vbucket.state is State.ACTIVE
        vbucket.set_state(state)
        # Recorded, because a lost batch would make the vbucket active again in memory: then it must be fenced and given
        # up again (`_lost`).
        if was_active:
            self._given_up[vb] = vbucket.gate

    def _not_durable(self) -> dict[int, int]:
        """Return the vbuckets that were given up in a batch that is not on disk. Any other may have been taken over
        again since, and is kept, whatever record of it is lost.
        """
        durable = self._bucket.committer.durable
        return {vb: gate for vb, gate in self._given_up.items() if gate > durable}

    def is_moving(self, vbucket: int) -> bool:
        """Return True if a takeover of the vbucket, from or to this node, is under way."""
        vbucket_ = self._bucket.vbuckets.get(vbucket)
        if vbucket_ is None:
            return False
        return vbucket_.handover is not None or (vbucket_.inbound is not None and vbucket_.inbound.takes_over)

    def _has_room(self) -> bool:
        store = self._bucket.store
        if store.full:
            return False
        arena, used = store.staging.room()
        return len(arena) - used > RECORD_BYTES

    def _lost(self, error: BaseException, vbuckets: list[int]) -> None:
        """Reconcile the vbuckets of a lost batch again. A vbucket that was given up may be active again, and is fenced
        first.
        """
        if self.known is None:
            return
        given_up = self._not_durable()
        again = [vb for vb in vbuckets if vb in given_up and self._bucket.state(vb) is State.ACTIVE]
        # At once, before a client can be served: by the map these vbuckets have another owner.
        self._bucket.fence(again)
        self.ask(again, News.OWNER)
        self.ask(vbuckets)
        if vbuckets and self._timer is None:
            self._timer = self._server.loop.call_later(LOST_SECONDS, self.look)
