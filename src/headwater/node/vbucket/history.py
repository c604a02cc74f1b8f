"""The seqnos at which a vbucket was in a consistent state, to which a rollback may therefore return.

Changes from a producer are a consistent state only at the ends of its snapshots: inside a snapshot, a version at or
below some seqno may never have been sent because a newer one of the same snapshot had replaced it (dcp 9: "so that the
state is exactly a snapshot end at or below that seqno"). Changes that this node wrote itself are consistent at every
seqno. So the history is a list of ranges; a rollback may return to each seqno in a range. A single snapshot end is a
range of length one.

The vbucket's record keeps the list, so the list is short: it has only some of the older ranges, and a rollback to
another of them goes a little further back than necessary.
"""

from __future__ import annotations

from collections.abc import Iterable

from headwater.invariants import node_invariant

RANGES_MAX = 16
"""The most ranges kept: enough for the newest branch and, further back, one snapshot end per doubling of the
distance.
"""


class ConsistentSeqnos:
    """Ascending ranges [first, last] of seqnos to which the vbucket can be rolled back; 0, the empty state, is implied.

    Args:
        ranges: the value of the property `ranges`.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._ranges = [(int(first), int(last)) for first, last in ranges]

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """All ranges, as the vbucket's record stores them."""
        return tuple(self._ranges)

    def note(self, first: int, last: int | None = None) -> None:
        """Note that the states at `first` to `last` (None: at `first` only) are consistent.

        The range must lie above all other ranges, touch the last one, or overlap it.
        """
        last = first if last is None else last
        node_invariant(first <= last, "states from seqno {} to {} are to be kept", first, last)
        # Neighbours merge only because both ends are states of their own: [5, 5] and [6, 9] say the same as [5, 9].
        if self._ranges and first <= self._ranges[-1][1] + 1:
            first, last = self._ranges[-1][0], max(last, self._ranges.pop()[1])
        if last:
            self._ranges.append((first, last))
        if len(self._ranges) > RANGES_MAX:
            self._thin_out()
        node_invariant(len(self._ranges) <= RANGES_MAX, "{} ranges of states are kept", len(self._ranges))

    def at_or_below(self, seqno: int) -> int:
        """Return the newest seqno of a consistent state at or below `seqno`; 0 if there is none."""
        # The seqnos below `first` are inside a snapshot, where versions may be missing; the next older range has the
        # nearest consistent state.
        for first, last in reversed(self._ranges):
            if first <= seqno:
                return min(seqno, last)
        return 0

    def cut(self, seqno: int) -> None:
        """Forget all seqnos above `seqno`, because they were undone."""
        self._ranges = [(first, min(last, seqno)) for first, last in self._ranges if first <= seqno]

    def _thin_out(self) -> None:
        """Forget the range that leaves the smallest hole, in relation to its distance from the newest seqno."""
        newest = self._ranges[-1][1]

        def hole(at: int) -> float:
            before = self._ranges[at - 1][1] if at else 0
            return (self._ranges[at + 1][0] - before) / (newest - before)

        # The newest range never goes: a rollback after a failover goes a few seqnos back, and a missing end there would
        # cost a whole refill.
        del self._ranges[min(range(len(self._ranges) - 1), key=hole)]
