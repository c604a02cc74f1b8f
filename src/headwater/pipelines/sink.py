"""The mirror's end at its table, the same for every engine, and at the change log beside it if there is one.

A batch goes into the change log first, then into the table: after a crash between the two the log is ahead by a batch,
never behind, and `changelog.py` knows what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.client.routing import parse as parse_url
from headwater.errors import TableChanged, TableError
from headwater.failpoints import failpoint
from headwater.lake.commit import Record
from headwater.lake.log import schema_string
from headwater.lake.shape import delta_field, fields
from headwater.lake.unfold import REST, agrees, is_unfolded, merged
from headwater.lake.upkeep import Maintenance
from headwater.lake.writer import TaskResult
from headwater.pipelines.changelog import ChangeLog
from headwater.pipelines.table import DOCUMENTS, Table
from headwater.pipelines.tasks import SEED, MirrorTask, tasks_of
from headwater.spark.offsets import Offset
from headwater.spark.settings import SourceSettings

_REST_MEANS = "JSON of the fields that did not fit their columns"


@dataclass(frozen=True)
class TableOpening:
    """A mirror's table by name; see `TableSink`."""

    place: str
    bucket: str
    changelog: str | None = None

    def open(self) -> TableSink:
        """Open it, as unfolded as it is."""
        return TableSink(self.place, self.bucket, changelog=self.changelog)


class TableSink(Table):
    """A mirror's table, and the change log beside it if there is one.

    Args:
        place: of the table.
        bucket: its bucket's name.
        changelog: where the change log lies; None for none.
        unfold: whether JSON documents become columns; None for as the table is.
        copy_on_write: a new table has no deletion vectors: files that lose rows are written anew.

    Raises:
        TableError: a table that is unfolded and should not be, or the other way round; one with deletion vectors that
            should have none; and as `Table`.
    """

    def __init__(
        self,
        place: str | Path,
        bucket: str,
        *,
        changelog: str | Path | None = None,
        unfold: bool | None = None,
        copy_on_write: bool = False,
    ) -> None:
        columns = [*fields("string"), delta_field(REST, "string", _REST_MEANS)] if unfold else fields()
        super().__init__(place, bucket, DOCUMENTS, columns, vectors=not copy_on_write)
        if copy_on_write and self.log.state.vectors:
            raise TableError(
                self.place, "it was made with deletion vectors: mirror without --copy-on-write, or elsewhere"
            )
        unfolded = is_unfolded(self.log.state.fields)
        if unfold is not None and unfold != unfolded:
            told = "its JSON documents are unfolded" if unfolded else "its JSON documents are not unfolded"
            raise TableError(self.place, f"{told}: mirror {'with' if unfolded else 'without'} --json, or elsewhere")
        self.changes = ChangeLog(changelog, bucket, vectors=self.log.state.vectors) if changelog else None
        if self.changes:
            self.changes.level(self)

    @property
    def changelog(self) -> str | None:
        """Where the change log lies."""
        return self.changes.place if self.changes else None

    def opening(self) -> TableOpening:
        """Return what another process opens the same table with."""
        return TableOpening(self.place, self.bucket, self.changelog)

    def begun(self) -> None:
        """Return None: whatever tasks wrote is in the table with its commit only."""

    def read(self, answer: bytes) -> TaskResult:
        """Read what a task answered."""
        return TaskResult.from_bytes(answer)

    def maintenance(self) -> list[Maintenance]:
        """Return the upkeep of the tables, one for each; for the one process that commits to them."""
        seed = bytes.fromhex(self.log.state.properties[SEED])
        return [Maintenance(self.log, seed), *([Maintenance(self.changes.log, None)] if self.changes else [])]

    def tasks(self, end: Mapping[str, Any], settings: SourceSettings, count: int) -> list[MirrorTask]:
        """Return the tasks that bring the table from its record to `end`."""
        if self.changes:
            self.changes.level(self, Offset.from_json(end))
        start = Offset.from_json(self.record.end)
        where = (self.place, self.log.state.id)
        logged = (self.changes.place, self.changes.log.state.id) if self.changes else None
        planned = tasks_of(start, Offset.from_json(end), settings, where, count, logged)
        failpoint("lake.planned")
        return planned

    def commit(
        self,
        after: str,
        end: Mapping[str, Any],
        written: Sequence[TaskResult],
        transaction: tuple[str, int] | None = None,
        more: Sequence[dict[str, Any]] = (),
    ) -> Record:
        """Bring a batch into the change log, then into the table: after a crash between them the log is ahead by one
        batch, never behind, and the tasks of the batch that is repeated leave out what it has."""
        if unread := sorted({vb for each in written for vb in each.unread}):
            told = (
                f"{len(unread)} vbuckets, the first is {unread[0]}, have another history than the batch was planned for"
            )
            raise TableChanged(self.place, f"{told}; it is planned anew")
        if self.changes is not None:
            if self.refresh().digest != after:
                raise TableChanged(self.place, "the table has moved on; the batch is planned anew")
            self.changes.append(written, end, (after, self.next(end).digest), transaction)
            failpoint("lake.log_committed")
        return super().commit(after, end, written, transaction, [*more, *self._columns(written)])

    def _columns(self, written: Sequence[TaskResult]) -> list[dict[str, Any]]:
        """Return the action that adds the tasks' new columns.

        Raises:
            TableChanged: tasks that ran at the same time gave a field different columns. The schema is made what holds
                all of them, and the batch is written again.
        """
        added = [each.columns for each in written if each.columns]
        if not added:
            return []
        before = self.log.refresh()
        schema = merged(before.fields, added)
        action = {"metaData": before.metadata | {"schemaString": schema_string(schema)}}
        if all(agrees(schema, each) for each in added):
            return [action]
        if len(schema) > len(before.fields):
            self.log.commit([action], "ADD COLUMNS")
        raise TableChanged(self.place, "tasks gave a field different columns; the batch is written again")


def bucket_of(url: str) -> str:
    """Return the bucket's name in a url."""
    return str(parse_url(url).bucket)


def changes_in(end: Mapping[str, Any]) -> int:
    """Return how many seqnos of the bucket an offset covers."""
    return sum(position.seqno for position in Offset.from_json(end).positions.values())
