"""Columns that get a wider type: their files stay, and readers convert the values of older ones.

Delta allows it where no value changes: 32 bits of a whole number to 64, or to a double. Iceberg has only the first of
the two. Each change stands in the column's metadata, in the order of the changes. A table must have a feature of the
protocol for it, that binds readers as well: who does not know it refuses the table, even before a column is widened.
Source: Delta's PROTOCOL.md, "Type Widening"; Iceberg's spec.md, "Schema Evolution".
"""

from __future__ import annotations

from typing import Final

from headwater.lake.iceberg import entry as iceberg
from headwater.lake.log import READER, Action, TableLog, TableState
from headwater.lake.shape import WIDENING, Widenings

ENABLED: Final = "delta.enableTypeWidening"
"""The property that allows new changes of types; the feature alone only tells readers of those that were made."""

OF_DELTA: Final[Widenings] = frozenset({("integer", "long"), ("integer", "double")})
OF_ICEBERG: Final[Widenings] = frozenset({("integer", "long")})
"""The pairs of types, from and to, by which columns of unfolded documents are widened."""


def widenings_of(state: TableState) -> Widenings:
    """Return the pairs of types by which columns of a table may be widened; none if the table does not allow it."""
    if WIDENING not in (state.protocol.get("writerFeatures") or ()) or not state.says(ENABLED):
        return frozenset()
    return OF_ICEBERG if iceberg.is_published(state) else OF_DELTA


def begin(log: TableLog) -> None:
    """Let columns of a table be widened from now on, in one commit.

    Args:
        log: refreshed now.

    Raises:
        HeadwaterError, OSError: it is as it was.
    """
    while not widenings_of(log.refresh()):
        log.commit(_beginning(log.state), "SET TBLPROPERTIES")
    iceberg.publish(log)


def _beginning(state: TableState) -> list[Action]:
    reading, writing = ([*(state.protocol.get(f"{side}Features") or ())] for side in ("reader", "writer"))
    # A feature that binds readers stands in both lists, and readers have lists from version 3 on.
    lists = {
        "readerFeatures": [*dict.fromkeys([*reading, WIDENING])],
        "writerFeatures": [*dict.fromkeys([*writing, WIDENING])],
    }
    configuration = dict(state.properties) | {ENABLED: "true"}
    return [
        {"protocol": state.protocol | {"minReaderVersion": READER} | lists},
        {"metaData": state.metadata | {"configuration": configuration}},
    ]
