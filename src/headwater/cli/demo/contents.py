"""Read the node's documents and the table's, each whole and independently of the mirror."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.wire.opcodes import Opcode

if TYPE_CHECKING:
    from headwater.client import Client

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


def of_table(folder: Path) -> dict[bytes, bytes]:
    """Return every row of the mirror's Delta table, read with delta-rs, another implementation than the writer's."""
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    engine = QueryBuilder().register("documents", DeltaTable(folder))
    table: Any = pa.table(engine.execute("SELECT key, value FROM documents").read_all())
    return dict(zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True))
