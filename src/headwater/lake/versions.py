"""The columns of a version that a change replaced, declared once for the rows of the Spark source and for change logs.

No slow module is imported here, since Spark loads it at every `load`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["BEFORES", "VERSION"]

VERSION: Final = {
    "seqno": "bigint",
    "rev_seqno": "bigint",
    "cas": "bigint",
    "flags": "bigint",
    "expiry": "bigint",
    "datatype": "int",
    "value": "binary",
}
"""Column -> type in Spark, of the struct `before`."""

BEFORES: Final[Mapping[str, str | Mapping[str, str]]] = {
    "before": VERSION,
    "before_known": "boolean",
    "operation": "string",
}
"""Additional columns of changes that come with what they replaced: column -> type in Spark, or the columns of a
struct."""
