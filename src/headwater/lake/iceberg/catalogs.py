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


def follow(log: TableLog, named: CatalogName) -> None:
    """Bring the table of a catalog to the newest metadata in the folder; register it if the catalog has none.

    The log is refreshed after a registration, and a table that has left the catalog meanwhile is dropped from it again.

    Raises:
        TableAway: the table was moved or removed meanwhile.
        CatalogRefused: the catalog refuses it, or has another table under this name.
        CatalogAway: the catalog does not answer; the next commit or start tries again.
        TableChanged: other processes were first at each attempt.
    """
    if _reached.get(log) == (named, number := number_of(log)):
        return
    with _own_errors(named):
        catalog = _catalog(log, named)
        for _ in range(TRIES_MAX):
            if _followed(catalog, named, log):
                _reached[log] = named, number
                return
    raise TableChanged(log.store.root, f"others were first {TRIES_MAX} times at the catalog {named.catalog}")


def difference(log: TableLog, named: CatalogName) -> str | None:
    """Return the problem of the catalog's table, in one line; None if there is none.

    Raises:
        CatalogAway: the catalog does not answer. CatalogRefused: it refuses the request.
    """
    with _own_errors(named):
        table = _loaded(_catalog(log, named), named)
        if table is None:
            return f"the catalog {named.catalog} has no table {named.dotted}; the mirror's next batch or start makes it"
        mine, location = _newest(place_of(log))
        if not _is_shown(table, mine, location):
            return f"{named}: the newest snapshot is not there; the mirror's next batch or start brings it"
        return None


def drop(log: TableLog, named: CatalogName) -> None:
    """Drop the table from its catalog, without its files. Another table of this name stays, also the one of which this
    is a copy.

    Raises:
        CatalogAway: the catalog does not answer. CatalogRefused: it refuses the request.
    """
    with _own_errors(named):
        _drop(_catalog(log, named), named, log)
    _reached.pop(log, None)


def metadata_location(log: TableLog, named: CatalogName) -> str:
    """Return the location of the metadata file to which the catalog points now; empty if it has no such table.

    Raises:
        CatalogAway: the catalog does not answer. CatalogRefused: it refuses the request.
    """
    with _own_errors(named):
        table = _loaded(_catalog(log, named), named)
        return "" if table is None else str(table.metadata_location)


def _followed(catalog: Catalog, named: CatalogName, log: TableLog) -> bool:
    """Bring the catalog to the newest metadata.

    Returns: False if another process was first, or the catalog can't tell if its commit succeeded; try again then.
    """
    # In this order: the folder's metadata is read after the catalog's, so what is put over the state that was loaded is
    # never older than it.
    table = _loaded(catalog, named)
    mine, location = _newest(place_of(log))
    if table is not None and _is_shown(table, mine, location):
        return True
    failpoint("iceberg.before_catalog")
    try:
        if table is None:
            for parts in range(1, len(named.identifier)):  # those that have it as well
                catalog.create_namespace_if_not_exists(named.identifier[:parts])
            catalog.register_table(named.identifier, location)
            _check_named(catalog, named, log)
        elif table.metadata.table_uuid != mine.table_uuid:
            problem = f"it has another table of this name, {table.metadata.table_uuid}: drop that, or give another name"
            raise CatalogRefused(str(named), problem)
        elif isinstance(catalog, MetastoreCatalog):
            _point(catalog, table, mine, location)
        else:
            _update(catalog, named, table, mine, location)
    # Nobody knows whether a commit of unknown state went through. The next look loads the catalog and finds out.
    except (CommitFailedException, CommitStateUnknownException, TableAlreadyExistsError):
        return False
    failpoint("iceberg.after_catalog")
    return True


def _check_named(catalog: Catalog, named: CatalogName, log: TableLog) -> None:
    """Drop the table that was just registered if it has left the catalog meanwhile (`entry.leave_catalog`).

    The name is looked up after the registration, and who leaves drops the table after the name is gone: one of the two
    comes last and sees the other.

    Raises:
        TableAway: the table was moved or removed meanwhile.
    """
    try:
        if log.refresh(sure=True).properties.get(CATALOG) != str(named):
            _drop(catalog, named, log)
    except TableAway:
        try:
            _drop(catalog, named, log)
        except CatalogRefused:
            # The folder that we registered a moment ago is gone, so nobody can load the table.
            with suppress(NoSuchTableError):
                catalog.drop_table(named.identifier)
        raise


def _drop(catalog: Catalog, named: CatalogName, log: TableLog) -> None:
    """Drop the log's table; one of another id stays, and one of another folder: a copy of a lake keeps id and name."""
    table, mine = _loaded(catalog, named), (log.state.id, place_of(log).location)
    if table is not None and (str(table.metadata.table_uuid), table.metadata.location) == mine:
        # After a lost answer it is gone already.
        with suppress(NoSuchTableError):
            catalog.drop_table(named.identifier)


def _catalog(log: TableLog, named: CatalogName) -> Catalog:
    known = _opened.get(log)
    if known is None or known[0] != named:
        known = _opened[log] = named, load_catalog(named.catalog)
    return known[1]


def _loaded(catalog: Catalog, named: CatalogName) -> Table | None:
    try:
        return catalog.load_table(named.identifier)
    except NoSuchTableError:
        return None
    except FileNotFoundError as error:
        # Whether that folder is away for a moment or for good, nobody can tell from here.
        problem = f"the metadata that it points to is gone ({str(error).partition('. Detail')[0]})"
        advice = f"if the folder was moved, drop the table {named.dotted} there, without its files, and start again"
        raise CatalogRefused(str(named), f"{problem}: {advice}") from None


