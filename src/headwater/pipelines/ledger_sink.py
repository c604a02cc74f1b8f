"""A sink whose record is in a ledger (ledger.py), for a job that counts, sums or lists changes.

    node -> task: look(batches), as JSON -> driver: take(), by the transaction that moves the record

Each change is looked at once, even after a crash: changes that a replay after a restart or a failover brings again are
left out. A rollback takes nothing back, for the lost changes were written all the same; changes made after it are
looked at as they come.

A batch ends where the node has a state. One that ended within a snapshot would lack the documents whose newer versions
lie above its end; if a failover took those away, the older ones would count as looked at when they come again.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from headwater.errors import TableChanged
from headwater.pipelines.ledger import JobLedger, LedgerRecord, folder
from headwater.pipelines.tasks import advanced, reached_rows
from headwater.protocol.dcp.position import Position
from headwater.spark.offsets import Offset
from headwater.spark.planner import Range, pack, ranges
from headwater.spark.reader import further, read
from headwater.spark.settings import SourceSettings

__all__ = ["ChangeLook", "LedgerAnswer", "LedgerSink"]


class ChangeLook(Protocol):
    """The part of a job that runs in its tasks; it is pickled to get there."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the look needs, by their names in the `dcp` source."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Any:
        """Process batches of changes; return the finding as JSON types."""


@dataclass(frozen=True)
class LedgerTask:
    """The work of one task.

    Attributes:
        had: by vbucket, the position up to which all changes were looked at.
    """

    settings: SourceSettings
    parts: tuple[Range, ...]
    had: Mapping[int, Position]
    look: ChangeLook

    def answer(self) -> bytes:
        """Read the ranges and call the look with their batches; return the findings and counts as JSON."""
        unread_vbuckets: set[int] = set()
        reached = further(self.settings)
        changes = 0
        rollbacks = sum(part.rollback for part in self.parts)
        batches = read(
            self.settings, self.look.columns, self.parts, unread=unread_vbuckets, reached=reached, had=self.had
        )
        if rollbacks:
            next(batches)  # a row for each of them

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal changes
            for batch in batches:
                changes += batch.num_rows
                yield batch

        findings = self.look(counted())
        answer = {"findings": findings, "unread": sorted(unread_vbuckets), "changes": changes, "rollbacks": rollbacks}
        return json.dumps({**answer, "reached": reached_rows(reached)}).encode()


@dataclass(frozen=True)
class LedgerAnswer:
    """The answer of a task: the findings of its look, the vbuckets that were not read as planned, changes and
    rollbacks; and (vbucket, vb uuid, seqno) of vbuckets that were read further than planned.
    """

    findings: Any
    unread: list[int]
    changes: int
    rollbacks: int
    reached: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class LedgerOpening:
    """A sink given by its place; see `LedgerSink`."""

    kind: type[LedgerSink]
    place: str
    bucket: str
    look: Any

    def open(self) -> LedgerSink:
        """Return the sink, opened."""
        return self.kind(self.place, self.bucket, self.look)


class LedgerSink:
    """A place on a disk of this machine that collects findings.

    Args:
        place: the folder, made if missing.
        bucket: the bucket of the changes.
        look: the part of the job that runs in tasks.
        shape: options that can't change once the place exists; None to accept those of the place.
        beginning: the offset of a new place; None for the beginning of the history.

    Raises:
        LedgerError: the folder has another job's file, another bucket's, or one made with another shape.
    """

    KIND: ClassVar[str]
    """Its name in refusals: "it is the observation of the bucket ..."."""
    FILE: ClassVar[str] = "ledger.sqlite"
    SCHEMA: ClassVar[str] = ""
    """Statements that make the job's tables, each ended by a semicolon and a line's end."""

    def __init__(
        self,
        place: str | Path,
        bucket: str,
        look: Any,
        *,
        shape: Mapping[str, Any] | None = None,
        beginning: Mapping[str, Any] | None = None,
    ) -> None:
        self.place: str = folder(place)
        self.bucket: str = bucket
        self.look: Any = look
        path = f"{self.place}/{self.FILE}"
        self.ledger: JobLedger = JobLedger(path, self.KIND, bucket, shape, beginning or Offset().to_json(), self.SCHEMA)

    def opening(self) -> LedgerOpening:
        """Return the opening by which another process opens the same place."""
        return LedgerOpening(type(self), self.place, self.bucket, self.look)

    def refresh(self) -> LedgerRecord:
        """Return the place's record."""
        return self.ledger.record

    def begun(self) -> None:
        """Return None: a batch has no effect before its commit."""

    def tasks(self, end: Mapping[str, Any], settings: SourceSettings, count: int) -> list[LedgerTask]:
        """Return the tasks of the batch that ends at `end`."""
        record_offset = Offset.from_json(self.refresh().end)
        return [
            LedgerTask(
                settings,
                tuple(group),
                {part.vbucket: record_offset.position(part.vbucket) for part in group},
                self.look,
            )
            for group in pack(ranges(record_offset, Offset.from_json(end)), count)
        ]

    def read(self, answer: bytes) -> LedgerAnswer:
        """Read a task's answer."""
        return LedgerAnswer(**json.loads(answer))

    def commit(
        self,
        after: str,
        end: Mapping[str, Any],
        answers: Sequence[LedgerAnswer],
        transaction: tuple[str, int] | None = None,
    ) -> LedgerRecord:
        """Add a batch to the place.

        Raises:
            TableChanged: it was planned from another record, or from another history than a node has by now.
        """
        if any(answer.unread for answer in answers):
            raise TableChanged(self.place, "vbuckets have another history than the batch was planned for")
        reached = advanced(end, [place for answer in answers for place in answer.reached])
        self.bring(after, reached, [answer.findings for answer in answers])
        return self.refresh()

    def bring(self, after: str, end: Mapping[str, Any], findings: Sequence[Any]) -> None:
        """Store the findings of a batch and move the record to `end`, in one transaction."""
        with self.ledger.advance(after, end) as database:
            self.take(database, findings)

    def take(self, database: sqlite3.Connection, findings: Sequence[Any]) -> None:
        """Write the findings of a batch's tasks into the job's tables, within the transaction of the batch."""

    def count(self, progress: Any, answers: Sequence[LedgerAnswer]) -> None:
        """Add a committed batch to the job's progress."""
        progress.rollbacks += sum(answer.rollbacks for answer in answers)
