"""The data source for Spark: `spark.read.format("dcp")`, `spark.readStream.format("dcp")`, and its writer.

`latestOffset`, `partitions` and `commit` run in one planner process that lives as long as the query; `read` runs in
other processes, with a reader unpickled for every task, so a reader holds only settings and opens nothing when it is
created. Filters are never pushed down: in Spark 4.2 and 4.3 a source with `pushFilters` gives wrong results as soon as
a DataFrame is used twice. Leave out columns with `.schema(...)`, vbuckets with an option.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headwater.errors import HistoryChanged
from headwater.protocol.dcp.coverage import Coverage
from headwater.protocol.dcp.position import Position
from headwater.spark.brief import brief, brief_rows
from headwater.spark.garbage import set_aside
from headwater.spark.nodes import KnownNodes, SourceNodes
from headwater.spark.offsets import Offset
from headwater.spark.planner import Range, pack, plan, ranges
from headwater.spark.planning import Planning, check, check_ends, check_fits, check_loss
from headwater.spark.schema import choose, ddl
from headwater.spark.settings import SourceSettings, parse
from headwater.spark.target import DcpBatchWriter, DcpStreamWriter

if TYPE_CHECKING:
    from headwater.spark.keylog import KeyLog

NOWHERE: Mapping[int, Position] = {}
"""The positions of ranges none of which rolls back."""


class DcpDataSource(DataSource):
    """Changes of a Couchbase-family bucket as rows, over one DCP connection for each task and node.

    Attributes:
        slots: number of tasks that run at once, if `register` could find it; None for the driver's cores.
    """

    slots: ClassVar[int | None] = None

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "dcp"

    @brief
    def schema(self) -> str:
        """Return all columns as Spark's DDL; every option is checked here, as early as Spark allows."""
        settings = parse(self.options)
        formats = settings.key_format, settings.value_format
        undoes = settings.undo_folder is not None
        return ddl(*formats, collections=settings.chooses, befores=settings.before, undoes=undoes)

    @brief
    def reader(self, schema: StructType) -> DcpBatchReader:
        """Return the reader of a batch: everything up to the nodes' seqnos when the first action plans it."""
        return DcpBatchReader(parse(self.options, streaming=False), schema, self.slots)

    @brief
    def streamReader(self, schema: StructType) -> DcpStreamReader:
        """Return the reader of a stream."""
        return DcpStreamReader(parse(self.options, streaming=True), schema, self.slots)

    @brief
    def writer(self, schema: StructType, overwrite: bool) -> DcpBatchWriter:
        """Return the writer of a DataFrame."""
        return DcpBatchWriter(self.options, schema, overwrite)

    @brief
    def streamWriter(self, schema: StructType, overwrite: bool) -> DcpStreamWriter:
        """Return the writer of a stream."""
        return DcpStreamWriter(self.options, schema)


class DcpPartition(InputPartition):
    """The input of one task."""

    def __init__(
        self,
        parts: Sequence[Range],
        known: KnownNodes,
        coverage: Coverage | None,
        positions: Mapping[int, Position] = NOWHERE,
        notes: str = "",
    ) -> None:
        self.parts: tuple[Range, ...] = tuple(parts)
        self.known: KnownNodes = known
        self.coverage: Coverage | None = coverage
        self.positions: Mapping[int, Position] = positions
        self.notes: str = notes


class _Reading:
    """The base of both readers: the settings, and reading a partition in a task."""

    def __init__(self, settings: SourceSettings, schema: StructType, slots: int | None) -> None:
        self.settings = settings
        column_types = [(column.name, column.dataType.simpleString()) for column in schema.fields]
        formats = settings.key_format, settings.value_format
        self.names: tuple[str, ...] = choose(
            column_types,
            *formats,
            collections=settings.chooses,
            befores=settings.before,
            undoes=settings.undo_folder is not None,
        )
        self.partitions_wanted: int = settings.partitions or slots or os.cpu_count() or 1

    def packed(self, parts: Sequence[Range], known: KnownNodes, coverage: Coverage | None) -> Sequence[InputPartition]:
        """Return the partitions that read these ranges, about as many as there are slots.

        Args:
            known: nodes that the planner knows; from these a task follows the cluster map itself.
            coverage: collections to read, by id.
        """
        return [DcpPartition(members, known, coverage) for members in pack(parts, self.partitions_wanted)]

    @brief_rows
    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield a partition's rows as Arrow batches; runs in a task."""
        # Spark turns "no partitions" into one without content.
        if isinstance(partition, DcpPartition):
            settings = partition.known.for_task(self.settings)
            settings = replace(settings, coverage=partition.coverage, notes=partition.notes)
            yield from self.rows_of(settings, partition.parts, partition.positions)
        set_aside()

    def rows_of(
        self, settings: SourceSettings, parts: Sequence[Range], positions: Mapping[int, Position]
    ) -> Iterator[Any]:
        """Yield the rows of these ranges. Rows that could not be read are planned again, at the start of the next
        batch.
        """
        if settings.undo_folder is not None:
            from headwater.spark.undo import read_undoing  # noqa: PLC0415 -- Arrow and kernels: for tasks only

            yield from read_undoing(settings, self.names, parts, positions)
            return
        from headwater.spark.reader import read  # noqa: PLC0415 -- Arrow and kernels: for tasks only

        yield from read(settings, self.names, parts)


