"""The data source that Spark sees: `spark.read.format("dcp")` and `spark.readStream.format("dcp")`.

Who runs where: `latestOffset`, `partitions` and `commit` in one planner process that lives as long as the query;
`read` in other processes, with a reader unpickled for every task, so a reader holds settings only and opens nothing
when it is made. Filters are never pushed down: in Spark 4.2 and 4.3 a source with `pushFilters` gives wrong results as
soon as a DataFrame is used twice. Leave out columns with `.schema(...)`, vbuckets with an option.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headwater.errors import RollbackRequired
from headwater.spark.history import HeldPoints, History
from headwater.spark.nodes import Nodes
from headwater.spark.offsets import Offset
from headwater.spark.planner import Range, newest, pack, plan, ranges
from headwater.spark.schema import choose, ddl
from headwater.spark.settings import Settings, parse


class DcpDataSource(DataSource):
    """Changes of a Couchbase-family bucket as rows, one DCP connection a task and node.

    Attributes:
        slots: how many tasks run at once, where `register` could find out; None for the driver's cores.
    """

    slots: ClassVar[int | None] = None

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "dcp"

    def schema(self) -> str:
        """All columns; every option is checked here, as early as Spark lets us."""
        settings = parse(self.options)
        return ddl(settings.key_format, settings.value_format)

    def reader(self, schema: StructType) -> DcpBatchReader:
        """The reader of a batch: everything up to what the nodes hold when the first action plans it."""
        return DcpBatchReader(parse(self.options, streaming=False), schema, self.slots)

    def streamReader(self, schema: StructType) -> DcpStreamReader:
        """The reader of a stream."""
        return DcpStreamReader(parse(self.options, streaming=True), schema, self.slots)


class DcpPartition(InputPartition):
    """What one task reads."""

    def __init__(self, parts: Sequence[Range], url: str) -> None:
        self.parts, self.url = tuple(parts), url


class _Reading:
    """What both readers share: the settings, and what a task does with its partition."""

    def __init__(self, settings: Settings, schema: StructType, slots: int | None) -> None:
        self.settings = settings
        wanted = [(column.name, column.dataType.simpleString()) for column in schema.fields]
        self.names = choose(wanted, settings.key_format, settings.value_format)
        self.partitions_wanted = settings.partitions or slots or os.cpu_count() or 1

    def packed(self, parts: Sequence[Range], url: str) -> Sequence[InputPartition]:
        """Return the partitions that read these ranges, about as many as there are slots.

        Args:
            url: names the nodes that the planner knows; from there a task follows the cluster map by itself.
        """
        return [DcpPartition(members, url) for members in pack(parts, self.partitions_wanted)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield a partition's rows as Arrow batches; runs in a task."""
        from headwater.spark.reader import read  # noqa: PLC0415 -- Arrow and kernels: for tasks only

        # Spark turns "no partitions" into one without content.
        if not isinstance(partition, DcpPartition):
            return iter(())
        return read(replace(self.settings, url=partition.url), self.names, partition.parts)


def _check(policy: str, start: Offset, end: Offset) -> None:
    """Refuse a plan that takes delivered changes back, if that is what the user wants."""
    if policy == "fail" and end.rollbacks:
        vb = min(end.rollbacks)
        told = f"a failover or a purge, in {len(end.rollbacks)} vbuckets; rollbackPolicy is fail"
        raise RollbackRequired(vb, start.position(vb).seqno, end.position(vb).snapshot_start, told)


class DcpBatchReader(_Reading, DataSourceReader):
    """A bounded read. Spark plans it once for each `load()`: a second action reads to the same seqnos."""

    def partitions(self) -> Sequence[InputPartition]:
        """Plan: from `startingOffsets` to `endingOffsets`, or to what the nodes hold now."""
        nodes, start, ends = Nodes(self.settings), self.settings.starting_offsets, self.settings.ending_seqnos
        try:
            seen, url = nodes.observe(whole=True), nodes.known_url()
        finally:
            nodes.close()
        if ends is not None:
            seen = {vb: history for vb, history in seen.items() if vb in ends}
        end = plan(start, seen, targets=ends)
        _check(self.settings.rollback_policy, start, end)
        return self.packed([] if end is start else ranges(start, end), url)


class DcpStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An endless read, batch after batch. All state but the settings is the planner's and never pickled."""

    def __init__(self, settings: Settings, schema: StructType, slots: int | None) -> None:
        super().__init__(settings, schema, slots)
        self._planning: _Planning | None = None

    def __getstate__(self) -> Mapping[str, Any]:
        return self.__dict__ | {"_planning": None}

    @property
    def planning(self) -> _Planning:
        """The planner's state, made when first asked for."""
        self._planning = self._planning or _Planning(self.settings)
        return self._planning

    def initialOffset(self) -> dict[str, Any]:
        """The start as the user wished it: asks nobody, for Spark wants to hear the same twice."""
        return self.settings.starting_offsets.to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember what there is now; this run ends with it."""
        self.planning.aim()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The option `maxChangesPerTrigger`."""
        return ReadMaxRows(self.settings.max_changes) if self.settings.max_changes else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends; the very `start` when nothing moved, or Spark would run empty batches for ever."""
        return self.planning.latest(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """What the nodes were last seen to hold: progress reports show the backlog from it."""
        return self.planning.reported

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan a batch from its two offsets alone, so that a restart plans the same."""
        return self.packed(ranges(Offset.from_json(start), Offset.from_json(end)), self.planning.nodes.known_url())

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to release: the nodes keep their history anyway. An exception here would end the query."""

    def stop(self) -> None:
        """Close the planner's connection."""
        if self._planning is not None:
            self._planning.close()


class _Planning:
    """The planner's memory: what the nodes said last, points to return to, and the goal of an AvailableNow run."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.nodes, self.held = settings, Nodes(settings), HeldPoints()
        self.targets: dict[int, int] | None = None
        self.reported: dict[str, Any] | None = None
        self._seen: dict[int, History] = {}
        self._asked_at = float("-inf")
        self._start: dict[str, Any] | None = None

    def close(self) -> None:
        """Close the connection."""
        self.nodes.close()

    def aim(self) -> None:
        """Make what there is now the end of this run."""
        self._observe(whole=True)
        self.targets = {vb: history.high_seqno for vb, history in self._seen.items()}

    def latest(self, start: dict[str, Any], changes_max: int | None) -> dict[str, Any]:
        """Plan the batch that begins at `start`.

        Spark asks a hundred times a second while nothing moves, so an answer is believed for a while. Not so with a
        new `start`: its batch has just been read, and only what is observed after that tells whether it was whole.
        """
        if start != self._start or time.monotonic() >= self._asked_at + self.settings.poll_interval_seconds:
            self._observe()
            self._start = start
        begun = Offset.from_json(start)
        if begun.latest:
            return newest(self._seen).to_json()
        self.held.record(begun.positions, self._seen)
        end = plan(begun, self._seen, held=self.held, changes_max=changes_max, targets=self.targets)
        if end is begun:
            return start
        _check(self.settings.rollback_policy, begun, end)
        return end.to_json()

    def _observe(self, *, whole: bool = False) -> None:
        self._seen = self.nodes.observe(whole=whole)
        self._asked_at = time.monotonic()
        self.reported = newest(self._seen).to_json()