def _newest(place: IcebergPlace) -> tuple[TableMetadata, str]:
    """Return the newest metadata in the folder and its location."""
    head = read_head(place)
    return TableMetadataUtil.parse_raw(head.content.decode()), uri(place.store, place.file_of(head.number))


def _is_shown(table: Table, mine: TableMetadata, location: str) -> bool:
    """Return True if a catalog's table is the folder's: it points to the same file or, in a REST catalog, has its
    snapshots and its time.
    """
    theirs = table.metadata
    snapshots = [{each.snapshot_id for each in both.snapshots} for both in (theirs, mine)]
    same = (theirs.table_uuid, theirs.location) == (mine.table_uuid, mine.location)
    same = same and snapshots[0] == snapshots[1] and theirs.current_snapshot_id == mine.current_snapshot_id
    same = same and theirs.properties.get(freshness.PROPERTY) == mine.properties.get(freshness.PROPERTY)
    return table.metadata_location == location or (same and not isinstance(table.catalog, MetastoreCatalog))


def _point(catalog: Any, table: Table, mine: TableMetadata, location: str) -> None:
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
        return StagedTable(identifier, mine, location, table.io, catalog)

    catalog._update_and_stage_table, catalog._write_metadata = staged, lambda *given, **named: None
    try:
        catalog.commit_table(table, (), ())
    finally:
        # The class's own methods show again, for other tables may use the same catalog object.
        del catalog._update_and_stage_table, catalog._write_metadata


def _update(catalog: Catalog, named: CatalogName, table: Table, mine: TableMetadata, location: str) -> None:
    """Send the difference to a catalog that writes metadata itself.

    A catalog that can't accept the newest snapshot loses the table, and gets it registered anew.

    Raises:
        CommitFailedException: its branch is elsewhere by now. CommitStateUnknownException: the result is unknown.
    """
    theirs = table.metadata
    added = _added(theirs, mine)
    if added is None:
        # Somebody else gave out the numbers that ours have: no update can bring them in.
        catalog.drop_table(named.identifier)
        catalog.register_table(named.identifier, location)
        return
    # The condition that keeps an older state from going over a newer one: `main` must be where it was loaded.
    seen = AssertRefSnapshotId.model_validate({"ref": MAIN, "snapshot-id": theirs.current_snapshot_id})
    catalog.commit_table(table, (AssertTableUUID(uuid=theirs.table_uuid), seen), tuple(_updates(theirs, mine, added)))


def _added(theirs: TableMetadata, mine: TableMetadata) -> list[Snapshot] | None:
    """Return the snapshots that a catalog lacks and can accept, by their sequence numbers; None if it can't accept the
    newest.

    A catalog accepts a snapshot whose sequence number is above the last that the catalog has.
    """
    known = {each.snapshot_id for each in theirs.snapshots}
    # A catalog refuses a snapshot whose sequence number is not above the last one that it gave out.
    last = getattr(theirs, "last_sequence_number", 0)  # there are none in format version 1
    missing = [each for each in mine.snapshots if each.snapshot_id not in known]
    added = sorted(
        (each for each in missing if (each.sequence_number or 0) > last), key=lambda each: each.sequence_number or 0
    )
    there = known | {each.snapshot_id for each in added}
    return added if mine.current_snapshot_id in there else None


def _updates(theirs: TableMetadata, mine: TableMetadata, added: list[Snapshot]) -> Iterator[TableUpdate]:
    if theirs.location != mine.location:
        yield SetLocationUpdate(location=mine.location)
    if theirs.schema().fields != mine.schema().fields:
        yield AddSchemaUpdate(schema=mine.schema())
        yield SetCurrentSchemaUpdate.model_validate({"schema-id": _LAST_ADDED})
    properties = {name: value for name, value in mine.properties.items() if theirs.properties.get(name) != value}
    if properties:
        yield SetPropertiesUpdate(updates=properties)
    # Of the properties that are gone this one alone is surely ours: a time that nobody vouches for any more.
    if freshness.PROPERTY in theirs.properties and freshness.PROPERTY not in mine.properties:
        yield RemovePropertiesUpdate(removals=[freshness.PROPERTY])
    yield from (AddSnapshotUpdate(snapshot=each) for each in added)
    if mine.current_snapshot_id not in (None, theirs.current_snapshot_id):
        branch = {"ref-name": MAIN, "type": "branch", "snapshot-id": mine.current_snapshot_id}
        yield SetSnapshotRefUpdate.model_validate(branch)
    kept = {each.snapshot_id for each in mine.snapshots}
    # After `main` has moved on: with a snapshot the references to it go as well.
    if gone := [each.snapshot_id for each in theirs.snapshots if each.snapshot_id not in kept]:
        yield RemoveSnapshotsUpdate.model_validate({"snapshot-ids": gone})


@contextmanager
def _own_errors(named: CatalogName) -> Iterator[None]:
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
            variable = f"PYICEBERG_CATALOG__{named.catalog.upper()}__URI"
            advice = f"see its entry {named.catalog} in .pyiceberg.yaml, or {variable}"
            raise CatalogRefused(f"catalog {named.catalog}", f"{text}; {advice}") from error
        raise CatalogAway(f"catalog {named.catalog}", text) from error
