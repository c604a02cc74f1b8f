"""The time up to which a reader has every change: the promises of the nodes' clocks, and how far the reader is.

    complete = Completeness()
    held = client.hold_clocks(complete.wanted(now))      before the seqnos
    complete.look(held, client.seqnos(), wanted, now)
    complete.until({vb: seqno, ...})                     a CAS, or 0 while nothing is known

CAS values of a vbucket rise, but the clock that they come from may be put back, or the next owner's may be behind. So
the reader has all nodes promise a time T, copies and nodes without a copy included: from then on none of them gives a
change a CAS at or below T, also after a restart (node/buckets/clock_floor.py). The seqnos that are requested after the
promises contain all changes up to T; a reader that has come to these seqnos has everything up to T, and keeps that, for
whoever owns a vbucket later has promised it as well.

Servers of another kind promise nothing. Then T is the lowest of the vbuckets' highest CAS: right as long as no node's
clock is put back and no failover loses changes, and as old as the last change of the vbucket that was idle for longest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple

__all__ = ["NANOSECONDS", "ClocksHeld", "Completeness", "as_time"]

MARKS_MAX: Final = 64
"""The observations that a reader may be behind of; of more, every second one is dropped, not the newest."""
SILENCE_SECONDS: Final = 60.0
"""For so long no promise is asked for after a node was silent: it may have cost the reader ten seconds."""
STRANGERS_SECONDS: Final = 10.0
"""The time between two looks at servers that promise nothing: each look reads statistics of all vbuckets."""
NANOSECONDS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ClocksHeld:
    """The promises of all nodes of the map.

    Attributes:
        cas: no change of any node gets a CAS at or below this one; 0 for no promise.
        now: the earliest of the nodes' clocks, Unix nanoseconds; 0 if it is not known.
        exceptions: vbuckets whose later changes may have an older CAS, but none at or below this one.
        problem: why there is no promise; empty if there is one.
        is_promised: False if the servers promise nothing, and `exceptions` has the highest CAS of every vbucket.
    """

    cas: int = 0
    now: int = 0
    exceptions: Mapping[int, int] = field(default_factory=dict)
    problem: str = ""
    is_promised: bool = True


class _Mark(NamedTuple):
    """An observation: who is at these seqnos, by vbucket, has all changes up to `cas`."""

    cas: int
    seqnos: Mapping[int, int]


class Completeness:
    """The time up to which one reader has everything, as far as it was told.

    Attributes:
        problem: why the newest observation promised nothing new; empty if it did, also where a durable write let it
            promise less.
        is_promised: False if the servers promise nothing (module docstring).
    """

    def __init__(self) -> None:
        self.problem: str = "the nodes were not asked yet"
        self.is_promised: bool = True
        self._marks: list[_Mark] = []
        self._clocks: tuple[int, float] | None = None
        self._silent_until = float("-inf")

    def rests(self, now: float) -> bool:
        """Return True for some seconds after a node was silent, since a reader that waited for it each time would
        read later; and between two looks at servers that promise nothing.
        """
        return now < self._silent_until

    def wanted(self, now: float) -> int:
        """Return the time to ask promises of, as a CAS; 0 if the nodes' clocks are not known.

        It is the time of the clock that is furthest behind: a promise of more would let the nodes' CAS values run ahead
        of it, for good if the other clocks are wrong.

        Args:
            now: seconds of a monotonic clock.
        """
        if self._clocks is None:
            return 0
        clock_time, seen_at = self._clocks
        return clock_time + max(0, int((now - seen_at) * NANOSECONDS))

    def look(self, held: ClocksHeld, seqnos: Mapping[int, int], wanted: Collection[int], now: float) -> None:
        """Note an observation.

        Args:
            held: the promises. seqnos: high seqnos by vbucket, requested after `held` had come.
            wanted: the vbuckets of the reader. now: as in `wanted`, from before `held` was requested.
        """
        if held.now:
            self._clocks = held.now, now
        if held.problem and not held.now:
            self._silent_until = now + SILENCE_SECONDS
        if not held.is_promised:
            self._silent_until = now + STRANGERS_SECONDS
        self.is_promised = held.is_promised
        self.problem = held.problem or self._note_marks(held, seqnos, wanted)

    def _note_marks(self, clocks: ClocksHeld, seqnos: Mapping[int, int], vbuckets: Collection[int]) -> str:
        """Add a mark; return what holds the time up, or an empty text."""
        if ownerless := [vb for vb in vbuckets if vb not in seqnos]:
            return f"{_vbuckets(ownerless)} no owner"
        bounds = {
            vb: min(clocks.cas, clocks.exceptions.get(vb, clocks.cas if clocks.is_promised else 0)) for vb in vbuckets
        }
        cas, last = min(bounds.values(), default=0), self._marks[-1].cas if self._marks else 0
        if cas > last:
            self._marks.append(_Mark(cas, {vb: seqnos[vb] for vb in vbuckets if seqnos[vb]}))
            if len(self._marks) > MARKS_MAX:
                self._marks = self._marks[::2]
        if not clocks.is_promised:
            idle = [vb for vb, bound in bounds.items() if bound == cas]
            return f"the servers promise no time, and {_vbuckets(idle)} had no change since"
        # With many durable writes each look meets some, but never the same ones for long: the time moves on.
        if 0 < last < cas:
            return ""
        late_vbuckets = [vb for vb, bound in bounds.items() if bound < clocks.cas]
        return (
            f"{_vbuckets(late_vbuckets)} a durable write under way, or the highest CAS of all" if late_vbuckets else ""
        )

    def until(self, seqnos: Mapping[int, int], known: int = 0) -> int:
        """Return the time up to which a reader at these seqnos has everything, as a CAS; 0 if that is not known.

        Args:
            seqnos: by vbucket; a missing one is at 0.
            known: the answer of an earlier time, perhaps in another process: the new one is not below it.
        """
        # The newest first: an older one may name seqnos of a branch that a failover has ended since.
        for place in reversed(range(len(self._marks))):
            if all(seqnos.get(vb, 0) >= seqno for vb, seqno in self._marks[place].seqnos.items()):
                del self._marks[:place]
                return max(self._marks[0].cas, known)
        return known


def _vbuckets(numbers: list[int]) -> str:
    numbers_text = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
    return f"vbucket {numbers_text} has" if len(numbers) == 1 else f"{len(numbers)} vbuckets ({numbers_text}) have"


def as_time(cas: int) -> datetime | None:
    """Return a CAS as the time that it was made of, to the millisecond below; None for 0, or if it is none."""
    try:
        seconds_time = datetime.fromtimestamp(cas // NANOSECONDS, UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return seconds_time.replace(microsecond=cas % NANOSECONDS // 1_000_000 * 1000) if cas else None
