"""What the planner asks of the nodes: seqnos, failover logs and purge seqnos, as one consistent observation.

Spark ends a query on the first exception of a planner, and asks again by itself for nothing. So what may pass is
retried here: a node that is starting, a connection that broke, a vbucket that is moving.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from headwater.errors import StatusError, TransportError
from headwater.spark.history import History
from headwater.spark.settings import Settings

if TYPE_CHECKING:
    from headwater.client import Client
    from headwater.protocol.position import FailoverLog

T = TypeVar("T")
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.1, 2.0
STATS = "vbucket-seqno"


def patiently(
    attempt: Callable[[], T],
    patience_seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Return what `attempt` returns; what may pass is tried again, with growing pauses, for `patience_seconds`.

    Raises:
        TransportError, StatusError: the last one when patience ran out, or at once one that does not pass.
    """
    deadline, pause = clock() + patience_seconds, PAUSE_SECONDS
    while True:
        try:
            return attempt()
        except (TransportError, StatusError) as error:
            passing = isinstance(error, TransportError) or error.retriable
            if not passing or clock() + pause > deadline:
                raise
        sleep(pause)
        pause = min(2 * pause, PAUSE_SECONDS_MAX)


def connect(settings: Settings) -> Client:
    """Open a client for the planner or a task. Imported here: Spark loads the source's module in every session."""
    from headwater import client  # noqa: PLC0415

    return client.connect(settings.url, user=settings.user, password=settings.password)


class Nodes:
    """The planner's connection; made when first needed, made anew when it broke.

    Args:
        settings: whom to ask, for which vbuckets, and for how long to go on asking.
        connect: opens a client.
    """

    def __init__(self, settings: Settings, connect: Callable[[Settings], Client] = connect) -> None:
        self._settings, self._connect = settings, connect
        self._client: Client | None = None
        self._logs: dict[int, FailoverLog] = {}

    def close(self) -> None:
        """Close the connection, if there is one."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def observe(self) -> dict[int, History]:
        """Return what the nodes hold now, by vbucket: all active ones among those that are wanted.

        A failover log and a high seqno come by two questions. Seqnos are asked first; if the log that is read
        afterwards is the one known before, no failover lay between, and the two belong together. Otherwise once more.

        Raises:
            TransportError, StatusError: the nodes did not answer within the option `retrySeconds`.
        """
        return patiently(self._attempt, self._settings.retry_seconds)

    def _attempt(self) -> dict[int, History]:
        try:
            return self._observe()
        except (TransportError, StatusError):
            self.close()  # the map may be out of date as well
            raise

    def _observe(self) -> dict[int, History]:
        while True:
            client = self._client = self._client or self._connect(self._settings)
            highs = self._wanted(client.seqnos())
            stats = client.stats(STATS)
            known, self._logs = self._logs, self._logs_of(client, highs, stats)
            if known.keys() - highs.keys():
                self.close()  # a vbucket moved away: next time with a fresh map
            if all(known.get(vb) == log for vb, log in self._logs.items()):
                purged = purge_seqnos(stats)
                return {vb: History(log, highs[vb], purged.get(vb, 0)) for vb, log in self._logs.items()}

    def _wanted(self, highs: Mapping[int, int]) -> dict[int, int]:
        wanted = self._settings.vbuckets
        return {vb: high for vb, high in highs.items() if wanted is None or vb in wanted}

    def _logs_of(self, client: Client, highs: Mapping[int, int], stats: Mapping[str, str]) -> dict[int, FailoverLog]:
        """Ask for the logs, one request a vbucket; but not for those whose newest uuid the statistics tell is known.

        Statistics tell of replicas too, so with several nodes they say nothing sure about the active one.
        """
        alone = len(client.map.nodes) == 1
        return {
            vb: self._logs[vb]
            if alone and vb in self._logs and stats.get(f"vb_{vb}:uuid") == str(self._logs[vb][0][0])
            else tuple((uuid, seqno) for uuid, seqno in client.failover_log(vb))
            for vb in highs
        }


def purge_seqnos(stats: Mapping[str, str]) -> dict[int, int]:
    """Return the purge seqno of each vbucket that the statistics `vbucket-seqno` tell of."""
    named = ((name.partition(":"), text) for name, text in stats.items() if name.startswith("vb_"))
    return {int(parts[0][3:]): int(text) for parts, text in named if parts[2] == "purge_seqno"}
