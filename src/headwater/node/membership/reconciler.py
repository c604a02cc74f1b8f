"""The reconciler changes the roles of vbuckets to those of the map, as soon as possible.

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
"""A role that was lost with its batch is taken again so much later: the disk may fail the next one too."""

log: Final = logging.getLogger(__name__)


class Reconciler:
    """Gives the vbuckets of a node their roles by the map, and the replicas their streams.

    Args:
        following: the streams of replicas.

    Attributes:
        known: the map. serves: True if the fence is open, and vbuckets that this node has by the map may be served.
        moving: vbuckets that wait for the end of a handover.
    """

    def __init__(self, server: Services, following: Following) -> None:
        self.known: ClusterMap | None = None
        self.serves = False
        self.moving: set[int] = set()
        self._server = server
        self._bucket = server.bucket
        self._following = following
        self._todo: dict[int, News] = {}
        self._given_up: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._looking = False
        server.bucket.committer.on_failure.append(self._lost)

    @property
    def waiting(self) -> list[int]:
        """The vbuckets with another owner by the map that have not taken their new role yet."""
        return [vb for vb, news in self._todo.items() if news is News.OWNER]

    def ask(self, vbuckets: Iterable[int], news: News = News.NONE) -> None:
        """Reconcile these vbuckets at the next `look` or `reconcile`; the greater of new and earlier news applies."""
        for vb in vbuckets:
            # The highest news counts: a vbucket that waits for room because it lost its owner still has to give up
            # after a map that only changed its chain.
            self._todo[vb] = max(news, self._todo.get(vb, News.NONE))

    def overruled(self, vbucket: int) -> None:
        """Note that an operator has set the vbucket's state, which overrides map and fence."""
        self._bucket.unfence(vbucket)
        self._given_up.discard(vbucket)

    def look(self) -> None:
        """Reconcile the remaining vbuckets, now and whenever there is room again."""
        self._timer = None
        if not self.reconcile() and not self._looking:
            self._looking = True
            self._server.loop.create_task(self._look_on())

    def stop(self) -> None:
        """Stop reconciling."""
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
        there = asyncio.Event()
        self._bucket.committer.when_room(there.set)
        await there.wait()

    def reconcile(self) -> bool:
        """Give the vbuckets their roles; return False if there is no room for the records of the rest.

        A vbucket that keeps its role needs no record, and is served. Vbuckets that are being handed over do not count.
        """
        known, wanted, changed = self.known, dict[int, Address | None](), list[int]()
        owned = len(self._given_up)
        self.moving.clear()
        if known is None:
            return True
        has_room = True
        for vb in sorted(self._todo):
            # A hand-over is between its two nodes until it is over: a role taken in the middle could leave two owners,
            # or none.
            if self.is_moving(vb):
                self.moving.add(vb)
                continue
            has_room = has_room and self._has_room()
            # A role that changes nothing needs no record: on a full disk what is still this node's own must be served
            # all the same.
            if not has_room and role(known, vb, self._bucket.state(vb), self._todo[vb]) != AS_IT_IS:
                continue
            news = self._todo.pop(vb)
            wanted[vb] = self._take_role(known, vb, news)
            changed += [vb] if news else []
        # Behind all states: a replica must not follow before it is one.
        self._following.obey(wanted, news=changed)
        if len(self._given_up) > owned:
            given = len(self._given_up) - owned
            told_with = event("map.moved", version=known.version, vbuckets=given)
            log.warning("map %s gives %d vbuckets to other nodes", known.version, given, extra=told_with)
        if self.moving and self._timer is None:
            self._timer = self._server.loop.call_later(MOVING_AGAIN_SECONDS, self.look)
        return self._todo.keys() <= self.moving

    def _take_role(self, known: ClusterMap, vb: int, news: News) -> Address | None:
        """Give a vbucket its role; return the node that it must follow, or None."""
        wanted = role(known, vb, self._bucket.state(vb), news)
        if wanted.state is not None:
            self._become(vb, wanted.state)
        # An entry without an owner does not take a vbucket away by itself; only another owner does (roles.py).
        is_ours = known.here is not None and known.owner(vb) in (None, known.here)
        if (is_ours and self.serves) or self._bucket.state(vb) is not State.ACTIVE:
            self._bucket.unfence(vb)
        return wanted.source

    def _become(self, vb: int, state: State) -> None:
        node_invariant(state is not State.ACTIVE, "a map makes vbucket {} active", vb)
        vbucket = self._bucket.vbuckets.get(vb)
        if vbucket is None:
            self._bucket.create_vbucket(vb, state)
            return
        # Remembered, since a lost batch makes it active again in memory: then it must be fenced and given up once more
        # (`_lost`).
        if vbucket.state is State.ACTIVE:
            self._given_up.add(vb)
        vbucket.set_state(state)

    def is_moving(self, vbucket: int) -> bool:
        """Return True if the vbucket is being taken over, here or from here."""
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

    def _lost(self, error: BaseException, lost: list[int]) -> None:
        """Reconcile the vbuckets of a lost batch again; a vbucket that was given up may be active again, and is
        fenced.
        """
        if self.known is None:
            return
        again = [vb for vb in lost if vb in self._given_up and self._bucket.state(vb) is State.ACTIVE]
        # At once, before a client can be served: by the map these vbuckets have another owner.
        self._bucket.fence(again)
        self.ask(again, News.OWNER)
        self.ask(lost)
        if lost and self._timer is None:
            self._timer = self._server.loop.call_later(LOST_SECONDS, self.look)
