"""The part that runs where a reader is installed: it reads tables and prints their rows, a JSON object a line.

It imports the standard library and the reader, for an environment may have nothing else:

    python reading.py polars-delta < tables.json

The input is a list of tables: `place`, `columns`, and `ids`, true if the ids of rows are wanted as the column `row_id`.
The answer to each is `{"rows": [...]}`, or `{"refused": "in the reader's words"}`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]
Read = Callable[[str, Sequence[str], bool], Rows]
"""Reads a table: its place, its columns, and whether the ids of rows are wanted."""

WORDS_MAX = 300
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017 -- as old a Python as a reader has
ROW_ID = "row_id"


class HasNone(Exception):  # noqa: N818 -- says what is missing
    """The reader has no name for what was wanted."""


def plain(value: Any) -> Any:  # noqa: PLR0911 -- one for each kind of value
    """Return a value as JSON has it: bytes as text, or in hex where they are none, and times as microseconds of UTC."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes | bytearray | memoryview):
        content = bytes(value)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return f"0x{content.hex()}"
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=EPOCH.tzinfo)
        return (aware - EPOCH) // timedelta(microseconds=1)
    if hasattr(value, "asDict"):
        value = value.asDict()
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return plain(value.toPython()) if hasattr(value, "toPython") else f"{type(value).__name__}: {value}"


def spark(form: str, row_id: str) -> Read:
    """Return a reader of Spark's; the settings of its session are in the environment."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    builder = SparkSession.builder.master("local[2]").appName("readers")
    for name, value in json.loads(os.environ["READERS_SPARK"]).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()

    def read(place: str, columns: Sequence[str], ids: bool) -> Rows:
        chosen = [*(f"`{column}`" for column in columns), *([f"{row_id} AS {ROW_ID}"] if ids else [])]
        return [each.asDict() for each in session.read.format(form).load(place).selectExpr(*chosen).collect()]

    return read


def pyiceberg() -> Read:
    """Return pyiceberg, opening the folder."""
    from pyiceberg.table import StaticTable  # noqa: PLC0415

    def read(place: str, columns: Sequence[str], ids: bool) -> Rows:
        chosen = (*columns, *(["_row_id"] if ids else []))
        rows = StaticTable.from_metadata(place).scan(selected_fields=chosen).to_arrow().to_pylist()
        return _renamed(rows, "_row_id") if ids else rows

    return read


def duckdb(scan: str, row_id: str, *packages: str) -> Read:
    """Return DuckDB with its extensions, which come as packages: nothing is fetched."""
    import duckdb as engine  # noqa: PLC0415

    connection = engine.connect()
    for package in packages:
        found = __import__(f"duckdb_extension_{package}")
        (extension,) = Path(str(found.__file__)).parent.rglob(f"{package}.duckdb_extension")
        connection.execute(f"LOAD '{extension}'")
    connection.execute("SET TimeZone = 'UTC'")

    def read(place: str, columns: Sequence[str], ids: bool) -> Rows:
        told = connection.execute(f"SELECT {_quoted(columns, row_id, ids)} FROM {scan}('{place}')")
        names = [each[0] for each in told.description]
        return [dict(zip(names, row, strict=True)) for row in told.fetchall()]

    return read


def polars_delta() -> Read:
    """Return Polars reading Delta."""
    import polars  # noqa: PLC0415

    def read(place: str, columns: Sequence[str], ids: bool) -> Rows:
        return _without(ids) or polars.read_delta(place, columns=list(columns)).to_dicts()

    return read


def polars_iceberg() -> Read:
    """Return Polars reading Iceberg, from the newest metadata file."""
    import polars  # noqa: PLC0415

    def read(place: str, columns: Sequence[str], ids: bool) -> Rows:
        newest = (Path(place) / "metadata" / "version-hint.text").read_text().strip()
        path = f"{place}/metadata/v{newest}.metadata.json"
        return _without(ids) or polars.scan_iceberg(path).select(list(columns)).collect().to_dicts()

    return read


def delta_rs() -> Read:
    """Return delta-rs, whose own reader is DataFusion."""
    import pyarrow  # noqa: PLC0415
    from deltalake import DeltaTable, QueryBuilder  # noqa: PLC0415

    def read(place: str, columns: Sequence[str], ids: bool) -> Rows:
        _without(ids)
        told = QueryBuilder().register("t", DeltaTable(place)).execute(f"SELECT {_quoted(columns, '', False)} FROM t")
        return pyarrow.table(told).to_pylist()

    return read


def chdb(function: str) -> Read:
    """Return ClickHouse in a process."""
    import chdb as engine  # noqa: PLC0415
    import pyarrow  # noqa: PLC0415

    def read(place: str, columns: Sequence[str], ids: bool) -> Rows:
        _without(ids)
        told = engine.query(f"SELECT {_quoted(columns, '', False)} FROM {function}('{place}')", "ArrowTable")
        # Its texts may be any bytes, which a text of Arrow's may not.
        fields = [each.with_type(pyarrow.binary()) if each.type == pyarrow.string() else each for each in told.schema]
        rows: Rows = told.cast(pyarrow.schema(fields)).to_pylist()
        return rows

    return read


def _quoted(columns: Sequence[str], row_id: str, ids: bool) -> str:
    if ids and not row_id:
        raise HasNone("it has no name for the ids of rows")
    return ", ".join([*(f'"{column}"' for column in columns), *([f"{row_id} AS {ROW_ID}"] if ids else [])])


def _without(ids: bool) -> Rows:
    if ids:
        raise HasNone("it has no name for the ids of rows")
    return []


def _renamed(rows: Rows, name: str) -> Rows:
    return [{(ROW_ID if each == name else each): value for each, value in row.items()} for row in rows]


READERS: dict[str, Callable[[], Read]] = {
    "spark-delta": lambda: spark("delta", "_metadata.row_id"),
    "spark-iceberg": lambda: spark("iceberg", "_row_id"),
    "pyiceberg": pyiceberg,
    "duckdb-delta": lambda: duckdb("delta_scan", "", "delta"),
    "duckdb-iceberg": lambda: duckdb("iceberg_scan", "_row_id", "avro", "iceberg"),
    "polars-delta": polars_delta,
    "polars-iceberg": polars_iceberg,
    "delta-rs": delta_rs,
    "chdb-delta": lambda: chdb("deltaLakeLocal"),
    "chdb-iceberg": lambda: chdb("icebergLocal"),
}


def words_of(error: BaseException) -> str:
    """Return an error in a line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].strip() if lines else ''}"[:WORDS_MAX]


def main(name: str) -> None:
    """Read the tables of standard input."""
    tables, read = json.load(sys.stdin), READERS[name]()
    for table in tables:
        try:
            rows = [plain(row) for row in read(table["place"], table["columns"], table["ids"])]
            answer: dict[str, Any] = {"rows": rows}
        except BaseException as error:  # a panic of Rust is no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            answer = {"refused": words_of(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
