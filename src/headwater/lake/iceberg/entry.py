"""Functions for the rest of the lake. A table is published as Iceberg if it has Iceberg's layout, or if it has Delta's
and the property `headwater.iceberg`.

The library for Avro is imported only for such a table, since most tables are not published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Final

from headwater.errors import TableError, UnsupportedTable
from headwater.failpoints import failpoint
from headwater.lake.iceberg.place import CATALOG, PROPERTY, CatalogName, place_of
from headwater.lake.iceberg.schema import FieldIds, UnknownTypeError
from headwater.lake.layout import OF_ICEBERG, Formats
from headwater.lake.log import TableLog, TableState
from headwater.lake.store import Listed

ADVICE: Final = "mirror with --format delta, or elsewhere in another form"


def formats_of(state: TableState) -> Formats:
    """Return the formats in which the table can be read."""
    if state.layout is OF_ICEBERG:
        return Formats.ICEBERG
    return Formats.BOTH if state.says(PROPERTY) else Formats.DELTA


def is_published(state: TableState) -> bool:
    """Return True if the table is published as Iceberg."""
    return formats_of(state) is not Formats.DELTA


def catalog_of(state: TableState) -> CatalogName | None:
    """Return the table's name in the catalog that follows it; None if no catalog does.

    Raises:
        OptionError: the property has an invalid form; another writer has set it.
    """
    text = state.properties.get(CATALOG)
    return CatalogName.parse(text) if text and is_published(state) else None


def neighbour_in_catalog(state: TableState, end: str) -> CatalogName | None:
    """Return the name in a catalog of a table beside this one; None if no catalog follows this one."""
    catalog_name = catalog_of(state)
    return None if catalog_name is None else catalog_name.neighbour(end)


def publish(log: TableLog) -> None:
    """Bring the Iceberg table to the state of the log, if the table is published, and then the catalog that follows it,
    if any; the log is refreshed.

    Raises:
        TableError: the table can't be published; the message has the reason.
        CatalogRefused, CatalogAway: the folder is up to date and the catalog that follows it is not.
        HeadwaterError, OSError: the publication failed, before or after its commit; the next call completes it.
    """
    if is_published(log.state):
        # The folder first: it is the table, and a catalog that is away must not hold it back.
        _library(log).publish(log)
        _follow(log)


def expire(log: TableLog, seconds: float, now: float) -> None:
    """Publish the log's state without the snapshots that are older than `seconds`, so that their files may be removed.

    Args:
        log: of the table.
        seconds: for how long the files of older versions stay.
        now: Unix seconds.

    Raises: as `publish`.
    """
    if is_published(log.state):
        _library(log).expire(log, seconds, now)
        _follow(log)


def leave_catalog(log: TableLog) -> None:
    """Drop the table from the catalog that follows it, without its files, and let it forget its name there. A table
    that has none stays as it is.

    Raises:
        CatalogRefused: the catalog refuses it. CatalogAway: the catalog does not answer.
        TableAway: another table lies here by now, or none; that one stays in the catalog.
    """
    catalog_name = catalog_of(log.state)
    if catalog_name is None:
        return
    library = _catalogs(log.store.root)
    # The catalog first: the name is in the table until the catalog is without it, so that a run that is cut off between
    # the two is gone on with.
    library.drop(log, catalog_name)
    failpoint("iceberg.left_catalog")
    _forget_name(log)
    # Once more: a batch of another process may have registered it again until the name was gone. Whoever registers it
    # from now on finds that out himself (`catalogs.follow`).
    library.drop(log, catalog_name)


def _forget_name(log: TableLog) -> None:
    """Let a table forget its name in a catalog, whoever commits at the same time."""
    while CATALOG in log.state.properties:
        properties = {name: value for name, value in log.state.properties.items() if name != CATALOG}
        log.commit([{"metaData": log.state.metadata | {"configuration": properties}}], "UNSET TBLPROPERTIES")
        log.refresh()


def next_row(log: TableLog) -> int:
    """Return the first id of a row that the Iceberg table has not given out; 0 if there is none."""
    # The metadata of a table that is not published now is continued once it is published again.
    place = place_of(log)
    return int(_library(log).next_row(log)) if is_published(log.state) or any(place.store.list(place.own)) else 0


def unneeded(log: TableLog, now: float) -> list[Listed]:
    """Return the Iceberg table's own files that no snapshot needs and that are older than a day; they can be removed.

    The metadata file that the catalog points to is none of them, however old: the catalog can't be brought to a newer
    one without it.

    Raises: as `publish`.
    """
    files: list[Listed] = list(_library(log).unneeded(log, now)) if is_published(log.state) else []
    if files and (catalog_name := catalog_of(log.state)) is not None:
        # Behind the listing: whatever the catalog is brought to from now on is newer than these files. A catalog that
        # was away since the last publication may still point to one of them.
        pointed = _catalogs(log.store.root).metadata_location(log, catalog_name)
        files = [file for file in files if _name(file.path) != _name(pointed)]
    return files


def differences(log: TableLog) -> list[str]:
    """Return the differences between the Iceberg table and the log, a line each; empty if there is none.

    Raises: as `publish`.
    """
    if not is_published(log.state):
        return []
    _library(log)
    from headwater.lake.iceberg import check

    catalog_name = catalog_of(log.state)
    catalog_difference = None if catalog_name is None else _catalogs(log.store.root).difference(log, catalog_name)
    return [*check.differences(log), *([catalog_difference] if catalog_difference else [])]


def check_columns(place: str, columns: Sequence[Mapping[str, Any]]) -> None:
    """Check that a table with these columns can be published.

    Raises:
        UnsupportedTable: a column has a type that Iceberg does not have. TableError: the library for Avro is missing.
    """
    check_library(place)
    try:
        FieldIds().fields(columns)
    except UnknownTypeError as error:
        raise UnsupportedTable(place, f"Iceberg gets no column of this type, {error}: {ADVICE}") from None


def check_library(place: str) -> None:
    """Check that the library for Avro is installed.

    Raises:
        TableError: it is missing.
    """
    try:
        import fastavro  # noqa: F401 - for its presence
    except ImportError:
        raise TableError(
            place, "Iceberg's files need fastavro, which the extra iceberg brings: pip install fastavro"
        ) from None


def check_catalogs(place: str) -> None:
    """Check that the library of catalogs, pyiceberg, is installed.

    Raises:
        TableError: it is missing.
    """
    try:
        import pyiceberg  # noqa: F401 - for its presence
    except ImportError:
        raise TableError(
            place, "catalogs need pyiceberg, which the extra catalog brings: pip install pyiceberg"
        ) from None


def _name(location: str) -> str:
    """Return a file's name: a catalog gives it with another scheme or folder than the store, and names are unique."""
    return location.rpartition("/")[2]


def _follow(log: TableLog) -> None:
    if (catalog_name := catalog_of(log.state)) is not None:
        _catalogs(log.store.root).follow(log, catalog_name)


def _catalogs(place: str) -> ModuleType:
    check_catalogs(place)
    from headwater.lake.iceberg import catalogs

    return catalogs


def _library(log: TableLog) -> ModuleType:
    check_library(log.store.root)
    from headwater.lake.iceberg import publish as library

    return library
