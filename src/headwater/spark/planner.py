"""Plans the end of the next batch and each task's part: arithmetic only, no Spark, no socket, no clock.

An offset is written before its batch is read, and a failed batch is read again from the written offsets alone. So an
end offset carries everything that a replay needs, in the four numbers of each vbucket's position:

    vb uuid          the branch that was newest when the batch was planned
    seqno            E, the last seqno of the batch
    snapshot start   where the batch's reading really starts. Normally the end of the batch before; less than that after
                     a failover, and then the offset goes backwards
    snapshot end     the high seqno observed when the batch before had been read: together with snapshot start the
                     `Point` to which a later failover returns (history.py)

and in `rollbacks`, the vbuckets for which a `rollback` row goes first. A position whose seqno, snapshot start and end
are equal was read to the end of a history that did not move: a point by itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headwater.protocol.dcp.position import Position
from headwater.spark.history import BranchHistory, HeldPoints, Resumption, resume
from headwater.spark.offsets import Offset

VBUCKET_COST = 64
"""The cost of opening a stream, in changes; it spreads nearly idle vbuckets over the partitions."""


@dataclass(frozen=True, slots=True)
class Range:
    """A task's part of one vbucket: the changes in (start_seqno, end_seqno] of branch `vb_uuid`.

    Args:
        snapshot_end: the seqno up to which the branch must be the node's history for the range to be what was planned.
        rollback: True if a `rollback` row (to `start_seqno`) comes first.
        purged: if deletions were purged before they were read, the last purged seqno. 0 after a failover.
        generation: how often delivered changes of the vbucket were taken back, if that is counted.
    """

    vbucket: int
    vb_uuid: int
    start_seqno: int
    end_seqno: int
    snapshot_end: int
    rollback: bool = False
    purged: int = 0
    generation: int = 0

    @property
    def cost(self) -> int:
        """The amount of work, in changes; an upper bound, since seqnos have gaps."""
        return self.end_seqno - self.start_seqno + VBUCKET_COST


def newest(histories: Mapping[int, BranchHistory]) -> Offset:
    """Return the offset at the end of every vbucket's history, where a `latest` start begins."""
    return Offset({vb: _complete(vb, history) for vb, history in sorted(histories.items()) if history.high_seqno})


def plan(
    start: Offset,
    histories: Mapping[int, BranchHistory],
    *,
    held_points: HeldPoints | None = None,
    changes_max: int | None = None,
    targets: Mapping[int, int] | None = None,
    counts: bool = False,
) -> Offset:
    """Return the end of the batch that starts at `start`; `start` itself if there is nothing to do.

    Args:
        start: the end of the batch before. That batch must have been read when `histories` was observed.
        histories: the nodes' histories, by vbucket. Vbuckets of `start` that are missing keep their position.
        held_points: further points to return to, if any are remembered.
        changes_max: the most changes. A replacement of a lost branch is not cut: it comes in addition.
        targets: seqnos to stop at, by vbucket (a vbucket missing here gets nothing new); None for no bound.
        counts: True to count, in the offset, how often each vbucket rolled back.
    """
    moves = {vb: _move(start, histories[vb], held_points, vb, targets) for vb in sorted(histories)}
    room = None if changes_max is None else changes_max - sum(move.owed for move in moves.values())
    grants = share_out({vb: move.backlog for vb, move in moves.items()}, room)
    ends = {vb: move.floor + grants[vb] for vb, move in moves.items()}
    if not any(moves[vb].lost or ends[vb] > moves[vb].start for vb in moves):
        return start
    positions = dict(start.positions)
    for vb, move in moves.items():
        positions[vb] = _end(start, move, ends[vb], histories[vb], vb)
    rolled_back = frozenset(vb for vb, move in moves.items() if move.lost)
    losses = {vb: move.purged for vb, move in moves.items() if move.purged}
    generations = dict(start.generations)
    if counts:
        generations |= {vb: generations.get(vb, 0) + 1 for vb in rolled_back}
    return Offset(
        {vb: positions[vb] for vb in sorted(positions)},
        rolled_back,
        coverage=start.coverage,
        losses=losses,
        generations=generations,
    )


def settled(end: Offset, histories: Mapping[int, BranchHistory]) -> Offset:
    """Return the offset in which each vbucket at the end of its history is marked as complete; `end` itself if all are.

    Args:
        end: the end of a batch.
        histories: as observed after it was read.
    """
    settled_positions = {
        vb: _complete(vb, history)
        for vb, history in histories.items()
        if (place := end.position(vb)).seqno and (place.seqno, place.vb_uuid) == (history.high_seqno, history.vb_uuid)
    }
    positions = dict(end.positions) | settled_positions
    if not end.rollbacks - settled_positions.keys() and positions != end.positions:
        ordered = {vb: positions[vb] for vb in sorted(positions)}
        return Offset(ordered, coverage=end.coverage, generations=end.generations)
    return end


