"""Observes the nodes for the planner: seqnos, failover logs and purge seqnos, as one consistent observation.

Spark ends a query on the first exception of a planner, and retries nothing. So failures that may pass are retried here:
a node that starts, a connection that broke, a vbucket that moves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from headwater.errors import ConnectionLost, NotMyVbucket, OptionError, StatusError, TransportError
from headwater.protocol.dcp.complete import ClocksHeld, Completeness
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
"""The interval at which the failover logs and purge seqnos of all vbuckets are read even if no seqno changes."""

SINGLY_MAX = 64
"""The most vbuckets whose statistics are asked for one by one; those of all come in one answer for each node."""

STATS = "vbucket-seqno"
Stats: TypeAlias = Mapping[int, Mapping[str, str]]
"""The statistics from the owners, by vbucket and name."""


def patiently(
    attempt: Callable[[], T],
    patience_seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    on_failure: Callable[[Exception], object] = lambda error: None,
) -> T:
    """Return the result of `attempt`; retry failures that may pass, with growing pauses, for `patience_seconds`.

    Args:
        on_failure: called with each failure before a retry.

    Raises:
        TransportError, StatusError: the last failure when the time is over, or at once one that will not pass.
    """
    deadline, pause = clock() + patience_seconds, PAUSE_SECONDS
    while True:
        try:
            return attempt()
        except (TransportError, StatusError) as error:
            if not error.retriable or clock() + pause > deadline:
                raise
            on_failure(error)
        sleep(pause)
        pause = min(2 * pause, PAUSE_SECONDS_MAX)


def connect(settings: SourceSettings) -> Client:
    """Open a client for the planner or a task, with a cluster map at least as new as `settings.map_version`.

    Raises:
        TransportError, StatusError: no node that answers has such a map: all may be former owners that were cut off.
    """
    from headwater import client  # Spark loads the source's module in every session

    connected = client.connect(settings.url, user=settings.user, password=settings.password)
    # A former owner that was cut off still answers, with an older map, and has what a failover took back.
    if connected.map.version >= settings.map_version or connected.look_for_newer_map().version >= settings.map_version:
        return connected
    version = ".".join(map(str, settings.map_version))
    problem = f"all nodes that answer have cluster map {connected.map.label}, and the batch was planned by {version}"
    connected.close()
    raise ConnectionLost(settings.url, problem)


class KnownNodes(NamedTuple):
    """The nodes as a planner knows them, for its tasks.

    Attributes:
        url: url with all nodes.
        map_version: (epoch, rev) of the newest cluster map.
    """

    url: str
    map_version: tuple[int, int]

    def for_task(self, settings: SourceSettings) -> SourceSettings:
        """Return the settings for a task."""
        return replace(settings, url=self.url, map_version=self.map_version)


class Ownerless(NamedTuple):
    """Vbuckets that no node has: their number, and the seconds since there have been any."""

    vbuckets: int = 0
    seconds: float = 0.0


class SourceNodes:
    """The planner's client; created when first needed. It follows the map, and opens lost connections again.

    Args:
        settings: nodes, vbuckets, and the time for retries.
        connect: opens a client.
        clock: returns seconds.

    Attributes:
        vbuckets: number of vbuckets of the bucket at the last observation.
        ownerless: the wanted vbuckets that had no node at the last observation. They are not read, all others are.
        complete: the time up to which a reader has everything, by the observations.
    """

    vbuckets: int = VBUCKET_NUMBERS
    ownerless: Ownerless = Ownerless()

    def __init__(
        self,
        settings: SourceSettings,
        connect: Callable[[SourceSettings], Client] = connect,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._connect, self._clock = settings, connect, clock
        self._client: Client | None = None
        self._logs: dict[int, FailoverLog] = {}
        self._histories: dict[int, BranchHistory] = {}
        self._purge_seqnos: dict[int, int] = {}
        self._highs: dict[int, int] = {}
        self._whole_at = float("-inf")
        self._silence, self._lack = Remarks(clock), Remarks(clock)
        self.complete: Final = Completeness()

    def close(self) -> None:
        """Close the connection, if there is one."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def observe(
        self, *, all_owners: bool = False, idle: bool = False, resting: Collection[int] = ()
    ) -> dict[int, BranchHistory]:
        """Return the present histories of all wanted vbuckets that have an active node.

        A failover log and a high seqno come by two requests. Seqnos are read first; if the log that is read afterwards
        is unchanged, no failover happened in between, and the two belong together. Otherwise both are read again.

        Args:
            all_owners: True to wait for a vbucket that no node owns at present, as for one that moves.
            idle: True if the caller had read everything of the last observation. While no seqno changes, that
                observation is returned again, for some seconds: one short answer of each node instead of the statistics
                of every vbucket.
            resting: vbuckets of which the caller had read everything, and has read nothing since. While few others are
                left, only the statistics of those are requested, for some seconds.

        Raises:
            TransportError, StatusError: the nodes did not answer within the option `retrySeconds`.
        """
        histories = patiently(
            lambda: self._observe(all_owners, idle, resting),
            self._settings.retry_seconds,
            on_failure=lambda error: self._silence.waits(f"the nodes can't say how far they are: {error}"),
        )
        self._silence.is_over("the nodes say how far they are")
        return histories

    def covered(self, start: Offset) -> Coverage | None:
        """Return the collections to read, by id, for a reader at `start`.

        Raises:
            OptionError: `start` was read with another choice.
            UnknownCollection, UnknownScope: a chosen collection or scope does not exist.
            TransportError, StatusError: the nodes did not answer within the option `retrySeconds`.
        """
        if not self._settings.chooses and start.coverage is None:
            return None
        return patiently(lambda: self._coverage_of(start), self._settings.retry_seconds)

    def _coverage_of(self, start: Offset) -> Coverage | None:
        from headwater.client.collections import check_start, resolve, resolve_again

        manifest, names_wanted = self._connected().manifest(), self._settings.collections
        names = "all" if names_wanted == ("all",) else names_wanted
        coverage = None
        if self._settings.chooses:
            resolver = resolve if start.coverage is None else partial(resolve_again, saved=start.coverage)
            coverage = resolver(manifest, names, self._settings.scope)
        # Bare seqnos that a user gave (`startingOffsets`) name no history, and are of whatever is chosen.
        positions = {vb: replace(at, coverage=start.coverage) for vb, at in start.positions.items() if at.vb_uuid}
        check_start(positions, coverage, manifest)
        if start.coverage is None or coverage is start.coverage:
            return coverage
        return start.coverage.within(manifest)

    def manifest(self, at_least: int = 0) -> CollectionsManifest:
        """Return the scopes and collections of the bucket, from the first node that answers; if its uid is below
        `at_least`, the newest manifest of all nodes.

        Raises:
            TransportError, StatusError: the nodes did not answer within the option `retrySeconds`.
        """
        return patiently(lambda: self._connected().manifest(at_least), self._settings.retry_seconds)

    def newest_manifest(self) -> CollectionsManifest:
        """Return the newest manifest of all nodes that own a wanted vbucket.

        A collection whose changes were read, and that this manifest lacks, was dropped.

        Raises:
            TransportError, StatusError: one of the nodes did not answer within the option `retrySeconds`.
        """
        numbers = self._settings.vbuckets
        return patiently(lambda: self._connected().newest_manifest(numbers), self._settings.retry_seconds)

    def manifest_to_drop_by(self, absent: str, by_hand: str) -> CollectionsManifest:
        """Return the newest manifest of all nodes, which certainly has all collections of the bucket.

        Args:
            absent: name of a collection that seems to be dropped. by_hand: the step that drops its copy.

        Raises:
            OptionError: the user may see only parts of the bucket, so that `absent` may still exist.
            TransportError, StatusError: a node did not answer within the option `retrySeconds`.
        """
        from headwater.client.unread import whole_manifest

        manifest = patiently(lambda: whole_manifest(self._connected()), self._settings.retry_seconds)
        if manifest is None:
            allowed = "known to be dropped at the source: the user there has rights in parts of the bucket only, and is"
            allowed += " shown no other collections; give that user the role stream in the whole bucket,"
            raise OptionError("collections", absent, f"{allowed} or, if it was dropped, {by_hand}")
        return manifest

    def collection_seqnos(self, collection_id: int) -> dict[int, int]:
        """Return the high seqno of a collection in each vbucket.

        Raises:
            UnknownCollection: there is no collection with this id.
            TransportError, StatusError: the nodes did not answer within the option `retrySeconds`.
        """
        return patiently(lambda: self._connected().seqnos(collection_id), self._settings.retry_seconds)

    def known(self) -> KnownNodes:
        """Return the known nodes and the map's version.

        A task may start when the node of the url is gone, or does not know of a failover yet: so a task gets all nodes,
        and the version of the newest map.

        Raises:
            TransportError, StatusError: the nodes did not answer within the option `retrySeconds`.
        """
        client = patiently(self._connected, self._settings.retry_seconds)
        if len(client.map.servers) < 2:
            return KnownNodes(self._settings.url, client.map.version)
        from headwater.client.routing import parse

        target = parse(self._settings.url)
        nodes = dict.fromkeys((*client.map.servers, *target.seeds))
        return KnownNodes(replace(target, seeds=tuple(nodes)).url, client.map.version)

    def _connected(self) -> Client:
        if self._client is None:
            self._client = self._connect(self._settings)
            # A node that is no cluster's member has a map of itself alone; another's of this kind is not a newer one.
            if len(self._client.map.servers) > 1:
                self._client.look_for_newer_map()
        return self._client

    def _observe(self, all_owners: bool, idle: bool, resting: Collection[int]) -> dict[int, BranchHistory]:
        client = self._connected()
        self.vbuckets = client.map.vbuckets
        while True:
            clocks = self._hold_clocks(client)
            # The plain question is about the default collection alone (kv 3): changes of the others would stay unread.
            highs = self._of_chosen_vbuckets(client.seqnos("all") if self._settings.chooses else client.seqnos())
            self._note_ownerless(client, highs)
            if clocks is not None:
                self.complete.look(clocks[0], highs, self._settings.vbuckets or range(client.map.vbuckets), clocks[1])
            if idle and self._is_seen(highs):
                return self._histories
            if all_owners:
                self._check_whole(client, highs)
            earlier_logs, self._logs = self._logs, self._read_logs(client, highs, resting)
            if all(earlier_logs.get(vb) == log for vb, log in self._logs.items()):
                self._highs, on_disk = highs, self._on_disk(client)
                # A node tells the newest seqno that it still shows, which is less than the purge seqno where the newest
                # change was a deletion. A reader that ended there would have to begin again, batch after batch.
                self._histories = {
                    vb: BranchHistory(
                        log, max(highs[vb], self._purge_seqnos[vb]), self._purge_seqnos[vb], on_disk.get(vb)
                    )
                    for vb, log in self._logs.items()
                }
                return self._histories
            self._whole_at = float("-inf")  # a failover has come in between: all are looked at, also by another try

    def _hold_clocks(self, client: Client) -> tuple[ClocksHeld, float] | None:
        """Return the nodes' promises, requested before any seqno, and the time before that; None while a node is
        silent.
        """
        now = self._clock()
        if self.complete.rests(now):
            return None
        clock_time = self.complete.wanted(now)
        if not clock_time:
            # The first time: what is there to promise is known only now.
            first = client.hold_clocks()
            if first.problem or not first.is_promised:
                return first, now
            clock_time = first.now
        return client.hold_clocks(clock_time), now

    def _read_logs(self, client: Client, highs: Mapping[int, int], resting: Collection[int]) -> dict[int, FailoverLog]:
        """Read failover logs and purge seqnos: of all vbuckets, or of those that do not rest.

        A vbucket that was just read needs both anew: the node may have sent the task back to 0, for a purge or a
        failover, so that the task read nothing, and a later look would not show that.
        """
        resting_vbuckets = self._at_rest(highs, resting)
        unsettled = highs.keys() - resting_vbuckets
        if resting_vbuckets and len(unsettled) <= min(SINGLY_MAX, len(highs) // 4):
            with suppress(StatusError):  # one has moved
                return self._logs_of(
                    client, highs, client.vbucket_stats(STATS, unsettled) if unsettled else {}, resting_vbuckets
                )
        # Before the questions: what changes between them has not been looked at.
        began = self._clock()
        logs = self._logs_of(client, highs, client.vbucket_stats(STATS), frozenset())
        self._whole_at = began
        return logs

    def _at_rest(self, highs: Mapping[int, int], resting: Collection[int]) -> frozenset[int]:
        """Return those of `resting` whose high seqno is unchanged since the last look at all vbuckets, if that was
        recent.
        """
        if self._clock() >= self._whole_at + WHOLE_LOOK_SECONDS:
            return frozenset()
        looked_at = self._histories.keys() & self._logs.keys()
        return frozenset(vb for vb in resting if vb in looked_at and highs.get(vb) == self._highs.get(vb))

    def _on_disk(self, client: Client) -> dict[int, int]:
        numbers = self._settings.min_persisted
        if numbers is None:
            return {}
        return client.persisted_seqnos({vb: log[0][0] for vb, log in self._logs.items()}, numbers)

    def _is_seen(self, highs: Mapping[int, int]) -> bool:
        """Return True if no seqno has changed since the last observation, and all vbuckets were looked at recently."""
        # Changes that wait for other copies become readable though no seqno changes.
        same = highs == self._highs and all(
            history.readable_seqno == history.high_seqno for history in self._histories.values()
        )
        return same and self._clock() < self._whole_at + WHOLE_LOOK_SECONDS

    def _of_chosen_vbuckets(self, highs: Mapping[int, int]) -> dict[int, int]:
        numbers = self._settings.vbuckets
        return {vb: high for vb, high in highs.items() if numbers is None or vb in numbers}

    def _check_whole(self, client: Client, highs: Mapping[int, int]) -> None:
        """Check that all vbuckets have an owner: otherwise "up to now" would silently skip their history.

        Raises:
            NotMyVbucket: a vbucket has none.
        """
        numbers = self._settings.vbuckets or range(client.map.vbuckets)
        ownerless = [vb for vb in numbers if vb not in highs]
        if ownerless:
            problem = f"{len(ownerless)} of {len(numbers)} vbuckets, the first is {ownerless[0]},"
            servers = client.map.servers
            alone = f", which names {servers[0]} alone: ask a node that knows who has them" if len(servers) == 1 else ""
            raise NotMyVbucket(f"{problem} have no active node in the cluster map {client.map.label}{alone}")

    def _note_ownerless(self, client: Client, highs: Mapping[int, int]) -> None:
        """Log vbuckets without a node: without a warning their job would seem to have no lag."""
        numbers = self._settings.vbuckets or range(client.map.vbuckets)
        ownerless = [] if len(highs) == len(numbers) else [vb for vb in numbers if vb not in highs]
        if not ownerless:
            self.ownerless = Ownerless()
            self._lack.is_over("all vbuckets have a node")
            return
        numbers_text = ", ".join(map(str, ownerless[:10])) + (", ..." if len(ownerless) > 10 else "")
        problem = (
            f"{len(ownerless)} of {len(numbers)} vbuckets have no node, and nothing of them is read: {numbers_text}"
        )
        self.ownerless = Ownerless(len(ownerless), self._lack.waits(problem))

    def _logs_of(
        self, client: Client, highs: Mapping[int, int], stats: Stats, resting_vbuckets: Collection[int]
    ) -> dict[int, FailoverLog]:
        """Read the failover logs, and take the purge seqnos from the statistics.

        Logs of vbuckets at rest, and those whose newest vb uuid is unchanged by the statistics, are not requested
        again.
        """
        recorded = {
            vb: self._logs[vb]
            for vb in highs
            if vb in resting_vbuckets
            or (vb in self._logs and stats.get(vb, {}).get("uuid") == str(self._logs[vb][0][0]))
        }
        logs = client.failover_logs(highs.keys() - recorded.keys()) if len(recorded) < len(highs) else {}
        self._purge_seqnos = {
            vb: self._purge_seqnos[vb] if vb in resting_vbuckets else purge_seqno(stats, vb) for vb in highs
        }
        return {vb: recorded[vb] if vb in recorded else tuple(logs[vb]) for vb in highs}


def purge_seqno(stats: Stats, vbucket: int) -> int:
    """Return the purge seqno of a vbucket from its owner's statistics `vbucket-seqno`."""
    return int(stats.get(vbucket, {}).get("purge_seqno", 0))
