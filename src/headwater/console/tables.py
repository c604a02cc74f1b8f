"""Mirrors' tables, read from their folders: the lag of each behind the bucket, and its last batches.

The table's own record has the offset up to which it holds the bucket; no request goes to the mirror, which may not even
run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater.cluster.answers import failover_statistics
from headwater.console import readings
from headwater.console.lookout import plain
from headwater.errors import HeadwaterError, RemoteProtocolError, TableAway, TableError

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.console.figures import VbucketRow
    from headwater.console.lookout import TimedAnswer
    from headwater.lake.log import TableLog
    from headwater.protocol.dcp.position import Position

BATCHES_SHOWN = 25
ROLLBACKS_SHOWN = 25
HISTORY = 500
"""The number of commits that are searched for rollbacks."""


@dataclass(frozen=True, slots=True)
class TableBatch:
    """A commit of a table; None for a count that the commit does not have."""

    version: int
    at: float
    operation: str
    mutations: int | None
    deletions: int | None
    rollbacks: int | None
    files: int | None


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a vbucket's history: the high seqno of its owner, and its failover log, newest branch first."""

    seqno: int
    log: Sequence[tuple[int, int]]

    def shared(self, position: Position) -> int:
        """Return the last seqno that this history shares with a position; 0 if it lacks the position's branch."""
        end, shared_end = self.seqno, 0
        for uuid, branch_begin in self.log:  # of a uuid listed twice the older branch decides, as for a stream request
            shared_end, end = (end if uuid == position.vb_uuid else shared_end), branch_begin
        return min(position.seqno, shared_end)

    def is_on_lost_branch(self, position: Position) -> bool:
        """Return True if a position is on a lost branch, above the end of the shared history.

        A position on the newest branch has not left, even above `seqno`, which may be older than the position.
        """
        return self.log[0][0] != position.vb_uuid and self.shared(position) < position.seqno


def heads_of(
    rows: Iterable[VbucketRow], failovers: Mapping[Address, TimedAnswer[Mapping[str, str]]]
) -> dict[int, Head | None]:
    """Return the head of each vbucket by its owner's seqno and STAT failovers; None if one of them is unknown."""
    return {row.vbucket: _head(row, failovers) for row in rows}


def _head(row: VbucketRow, failovers: Mapping[Address, TimedAnswer[Mapping[str, str]]]) -> Head | None:
    answer = failovers.get(row.owner) if row.owner is not None else None
    if row.seqno is None or answer is None or not answer.is_fresh or answer.answer is None:
        return None
    try:
        return Head(row.seqno, failover_statistics(row.vbucket, answer.answer))
    except RemoteProtocolError:
        return None


@dataclass(frozen=True, slots=True)
class MirrorTable:
    """The present state of a table, or why it could not be read.

    Attributes:
        facts: as of `headwater lake describe`.
        behind: changes that it lacks; None if the bucket's seqnos are unknown.
        worst: the vbucket that lacks the most changes, and their number.
        unknown: number of vbuckets whose seqno no node reports now.
        parted: number of vbuckets of which the table has changes that a failover took back; its next batch removes
            these.
        rolled_back: batches that took changes back, the newest first, among the last HISTORY commits.
        silent: a sentence about a folder that does not answer now; the other facts are those of the last reading.
    """

    place: str
    problem: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    behind: int | None = None
    worst: tuple[int, int] | None = None
    unknown: int = 0
    parted: int = 0
    batches: tuple[TableBatch, ...] = ()
    rolled_back: tuple[TableBatch, ...] = ()
    looked_at: float = 0.0
    silent: str = ""


class _Reading(NamedTuple):
    """A running reading of a folder, and its start by the event loop's clock."""

    began_at: float
    outcome: asyncio.Future[MirrorTable]


