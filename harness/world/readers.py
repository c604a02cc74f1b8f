"""Readers of changes in a simulated cluster, by the product's own client: each holds the changes it received, as a
mirror.

A reader continues at its position when a connection breaks, returns to the newest state that it shares with a node that
has another history, and reads a vbucket anew whose deletions were purged before it came. A reader of versions requests
each one that the nodes still have, and notes the seqnos of snapshots that brought only last versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from harness.simulation.histories import Change
from harness.world.workload import Login
from headwater.client import aio, safe_point
from headwater.client.changes import Deletion, Expiration, Mutation, SnapshotMarker
from headwater.errors import DataLoss, HeadwaterError, NothingCame, RollbackRequired
from headwater.protocol.dcp.position import Position

if TYPE_CHECKING:
    from harness.simulation.histories import Log
    from harness.world.befores import Replacing
    from headwater.client.changes import Event
    from headwater.client.feeds import AsyncChanges

PATIENCE_SECONDS = 5.0
WAIT_SECONDS = 3.0
AGAIN_SECONDS = 0.5
WINDOW_BYTES = 4000

OnSeen = Callable[[str, int, tuple[tuple[int, int], ...], int, Change], None]
OnReplaced: TypeAlias = "Callable[[str, Log, Replacing], None]"


class WorldReader:
    """A reader of all vbuckets.

    Args:
        on_seen: called with each change, and the failover log of its stream.
        on_replaced: called with each event that shows what it replaced, and that failover log; None to not request
            this.
        min_persisted, history: as the product's client has them.

    Attributes:
        held: the changes it holds, by vbucket and seqno.
        gaps: by vbucket (after, up to) of snapshots that brought only the last versions of documents.
        rollbacks: the number of rollbacks. seen: the number of changes so far.
        problem: why its last connection ended; it may have had another one since.
    """

    def __init__(
        self,
        name: str,
        seeds: Sequence[str],
        vbuckets: int,
        random: Random,
        on_seen: OnSeen,
        *,
        min_persisted: int = 0,
        login: Login = (None, None),
        history: bool = False,
        on_replaced: OnReplaced | None = None,
    ) -> None:
        self._login, self._on_replaced = login, on_replaced
        self.history = history
        self.gaps: dict[int, list[tuple[int, int]]] = {vb: [] for vb in range(vbuckets)}
        self.name = name
        self.held: dict[int, dict[int, Change]] = {vb: {} for vb in range(vbuckets)}
        self.places: dict[int, list[Position]] = {vb: [Position.beginning(vb)] for vb in range(vbuckets)}
        self.rollbacks = self.seen = 0
        self.problem = ""
        self._seeds, self._random, self._on_seen, self._min_persisted = seeds, random, on_seen, min_persisted

    def position(self, vb: int) -> Position:
        """Return the present position in a vbucket."""
        return self.places[vb][-1]

    @property
    def login(self) -> Login:
        """Return the login of the reader."""
        return self._login

    async def run(self) -> None:
        """Read for ever."""
        while True:
            try:
                async with aio.connect(f"couchbase://{','.join(self._seeds)}/default", *self.login) as bucket:
                    await self._read(bucket)
            except DataLoss as error:
                for vb in error.purged:
                    self._go_back(vb, 0)
            except RollbackRequired as error:
                self._go_back(error.vbucket, error.common)
            except HeadwaterError as error:
                self.problem = str(error)
                await asyncio.sleep(AGAIN_SECONDS)

    async def _read(self, bucket: aio.AsyncClient) -> None:
        start = {vb: places[-1] for vb, places in self.places.items()}
        async with bucket.changes(
            start,
            name=self.name,
            window_bytes=WINDOW_BYTES,
            patience_seconds=PATIENCE_SECONDS,
            max_wait_seconds=WAIT_SECONDS,
            noop_interval_seconds=5.0,
            min_persisted=self._min_persisted or None,
            history=self.history,
            before=self._on_replaced is not None,
        ) as feed:
            while True:
                try:
                    event = await anext(feed)
                except NothingCame:
                    continue
                except StopAsyncIteration:
                    return
                self._take(event, feed)

    def _take(self, event: Event, feed: AsyncChanges) -> None:
        if isinstance(event, Mutation | Deletion | Expiration):
            vb, place = event.vbucket, feed.position(event.vbucket)
            change = _change_of(event)
            self.seen += 1
            self._on_seen(self.name, vb, tuple(place.failover_log), event.seqno, change)
            if self._on_replaced is not None:
                self._on_replaced(self.name, tuple(place.failover_log), event)
            self.held[vb][event.seqno] = change
            self._save(place)
        elif isinstance(event, SnapshotMarker):
            self._announced(event, feed.position(event.vbucket))

    def _announced(self, marker: SnapshotMarker, place: Position) -> None:
        if self.history and marker.is_deduplicated:
            self.gaps[place.vbucket].append((place.seqno, marker.end_seqno))
        self._save(place)

    def _save(self, place: Position) -> None:
        """Save the present position, and drop earlier ones to which it can no longer return."""
        places = self.places[place.vbucket]
        while places and (not places[-1].complete or places[-1].seqno >= place.seqno):
            places.pop()
        places.append(place)

    def _go_back(self, vb: int, common: int) -> None:
        self.rollbacks += 1
        place = safe_point(self.places[vb], vb, common)
        self.held[vb] = {seqno: change for seqno, change in self.held[vb].items() if seqno <= place.seqno}
        self.places[vb] = [each for each in self.places[vb] if each.complete and each.seqno <= place.seqno] or [place]
        kept = ((after, min(upto, place.seqno)) for after, upto in self.gaps[vb])
        self.gaps[vb] = [(after, upto) for after, upto in kept if after < upto]

    def has_versions(self, vb: int, seqno: int) -> bool:
        """Return True if it received each version up to this seqno since the snapshot with it began."""
        return not any(after < seqno <= upto for after, upto in self.gaps[vb])

    def documents(self, vb: int) -> dict[bytes, tuple[int, Change]]:
        """Return the newest change of each key that it holds."""
        return {change.key: (seqno, change) for seqno, change in sorted(self.held[vb].items())}


def _change_of(event: Mutation | Deletion | Expiration) -> Change:
    if isinstance(event, Mutation):
        return Change(event.key, event.value, event.cas, event.rev_seqno, event.flags, event.expiry)
    return Change(event.key, None, event.cas, event.rev_seqno, 0, event.delete_time)
