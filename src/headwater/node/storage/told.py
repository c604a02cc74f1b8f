"""The messages in a vbucket's log besides its documents: system events, prepares and aborts of durable writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headwater.kernels import index, sweep
from headwater.node.storage.records import told_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater.node.storage.columns import Index
    from headwater.node.storage.slots import Slots
    from headwater.wire.dcp import Abort, Prepare, SystemEvent

ROWS_FIRST = 16


def told_of(of: Index, slots: Slots, vbucket: int) -> Iterator[SystemEvent | Prepare | Abort]:
    """In the order of their seqnos, of each key the newest; durable or not. Looks at every row of a vbucket that is
    mixed."""
    if not of.table.item(vbucket, index.MIXED):
        return
    found = np.empty(ROWS_FIRST, np.int64)
    while (count := int(sweep.system_rows(of.table, vbucket, slots.table, found))) > len(found):
        found = np.empty(count, np.int64)
    locs = of.columns[vbucket].loc
    for row in found[:count].tolist():
        told = told_in(slots.seen(locs.item(row)))
        if told is not None:
            yield told
