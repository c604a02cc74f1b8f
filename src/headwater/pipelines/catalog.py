"""A table given by its name in a catalog of a Spark session: `catalog.schema.name`.

A name points to a folder, and the folder holds the table. So a name is looked up once, at each start of a mirror; after
that everything is as with a folder: tasks, commits, indexes and the checkpoint know only the place. A new table is
created at its place first, whole and with its record, and registered under its name then. After a crash between the two
the next start finds the table there and registers it.

Tables are registered as external ones, USING delta LOCATION: a drop of the name keeps the documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headwater.errors import OptionError, TableAway, TableChanged, TableError
from headwater.lake.objects import LIBRARIES
from headwater.lake.places import CHANGES, QUARANTINE, place_of
from headwater.pipelines.session import HADOOP_S3
from headwater.pipelines.sink import TableSink
from headwater.pipelines.table_names import IN_MEMORY, PART, SESSION_CATALOG, parse_name, quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DETAILS = "# Detailed Table Information"
_SHOWN_MAX = 5
_NO_LIBRARY = re.compile(r"Class (\S+) not found|(No FileSystem for scheme \S+)")


class NamedTable:
    """A mirror's table, given by its name.

    Args:
        spark: the session whose catalogs know it, with Delta Lake.
        name: the name with catalog and schema; those of the session if they are left out.
        to: the place of a new table; None for the schema's own place.

    Raises:
        OptionError: no name, or no session: worker processes have no catalog.
    """

    def __init__(self, spark: SparkSession | None, name: str, to: str | Path | None = None) -> None:
        parts = parse_name(name)
        if spark is None:
            message = "given with a Spark session (--engine spark): the local engine has no catalog"
            raise OptionError("table", name, f"{message}; give it the table's folder instead, with --to")
        self._spark, self._folder = spark, to
        self._place: str | None = None
        if len(parts) < 3:
            namespace = (str(spark.catalog.currentDatabase()),) if len(parts) == 1 else ()
            parts = (str(spark.catalog.currentCatalog()), *namespace, *parts)
        self.parts = parts

    @property
    def name(self) -> str:
        """The whole name, for people."""
        return ".".join(part if PART.fullmatch(part) and "`" not in part else quoted((part,)) for part in self.parts)

    @property
    def lasts(self) -> bool:
        """True if the catalog outlives the session; Spark's own catalog may be in memory."""
        implementation: Any = self._spark.conf.get("spark.sql.catalogImplementation", IN_MEMORY)
        return self.parts[0] != SESSION_CATALOG or implementation != IN_MEMORY

    def registered_place(self) -> str | None:
        """Return the place of the table by the catalog; None if it knows no table of this name.

        Raises:
            TableError: a view, or a table that is not Delta's.
        """
        return self._registered_place("")

    def place(self) -> str:
        """Return the place of the table, or of a new one.

        The name is looked up once: a later attempt continues at this place, even if the name was dropped meanwhile or
        leads elsewhere, which `register` reports.

        Raises:
            TableError: as `registered_place`; or no such schema, or one without a place of its own.
            OptionError: `to` is another place than the catalog's.
        """
        self._place = self._place or self._looked_up()
        return self._place

    def _looked_up(self) -> str:
        registered, requested = self.registered_place(), None if self._folder is None else place_of(self._folder)
        if registered is not None:
            if requested not in (None, registered):
                raise OptionError(
                    "to", str(self._folder), f"where the catalog has {self.name}, {registered}: leave it out"
                )
            return registered
        below = self._schema_place()
        if requested is None and below is None:
            raise TableError(self.name, "its schema has no place for new tables: say with --to where it is to lie")
        last = self.parts[-1]
        if requested is None and ("/" in last or last.startswith(".")):
            raise TableError(self.name, "no folder can be called like that: say with --to where it is to lie")
        return requested or f"{below}/{last}"

    def register(self, sink: TableSink) -> None:
        """Give a table and its neighbours their names, if they have none yet.

        Raises:
            TableError: one of the names belongs to another table.
        """
        places = {"": sink.place}
        places |= {CHANGES: sink.changes.place} if sink.changes else {}
        places |= {QUARANTINE: sink.quarantine.place} if sink.quarantine else {}
        for end, place in places.items():
            registered = self._registered_place(end)
            if registered is None:
                with self._explained(end):
                    self._spark.sql(f"CREATE TABLE IF NOT EXISTS {self._sql(end)} USING delta LOCATION {_text(place)}")
                # Looked up once more: another session may have given the name to its own place just before.
                registered = self._registered_place(end)
            if registered != place:
                message = f"the catalog has a table of this name at {registered}, and this one lies at {place}"
                raise TableError(f"{self.name}{end}", f"{message}: drop that name or rename it, or choose another")

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Add the table's name to each TableError of the block, in front of its place."""
        try:
            yield
        except TableError as error:
            if isinstance(error, TableChanged | TableAway) or error.place.startswith(self.name):
                raise
            raise type(error)(f"{self.name} ({error.place})", error.problem) from error

    def _sql(self, end: str = "") -> str:
        return quoted((*self.parts[:-1], f"{self.parts[-1]}{end}"))

    def _registered_place(self, end: str) -> str | None:
        details = self._description(end)
        if details is None:
            return None
        name, kind, provider = f"{self.name}{end}", details.get("type", "VIEW"), details.get("provider", "")
        if "VIEW" in kind.upper():
            raise TableError(name, "it is a view, and a mirror needs a table of Delta's: choose another name")
        if provider.lower() != "delta":
            message = f"it is a table of {provider or 'no format that is told'}, not of Delta's"
            raise TableError(name, f"{message}: choose another name, or drop it and let the mirror make it")
        return located(name, details.get("location", ""))

    def _description(self, end: str) -> Mapping[str, str] | None:
        """Return the description of a table in the catalog, by names in lower case; None if there is none."""
        self._check_catalog()
        with self._explained(end):
            if not self._spark.catalog.tableExists(self._sql(end)):
                return None
            rows = self._spark.sql(f"DESCRIBE TABLE EXTENDED {self._sql(end)}").collect()
        # The columns come first, and one of them may be called like anything.
        last = max((at for at, row in enumerate(rows) if row.col_name == _DETAILS), default=len(rows))
        return {row.col_name.strip().lower(): (row.data_type or "").strip() for row in rows[last + 1 :]}

    def _schema_place(self) -> str | None:
        """Return the place in which the schema keeps new tables; None if it names none.

        Raises:
            TableError: there is no such schema.
        """
        schema = quoted(self.parts[:-1])
        with self._explained():
            if not self._spark.catalog.databaseExists(schema):
                raise TableError(self.name, self._no_schema(schema))
            rows = self._spark.sql(f"DESCRIBE NAMESPACE EXTENDED {schema}").collect()
        location = {str(row[0]).strip().lower(): str(row[1] or "").strip() for row in rows}.get("location")
        return located(self.name, location, encoded=True) if location else None

    def _check_catalog(self) -> None:
        """Check that the session has the catalog; Spark would read the name of an unknown catalog as that of a schema.

        Raises:
            TableError: it has no such catalog.
        """
        catalog = self.parts[0]
        if catalog != SESSION_CATALOG and self._spark.conf.get(f"spark.sql.catalog.{catalog}", None) is None:
            catalogs = [row[0] for row in self._spark.sql("SHOW CATALOGS").collect()]
            message = f'the session has no catalog "{catalog}" ({_names_text(catalogs, "catalog")})'
            advice = f"it is configured by --conf spark.sql.catalog.{catalog}=CLASS, or choose another name"
            raise TableError(self.name, f"{message}: {advice}")

    def _no_schema(self, schema: str) -> str:
        catalog = self.parts[0]
        schemas = [row[0] for row in self._spark.sql(f"SHOW NAMESPACES IN {quoted((catalog,))}").collect()]
        message = (
            f'the catalog "{catalog}" has no schema "{".".join(self.parts[1:-1])}" ({_names_text(schemas, "schema")})'
        )
        return f"{message}: create it (CREATE SCHEMA {schema}), or choose another name"

    @contextmanager
    def _explained(self, end: str = "") -> Iterator[None]:
        """Convert Spark's refusals, and reports of missing libraries, to TableError, in one line.

        Errors without an error class in Spark, such as an outage of the metastore, are raised unchanged: they may pass.
        """
        from pyspark.errors import AnalysisException

        try:
            yield
        except AnalysisException as error:
            if (error.getCondition() or "_LEGACY").startswith("_LEGACY"):
                raise
            raise TableError(f"{self.name}{end}", f"Spark refuses: {' '.join(str(error).split())}") from error
        except Exception as error:
            if (match := _NO_LIBRARY.search(str(error))) is None:
                raise
            message = f"Spark lacks a library ({match[1] or match[2]}); it is given by --conf spark.jars.packages=..."
            raise TableError(f"{self.name}{end}", f"{message}, which for s3: is {HADOOP_S3}") from error


def located(name: str, location: str, *, encoded: bool = False) -> str:
    """Return a catalog's location in the form of our places.

    Args:
        name: the name of the table or schema.
        location: as Spark prints it.
        encoded: True if %20 in it means a space: Spark prints the places of schemas so, but not those of tables.

    Raises:
        TableError: a place that can't be reached from here.
    """
    scheme = urlsplit(location).scheme
    if not location or (scheme not in ("", "file") and scheme not in LIBRARIES):
        message = f'the catalog has it at "{location}"'
        raise TableError(
            name, f"{message}, and a mirror reaches folders, s3:, gs: and abfss: only: choose another place"
        )
    if scheme != "file" or encoded:
        return place_of(location)
    return place_of("/" + location.partition(":")[2].lstrip("/"))


def _names_text(names: list[str], kind: str) -> str:
    names_text = ", ".join(names[:_SHOWN_MAX]) + (" ..." if len(names) > _SHOWN_MAX else "")
    return (
        f"of {len(names)} there {'is' if len(names) == 1 else 'are'} {names_text}" if names else f"there is no {kind}"
    )


def _text(place: str) -> str:
    return "'" + place.replace("\\", "\\\\").replace("'", "\\'") + "'"