class DcpBatchReader(_Reading, DataSourceReader):
    """A bounded read. Spark plans it once for each `load()`: a second action reads to the same seqnos.

    Without `endingOffsets` it has every document that existed when it was planned. A node that can't show that state
    any more, because documents were replaced, sends a later one: then the newest version of each, with a seqno above
    the end. With `endingOffsets` no row has a higher seqno, and a read that continues from there gets the replacements.
    """

    @brief
    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read: from `startingOffsets` to `endingOffsets`, or to the nodes' present seqnos."""
        nodes, start, ends = SourceNodes(self.settings), self.settings.starting_offsets, self.settings.ending_seqnos
        try:
            coverage = nodes.covered(start)
            histories, known = nodes.observe(all_owners=True), nodes.known()
            check_fits(start, nodes.vbuckets, self.settings.url)
        finally:
            nodes.close()
        if ends is not None:
            check_ends(ends, histories, nodes.vbuckets)
            histories = {vb: history for vb, history in histories.items() if vb in ends}
        end = plan(start, histories, targets=ends)
        check_loss(start, end, fails=self.settings.fail_on_data_loss)
        check(self.settings.rollback_policy, start, end)
        return self.packed([] if end is start else ranges(start, end), known, coverage)

    def rows_of(
        self, settings: SourceSettings, parts: Sequence[Range], positions: Mapping[int, Position] = NOWHERE
    ) -> Iterator[Any]:
        """Yield the rows of these ranges.

        Raises:
            HistoryChanged: a failover took a part of them back, or deletions in them were purged; a bounded read has no
                next batch to repair it.
        """
        from headwater.spark.reader import further, read  # noqa: PLC0415 -- Arrow and kernels: for tasks only

        unread_vbuckets, purge_seqnos = set[int](), dict[int, int]()
        further_positions = further(settings) if settings.ending_seqnos is None else None
        yield from read(
            settings, self.names, parts, unread=unread_vbuckets, purge_seqnos=purge_seqnos, reached=further_positions
        )
        if unread_vbuckets:
            raise HistoryChanged(sorted(unread_vbuckets), purge_seqnos)


class DcpStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An endless read, batch after batch. All state except the settings belongs to the planner and is never pickled."""

    def __init__(self, settings: SourceSettings, schema: StructType, slots: int | None) -> None:
        super().__init__(settings, schema, slots)
        self._planning: Planning | None = None
        self._log: KeyLog | None = None

    def __getstate__(self) -> Mapping[str, Any]:
        return self.__dict__ | {"_planning": None, "_log": None}

    @property
    def planning(self) -> Planning:
        """The planner's state, created on first use."""
        self._planning = self._planning or Planning(self.settings)
        return self._planning

    def initialOffset(self) -> dict[str, Any]:
        """Return the user's start without asking a node: Spark may call it twice, and needs one answer."""
        return self.settings.starting_offsets.to_json()

    @brief
    def prepareForTriggerAvailableNow(self) -> None:
        """Note the bucket's present end, at which this run ends."""
        self.planning.aim()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The option `maxChangesPerTrigger`."""
        return ReadMaxRows(self.settings.max_changes) if self.settings.max_changes else ReadAllAvailable()

    @brief
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the next batch's end; `start` itself if nothing changed, or Spark would run empty batches for ever."""
        return self.planning.latest(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the newest offset seen on the nodes, from which progress reports compute the backlog."""
        return self.planning.reported

    @brief
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan a batch from its two offsets alone, so that a restart plans the same."""
        since, until = Offset.from_json(start), Offset.from_json(end)
        inputs = self.packed(ranges(since, until), self.planning.nodes.known(), until.coverage)
        if self.settings.undo_folder is not None:
            self._prepare_undoing(inputs, since, until)
        return inputs

    def _prepare_undoing(self, inputs: Sequence[InputPartition], since: Offset, until: Offset) -> None:
        """Claim and fold the folder of notes, and tell the tasks what they need to undo rollbacks.

        Raises:
            NotesError: the folder is lost, another query's or damaged.
        """
        from headwater.spark.keylog import KeyLog  # noqa: PLC0415 -- Arrow: for readers that undo only

        if self._log is None or self._log.query != until.notes:
            self._log = KeyLog(self.settings.undo_folder or "", until.notes)
        if since.notes:
            self._log.check()
        elif until.notes:  # an offset that was written by an older release has none
            self._log.claim(notes_expected=since.to_json() != self.initialOffset())
        self._log.fold()
        for task in inputs:
            if isinstance(task, DcpPartition):
                task.notes = until.notes
                task.positions = {part.vbucket: since.position(part.vbucket) for part in task.parts if part.rollback}

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the nodes keep their history in any case. An exception here would end the query."""

    def stop(self) -> None:
        """Close the planner's connection."""
        if self._planning is not None:
            self._planning.close()
