"""Observe the nodes for the planner: seqnos, failover logs and purge seqnos, as one consistent observation.

Spark ends a query on the first exception of a planner, and asks again by itself for nothing. So what may pass is
retried here: a node that is starting, a connection that broke, a vbucket that is moving.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from headwater.errors import ConnectionLost, NotMyVbucket, OptionError, StatusError, TransportError
from headwater.spark.history import BranchHistory
from headwater.spark.offsets import Offset
from headwater.spark.remarks import Remarks
from headwater.spark.settings import SourceSettings
from headwater.wire.vbucket import VBUCKET_NUMBERS

if TYPE_CHECKING:
    from headwater.client import Client
    from headwater.protocol.dcp.coverage import Coverage
    from headwater.protocol.dcp.position import FailoverLog
    from headwater.wire.manifest import CollectionsManifest

T = TypeVar("T")
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.1, 2.0
WHOLE_LOOK_SECONDS = 10.0
"""How often failover logs and purge seqnos are asked for though no seqno moves."""

STATS = "vbucket-seqno"
Stats: TypeAlias = Mapping[int, Mapping[str, str]]
"""The statistics that owners tell, by vbucket and name."""


def patiently(
    attempt: Callable[[], T],
    patience_seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    failed: Callable[[Exception], object] = lambda error: None,
) -> T:
    """Return what `attempt` returns; what may pass is tried again, with growing pauses, for `patience_seconds`.
    `failed` hears of each failure after which that is done.

    Raises:
        TransportError, StatusError: the last one when patience ran out, or at once one that does not pass.
    """
    deadline, pause = clock() + patience_seconds, PAUSE_SECONDS
    while True:
        try:
            return attempt()
        except (TransportError, StatusError) as error:
            if not error.retriable or clock() + pause > deadline:
                raise
            failed(error)
        sleep(pause)
        pause = min(2 * pause, PAUSE_SECONDS_MAX)


def connect(settings: SourceSettings) -> Client:
    """Open a client for the planner or a task, with a cluster map at least as new as `settings.map_version`.

    Raises:
        TransportError, StatusError: no node that answers has one: they may all be former owners that were cut off.
    """
    from headwater import client  # Spark loads the source's module in every session

    connected = client.connect(settings.url, user=settings.user, password=settings.password)
    if connected.map.version >= settings.map_version or connected.look_for_newer_map().version >= settings.map_version:
        return connected
    known = ".".join(map(str, settings.map_version))
    told = f"all nodes that answer have cluster map {connected.map.label}, and the batch was planned by {known}"
    connected.close()
    raise ConnectionLost(settings.url, told)


class Known(NamedTuple):
    """The nodes as a planner knows them, for its tasks.

    Attributes:
        url: with all nodes.
        map_version: (epoch, rev) of the newest cluster map.
    """

    url: str
    map_version: tuple[int, int]

    def told(self, settings: SourceSettings) -> SourceSettings:
        """Return settings as a task gets them."""
        return replace(settings, url=self.url, map_version=self.map_version)


class Ownerless(NamedTuple):
    """Vbuckets that no node has: how many, and for how many seconds there have been any."""

    vbuckets: int = 0
    seconds: float = 0.0


class SourceNodes:
    """The planner's client; made when first needed. It follows the map by itself, and makes lost connections anew.

    Args:
        settings: whom to ask, for which vbuckets, and for how long to go on asking.
        connect: opens a client.
        clock: seconds.

    Attributes:
        vbuckets: how many the bucket has, as was last observed.
        ownerless: those of the wanted ones that had no node then. Of them nothing is read, of the others everything.
    """

    vbuckets: int = VBUCKET_NUMBERS
    ownerless = Ownerless()

    def __init__(
        self,
        settings: SourceSettings,
        connect: Callable[[SourceSettings], Client] = connect,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._connect, self._clock = settings, connect, clock
        self._client: Client | None = None
        self._logs: dict[int, FailoverLog] = {}
        self._seen: dict[int, BranchHistory] = {}
        self._seen_at = float("-inf")
        self._silence, self._lack = Remarks(clock), Remarks(clock)

    def close(self) -> None:
        """Close the connection, if there is one."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def observe(self, *, whole: bool = False, idle: bool = False) -> dict[int, BranchHistory]:
        """Return what the nodes hold now, by vbucket: all active ones among those that are wanted.

        A failover log and a high seqno come by two questions. Seqnos are asked first; if the log that is read
        afterwards is the one known before, no failover lay between, and the two belong together. Otherwise once more.

        Args:
            whole: a vbucket that no node owns at present is waited for, as one that moves always is.
            idle: the asker has all there was the last time. While no seqno moves it gets the same again, for some
                seconds: one short answer of each node instead of the statistics of every vbucket.

        Raises:
            TransportError, StatusError: the nodes did not answer within the option `retrySeconds`.
        """
        seen = patiently(
            lambda: self._observe(whole, idle),
            self._settings.retry_seconds,
            failed=lambda error: self._silence.waits(f"the nodes can't say how far they are: {error}"),
        )
        self._silence.is_over("the nodes say how far they are")
        return seen

    def covered(self, start: Offset) -> Coverage | None:
        """Return the collections that are read, by id, for a reader who stands at `start`.

        Raises:
            OptionError: `start` was read with another choice.
            UnknownCollection, UnknownScope: what was chosen is not there.
            TransportError, StatusError: the nodes did not answer within the option `retrySeconds`.
        """
        if not self._settings.chooses and start.coverage is None:
            return None
        return patiently(lambda: self._covered(start), self._settings.retry_seconds)

    def _covered(self, start: Offset) -> Coverage | None:
        from headwater.client.collections import check_start, resolve, resolve_again

        manifest, wanted = self._connected().manifest(), self._settings.collections
        names = "all" if wanted == ("all",) else wanted
        asked = None
        if self._settings.chooses:
            again = resolve if start.coverage is None else partial(resolve_again, held=start.coverage)
            asked = again(manifest, names, self._settings.scope)
        # Bare seqnos that a user gave (`startingOffsets`) name no history, and are of whatever is chosen.
        held = {vb: replace(at, coverage=start.coverage) for vb, at in start.positions.items() if at.vb_uuid}
        check_start(held, asked, manifest)
        if start.coverage is None or asked is start.coverage:
            return asked
        return start.coverage.within(manifest)

    def manifest(self, at_least: int = 0) -> CollectionsManifest:
        """Return the scopes and collections of the bucket, as the first node knows them that answers; while the uid is
        below `at_least`, the newest of all nodes.

        Raises:
            TransportError, StatusError: the nodes did not answer within the option `retrySeconds`.
        """
        return patiently(lambda: self._connected().manifest(at_least), self._settings.retry_seconds)

    def newest_manifest(self) -> CollectionsManifest:
        """Return the newest manifest of all nodes that own a wanted vbucket: a collection of which changes have come,
        and which is not in it, was dropped.

        Raises:
            TransportError, StatusError: one of them did not answer within the option `retrySeconds`.
        """
        wanted = self._settings.vbuckets
        return patiently(lambda: self._connected().newest_manifest(wanted), self._settings.retry_seconds)

    def manifest_to_drop_by(self, absent: str, by_hand: str) -> CollectionsManifest:
        """Return the newest manifest of all nodes, of which it is sure that it has all collections of the bucket.

        Args:
            absent: the name of a collection that seems to be dropped. by_hand: the step that drops its copy.

        Raises:
            OptionError: the user is shown parts of the bucket, so nobody can say whether `absent` is there.
            TransportError, StatusError: a node did not answer within the option `retrySeconds`.
        """
        from headwater.client.unread import whole_manifest

        found = patiently(lambda: whole_manifest(self._connected()), self._settings.retry_seconds)
        if found is None:
            allowed = "known to be dropped at the source: the user there has rights in parts of the bucket only, and is"
            allowed += " shown no other collections; give that user the roles monitor and stream in the whole bucket,"
            raise OptionError("collections", absent, f"{allowed} or, if it was dropped, {by_hand}")
        return found

    def collection_seqnos(self, collection_id: int) -> dict[int, int]:
        """Return how far a collection has come in each vbucket.

        Raises:
            UnknownCollection: there is none of this id.
            TransportError, StatusError: the nodes did not answer within the option `retrySeconds`.
        """
        return patiently(lambda: self._connected().seqnos(collection_id), self._settings.retry_seconds)

    def known(self) -> Known:
        """Return the nodes and the map's version that are known.

        A task may start when the node of the url is gone, or while it does not know of a failover. So whoever starts
        with an old checkpoint looks for the newest map first, too.

        Raises:
            TransportError, StatusError: the nodes did not answer within the option `retrySeconds`.
        """
        client = patiently(self._connected, self._settings.retry_seconds)
        if len(client.map.servers) < 2:
            return Known(self._settings.url, client.map.version)
        from headwater.client.routing import parse

        target = parse(self._settings.url)
        nodes = dict.fromkeys((*client.map.servers, *target.seeds))
        return Known(replace(target, seeds=tuple(nodes)).url, client.map.version)

    def _connected(self) -> Client:
        if self._client is None:
            self._client = self._connect(self._settings)
            # A node that is no cluster's member has a map of itself alone; another's of this kind is not a newer one.
            if len(self._client.map.servers) > 1:
                self._client.look_for_newer_map()
        return self._client

    def _observe(self, whole: bool, idle: bool) -> dict[int, BranchHistory]:
        client = self._connected()
        self.vbuckets = client.map.vbuckets
        while True:
            highs = self._wanted(client.seqnos("all") if self._settings.chooses else client.seqnos())
            self._note_ownerless(client, highs)
            if idle and self._is_seen(highs):
                return self._seen
            if whole:
                self._check_whole(client, highs)
            stats = client.vbucket_stats(STATS)
            known, self._logs = self._logs, self._logs_of(client, highs, stats)
            if all(known.get(vb) == log for vb, log in self._logs.items()):
                self._seen_at = self._clock()
                on_disk = self._on_disk(client)
                self._seen = {
                    vb: BranchHistory(log, highs[vb], purge_seqno(stats, vb), on_disk.get(vb))
                    for vb, log in self._logs.items()
                }
                return self._seen

    def _on_disk(self, client: Client) -> dict[int, int]:
        wanted = self._settings.min_persisted
        if wanted is None:
            return {}
        return client.persisted_seqnos({vb: log[0][0] for vb, log in self._logs.items()}, wanted)

    def _is_seen(self, highs: Mapping[int, int]) -> bool:
        """Return True if nothing has moved since all was looked at, which was not long ago."""
        # What waits for other copies moves though no seqno does.
        same = highs == {vb: history.readable_seqno for vb, history in self._seen.items()}
        return same and self._clock() < self._seen_at + WHOLE_LOOK_SECONDS

    def _wanted(self, highs: Mapping[int, int]) -> dict[int, int]:
        wanted = self._settings.vbuckets
        return {vb: high for vb, high in highs.items() if wanted is None or vb in wanted}

    def _check_whole(self, client: Client, highs: Mapping[int, int]) -> None:
        """Check that all vbuckets have an owner: without it "up to now" would pass their history over in silence."""
        wanted = self._settings.vbuckets or range(client.map.vbuckets)
        lost = [vb for vb in wanted if vb not in highs]
        if lost:
            told = f"{len(lost)} of {len(wanted)} vbuckets, the first is {lost[0]},"
            servers = client.map.servers
            alone = f", which names {servers[0]} alone: ask a node that knows who has them" if len(servers) == 1 else ""
            raise NotMyVbucket(f"{told} have no active node in the cluster map {client.map.label}{alone}")

    def _note_ownerless(self, client: Client, highs: Mapping[int, int]) -> None:
        """Without a word a job would look level whose vbuckets have no node."""
        wanted = self._settings.vbuckets or range(client.map.vbuckets)
        lost = [] if len(highs) == len(wanted) else [vb for vb in wanted if vb not in highs]
        if not lost:
            self.ownerless = Ownerless()
            self._lack.is_over("all vbuckets have a node")
            return
        named = ", ".join(map(str, lost[:10])) + (", ..." if len(lost) > 10 else "")
        told = f"{len(lost)} of {len(wanted)} vbuckets have no node, and nothing of them is read: {named}"
        self.ownerless = Ownerless(len(lost), self._lack.waits(told))

    def _logs_of(self, client: Client, highs: Mapping[int, int], stats: Stats) -> dict[int, FailoverLog]:
        """Ask for the logs, in one go; but not for those whose newest uuid the statistics tell is known."""
        known = {
            vb: self._logs[vb]
            for vb in highs
            if vb in self._logs and stats.get(vb, {}).get("uuid") == str(self._logs[vb][0][0])
        }
        asked = client.failover_logs(highs.keys() - known.keys()) if len(known) < len(highs) else {}
        return {vb: known[vb] if vb in known else tuple(asked[vb]) for vb in highs}


def purge_seqno(stats: Stats, vbucket: int) -> int:
    """Return the purge seqno of a vbucket, as its owner's statistics `vbucket-seqno` tell it."""
    return int(stats.get(vbucket, {}).get("purge_seqno", 0))
