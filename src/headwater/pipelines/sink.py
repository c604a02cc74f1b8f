"""The mirror's table, the same for every engine, and the change log beside it if there is one.

A batch goes into the change log first, then into the quarantine, then into the table: after a crash between them the
change log and the quarantine are ahead by a batch, never behind, and `changelog.py` and `quarantine.py` repair that.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headwater.errors import TableChanged, TableError
from headwater.failpoints import failpoint
from headwater.lake import lineage, widening
from headwater.lake.commit import Record
from headwater.lake.forms import FORMS, form_of
from headwater.lake.iceberg import entry as iceberg
from headwater.lake.iceberg.place import CatalogName
from headwater.lake.layout import Formats
from headwater.lake.log import schema_string
from headwater.lake.places import CHANGES
from headwater.lake.shape import PLAIN, TableForm
from headwater.lake.unfold import agrees, merged, readable
from headwater.lake.upkeep import Doer, Maintenance, checkpoint
from headwater.lake.writer import TaskResult
from headwater.pipelines.changelog import ChangeLog
from headwater.pipelines.jobs import Mirror
from headwater.pipelines.quarantine import QuarantineTable, read_anew
from headwater.pipelines.table import DOCUMENTS, Making, Table
from headwater.pipelines.tasks import SEED, MirrorTask, TablesBeside, advanced, tasks_of
from headwater.spark.offsets import Offset
from headwater.spark.planner import ranges
from headwater.spark.settings import SourceSettings

log: logging.Logger = logging.getLogger(__name__)

_QUARANTINE, _COPY_ON_WRITE = map(Mirror.typed, ("quarantine", "copy_on_write"))


@dataclass(frozen=True)
class TableOpening:
    """A mirror's table given by its place; see `TableSink`."""

    place: str
    bucket: str
    changelog: str | None = None

    def open(self) -> TableSink:
        """Open the table, in the form that it has."""
        return TableSink(self.place, self.bucket, changelog=self.changelog, making=Making.NEVER)


