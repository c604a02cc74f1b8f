"""Read the node's documents and the table's, each whole and independently of the mirror."""

from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headwater.cli.failures import CommandError
from headwater.wire.opcodes import Opcode

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from headwater.client import Client


class TableFormat(StrEnum):
    """The format of the mirror's table."""

    DELTA = "delta"
    ICEBERG = "iceberg"

    @property
    def table(self) -> str:
        """A table of this format, in words."""
        return f"an {self.title()} table" if self is TableFormat.ICEBERG else f"a {self.title()} table"


READERS: Final = {TableFormat.DELTA: "deltalake", TableFormat.ICEBERG: "duckdb"}
"""The library that reads a table, another implementation than the writer's."""

_EXTENSIONS: Final = ("avro", "iceberg")
"""The extensions of DuckDB that Iceberg's tables need, in the order in which they are loaded."""

MUTATION = int(Opcode.DCP_MUTATION)


def of_node(client: "Client") -> dict[bytes, bytes]:
    """Return every live document, from the node's own history: all changes up to now, applied in order."""
    documents: dict[bytes, bytes] = {}
    with client.batches(until="now") as batches:
        for batch in batches:
            _apply(documents, batch.records)
    return documents


def _apply(documents: dict[bytes, bytes], records: Any) -> None:
    columns = (records.column(name).to_pylist() for name in ("opcode", "key", "value"))
    for opcode, key, value in zip(*columns, strict=True):
        if opcode == MUTATION:
            documents[key] = value
        else:
            documents.pop(key, None)


def of_table(folder: Path, form: TableFormat = TableFormat.DELTA) -> dict[bytes, bytes]:
    """Return every row of the mirror's table, read with another implementation than the writer's.

    Raises:
        CommandError: a key has two rows.
    """
    table: Any = _by_duckdb(folder) if form is TableFormat.ICEBERG else _by_delta_rs(folder)
    rows = dict(zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True))
    if len(rows) != table.num_rows:
        raise CommandError(f"{folder}: {table.num_rows} rows have {len(rows)} different keys")
    return rows


def _by_delta_rs(folder: Path) -> Any:
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    engine = QueryBuilder().register("documents", DeltaTable(folder))
    return pa.table(engine.execute("SELECT key, value FROM documents").read_all())


def _by_duckdb(folder: Path) -> Any:
    import duckdb

    with duckdb.connect() as connection:
        for name in _EXTENSIONS:
            _load(connection, name)
        return connection.execute("SELECT key, value FROM iceberg_scan($1)", [str(folder.absolute())]).to_arrow_table()


def _load(connection: "DuckDBPyConnection", name: str) -> None:
    """Load an extension of DuckDB from its package, which is for Linux, or from DuckDB's own store."""
    spec = find_spec(f"duckdb_extension_{name}")
    if spec is None or spec.origin is None:
        connection.execute(f"INSTALL {name}; LOAD {name}")
        return
    extension = next(Path(spec.origin).parent.rglob(f"{name}.duckdb_extension"))
    connection.execute(f"LOAD '{extension}'")
