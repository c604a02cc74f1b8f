"""A published table, and the same table as readers of Iceberg see it that are not ours."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import StaticTable

from headwater.lake.iceberg import catalogs
from headwater.lake.iceberg.place import FOLDER, PROPERTY
from headwater.lake.layout import OF_ICEBERG
from headwater.lake.log import TableLog
from tests.lake.support import Table

for_linux = pytest.mark.skipif(sys.platform != "linux", reason="the packages of DuckDB's extensions are for Linux")


def published(place: str | Path) -> Table:
    """A new table that is published."""
    table = Table(place)
    set_published(table.log)
    return table


def alone(place: str | Path) -> Table:
    """A new table of Iceberg's layout."""
    return Table(place, OF_ICEBERG)


def iceberg_of(place: str | Path) -> str:
    """The folder that readers of Iceberg are given: the table's own, or that beside the files of Delta."""
    beside = f"{place}/{FOLDER}"
    return beside if Path(beside).exists() else str(place)


def set_published(log: TableLog) -> None:
    """Give a table the property, as a start with the option does."""
    configuration = dict(log.state.properties) | {PROPERTY: "true"}
    assert log.commit([{"metaData": log.state.metadata | {"configuration": configuration}}], "SET TBLPROPERTIES")


def configure(monkeypatch: pytest.MonkeyPatch, catalog: str, **properties: str) -> None:
    """Let a catalog have these properties, as an entry in pyiceberg's configuration gives them."""

    def load(name: str) -> Catalog:
        assert name == catalog
        return load_catalog(name, **properties)

    monkeypatch.setattr(catalogs, "load_catalog", load)


def by_pyiceberg(place: str | Path) -> dict[bytes, bytes]:
    """Key to value; a key that is there twice fails."""
    rows = StaticTable.from_metadata(iceberg_of(place)).scan(selected_fields=("key", "value")).to_arrow()
    return _once(list(zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)))


def by_duckdb(place: str | Path) -> dict[bytes, bytes]:
    """Return the same by DuckDB."""
    return _once(queried(place, "key, value"))


def queried(place: str | Path, columns: str) -> list[Any]:
    """Rows of the table in DuckDB, with its extensions, which come as packages: nothing is fetched."""
    import duckdb_extension_avro  # noqa: PLC0415
    import duckdb_extension_iceberg  # noqa: PLC0415

    with duckdb.connect() as connection:
        for package, name in ((duckdb_extension_avro, "avro"), (duckdb_extension_iceberg, "iceberg")):
            (extension,) = Path(package.__file__).parent.rglob(f"{name}.duckdb_extension")
            connection.execute(f"LOAD '{extension}'")
        return connection.execute(f"SELECT {columns} FROM iceberg_scan('{iceberg_of(place)}')").fetchall()


def _once(rows: list[Any]) -> dict[bytes, bytes]:
    read = dict(rows)
    assert len(read) == len(rows), "a key has two rows"
    return read
