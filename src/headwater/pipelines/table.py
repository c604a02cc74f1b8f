"""A table with a record: created if there is none, refused if it belongs to another mirror, updated batch by batch.

Only the table's own record (lake/commit.py) has its position. An engine's memory, such as Spark's checkpoint, may be
lost, older or newer: the next batch is planned from the record.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from headwater.errors import TableAway, TableError
from headwater.lake.commit import BatchCommit, Record, commit, record_of
from headwater.lake.iceberg import entry as iceberg
from headwater.lake.iceberg.place import CATALOG, PROPERTY, CatalogName
from headwater.lake.index import SEED_BYTES, Indexes
from headwater.lake.layout import OF_DELTA, OF_ICEBERG, Formats
from headwater.lake.log import AWAY, TableLog, creation, schema_string
from headwater.lake.places import check_apart, check_clear, store_of
from headwater.lake.store import TableStore
from headwater.lake.writer import TaskResult
from headwater.pipelines.jobs import Mirror
from headwater.pipelines.tasks import SEED
from headwater.spark.offsets import VERSION

log: logging.Logger = logging.getLogger(__name__)

BEGINNING: Mapping[str, Any] = {"v": VERSION, "vb": {}}
_FORMAT = Mirror.typed("format")
DOCUMENTS, CHANGES, QUARANTINE = "documents", "changes", "quarantine"


class Making(Enum):
    """The rule for a missing table: create it, or refuse."""

    CLEAR = "where nothing is left of another one"
    ANYWHERE = "whatever is left there: the last one was put away"
    NEVER = "it was there"


class Table:
    """A table with a record; created if there is none.

    Args:
        place: a path or file: url.
        bucket: name of the bucket that it mirrors.
        kind: `documents` or `changes`.
        columns: the columns of a new table.
        vectors: True if a new table has deletion vectors.
        seed: the seed of a new table's indexes, in hex; None for one of its own.
        formats: the formats of a new table; an existing table of Delta gets Iceberg added if these are both.
        catalog: the table's name in a catalog that shall follow it; None keeps the name that it has.
        making: the rule for a missing table.
        created: the places of tables that this run has found or created; none of them is created again. Extended here.

    Raises:
        TableAway: there is no table, and there was one.
        TableError: it belongs to another bucket, or is no mirror's table; or the folder of a new one has other files.
        UnsupportedTable: a table that this writer can't keep.
    """

    def __init__(
        self,
        place: str | Path,
        bucket: str,
        kind: str,
        columns: Sequence[Mapping[str, Any]],
        *,
        vectors: bool = True,
        seed: str | None = None,
        formats: Formats = Formats.DELTA,
        catalog: CatalogName | None = None,
        making: Making = Making.CLEAR,
        created: set[str] | None = None,
    ) -> None:
        self.store: TableStore = store_of(place)
        self.bucket: str = bucket
        self.log: TableLog = TableLog(self.store)
        self.log.refresh()
        places = set() if created is None else created
        if not self.log.exists:
            if making is Making.NEVER or self.place in places:
                raise TableAway(self.store.root, AWAY)
            check_apart(self.store.root)
            if making is Making.CLEAR:
                check_clear(self.store, lambda: self.log.refresh().version >= 0)
            first_record = Record(bucket, dict(BEGINNING), 0, kind).to_action()
            properties = {SEED: seed or secrets.token_hex(SEED_BYTES)}
            if formats is not Formats.DELTA:
                iceberg.check_columns(self.store.root, columns)
            if formats is Formats.BOTH:
                properties[PROPERTY] = "true"
            layout = OF_ICEBERG if formats is Formats.ICEBERG else OF_DELTA
            if not self.log.exists:
                first = creation(columns, properties, bucket, vectors=vectors, layout=layout)
                self.log.commit([*first, first_record], "CREATE TABLE")
            self.log.refresh()  # another mirror may have been first: then this is its table
        places.add(self.place)  # from now on, though the attempt fail in what follows
        if (self.record.bucket, self.record.kind) != (bucket, kind):
            message = (
                f'it has the {self.record.kind} of the bucket "{self.record.bucket}", not the {kind} of "{bucket}"'
            )
            raise TableError(self.store.root, f"{message}: choose another place")
        self._check_layout(formats)
        published = {PROPERTY: "true"} if formats is Formats.BOTH else {}
        self._set_properties(published | ({CATALOG: str(catalog)} if catalog else {}))

    def _check_layout(self, formats: Formats) -> None:
        if formats is Formats.ICEBERG and self.log.state.layout is OF_DELTA:
            advice = f"mirror with {_FORMAT} {Formats.BOTH}, which makes it a table of both, or into another place"
            raise TableError(self.place, f"it was made as a table of Delta: {advice}")
        if formats is Formats.BOTH and self.log.state.layout is OF_ICEBERG:
            advice = f"mirror with {_FORMAT} {Formats.ICEBERG}, or into another place"
            raise TableError(self.place, f"it was made as a table of Iceberg alone: {advice}")

    def _set_properties(self, properties: Mapping[str, str]) -> None:
        """Set properties of the table: the formats in which each writer publishes it, and its name in a catalog."""
        while any(self.log.state.properties.get(name) != value for name, value in properties.items()):
            iceberg.check_columns(self.store.root, self.log.state.fields)
            if CATALOG in properties:
                iceberg.check_catalogs(self.store.root)
                self._tell_renamed(properties[CATALOG])
            new_properties = dict(self.log.state.properties) | dict(properties)
            self.log.commit(
                [{"metaData": self.log.state.metadata | {"configuration": new_properties}}], "SET TBLPROPERTIES"
            )
            self.log.refresh()

    def _tell_renamed(self, name: str) -> None:
        """Log which entry a catalog keeps when the table gets another name: nobody brings that up to date any more, and
        drops it with the table.
        """
        before = iceberg.catalog_of(self.log.state)
        if before is not None and str(before) != name:
            kept = f"the catalog {before.catalog} keeps {before.dotted} as it is now"
            log.warning(
                "%s: its name in a catalog becomes %s, and %s: drop that there, without its files",
                self.place,
                name,
                kept,
            )

    def publish(self) -> None:
        """Bring the Iceberg table to the state of the log, if the table is published.

        Raises:
            HeadwaterError, OSError: it was not published; the next commit or start tries again.
        """
        iceberg.publish(self.log)

    def add_missing(self, columns: Sequence[Mapping[str, Any]]) -> None:
        """Add the columns that an older release's table lacks; its rows have null there."""
        while True:
            present = {column["name"].lower() for column in self.log.state.fields}
            new_columns = [column for column in columns if column["name"].lower() not in present]
            if not new_columns:
                return
            schema = schema_string([*self.log.state.fields, *new_columns])
            self.log.commit([{"metaData": self.log.state.metadata | {"schemaString": schema}}], "ADD COLUMNS")
            self.log.refresh()

    @property
    def place(self) -> str:
        """The table's folder, absolute."""
        return self.store.root

    @property
    def record(self) -> Record:
        """The record of the table's progress, as far as its log was read."""
        return record_of(self.store.root, self.log.state)

    def refresh(self) -> Record:
        """Read the commits since the last call; return the record.

        Raises:
            TableAway: it is not the table that was read.
        """
        self.log.refresh(sure=True)
        return self.record

    def commit(
        self,
        after: str,
        end: Mapping[str, Any],
        results: Sequence[TaskResult],
        transaction: tuple[str, int] | None = None,
        actions: Sequence[dict[str, Any]] = (),
    ) -> Record:
        """Add a batch to the table; return the new record.

        Args:
            after: digest of the record it was planned from.
            end: the end of the batch.
            results: the tasks' results.
            transaction: (application, version), for readers that look for it in the log; None for the table's own.
            actions: other actions of the same commit.

        Raises:
            TableChanged: the table has another record, or files of other writers; plan the batch anew.
        """
        new_record = self.next(end)
        self.put(after, new_record, results, transaction, actions)
        return new_record

    def next(self, end: Mapping[str, Any]) -> Record:
        """Return the record of the next batch, if it ends at `end`."""
        return Record(self.bucket, end, self.record.batch + 1, self.record.kind)

    def put(
        self,
        after: str,
        new_record: Record,
        results: Sequence[TaskResult],
        transaction: tuple[str, int] | None = None,
        actions: Sequence[dict[str, Any]] = (),
        may_commit: Callable[[TableLog], bool] | None = None,
    ) -> None:
        """Add a batch to the table with a given record; errors as `commit`.

        Args:
            new_record: the record after this commit.
            may_commit: as of `BatchCommit`.
        """
        transaction_ = transaction or (f"headwater-{self.log.state.id}", new_record.batch)
        commit(self.log, BatchCommit(after, new_record, transaction_, results, actions, may_commit), self.indexes())

    def indexes(self) -> Indexes:
        """Return the indexes beside the table's files."""
        return Indexes(self.store, self.log.state.id, bytes.fromhex(self.log.state.properties[SEED]))
