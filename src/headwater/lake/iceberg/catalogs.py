"""A catalog of Iceberg that follows a table: REST, SQL, Glue, Hive, as pyiceberg reaches them.

The newest metadata file in the table's folder is the table (docs/decisions/0153); a catalog is brought to it after each
publication (docs/decisions/0156). There are two kinds of catalogs:

* A catalog that keeps a pointer to a metadata file is pointed to the folder's own, by pyiceberg's compare and swap.
* A REST catalog writes metadata files itself. It gets the difference as updates, on condition that its branch `main` is
  where it was seen (`assert-ref-snapshot-id`).

First the catalog's table is loaded, then the newest metadata is read from the folder, then the catalog is updated, if
it is still as it was loaded. So no process replaces a newer state with an older one. After a lost answer the next look
finds the catalog at the newest metadata, or updates it. No files are removed on this way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from weakref import WeakKeyDictionary

from pyiceberg.catalog import Catalog, MetastoreCatalog, load_catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NoSuchTableError,
    OAuthError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetLocationUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)
from requests import RequestException

from headwater.errors import CatalogAway, CatalogRefused, HeadwaterError, TableAway, TableChanged
from headwater.failpoints import failpoint
from headwater.lake import freshness
from headwater.lake.iceberg.metadata import MAIN
from headwater.lake.iceberg.place import CATALOG, CatalogName, IcebergPlace, place_of, uri
from headwater.lake.iceberg.publish import number_of, read_head
from headwater.lake.log import TableLog

TRIES_MAX: Final = 10
"""The number of times that somebody else may be first before the batch is done anew."""

_LAST_ADDED: Final = -1
"""The number by which an update names the schema that another one has just added."""

_REFUSALS: Final = (UnauthorizedError, ForbiddenError, OAuthError, BadRequestError, ValueError)
"""Errors that waiting does not mend. ValueError includes what pyiceberg says of its own configuration."""

_opened: WeakKeyDictionary[TableLog, tuple[CatalogName, Catalog]] = WeakKeyDictionary()
_reached: WeakKeyDictionary[TableLog, tuple[CatalogName, int]] = WeakKeyDictionary()
"""The number of the metadata to which this process brought a catalog: it is not asked again for the same."""


def follow(log: TableLog, name: CatalogName) -> None:
    """Bring the table of a catalog to the newest metadata in the folder; register it if the catalog has none.

    The log is refreshed after a registration, and a table that has left the catalog meanwhile is dropped from it again.

    Raises:
        TableAway: the table was moved or removed meanwhile.
        CatalogRefused: the catalog refuses it, or has another table under this name.
        CatalogAway: the catalog does not answer; the next commit or start tries again.
        TableChanged: other processes were first at each attempt.
    """
    if _reached.get(log) == (name, number := number_of(log)):
        return
    with _own_errors(name):
        catalog = _catalog(log, name)
        for _ in range(TRIES_MAX):
            if _bring_up(catalog, name, log):
                _reached[log] = name, number
                return
    raise TableChanged(log.store.root, f"others were first {TRIES_MAX} times at the catalog {name.catalog}")


def difference(log: TableLog, name: CatalogName) -> str | None:
    """Return the problem of the catalog's table, in one line; None if there is none.

    Raises:
        CatalogAway: the catalog does not answer. CatalogRefused: it refuses the request.
    """
    with _own_errors(name):
        table = _loaded_table(_catalog(log, name), name)
        if table is None:
            return f"the catalog {name.catalog} has no table {name.dotted}; the mirror's next batch or start makes it"
        newest, location = _newest(place_of(log))
        if not _is_shown(table, newest, location):
            return f"{name}: the newest snapshot is not there; the mirror's next batch or start brings it"
        return None


def drop(log: TableLog, name: CatalogName) -> None:
    """Drop the table from its catalog, without its files. Another table of this name stays, also the one of which this
    is a copy.

    Raises:
        CatalogAway: the catalog does not answer. CatalogRefused: it refuses the request.
    """
    with _own_errors(name):
        _drop(_catalog(log, name), name, log)
    _reached.pop(log, None)


def metadata_location(log: TableLog, name: CatalogName) -> str:
    """Return the location of the metadata file to which the catalog points now; empty if it has no such table.

    Raises:
        CatalogAway: the catalog does not answer. CatalogRefused: it refuses the request.
    """
    with _own_errors(name):
        table = _loaded_table(_catalog(log, name), name)
        return "" if table is None else str(table.metadata_location)


def _bring_up(catalog: Catalog, name: CatalogName, log: TableLog) -> bool:
    """Bring the catalog to the newest metadata.

    Returns: False if another process was first, or the catalog can't tell if its commit succeeded; try again then.
    """
    # In this order: the folder's metadata is read after the catalog's, so what is put over the state that was loaded is
    # never older than it.
    table = _loaded_table(catalog, name)
    newest, location = _newest(place_of(log))
    if table is not None and _is_shown(table, newest, location):
        return True
    failpoint("iceberg.before_catalog")
    try:
        if table is None:
            for parts in range(1, len(name.identifier)):  # those that have it as well
                catalog.create_namespace_if_not_exists(name.identifier[:parts])
            catalog.register_table(name.identifier, location)
            _check_named(catalog, name, log)
        elif table.metadata.table_uuid != newest.table_uuid:
            problem = f"it has another table of this name, {table.metadata.table_uuid}: drop that, or give another name"
            raise CatalogRefused(str(name), problem)
        elif isinstance(catalog, MetastoreCatalog):
            _point(catalog, table, newest, location)
        else:
            _update(catalog, name, table, newest, location)
    # Nobody knows whether a commit of unknown state went through. The next look loads the catalog and finds out.
    except (CommitFailedException, CommitStateUnknownException, TableAlreadyExistsError):
        return False
    failpoint("iceberg.after_catalog")
    return True


def _check_named(catalog: Catalog, name: CatalogName, log: TableLog) -> None:
    """Drop the table that was just registered if it has left the catalog meanwhile (`entry.leave_catalog`).

    The name is looked up after the registration, and who leaves drops the table after the name is gone: one of the two
    comes last and sees the other.

    Raises:
        TableAway: the table was moved or removed meanwhile.
    """
    try:
        if log.refresh(sure=True).properties.get(CATALOG) != str(name):
            _drop(catalog, name, log)
    except TableAway:
        try:
            _drop(catalog, name, log)
        except CatalogRefused:
            # The folder that we registered a moment ago is gone, so nobody can load the table.
            with suppress(NoSuchTableError):
                catalog.drop_table(name.identifier)
        raise


def _drop(catalog: Catalog, name: CatalogName, log: TableLog) -> None:
    """Drop the log's table; one of another id stays, and one of another folder: a copy of a lake keeps id and name."""
    table, own_table = _loaded_table(catalog, name), (log.state.id, place_of(log).location)
    if table is not None and (str(table.metadata.table_uuid), table.metadata.location) == own_table:
        # After a lost answer it is gone already.
        with suppress(NoSuchTableError):
            catalog.drop_table(name.identifier)


