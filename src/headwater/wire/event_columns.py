"""The columns of changes, declared once for batches, Spark's rows, the lake's tables and the lines of `tail`.

A new column needs a row here, code in the kernel that fills it (kernels/decode.py), and a field of the client's events
(client/changes.py). The table is in this package because the hash of the kernels covers this package's sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class EventColumn:
    """A column; an empty type or meaning means that the place does not have the column.

    Attributes:
        name: name in all places.
        batch: Arrow type in a batch: numbers as on the wire, without nulls.
        spark: type in Spark, nullable. Change logs have the same columns.
        meaning: meaning of Spark's column, for the guide.
        kept: meaning of the column in a mirror's table, for the guide.
        is_shown: True if the JSON and the templates of `tail` have the column.
        before: name of the column that follows it in a batch; empty for the next row's.
    """

    name: str
    batch: str = ""
    spark: str = ""
    meaning: str = ""
    kept: str = ""
    is_shown: bool = False
    before: str = ""


# What a column means in Spark, and in a mirror's table.
_VBUCKET = ("which vbucket the key belongs to, 0 to 1023", "which vbucket the key belongs to")
_SEQNO = (
    "place in the vbucket's history; in a `rollback` row, where to return to",
    "place of the row's last change in the vbucket's history",
)
_BRANCH = ("branch of history that wrote the change, 16 hex digits", "branch of history that wrote it, 16 hex digits")
_KEY = ("the document's key; null in a `rollback` row, as is all below but the snapshot", "the document's key")
_VALUE = ("the document; null for a deletion without a body", "the document, whole")
_CAS = ("version of the document, 64 bits",) * 2
_REVISION = ("how many times the key has changed",) * 2
_FLAGS = ("the application's flags, 32 bits unsigned",) * 2
_EXPIRY = (
    "Unix seconds: when the document expires, or when it was deleted; 0 for never or not told",
    "Unix seconds when the document expires; 0 for never",
)
_DATATYPE = ("bits: 1 JSON, 2 snappy, 4 extended attributes before the value",) * 2
_TIME = (
    "the CAS as a time, for it is the node's clock; null where it is none",
    "when it was last changed, from the CAS; null where that is no clock",
)

EVENT_COLUMNS: Final = (
    EventColumn("vbucket", "uint16", "int", *_VBUCKET, is_shown=True),
    EventColumn("opcode", "uint8"),
    EventColumn("seqno", "uint64", "bigint", *_SEQNO, is_shown=True),
    EventColumn("vb_uuid", "", "string", *_BRANCH),
    EventColumn("event", "", "string", "`mutation`, `deletion`, `expiration` or `rollback`"),
    EventColumn("key", "binary", "binary", *_KEY),
    EventColumn("value", "binary", "binary", *_VALUE),
    EventColumn("cas", "uint64", "bigint", *_CAS, is_shown=True),
    EventColumn("rev_seqno", "uint64", "bigint", *_REVISION, is_shown=True, before="cas"),
    EventColumn("flags", "uint32", "bigint", *_FLAGS, is_shown=True),
    EventColumn("expiry", "uint32", "bigint", *_EXPIRY, is_shown=True),
    EventColumn("datatype", "uint8", "int", *_DATATYPE),
    EventColumn("snapshot_start", "uint64", "bigint", "first seqno of the snapshot the change came in"),
    EventColumn("snapshot_end", "uint64", "bigint", "last seqno of that snapshot"),
    EventColumn("modified_at", "", "timestamp", *_TIME),
)
"""All columns, in the order of Spark's schema."""
SHOWN: Final = tuple(column.name for column in EVENT_COLUMNS if column.is_shown)


def _sort_key(column: EventColumn) -> tuple[bool, int, bool]:
    names = [each.name for each in EVENT_COLUMNS]
    return column.batch == "binary", names.index(column.before or column.name), not column.before


BATCH: Final = {each.name: each.batch for each in sorted(EVENT_COLUMNS, key=_sort_key) if each.batch}
"""Column -> type in a batch: those of one size first."""

BEFORE: Final = {
    "before_state": "uint8",
    "before_seqno": "uint64",
    "before_rev_seqno": "uint64",
    "before_cas": "uint64",
    "before_flags": "uint32",
    "before_expiry": "uint32",
    "before_datatype": "uint8",
    "before_value": "binary",
}
"""Column -> type in a batch, for the version that each change replaced: a `BeforeState`, then its fields, or zeros."""
