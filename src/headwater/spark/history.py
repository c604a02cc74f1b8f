"""Compares a node's failover log with a reader's history, and finds how far back the reader must go if they differ.

A failover log lists branches, newest first: (vb uuid, seqno) means that changes after `seqno` belong to `vb uuid`, up
to the beginning of the next newer branch. Two histories that both have a uuid agree up to the end of that branch.

The planner knows seqnos, not the snapshots that its tasks will meet. A node sends each key once. If a task reads up to
E while the node takes further writes, a version at or below E may be left out because a newer one above E has replaced
it. If a failover then takes back the newer version, the older one is valid again and was never delivered. So having
read up to E does not mean holding E. The reader holds E *provided the node keeps the history that it had at the end of
the reading*: each version left out up to E was replaced at a seqno no higher than the high seqno O observed after the
reading. This pair is a `Point(seqno=E, observed=O)`: a branch that both share up to O or further leaves E whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headwater.protocol.dcp.position import FailoverLog, Position

POINTS_MAX = 32
"""The points kept for each vbucket, the newest; older ones would only cause a longer replay."""


@dataclass(frozen=True, slots=True)
class BranchHistory:
    """A vbucket as its node reports it: failover log (newest first, never empty), high seqno, and purge seqno.

    Nothing above `persisted_seqno` is read: too few copies have it on disk. None if the copies do not matter. Deletions
    up to `purge_seqno` are no longer sent to anyone: a reader that stands below it, but not at 0, may keep dead keys.
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

        If a uuid is listed twice, the oldest entry decides (failover 2, rules 3 and 4).
        """
        for place in reversed(range(len(self.log))):
            if self.log[place][0] == vb_uuid:
                # A branch ends where the next newer one begins; the newest goes on to the high seqno.
                return self.log[place - 1][1] if place else self.high_seqno
        return 0


def branches(log: FailoverLog) -> tuple[list[int], list[int]]:
    """Return (first seqno minus one, vb uuid) of each branch, oldest first, for a search by seqno."""
    oldest_first = list(log[::-1])
    oldest_first.sort(key=lambda entry: entry[1])  # stable: of branches that began together the newer stays last
    return [begins for _, begins in oldest_first], [uuid for uuid, _ in oldest_first]


@dataclass(frozen=True, slots=True)
class Point:
    """A seqno up to which the reader holds all changes, as long as the history up to `observed` stands (module
    docstring).
    """

    seqno: int
    observed: int


@dataclass(frozen=True, slots=True)
class Resumption:
    """The seqno after which a reader continues; `lost` is True if changes that it read above that are no longer
    history.
    """

    seqno: int
    lost: bool = False
    purged: int = field(default=0, compare=False)
    """The seqno up to which deletions were purged that the reader has not seen; 0 for none."""


def resume(
    position: Position, history: BranchHistory, points: Iterable[Point] = (), *, rolled_back: bool = False
) -> Resumption:
    """Return where a reader at `position` continues in `history`.

    In an unchanged history: at its position. After a failover: at the newest point that is certainly held, which may be
    the position itself. A replay costs duplicates, but skipped changes would be gone for good. Delivered changes were
    `lost` only if the position is above the shared history, or if the reader goes back to 0: a replay from 0 has no
    deletions that were purged before it is read, so the reader must drop its documents.

    Args:
        position: seqno E of the batch that was read last, snapshot start and end = the point (E, O) before it. A
            position whose three numbers are equal is itself a point. vb uuid 0 stands for "the node's present history".
        history: as observed after that batch was read.
        points: further points of this vbucket.
        rolled_back: True if the batch that ended at `position` replaced a lost branch. Its changes were read later than
            any point below was observed, so none of these points is valid for them.
    """
    if position.seqno == 0:
        return Resumption(0)
    # Failover 2, rule 2: a node sends whoever stands below its purge seqno back to 0. Its word may also have reached
    # only the task, which then read nothing; so the start of that batch counts too, unless it was 0.
    if position.seqno < history.purge_seqno or 0 < position.snapshot_start < history.purge_seqno:
        return Resumption(0, lost=True, purged=history.purge_seqno)
    common_seqno = history.shared_with(position.vb_uuid) if position.vb_uuid else history.high_seqno
    is_beyond = position.seqno > common_seqno
    # The history has not parted since: all up to E is held, whatever earlier points say.
    if not is_beyond and position.vb_uuid in (0, history.vb_uuid):
        return Resumption(position.seqno)
    candidates = list(points)
    if rolled_back:
        candidates = [point for point in candidates if point.seqno >= position.seqno]
    else:
        candidates.append(Point(position.snapshot_start, position.snapshot_end))
    seqno = max((point.seqno for point in candidates if point.observed <= common_seqno), default=0)
    return Resumption(seqno, is_beyond or seqno == 0)


class HeldPoints:
    """The points that a running planner remembers, by vbucket; an offset has room for only one.

    With them a failover costs the shortest safe replay; without them (after a restart) a longer one.
    """

    def __init__(self) -> None:
        self._points: dict[int, list[Point]] = {}
        self._replaced: dict[int, Position] = {}

    def of(self, vbucket: int) -> list[Point]:
        """Return the points of a vbucket, oldest first."""
        return self._points.get(vbucket, [])

    def record(
        self,
        positions: Mapping[int, Position],
        histories: Mapping[int, BranchHistory],
        rollbacks: frozenset[int] = frozenset(),
    ) -> None:
        """Add the ends of the last batch as points, and forget points that a failover made invalid.

        Args:
            positions: ends of the last batch.
            histories: the nodes' histories, observed after it was read.
            rollbacks: vbuckets in which it replaced a lost branch: earlier points are no longer valid for them.
        """
        # Spark asks many times for the same start: only the first time its points are those of before the rollback.
        for vbucket in rollbacks & positions.keys():
            if self._replaced.get(vbucket) != positions[vbucket]:
                self._replaced[vbucket] = positions[vbucket]
                self._points.pop(vbucket, None)
        for vbucket, position in positions.items():
            history = histories.get(vbucket)
            if history is not None:
                self._record(self._points.setdefault(vbucket, []), position, history)

    @staticmethod
    def _record(points: list[Point], position: Position, history: BranchHistory) -> None:
        common_seqno = history.shared_with(position.vb_uuid)
        if history.vb_uuid != position.vb_uuid or position.seqno > common_seqno:
            # A point above the shared history would let a reader go on behind changes that the lost branch had left
            # out.
            points[:] = [point for point in points if point.observed <= common_seqno]
        elif not points or points[-1].seqno < position.seqno:
            points.append(Point(position.seqno, history.high_seqno))
            del points[:-POINTS_MAX]