def _catalog(log: TableLog, name: CatalogName) -> Catalog:
    entry = _opened.get(log)
    if entry is None or entry[0] != name:
        entry = _opened[log] = name, load_catalog(name.catalog)
    return entry[1]


def _loaded_table(catalog: Catalog, name: CatalogName) -> Table | None:
    try:
        return catalog.load_table(name.identifier)
    except NoSuchTableError:
        return None
    except FileNotFoundError as error:
        # Whether that folder is away for a moment or for good, nobody can tell from here.
        problem = f"the metadata that it points to is gone ({str(error).partition('. Detail')[0]})"
        advice = f"if the folder was moved, drop the table {name.dotted} there, without its files, and start again"
        raise CatalogRefused(str(name), f"{problem}: {advice}") from None


def _newest(place: IcebergPlace) -> tuple[TableMetadata, str]:
    """Return the newest metadata in the folder and its location."""
    head = read_head(place)
    return TableMetadataUtil.parse_raw(head.content.decode()), uri(place.store, place.file_of(head.number))


def _is_shown(table: Table, newest: TableMetadata, location: str) -> bool:
    """Return True if a catalog's table is the folder's: it points to the same file or, in a REST catalog, has its
    snapshots and its time.
    """
    catalog_metadata = table.metadata
    snapshots = [{snapshot.snapshot_id for snapshot in both.snapshots} for both in (catalog_metadata, newest)]
    same = (catalog_metadata.table_uuid, catalog_metadata.location) == (newest.table_uuid, newest.location)
    same = same and snapshots[0] == snapshots[1] and catalog_metadata.current_snapshot_id == newest.current_snapshot_id
    same = same and catalog_metadata.properties.get(freshness.PROPERTY) == newest.properties.get(freshness.PROPERTY)
    return table.metadata_location == location or (same and not isinstance(table.catalog, MetastoreCatalog))


def _point(catalog: Any, table: Table, newest: TableMetadata, location: str) -> None:
    """Point a catalog's table to a metadata file of the folder, by the compare and swap of pyiceberg's own commit.

    The file is there already: pyiceberg would write another one, and can't write format version 3.

    Raises:
        CommitFailedException: the table points elsewhere by now.
    """

    def staged(current: Table | None, identifier: Any, *_: Any) -> StagedTable:
        # The look of pyiceberg's own commit, directly before its swap: without it the pointer could be moved back over
        # a newer one.
        if current is None or current.metadata_location != table.metadata_location:
            raise CommitFailedException("the table was moved on by somebody else")
        return StagedTable(identifier, newest, location, table.io, catalog)

    catalog._update_and_stage_table, catalog._write_metadata = staged, lambda *given, **named: None
    try:
        catalog.commit_table(table, (), ())
    finally:
        # The class's own methods show again, for other tables may use the same catalog object.
        del catalog._update_and_stage_table, catalog._write_metadata


