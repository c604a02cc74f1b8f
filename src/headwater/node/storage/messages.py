"""The messages in a vbucket's log: system events, prepares and aborts of durable writes."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from headwater.kernels import index, sweep
from headwater.node.storage.records import event_apart, message_in
from headwater.wire.header import Frame
from headwater.wire.system_events import event_of, read_message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater.node.storage.columns import Index
    from headwater.node.storage.slots import Slots
    from headwater.wire.dcp import Abort, Prepare
    from headwater.wire.manifest import ManifestEvent

ROWS_FIRST: Final = 16
EVENTS_KEPT: Final = 1 << 14
"""The number of decoded events that are kept, some hundred bytes each, because a thousand vbuckets have the
same ones.
"""


class StoredEvent(NamedTuple):
    """A system event in a log: its seqno, and the event, the same object for all equal events."""

    seqno: int
    event: ManifestEvent


def events_of(of: Index, slots: Slots, vbucket: int) -> Iterator[StoredEvent]:
    """Yield the newest system event of each collection and scope, and each modification, durable or not, in seqno
    order.

    Takes time if the vbucket has more than documents of the default collection: reads every row.
    """
    locs = of.columns[vbucket].loc
    for row in _rows(of, slots, vbucket):
        if (parts := event_apart(slots.frame(locs.item(row)))) is not None:
            yield StoredEvent(parts[0], _event(parts[1]))


def messages_of(of: Index, slots: Slots, vbucket: int) -> Iterator[Prepare | Abort]:
    """Yield the prepares and aborts of durable writes, on disk or not, in seqno order.

    Takes time if the vbucket has more than documents of the default collection: reads every row.
    """
    locs = of.columns[vbucket].loc
    for row in _rows(of, slots, vbucket):
        if (message := message_in(slots.frame(locs.item(row)))) is not None:
            yield message


def _rows(of: Index, slots: Slots, vbucket: int) -> list[int]:
    if not of.table.item(vbucket, index.MIXED):
        return []
    numbers = np.empty(ROWS_FIRST, np.int64)
    # The kernel counts all rows, and stores as many as fit; a second call has enough room for all.
    while (count := int(sweep.system_rows(of.table, vbucket, slots.table, numbers))) > len(numbers):
        numbers = np.empty(count, np.int64)
    rows: list[int] = numbers[:count].tolist()
    return rows


@lru_cache(EVENTS_KEPT)
def _event(message: bytes) -> ManifestEvent:
    return event_of(read_message(Frame.decode(message)))