class TableSink(Table):
    """A mirror's table, and the change log beside it if there is one.

    Args:
        place: the place of the table.
        bucket: the name of its bucket.
        changelog: the place of the change log; None for none.
        befores: True to let the change log have what each change replaced, from then on.
        form: the form of its documents; None for the one it has, PLAIN for a new table.
        copy_on_write: True if a new table has no deletion vectors: files that lose rows are rewritten.
        formats: the formats of all tables, as of `Table`.
        catalog: the table's name in a catalog; the tables beside it have that name with their ends.
        row_ids: True to let the table's rows keep their ids from then on; the tables beside it have none.
        widen: True to let columns of a table of unfolded documents get wider types from then on.
        quarantine: True to keep a quarantine beside the table; an existing one is kept anyway.
        making, created: of the table and those beside it, as of `Table`.

    Raises:
        TableError: a table of another form; one with deletion vectors that should have none; a quarantine for a table
            that every document fits; and as `Table`.
    """

    def __init__(
        self,
        place: str | Path,
        bucket: str,
        *,
        changelog: str | Path | None = None,
        befores: bool = False,
        form: TableForm | None = None,
        copy_on_write: bool = False,
        quarantine: bool = False,
        formats: Formats = Formats.DELTA,
        catalog: CatalogName | None = None,
        row_ids: bool = False,
        widen: bool = False,
        making: Making = Making.CLEAR,
        created: set[str] | None = None,
    ) -> None:
        super().__init__(
            place,
            bucket,
            DOCUMENTS,
            (form or PLAIN).columns,
            vectors=not copy_on_write,
            formats=formats,
            catalog=catalog,
            making=making,
            created=created,
        )
        if copy_on_write and self.log.state.vectors:
            raise TableError(
                self.place,
                f"it was made with deletion vectors: mirror without {_COPY_ON_WRITE}, or elsewhere",
            )
        self.form: TableForm = form_of(self.log.state.fields)
        self._check_form(form)
        if quarantine:
            self._check_quarantine()
        self._begin_features(widen=widen, row_ids=row_ids)
        self.refresh()
        has_quarantine = quarantine or self.record.quarantine is not None
        self.quarantine: QuarantineTable | None = QuarantineTable(self, making, created) if has_quarantine else None
        self._make_readable()
        self._level_quarantine()
        self.changes: ChangeLog | None = self._change_log(changelog, befores, making, created) if changelog else None
        if self.changes:
            self.changes.level(self)
        for each in (self, self.changes, self.quarantine):
            if each is not None:
                each.publish()

    def _begin_features(self, *, widen: bool, row_ids: bool) -> None:
        if widen:
            widening.begin(self.log)
        if row_ids:
            lineage.begin(self.log)

    def _change_log(self, place: str | Path, befores: bool, making: Making, created: set[str] | None) -> ChangeLog:
        """Return the change log at a place, published as the table is."""
        state = self.log.state
        return ChangeLog(
            place,
            self.bucket,
            befores=befores,
            vectors=state.vectors,
            formats=iceberg.formats_of(state),
            catalog=iceberg.neighbour_in_catalog(state, CHANGES),
            making=making,
            created=created,
        )

    def _check_form(self, form: TableForm | None) -> None:
        if form is None or form is self.form:
            return
        if form is PLAIN:
            sentence, advice = self.form.present, f"with {Mirror.typed(self.form.option)}"
        else:
            sentence, advice = form.absent, f"without {Mirror.typed(form.option)}"
        raise TableError(self.place, f"{sentence}: mirror {advice}, or elsewhere")

    def _check_quarantine(self) -> None:
        if not self.form.reads_json:
            options = " or ".join(Mirror.typed(form.option) for form in FORMS if form.reads_json)
            reason = "every document fits a table that does not read JSON, so it has no quarantine"
            raise TableError(self.place, f"{reason}: mirror with {options}, or without {_QUARANTINE}")

    def _make_readable(self) -> None:
        """Change an older release's table to a schema that all readers accept, and write a checkpoint, since some
        readers refuse a log with the old schema.

        If a column is removed, everything is read anew: its values move to another column.
        """
        while (new_fields := readable(before := self.log.state.fields)) != before:
            action = {"metaData": self.log.state.metadata | {"schemaString": schema_string(new_fields)}}
            if len(new_fields) == len(before):
                self.log.commit([action], "CHANGE COLUMNS")
            else:
                with suppress(TableChanged):  # another mirror was first, or committed a batch: then again
                    self.put(self.record.digest, self.next(read_anew(self.record)), [], actions=[action])
            self.refresh()
            checkpoint(self.log)

    def _level_quarantine(self) -> None:
        """Restore the quarantine to the version in the table's record.

        If that is impossible, for it is new or lost, the table's record is put on a branch that no node has: the next
        batch reads all vbuckets anew and replaces them in both. If another mirror commits a batch to both meanwhile,
        this is repeated.
        """
        last_record: Record | None = None
        while self.quarantine is not None and last_record != (record := self.refresh()):
            self._level(self.quarantine, record)
            last_record = record

    def _level(self, quarantine: QuarantineTable, record: Record) -> None:
        leveled = quarantine.level(record.quarantine)
        quarantine.publish()
        if not leveled:
            after, end = record.digest, read_anew(record)
            new_record = replace(self.next(end), quarantine=quarantine.log.state.version)
            with suppress(TableChanged):  # another mirror did the same, or committed a batch: the next plan looks again
                self.put(after, new_record, [])

    def refresh(self) -> Record:
        """Return the table's record, as `Table.refresh`.

        The rows of a table that was put back to an older version are older than its record: the record is put on a
        branch that no node has, and the next batch reads all vbuckets anew and replaces them. Also those of which the
        record has nothing: the bucket may have been made anew since, with fewer documents.
        """
        super().refresh()
        while self.log.restored:
            log.warning("%s: somebody put it back to an older version; all of the bucket is read anew", self.place)
            new_record = self.next(read_anew(self.record, self.log.state.vbuckets))
            if not self.log.commit([new_record.to_action()], "READ ANEW"):
                super().refresh()
        return self.record

    @property
    def changelog(self) -> str | None:
        """The place of the change log; None without one."""
        return self.changes.place if self.changes else None

    @property
    def source_options(self) -> dict[str, str]:
        """The options of the source that the tables need, whatever the job says: a log keeps its columns."""
        return {"before": "true"} if self.changes and self.changes.has_befores else {}

    def opening(self) -> TableOpening:
        """Return the opening by which another process opens the same table."""
        return TableOpening(self.place, self.bucket, self.changelog)

    def begun(self) -> None:
        """Return None: a task's rows are in the table only with its commit."""

    def read(self, answer: bytes) -> TaskResult:
        """Read a task's answer."""
        return TaskResult.from_bytes(answer)

    def maintenance(self, folds: Doer | None = None) -> list[Maintenance]:
        """Return the upkeep of the tables, one for each; for the one process that commits to them.

        Args:
            folds: the process that folds files; None for a thread of each table.
        """
        seed = bytes.fromhex(self.log.state.properties[SEED])
        tables = [Maintenance(self.log, seed, folds=folds)]
        if self.changes:
            tables.append(Maintenance(self.changes.log, None, folds=folds))
        if self.quarantine:
            tables.append(Maintenance(self.quarantine.log, seed, folds=folds))
        return tables

    def next(self, end: Mapping[str, Any]) -> Record:
        """Return the record of the next batch, if it ends at `end`, with the present version of the quarantine."""
        return replace(super().next(end), quarantine=self.record.quarantine)

    def tasks(self, end: Mapping[str, Any], settings: SourceSettings, count: int) -> list[MirrorTask]:
        """Return the tasks that bring the table from its record to `end`."""
        self._level_quarantine()
        if self.changes:
            self.changes.level(self, Offset.from_json(end))
            self.changes.require_columns()
        start, end_offset = Offset.from_json(self.record.end), Offset.from_json(end)
        anew = self.changes.logged_anew(ranges(start, end_offset)) if self.changes else frozenset[int]()
        neighbours = TablesBeside(_identity_of(self.changes), _identity_of(self.quarantine), anew)
        planned = tasks_of(start, end_offset, settings, (self.place, self.log.state.id), count, neighbours)
        failpoint("lake.planned")
        return planned

    def commit(
        self,
        after: str,
        end: Mapping[str, Any],
        results: Sequence[TaskResult],
        transaction: tuple[str, int] | None = None,
        actions: Sequence[dict[str, Any]] = (),
    ) -> Record:
        """Add a batch to the change log, then to the table: after a crash between them the log is ahead by one batch,
        never behind, and the tasks of the repeated batch leave out logged changes.
        """
        if unread_vbuckets := sorted({vb for result in results for vb in result.unread}):
            message = f"{len(unread_vbuckets)} vbuckets, the first is {unread_vbuckets[0]}, have another history"
            raise TableChanged(self.place, f"{message} than the batch was planned for; it is planned anew")
        end_reached = advanced(end, [place for result in results for place in result.reached])
        new_record = self._commit_neighbours(after, end_reached, results, transaction)
        self.put(after, new_record, results, transaction, [*actions, *self._columns(results)])
        return new_record

    def _commit_neighbours(
        self, after: str, end: Mapping[str, Any], results: Sequence[TaskResult], transaction: tuple[str, int] | None
    ) -> Record:
        """Add a batch to the change log and the quarantine; return the table's next record, with the quarantine's new
        version.
        """
        # A batch that the table will refuse must not get into the two that are committed before it.
        if (self.changes or self.quarantine) and self.refresh().digest != after:
            raise TableChanged(self.place, "the table has moved on; the batch is planned anew")
        new_record = self.next(end)
        if self.changes:
            self.changes.append(results, end, (after, new_record.digest), transaction)
            failpoint("lake.log_committed")
        if self.quarantine and new_record.quarantine is not None:
            quarantine_results = [result.quarantine for result in results if result.quarantine]
            new_record = replace(
                new_record, quarantine=self.quarantine.append(quarantine_results, new_record.quarantine, transaction)
            )
            failpoint("lake.quarantine_committed")
        return new_record

    def _columns(self, results: Sequence[TaskResult]) -> list[dict[str, Any]]:
        """Return the action that adds the tasks' new columns.

        Raises:
            TableChanged: parallel tasks gave a field different columns. The schema is extended to hold all of them, and
                the batch is written again.
        """
        new_columns = [result.columns for result in results if result.columns]
        if not new_columns:
            return []
        before = self.log.refresh()
        schema = merged(before.fields, new_columns)
        action = {"metaData": before.metadata | {"schemaString": schema_string(schema)}}
        if all(agrees(schema, column) for column in new_columns):
            return [action]
        if schema != before.fields:
            self.log.commit([action], "ADD COLUMNS")
        raise TableChanged(self.place, "tasks gave a field different columns; the batch is written again")


def _identity_of(table: Table | None) -> tuple[str, str] | None:
    return (table.place, table.log.state.id) if table else None


def changes_in(end: Mapping[str, Any]) -> int:
    """Return the number of the bucket's seqnos that an offset covers."""
    return sum(position.seqno for position in Offset.from_json(end).positions.values())