def _update(catalog: Catalog, named: CatalogName, table: Table, newest: TableMetadata, location: str) -> None:
    """Send the difference to a catalog that writes metadata itself.

    A catalog that can't accept the newest snapshot loses the table, and gets it registered anew.

    Raises:
        CommitFailedException: its branch is elsewhere by now. CommitStateUnknownException: the result is unknown.
    """
    catalog_metadata = table.metadata
    new_snapshots = _new_snapshots(catalog_metadata, newest)
    if new_snapshots is None:
        # Somebody else gave out the numbers that ours have: no update can bring them in.
        catalog.drop_table(named.identifier)
        catalog.register_table(named.identifier, location)
        return
    # The condition that keeps an older state from going over a newer one: `main` must be where it was loaded.
    expected_snapshot = AssertRefSnapshotId.model_validate(
        {"ref": MAIN, "snapshot-id": catalog_metadata.current_snapshot_id}
    )
    catalog.commit_table(
        table,
        (AssertTableUUID(uuid=catalog_metadata.table_uuid), expected_snapshot),
        tuple(_updates(catalog_metadata, newest, new_snapshots)),
    )


def _new_snapshots(catalog_metadata: TableMetadata, newest: TableMetadata) -> list[Snapshot] | None:
    """Return the snapshots that a catalog lacks and can accept, by their sequence numbers; None if it can't accept the
    newest.

    A catalog accepts a snapshot whose sequence number is above the last that the catalog has.
    """
    catalog_ids = {snapshot.snapshot_id for snapshot in catalog_metadata.snapshots}
    # A catalog refuses a snapshot whose sequence number is not above the last one that it gave out.
    last = getattr(catalog_metadata, "last_sequence_number", 0)  # there are none in format version 1
    missing_snapshots = [snapshot for snapshot in newest.snapshots if snapshot.snapshot_id not in catalog_ids]
    new_snapshots = sorted(
        (snapshot for snapshot in missing_snapshots if (snapshot.sequence_number or 0) > last),
        key=lambda each: each.sequence_number or 0,
    )
    all_ids = catalog_ids | {snapshot.snapshot_id for snapshot in new_snapshots}
    return new_snapshots if newest.current_snapshot_id in all_ids else None


def _updates(
    catalog_metadata: TableMetadata, newest: TableMetadata, new_snapshots: list[Snapshot]
) -> Iterator[TableUpdate]:
    if catalog_metadata.location != newest.location:
        yield SetLocationUpdate(location=newest.location)
    if catalog_metadata.schema().fields != newest.schema().fields:
        yield AddSchemaUpdate(schema=newest.schema())
        yield SetCurrentSchemaUpdate.model_validate({"schema-id": _LAST_ADDED})
    properties = {
        name: value for name, value in newest.properties.items() if catalog_metadata.properties.get(name) != value
    }
    if properties:
        yield SetPropertiesUpdate(updates=properties)
    # Of the properties that are gone this one alone is surely ours: a time that nobody vouches for any more.
    if freshness.PROPERTY in catalog_metadata.properties and freshness.PROPERTY not in newest.properties:
        yield RemovePropertiesUpdate(removals=[freshness.PROPERTY])
    yield from (AddSnapshotUpdate(snapshot=snapshot) for snapshot in new_snapshots)
    if newest.current_snapshot_id not in (None, catalog_metadata.current_snapshot_id):
        branch = {"ref-name": MAIN, "type": "branch", "snapshot-id": newest.current_snapshot_id}
        yield SetSnapshotRefUpdate.model_validate(branch)
    own_ids = {snapshot.snapshot_id for snapshot in newest.snapshots}
    # After `main` has moved on: with a snapshot the references to it go as well.
    if removed_ids := [
        snapshot.snapshot_id for snapshot in catalog_metadata.snapshots if snapshot.snapshot_id not in own_ids
    ]:
        yield RemoveSnapshotsUpdate.model_validate({"snapshot-ids": removed_ids})


@contextmanager
def _own_errors(name: CatalogName) -> Iterator[None]:
    """Convert errors of the catalogs' libraries: CatalogAway for those that may pass, CatalogRefused for refusals."""
    try:
        yield
    except HeadwaterError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and not isinstance(error, RequestException):
            raise  # of the folder's files
        text = f"{type(error).__name__}: {(str(error).strip() or 'no reason').splitlines()[0]}"
        if isinstance(error, _REFUSALS) or "AccessDenied" in text:
            variable = f"PYICEBERG_CATALOG__{name.catalog.upper()}__URI"
            advice = f"see its entry {name.catalog} in .pyiceberg.yaml, or {variable}"
            raise CatalogRefused(f"catalog {name.catalog}", f"{text}; {advice}") from error
        raise CatalogAway(f"catalog {name.catalog}", text) from error
