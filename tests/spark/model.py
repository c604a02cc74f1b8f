"""A node and a sink small enough to be obviously right, against which the planner is tried."""

from __future__ import annotations

from dataclasses import dataclass, field

from headwater.protocol.dcp.position import FailoverLog
from headwater.spark.history import BranchHistory
from headwater.spark.offsets import Offset
from headwater.spark.planner import Range, ranges

Row = tuple[int, str, int, str, int]
"""vbucket, event, seqno, key, vb uuid"""


@dataclass
class ModelVbucket:
    """One vbucket's whole history: every version, and where branches begin. Sends each key once, as nodes do."""

    versions: list[tuple[int, str]] = field(default_factory=list)
    log: list[tuple[int, int]] = field(default_factory=lambda: [(1, 0)])
    uuids: int = 1

    @property
    def high(self) -> int:
        return self.versions[-1][0] if self.versions else self.log[0][1]

    def write(self, key: str) -> None:
        self.versions.append((self.high + 1, key))

    def fail_over(self, lost: int) -> None:
        """A replica that lacks the last `lost` seqnos becomes active."""
        branch = max(self.high - lost, 0)
        self.versions = [version for version in self.versions if version[0] <= branch]
        self.uuids += 1
        self.log = [(self.uuids, branch), *(entry for entry in self.log if entry[1] <= branch)]

    def state(self) -> dict[str, int]:
        return {key: seqno for seqno, key in self.versions}

    def history(self) -> BranchHistory:
        return BranchHistory(tuple(self.log), self.high)


class ModelNode:
    def __init__(self, vbuckets: int) -> None:
        self.vbuckets = [ModelVbucket() for _ in range(vbuckets)]

    def seen(self) -> dict[int, BranchHistory]:
        return {vb: vbucket.history() for vb, vbucket in enumerate(self.vbuckets)}

    def truth(self) -> dict[tuple[int, str], int]:
        return {(vb, key): seqno for vb, vbucket in enumerate(self.vbuckets) for key, seqno in vbucket.state().items()}

    def read(self, part: Range) -> list[Row]:
        """Return the rows of a task: none that lies beyond the branch the range was planned on."""
        vbucket = self.vbuckets[part.vbucket]
        rows: list[Row] = [(part.vbucket, "rollback", part.start_seqno, "", part.vb_uuid)] if part.rollback else []
        shared = vbucket.history().shared_with(part.vb_uuid)
        for key, seqno in sorted(vbucket.state().items(), key=lambda entry: entry[1]):
            if part.start_seqno < seqno <= min(part.end_seqno, shared):
                rows.append((part.vbucket, "mutation", seqno, key, branch_of(tuple(vbucket.log), seqno)))
        return rows

    def batch(self, start: Offset, end: Offset) -> list[Row]:
        return [row for part in ranges(start, end) for row in self.read(part)]


def branch_of(log: FailoverLog, seqno: int) -> int:
    """Return the uuid of the branch that wrote `seqno`: the newest that had begun."""
    return next((uuid for uuid, begun in log if begun < seqno), log[-1][0])


def fold(rows: list[Row]) -> dict[tuple[int, str], int]:
    """Fold a change log by key; a rollback row makes void what came before it above its seqno."""
    kept: list[Row] = []
    for row in rows:
        vb, event, seqno, _, _ = row
        if event == "rollback":
            kept = [old for old in kept if old[0] != vb or old[2] <= seqno]
        else:
            kept.append(row)
    state: dict[tuple[int, str], int] = {}
    for vb, _, seqno, key, _ in kept:
        state[vb, key] = max(seqno, state.get((vb, key), 0))
    return state
