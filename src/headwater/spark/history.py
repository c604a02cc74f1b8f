"""Compare a node's failover log with a reader's history, and find how far back the reader must go where they part.

A failover log lists branches, newest first: (vb uuid, seqno) means "what was written after `seqno` belongs to `vb
uuid`, up to where the next newer branch begins". Two histories that both know a uuid agree up to the end of that
branch.

The planner's difficulty: it knows seqnos, not the snapshots that its tasks will meet. A node sends each key once. When
a task reads up to E while the node writes on, a version at or below E may be left out, because a newer one above E has
taken its place. Should a failover then take back the newer one, the older is alive again and was never delivered. So
having read up to E is not holding E. It is holding E *provided the node keeps what it had when the reading was over*:
whatever was left out up to E was replaced by a seqno no higher than the high seqno O observed after the reading. That
pair is a `Point(seqno=E, observed=O)`: a branch that both share up to O or further leaves E whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headwater.protocol.dcp.position import FailoverLog, Position

POINTS_MAX = 32
"""Points remembered for each vbucket, the newest; older ones are only worth a longer replay."""


@dataclass(frozen=True, slots=True)
class BranchHistory:
    """A vbucket as a node tells it: failover log (newest first, never empty), high seqno, and up to where it purged.

    Nothing above `persisted_seqno` is read: there too few copies have it on disk. None where nobody asks for copies.
    Deletions up to `purge_seqno` are no longer sent to anyone: who stands below it, but not at 0, may keep dead keys.
    """

    log: FailoverLog
    high_seqno: int
    purge_seqno: int = 0
    persisted_seqno: int | None = None

    @property
    def readable_seqno(self) -> int:
        """The last seqno that may be read now."""
        return self.high_seqno if self.persisted_seqno is None else min(self.high_seqno, self.persisted_seqno)

    @property
    def vb_uuid(self) -> int:
        """The branch being written now."""
        return self.log[0][0]

    def shared_with(self, vb_uuid: int) -> int:
        """Return the last seqno this history shares with a reader that last saw branch `vb_uuid`; 0 if it is unknown.

        The oldest entry decides should a uuid be listed twice (failover 2, rules 3 and 4).
        """
        for place in reversed(range(len(self.log))):
            if self.log[place][0] == vb_uuid:
                return self.log[place - 1][1] if place else self.high_seqno
        return 0


def branches(log: FailoverLog) -> tuple[list[int], list[int]]:
    """Return (first seqno minus one, vb uuid) of each branch, oldest first, to be searched by seqno."""
    oldest_first = list(log[::-1])
    oldest_first.sort(key=lambda entry: entry[1])  # stable: of branches that began together the newer stays last
    return [begins for _, begins in oldest_first], [uuid for uuid, _ in oldest_first]


@dataclass(frozen=True, slots=True)
class Point:
    """Everything up to `seqno` is held, as long as the history up to `observed` stands (file docstring)."""

    seqno: int
    observed: int


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where a reader goes on: after `seqno`; `lost` when changes it was given above that are no longer history."""

    seqno: int
    lost: bool = False
    purged: int = field(default=0, compare=False)
    """Up to where deletions were purged that the reader has not seen; 0 for none."""


def resume(
    position: Position, history: BranchHistory, points: Iterable[Point] = (), *, rolled_back: bool = False
) -> Resumption:
    """Decide from where a reader at `position` goes on in `history`.

    In an unchanged history: right there. After a failover: from the newest point that is held for certain, which may
    be the position itself; a replay costs duplicates, and what it would skip would be gone for good. Delivered changes
    were `lost` only if the position lies above what both histories share, or if the reader goes back to 0: a replay
    from there tells of no deletion that was purged before it is read, so whoever holds something must let go of it.

    Args:
        position: seqno E of the batch that was read last, snapshot start and end = the point (E, O) before it. A
            position whose three numbers are equal is itself a point. vb uuid 0 stands for "the node's present history".
        history: observed after that batch was read.
        points: more points that are remembered of this vbucket.
        rolled_back: the batch that ended at `position` replaced a lost branch. What it restored was read later than
            any point below was observed, so none of those says anything about it.
    """
    if position.seqno == 0:
        return Resumption(0)
    # Failover 2, rule 2: a node sends whoever stands below its purge seqno back to 0. Its word may also have reached
    # only the task, which then read nothing; so the start of that batch counts too, unless it was 0.
    if position.seqno < history.purge_seqno or 0 < position.snapshot_start < history.purge_seqno:
        return Resumption(0, lost=True, purged=history.purge_seqno)
    shared = history.shared_with(position.vb_uuid) if position.vb_uuid else history.high_seqno
    lost = position.seqno > shared
    if not lost and position.vb_uuid in (0, history.vb_uuid):
        return Resumption(position.seqno)
    known = list(points)
    if rolled_back:
        known = [point for point in known if point.seqno >= position.seqno]
    else:
        known.append(Point(position.snapshot_start, position.snapshot_end))
    seqno = max((point.seqno for point in known if point.observed <= shared), default=0)
    return Resumption(seqno, lost or seqno == 0)


class HeldPoints:
    """The points that a running planner remembers, by vbucket: more than the one that fits into an offset.

    With it a failover costs the shortest replay that is safe; without it (after a restart) a longer one.
    """

    def __init__(self) -> None:
        self._points: dict[int, list[Point]] = {}
        self._replaced: dict[int, Position] = {}

    def of(self, vbucket: int) -> list[Point]:
        """Return what is remembered of a vbucket, oldest first."""
        return self._points.get(vbucket, [])

    def record(
        self,
        positions: Mapping[int, Position],
        seen: Mapping[int, BranchHistory],
        rollbacks: frozenset[int] = frozenset(),
    ) -> None:
        """Remember that these positions had been read when `seen` was observed; forget what a failover made void.

        Args:
            positions: where the last batch ended.
            seen: observed after it was read.
            rollbacks: vbuckets in which it replaced a lost branch: no point of before says anything about them now.
        """
        for vbucket in rollbacks & positions.keys():
            if self._replaced.get(vbucket) != positions[vbucket]:
                self._replaced[vbucket] = positions[vbucket]
                self._points.pop(vbucket, None)
        for vbucket, position in positions.items():
            history = seen.get(vbucket)
            if history is not None:
                self._record(self._points.setdefault(vbucket, []), position, history)

    @staticmethod
    def _record(points: list[Point], position: Position, history: BranchHistory) -> None:
        shared = history.shared_with(position.vb_uuid)
        if history.vb_uuid != position.vb_uuid or position.seqno > shared:
            points[:] = [point for point in points if point.observed <= shared]
        elif not points or points[-1].seqno < position.seqno:
            points.append(Point(position.seqno, history.high_seqno))
            del points[:-POINTS_MAX]