class MirrorTables:
    """The tables of some folders; each log is read once and followed after that.

    A folder is read by one thread at a time, its own; one that does not answer within `patience_seconds` keeps back
    neither the other tables nor the page.
    """

    def __init__(self, places: tuple[str, ...], patience_seconds: float = readings.PATIENCE_SECONDS) -> None:
        self.places = places
        self.patience_seconds = patience_seconds
        self._logs: dict[str, TableLog] = {}
        self._readings: dict[str, _Reading] = {}
        self._last: dict[str, MirrorTable] = {}

    async def look(self, bucket: str, heads: Mapping[int, Head | None]) -> list[MirrorTable]:
        """Return the states of all tables.

        Args:
            heads: the ends of the bucket's vbuckets; None for unknown ones.
        """
        return await asyncio.gather(*(self._patiently(place, bucket, heads) for place in self.places))

    async def _patiently(self, place: str, bucket: str, heads: Mapping[int, Head | None]) -> MirrorTable:
        """Return the table's state by a reading that began after this call, which several pages share.

        If the folder does not answer in time, return the state of the last reading.
        """
        now = asyncio.get_running_loop().time
        asked_at = now()
        while True:
            reading = self._readings.get(place)
            if reading is None:
                reading = self._begin(place, bucket, heads, now())
            # Whoever hangs already is given no more time: pages are loaded anew every few seconds.
            remaining_seconds = min(asked_at, reading.began_at) + self.patience_seconds - now()
            await asyncio.wait([reading.outcome], timeout=max(0.0, remaining_seconds))
            if not reading.outcome.done():
                silence = f"{place}: {readings.silence(now() - reading.began_at)}"
                return replace(self._last.get(place, MirrorTable(place)), silent=silence)
            if reading.began_at >= asked_at:
                return reading.outcome.result()

    def _begin(self, place: str, bucket: str, heads: Mapping[int, Head | None], began_at: float) -> _Reading:
        reading = _Reading(began_at, readings.begin(lambda: self._look_at_table(place, bucket, heads)))
        self._readings[place] = reading

        def end(outcome: asyncio.Future[MirrorTable]) -> None:
            del self._readings[place]
            if not outcome.cancelled() and outcome.exception() is None:
                self._last[place] = outcome.result()

        reading.outcome.add_done_callback(end)
        return reading

    def _look_at_table(self, place: str, bucket: str, heads: Mapping[int, Head | None]) -> MirrorTable:
        try:
            return self._read(place, bucket, heads)
        except ModuleNotFoundError as error:
            return MirrorTable(place, f"{error.name} is missing; tables need headwater's extra `lake`")
        except HeadwaterError as error:
            return MirrorTable(place, plain(error))
        except OSError as error:
            return MirrorTable(place, f"{error.filename or place}: {error.strerror or error}")

    def _read(self, place: str, bucket: str, heads: Mapping[int, Head | None]) -> MirrorTable:
        from headwater.lake import facts  # noqa: PLC0415 - its library is of an extra of its own
        from headwater.lake.commit import record_of  # noqa: PLC0415
        from headwater.lake.log import TableLog  # noqa: PLC0415
        from headwater.lake.places import store_of  # noqa: PLC0415
        from headwater.spark.offsets import Offset  # noqa: PLC0415

        log = self._logs.setdefault(place, TableLog(store_of(place)))
        try:
            log.refresh(sure=True)
        except TableAway:
            log = self._logs[place] = TableLog(store_of(place))  # whatever lies there by now
            log.refresh()
        if not log.exists:
            raise TableError(place, "there is no table here")
        record = record_of(place, log.state)
        if record.bucket != bucket:
            raise TableError(place, f"it mirrors the bucket {record.bucket}, not {bucket}")
        end = Offset.from_json(record.end)
        positions = {vb: end.position(vb) for vb in heads}
        lags = behind(positions, heads)
        known_lags = {vb: lag for vb, lag in lags.items() if lag is not None}
        batches = [_batch(each) for each in facts.history(log, HISTORY)]
        worst = max(known_lags.items(), key=lambda each: each[1], default=None)
        return MirrorTable(
            place,
            facts=facts.describe(log),
            behind=sum(known_lags.values()) if len(known_lags) == len(lags) and lags else None,
            worst=worst if worst is not None and worst[1] else None,
            unknown=len(lags) - len(known_lags),
            parted=sum(head is not None and head.is_on_lost_branch(positions[vb]) for vb, head in heads.items()),
            batches=tuple(batches[:BATCHES_SHOWN]),
            rolled_back=tuple([batch for batch in batches if batch.rollbacks][:ROLLBACKS_SHOWN]),
            looked_at=time.time(),
        )


def behind(positions: Mapping[int, Position], heads: Mapping[int, Head | None]) -> dict[int, int | None]:
    """Return how many changes each vbucket's position lacks, from the point where both histories parted.

    None if the bucket's history is unknown.
    """
    return {vb: None if head is None else max(0, head.seqno - head.shared(positions[vb])) for vb, head in heads.items()}


def _batch(commit: Mapping[str, Any]) -> TableBatch:
    metrics = commit["operationMetrics"]

    def number(name: str) -> int | None:
        text = str(metrics.get(name, ""))
        return int(text) if text.isdecimal() else None

    return TableBatch(
        commit["version"],
        commit["timestamp"] / 1000,
        commit["operation"],
        number("mutations"),
        number("deletions"),
        number("rollbacks"),
        number("numAddedFiles"),
    )
