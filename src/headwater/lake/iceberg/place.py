"""The place of the Iceberg table and its name in a catalog, and the properties by which a table has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headwater.errors import OptionError
from headwater.lake.layout import METADATA, OF_DELTA, within
from headwater.lake.log import DataFile, TableLog
from headwater.lake.store import TableStore

PROPERTY: Final = "headwater.iceberg"
"""The property of a Delta table that is published as Iceberg as well; a table keeps it whoever writes to it."""

CATALOG: Final = "headwater.iceberg.catalog"
"""The property of a table that a catalog follows: the catalog's name and the table's in it. What else belongs to the
catalog, its address and what is secret, stands in pyiceberg's configuration."""

FOLDER: Final = OF_DELTA.iceberg
"""The folder of the Iceberg table in that of the Delta table. Delta's VACUUM leaves folders alone that begin with _."""

OWN: Final = within(FOLDER, METADATA)
"""The folder of all files of the Iceberg table that are not data, where the table is Delta's as well."""


@dataclass(frozen=True, slots=True)
class CatalogName:
    """The name of a table in a catalog.

    Args:
        catalog: the catalog's name in pyiceberg's configuration.
        identifier: the namespace's parts, and the table.
    """

    catalog: str
    identifier: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> CatalogName:
        """Read a name such as `prod:shop.orders`.

        Raises:
            OptionError: another form.
        """
        catalog, _, dotted = text.partition(":")
        identifier = tuple(dotted.split("."))
        if not catalog or len(identifier) < 2 or not all(identifier):
            raise OptionError("catalog", text, "a catalog's name and a table's in it, such as prod:shop.orders")
        return cls(catalog, identifier)

    def __str__(self) -> str:
        return f"{self.catalog}:{self.dotted}"

    @property
    def dotted(self) -> str:
        """The table's name, with its namespace."""
        return ".".join(self.identifier)

    def neighbour(self, end: str) -> CatalogName:
        """Return the name of a table beside this one, such as its change log."""
        return CatalogName(self.catalog, (*self.identifier[:-1], f"{self.identifier[-1]}{end}"))


@dataclass(frozen=True, slots=True)
class CatalogFolder:
    """The place of the tables of collections in a catalog: a scope is a namespace, a collection a table.

    Args:
        catalog: the catalog's name in pyiceberg's configuration.
        namespace: the namespace that has those of the scopes; empty if the catalog itself has them.
    """

    catalog: str
    namespace: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> CatalogFolder:
        """Read a name such as `prod`, or `prod:lake`.

        Raises:
            OptionError: another form.
        """
        catalog, colon, dotted = text.partition(":")
        namespace = tuple(dotted.split(".")) if colon else ()
        if not catalog or not all(namespace):
            means = "a catalog's name, or with a namespace for those of the scopes, such as prod or prod:lake"
            raise OptionError("catalog", text, means)
        return cls(catalog, namespace)

    def table(self, scope: str, collection: str) -> CatalogName:
        """Return the name of a collection's table."""
        return CatalogName(self.catalog, (*self.namespace, scope, collection))


@dataclass(frozen=True, slots=True)
class IcebergPlace:
    """The place of an Iceberg table.

    Args:
        store: the place of the table.
        folder: the Iceberg table's folder in it; empty if it is the same.
    """

    store: TableStore
    folder: str

    @property
    def own(self) -> str:
        """The folder of the Iceberg table's metadata, manifests and Puffin files."""
        return within(self.folder, METADATA)

    @property
    def hint(self) -> str:
        """The path of the file that names the newest metadata file for readers."""
        return f"{self.own}/version-hint.text"

    @property
    def location(self) -> str:
        """The location of the Iceberg table, with a scheme."""
        return within_location(location_of(self.store), self.folder)

    def file_of(self, number: int) -> str:
        """Return the path of a metadata file."""
        return f"{self.own}/v{number}.metadata.json"


def place_of(log: TableLog) -> IcebergPlace:
    """Return the place of the Iceberg table that is published from a log."""
    return IcebergPlace(log.store, log.state.layout.iceberg)


def within_location(location: str, folder: str) -> str:
    """Return the location of `folder` below a location; for an empty folder that location itself."""
    return f"{location}/{folder}" if folder else location


def location_of(store: TableStore) -> str:
    """Return the location of the table, as Iceberg names places: with a scheme."""
    return store.root if "://" in store.root else f"file://{store.root}"


def uri(store: TableStore, path: str) -> str:
    """Return the location of a file of the table, with a scheme."""
    return path if "://" in path else f"{location_of(store)}/{path}"


def path_of(store: TableStore, place: str) -> str:
    """Return the path in the table of a location; a location outside of the table is returned unchanged."""
    return place.removeprefix(f"{location_of(store)}/")


def data_location(store: TableStore, file: DataFile) -> str:
    """Return the location of a data file; the log may have it as a url or as an absolute path."""
    return uri(store, file.path) if "://" in store.root else f"file://{store.full(file.path)}"
