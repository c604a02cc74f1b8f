"""Mirrors' tables, read from their folders: the lag of each behind the bucket, and its last batches.

The table's own record has the offset up to which it holds the bucket; the mirror, which may not even run, is not asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headwater.console.lookout import plain
from headwater.errors import HeadwaterError, TableAway, TableError

if TYPE_CHECKING:
    from headwater.lake.log import TableLog

BATCHES_SHOWN = 25
ROLLBACKS_SHOWN = 25
HISTORY = 500
"""The number of commits that are searched for rollbacks."""


@dataclass(frozen=True, slots=True)
class TableBatch:
    """A commit of a table; None for counts that it does not have."""

    version: int
    at: float
    operation: str
    mutations: int | None
    deletions: int | None
    rollbacks: int | None
    files: int | None


@dataclass(frozen=True, slots=True)
class MirrorTable:
    """The present state of a table, or why it could not be read.

    Attributes:
        facts: as of `headwater lake describe`. behind: changes that it lacks; None if the bucket's seqnos are unknown.
        worst: the vbucket that lacks the most, and its number. unknown: vbuckets whose seqno no node reports now.
        rolled_back: batches that took changes back, the newest first, among the last HISTORY commits.
    """

    place: str
    problem: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    behind: int | None = None
    worst: tuple[int, int] | None = None
    unknown: int = 0
    batches: tuple[TableBatch, ...] = ()
    rolled_back: tuple[TableBatch, ...] = ()
    looked_at: float = 0.0


class MirrorTables:
    """The tables of some folders; each log is read once and followed after that."""

    def __init__(self, places: tuple[str, ...]) -> None:
        self.places = places
        self._logs: dict[str, TableLog] = {}
        self._lock = asyncio.Lock()

    async def look(self, bucket: str, seqnos: Mapping[int, int | None]) -> list[MirrorTable]:
        """Look at all tables; `seqnos` are the bucket's by vbucket, None for unknown ones."""
        async with self._lock:
            return [await asyncio.to_thread(self._look, place, bucket, seqnos) for place in self.places]

    def _look(self, place: str, bucket: str, seqnos: Mapping[int, int | None]) -> MirrorTable:
        try:
            return self._read(place, bucket, seqnos)
        except ModuleNotFoundError as error:
            return MirrorTable(place, f"{error.name} is missing; tables need headwater's extra `lake`")
        except HeadwaterError as error:
            return MirrorTable(place, plain(error))
        except OSError as error:
            return MirrorTable(place, f"{error.filename or place}: {error.strerror or error}")

    def _read(self, place: str, bucket: str, seqnos: Mapping[int, int | None]) -> MirrorTable:
        from headwater.lake import upkeep  # noqa: PLC0415 - its library is of an extra of its own
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
        lags = behind({vb: end.position(vb).seqno for vb in seqnos}, seqnos)
        known = {vb: lag for vb, lag in lags.items() if lag is not None}
        batches = [_batch(each) for each in upkeep.history(log, HISTORY)]
        worst = max(known.items(), key=lambda each: each[1], default=None)
        return MirrorTable(
            place,
            facts=upkeep.describe(log),
            behind=sum(known.values()) if len(known) == len(lags) and lags else None,
            worst=worst if worst is not None and worst[1] else None,
            unknown=len(lags) - len(known),
            batches=tuple(batches[:BATCHES_SHOWN]),
            rolled_back=tuple([each for each in batches if each.rollbacks][:ROLLBACKS_SHOWN]),
            looked_at=time.time(),
        )


def behind(held: Mapping[int, int], seqnos: Mapping[int, int | None]) -> dict[int, int | None]:
    """Return the number of changes of each vbucket that are missing; None if the bucket's seqno is unknown."""
    return {vb: None if seqno is None else max(0, seqno - held.get(vb, 0)) for vb, seqno in seqnos.items()}


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