@dataclass(frozen=True, slots=True)
class _Move:
    """The plan for one vbucket: from `start`, to `floor` at least, and `backlog` further changes if the limit
    allows.
    """

    start: int
    floor: int
    backlog: int
    lost: bool
    purged: int = 0

    @property
    def owed(self) -> int:
        return self.floor - self.start


def _move(
    start: Offset, history: BranchHistory, held_points: HeldPoints | None, vb: int, targets: Mapping[int, int] | None
) -> _Move:
    position = start.position(vb)
    points = held_points.of(vb) if held_points else ()
    going: Resumption = resume(position, history, points, rolled_back=vb in start.rollbacks)
    # What was delivered once is replaced in the batch that takes it back, or a table would lack it for a while.
    floor = max(going.seqno, min(position.seqno, history.high_seqno))
    if going.seqno == 0:
        # Nobody can stop between 0 and the purge seqno: the node would send him back to 0, batch after batch.
        floor = max(floor, min(history.purge_seqno, history.high_seqno))
    ceiling = history.readable_seqno if targets is None else min(history.readable_seqno, targets.get(vb, 0))
    return _Move(going.seqno, floor, max(ceiling - floor, 0), going.lost, going.purged)


def _end(start: Offset, move: _Move, end: int, history: BranchHistory, vb: int) -> Position:
    before = start.position(vb)
    if end > move.start:
        return Position(vb, history.vb_uuid, end, move.start, max(history.high_seqno, end))
    # Nothing to read. Idle at the end of the node's history is a complete state; else the place stays as it is, but a
    # rollback leaves the offset with its batch: that nothing below is held any more stays in the snapshot's start.
    if end == history.high_seqno:
        return _complete(vb, history)
    return replace(before, snapshot_start=0) if vb in start.rollbacks else before


def _complete(vb: int, history: BranchHistory) -> Position:
    return Position(vb, history.vb_uuid, history.high_seqno, history.high_seqno, history.high_seqno)


def share_out(backlogs: Mapping[int, int], limit: int | None) -> dict[int, int]:
    """Divide `limit` changes among vbuckets: small backlogs whole, others evenly, the remainder to the largest.

    A vbucket without a share has a larger backlog next time, so none waits for ever.
    """
    if limit is None:
        return dict(backlogs)
    shares: dict[int, int] = {}
    remaining, remaining_vbuckets = max(limit, 0), len(backlogs)
    for backlog, vb in sorted((backlog, vb) for vb, backlog in backlogs.items()):
        shares[vb] = min(backlog, remaining // remaining_vbuckets)
        remaining -= shares[vb]
        remaining_vbuckets -= 1
    return shares


def ranges(start: Offset, end: Offset) -> list[Range]:
    """Return the parts of the batch between two offsets, by vbucket; a pure function, so a replay gets the same."""
    if start.latest:
        return []
    return [part for vb in sorted(end.positions.keys() | end.rollbacks) if (part := _range(vb, start, end))]


def _range(vb: int, start: Offset, end: Offset) -> Range | None:
    before, after = start.position(vb), end.position(vb)
    rollback = vb in end.rollbacks
    if (before.seqno, before.vb_uuid) == (after.seqno, after.vb_uuid) and not rollback:
        return None  # not moved; its snapshot start tells of an earlier batch
    if after.seqno == after.snapshot_start and not rollback:
        return None  # idle; only its history got a new name, or was found complete
    return Range(
        vb,
        after.vb_uuid,
        after.snapshot_start,
        after.seqno,
        after.snapshot_end,
        rollback,
        end.losses.get(vb, 0),
        end.generations.get(vb, 0),
    )


def pack(parts: Iterable[Range], partitions: int) -> list[Sequence[Range]]:
    """Pack ranges into at most `partitions` bins of about equal cost; vbuckets stay whole and in order.

    The rollback row of a vbucket and its later rows must belong to one task, since Spark keeps order only within a
    task.
    """
    bins: list[tuple[int, int, list[Range]]] = [(0, place, []) for place in range(partitions)]
    # The largest first, each into the emptiest bin: the fullest is at most a third above the best packing.
    for part in sorted(parts, key=lambda part: (-part.cost, part.vbucket)):
        cost, place, members = heapq.heappop(bins)
        members.append(part)
        heapq.heappush(bins, (cost + part.cost, place, members))
    filled = (members for _, _, members in sorted(bins, key=lambda entry: entry[1]) if members)
    return [tuple(sorted(members, key=lambda part: part.vbucket)) for members in filled]
