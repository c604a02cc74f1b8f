"""The columns of the `dcp` source: names, types, order. No slow module is imported here, since Spark loads it at every
`load`.

Spark has no unsigned numbers. Columns of 32 unsigned bits become bigint; those of 64 (seqno, cas, rev_seqno, snapshot
bounds) keep their bits and become bigint as well, so a value from 2^63 on shows as negative: cas 2^64-1 is -1. In
Python `cas & (2**64 - 1)` is the number again. Only a clock that is set far wrong produces such a cas; a seqno would
take 292,000 years at a million changes a second. `vb_uuid` is text (16 hex digits), since users compare it and join on
it and never calculate with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.errors import OptionError
from headwater.lake.versions import VERSION
from headwater.wire.event_columns import EVENT_COLUMNS

COLUMNS: dict[str, tuple[str, str]] = {
    column.name: (column.spark, column.meaning) for column in EVENT_COLUMNS if column.spark
}
"""Column -> (type in Spark, meaning), in the order of the schema; all nullable."""


OF_COLLECTIONS: dict[str, tuple[str, str]] = {
    "scope": ("string", "name of the scope; null in a `rollback` row, and where nobody knows it any more"),
    "collection": ("string", "name of the collection within the scope; null as `scope`"),
}
"""Additional columns if the options choose collections; they come last."""


def _struct(value_format: str) -> str:
    kinds = VERSION | {"value": value_format}
    return f"struct<{','.join(f'{name}:{kind}' for name, kind in kinds.items())}>"


OF_BEFORES: dict[str, tuple[str, str]] = {
    "before": (_struct("binary"), "the version that the change replaced; null if there was none or it is not kept"),
    "before_known": ("boolean", "false where it is not kept any more; null in a `rollback` row"),
    "operation": ("string", "`create`, `update`, `delete`, `expire`; null for a mutation whose `before` is not known"),
}
"""Additional columns of the option `before`, behind all others."""

OF_UNDOING: dict[str, tuple[str, str]] = {
    "sequence": ("struct<generation:bigint,seqno:bigint>", "orders the versions of a key, also across failovers"),
}
"""The additional column of the option `undoFolder`, the last one."""

ON_REQUEST: dict[str, tuple[str, str]] = {
    "collection_id": ("bigint", "id of the collection, 32 bits unsigned; never given twice, as a name may be"),
}
"""Columns that, with chosen collections, are included only if the user's schema names them."""


def types(
    key_format: str = "binary",
    value_format: str = "binary",
    *,
    collections: bool = False,
    befores: bool = False,
    undoes: bool = False,
) -> dict[str, str]:
    """Return column -> type in Spark.

    Args:
        key_format, value_format: the types of key and value, "binary" or "string".
        collections: True if collections are chosen, which adds their columns.
        befores: True if changes come with the version that they replaced, which adds three columns.
        undoes: True if a rollback comes as the rows that undo it, which adds a column.
    """
    columns = COLUMNS | (OF_COLLECTIONS if collections else {}) | (OF_BEFORES if befores else {})
    columns |= OF_UNDOING if undoes else {}
    types_by_name = {name: kind for name, (kind, _) in columns.items()} | {"key": key_format, "value": value_format}
    return types_by_name | ({"before": _struct(value_format)} if befores else {})


def ddl(
    key_format: str = "binary",
    value_format: str = "binary",
    *,
    collections: bool = False,
    befores: bool = False,
    undoes: bool = False,
) -> str:
    """Return the schema in Spark's spelling; the arguments are those of `types`."""
    kinds = types(key_format, value_format, collections=collections, befores=befores, undoes=undoes)
    return ", ".join(f"{name} {kind}" for name, kind in kinds.items())


def choose(
    columns_wanted: Sequence[tuple[str, str]],
    key_format: str,
    value_format: str,
    *,
    collections: bool = False,
    befores: bool = False,
    undoes: bool = False,
) -> tuple[str, ...]:
    """Check a schema that the user gave with `.schema(...)`: some of our columns, in any order.

    Returns: the names of the columns. It is the only way to leave columns out: Spark passes no other wish on to a
    Python source. Without `value`, nodes do not even send the values.

    Args:
        columns_wanted: (name, type in Spark's spelling).
        key_format, value_format: "binary" or "string".
        collections, befores, undoes: as for `types`.

    Raises:
        OptionError: an unknown column, or one of another type.
    """
    our_columns = types(key_format, value_format, collections=collections, befores=befores, undoes=undoes)
    our_columns |= {name: kind for name, (kind, _) in (ON_REQUEST if collections else {}).items()}
    for name, kind in columns_wanted:
        if our_columns.get(name) != kind:
            columns = ddl(key_format, value_format, collections=collections, befores=befores, undoes=undoes)
            allowed = f"a column of the dcp source: {columns}"
            raise OptionError("schema", f"{name} {kind}", allowed)
    return tuple(name for name, _ in columns_wanted)
