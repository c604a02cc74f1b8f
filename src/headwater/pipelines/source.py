"""The Spark source of jobs with a sink: tasks do the work, and a task's only row is its answer.

Spark plans, schedules, repeats and checkpoints; documents never enter the JVM. Offsets have the record of the sink that
they were planned from (`after`), and only the record decides about a batch: one that was planned from another record,
by a driver that died or from a checkpoint that is older than the sink, does nothing, and the next is planned anew. A
batch that was left out because of a failover is planned anew as well: its next attempt has another number (`again`),
since Spark makes no batch with the same end as the last.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headwater.errors import TableChanged
from headwater.pipelines.sinks import REPEATS_MAX, ChangeSink, SinkOpening, SinkTask, from_text
from headwater.pipelines.table import BEGINNING
from headwater.spark.garbage import set_aside
from headwater.spark.offsets import Offset
from headwater.spark.planning import Planning
from headwater.spark.settings import SourceSettings, parse

SCHEMA = "written binary, after string, end string"
_KINDS: list[tuple[str, pa.DataType]] = [("written", pa.binary()), ("after", pa.string()), ("end", pa.string())]
_ARROW = pa.schema(_KINDS)
OWN = {"secretsink": "", "slots": "1"}
"""Options that are not the `dcp` source's, and what they are when left out. A sink may have a password in it, and Spark
hides options whose names say so."""


class SinkDataSource(DataSource):
    """The data source of jobs with a sink; not for other code."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "dcp_sink"

    def schema(self) -> str:
        """Return the schema of one row for each task."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> SinkStreamReader:
        """Return the reader of the query."""
        lowered = {name.lower(): text for name, text in self.options.items()}
        own_options = {name: lowered.pop(name, default) for name, default in OWN.items()}
        return SinkStreamReader(
            parse(lowered, streaming=True), from_text(own_options["secretsink"]), int(own_options["slots"])
        )


class SinkPartition(InputPartition):
    """The partition of one task; without a task it only carries the offset to the commit."""

    def __init__(self, task: SinkTask | None, after: str, end: str) -> None:
        self.task: Final = task
        self.after: Final = after
        self.end: str = end


class SinkStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A planner of batches from the sink's record. Only the settings are pickled: all other state belongs to the
    planner.
    """

    def __init__(self, settings: SourceSettings, opening: SinkOpening, slots: int) -> None:
        self.settings: SourceSettings = settings
        self.opening: Final = opening
        self.slots: int = slots
        self._planning: Planning | None = None
        self._sink: ChangeSink | None = None

    def __getstate__(self) -> Mapping[str, Any]:
        return self.__dict__ | {"_planning": None, "_sink": None}

    @property
    def planning(self) -> Planning:
        """The planner's knowledge of the nodes, made on first use."""
        self._planning = self._planning or Planning(self.settings, settle=True)
        return self._planning

    @property
    def sink(self) -> ChangeSink:
        """The sink, opened on first use."""
        self._sink = self._sink or self.opening.open()
        return self._sink

    def initialOffset(self) -> dict[str, Any]:
        """Return an offset that is ignored: the sink itself has the position."""
        return dict(BEGINNING)

    def prepareForTriggerAvailableNow(self) -> None:
        """Note the nodes' present end, at which this run ends."""
        self.planning.aim()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return no limit; the plan applies `maxChangesPerTrigger`."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; `start` if the sink has all changes."""
        record, begun_end = self.sink.refresh(), self.sink.begun()
        repeats = start.get("again", 0) + 1 if start.get("after") == record.digest else 0
        if repeats >= REPEATS_MAX:
            raise TableChanged(self.sink.place, f"a batch was left out {repeats} times: it is never read as planned")
        if repeats:
            self.planning.look_again()
        end = (
            self.planning.latest(dict(record.end), self.settings.max_changes) if begun_end is None else dict(begun_end)
        )
        return start if end == record.end else end | {"after": record.digest} | ({"again": repeats} if repeats else {})

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the newest offset seen on the nodes."""
        return self.planning.reported

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a batch, one for each task; none if the sink has another record than its end was
        planned from.
        """
        record = self.sink.refresh()
        until = dict(end)
        until.pop("again", None)
        if until.pop("after", None) != record.digest or self.sink.begun() not in (None, until):
            return []
        settings_of_nodes = self.planning.nodes.known().for_task(self.settings)
        settings = replace(settings_of_nodes, coverage=Offset.from_json(until).coverage)
        tasks: list[SinkTask | None] = [*self.sink.tasks(until, settings, self.slots)]
        text = json.dumps(until)
        return [SinkPartition(task, record.digest, text) for task in tasks or [None]]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the answer of a partition's task as one row; runs in an executor."""
        if isinstance(partition, SinkPartition):
            answer = b"" if partition.task is None else partition.task.answer()
            columns: list[Any] = [
                pa.array([answer], pa.binary()),
                pa.array([partition.after]),
                pa.array([partition.end]),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=_ARROW)
        set_aside()

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: there is nothing to release."""

    def stop(self) -> None:
        """Close the planner's connection."""
        if self._planning is not None:
            self._planning.close()
