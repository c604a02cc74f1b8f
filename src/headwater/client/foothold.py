"""The position of one vbucket of a drain, moved change by change; kernels/tracker.py does this for decoded rows.

Between the decoder and the caller rows may wait (mitigation.py), or become events one at a time (changes.py). The
decoder's positions run ahead then; a foothold follows the rows that were passed on.
"""

from __future__ import annotations

from headwater.invariants import invariant
from headwater.protocol.dcp.events import (
    Advanced,
    Boundary,
    CollectionsChanged,
    CollectionsTold,
    Marked,
    StreamEvent,
)
from headwater.protocol.dcp.position import ENDLESS, Position


class Foothold:
    """The position behind the last change that was passed on: its seqno, and the snapshot range that a resume must
    quote.
    """

    __slots__ = ("held_end", "held_start", "last", "snapshot")

    def __init__(self, position: Position) -> None:
        self.last: int = position.seqno
        self.held_start: int = position.snapshot_start
        self.held_end: int = position.snapshot_end
        # The request says "nothing received" by start == snapshot start, and producers then ignore the end (failover 2,
        # rule 5).
        if self.held_start == self.last:
            self.held_end = self.last
        self.snapshot: tuple[int, int] | None = None

    def enter(self, start: int, end: int) -> None:
        """Begin a snapshot; if the one before was cut short, the range covers both (kernels/tracker.py,
        enter_snapshot).
        """
        self.snapshot = start, end
        # A marker in the middle of a snapshot replaces it (dcp 9). What is held is then consistent at the end of both,
        # so the range must span both.
        if self.held_start < self.last < self.held_end:
            self.held_start, self.held_end = min(self.held_start, start), max(self.held_end, end)
        else:
            self.held_start, self.held_end = min(self.last, start), max(self.last, end)

    def move(self, seqno: int, start: int, end: int) -> None:
        """Move to a change. Without marker events, the change itself shows that a snapshot began."""
        if (start, end) != self.snapshot:
            self.enter(start, end)
        elif self.held_end < seqno:
            self.held_end = end  # the first one behind a boundary
        last, snapshot = self.last, (self.held_start, self.held_end)
        invariant(last < seqno, "seqno {} is passed on behind seqno {}", seqno, last)
        invariant(
            snapshot[0] <= seqno <= snapshot[1], "seqno {} is passed on outside of its snapshot, {}", seqno, snapshot
        )
        self.last = seqno

    def advance(self, seqno: int, snapshot: tuple[int, int]) -> None:
        """Move to a seqno without a change; its snapshot is known with Collections only."""
        if snapshot == (0, 0):
            self.last = seqno
        else:
            self.move(seqno, *snapshot)

    def complete(self) -> None:
        """Note a snapshot boundary of UPR: the changes so far are a consistent state, and the next snapshot's end is
        unknown.
        """
        self.held_start = self.held_end = self.last
        self.snapshot = self.last, ENDLESS

    def apply_event(self, event: StreamEvent) -> None:
        """Move by an event other than a change; ignore events that move nothing."""
        match event:
            case Marked(start_seqno=start, end_seqno=end):
                if end != ENDLESS:  # that of UPR, which is a boundary, has been heard of
                    self.enter(start, end)
            case Boundary():
                self.complete()
            case Advanced(seqno=seqno, snapshot=snapshot):
                self.advance(seqno, snapshot)
            case CollectionsChanged(seqno=seqno, snapshot=snapshot) | CollectionsTold(seqno=seqno, snapshot=snapshot):
                self.advance(seqno, snapshot)
