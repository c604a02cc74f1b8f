"""A client that answers from memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pyarrow as pa
import pytest

from headwater.errors import RollbackRequired
from headwater.kernels.columns import SCHEMA
from headwater.protocol.dcp.complete import ClocksHeld
from headwater.protocol.dcp.failover import Claim, Rollback, decide
from headwater.protocol.dcp.position import Position


class FakeVbucket:
    """Versions by seqno, and the failover log; newest first, as nodes tell it."""

    def __init__(self, log: tuple[tuple[int, int], ...], seqnos: range, purge: int = 0) -> None:
        self.log, self.seqnos, self.purge = log, seqnos, purge
        self.breaks_at = 0
        """Behind which seqno a stream breaks off, once."""
        self.purges_amid = 0
        """Up to which seqno it has purged when that stream is asked for again, which is refused then."""

    @property
    def high(self) -> int:
        return self.seqnos[-1] if self.seqnos else 0


class FakeClient:
    """The part of a client that the planner and a task use. `before` is called with each question's name."""

    def __init__(self, vbuckets: Mapping[int, FakeVbucket], nodes: int = 1) -> None:
        self.vbuckets, self.asked, self.closed = dict(vbuckets), [], 0
        names = tuple(f"n{number}:11210" for number in range(nodes))
        self.map = SimpleNamespace(servers=names, vbuckets=1 + max(vbuckets, default=0), label="1.7", version=(1, 7))
        self.before: Callable[[str], None] = lambda question: None
        self.asked: list[str] = []
        self.on_disk: dict[int, int] = {}
        self.clock = self.held = 0
        """The nodes' clocks, and what they have promised; 0 for nodes that promise nothing."""
        self.old = False
        """Whether it compares the purge seqno with the snapshot's start, as servers did once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.closed += 1

    def _ask(self, question: str) -> None:
        self.asked.append(question)
        self.before(question)

    def look_for_newer_map(self) -> SimpleNamespace:
        return self.map

    def hold_clocks(self, cas: int = 0) -> ClocksHeld:
        if not self.clock:
            return ClocksHeld(problem="the fakes hold no clock")
        self.before("clocks")
        self.held = max(self.held, min(cas, self.clock))
        return ClocksHeld(self.held, self.clock)

    def seqnos(self) -> dict[int, int]:
        self._ask("seqnos")
        return {vb: vbucket.high for vb, vbucket in self.vbuckets.items()}

    def persisted_seqnos(self, vb_uuids: Mapping[int, int], min_persisted: object) -> dict[int, int]:
        self._ask(f"persisted by {min_persisted}")
        return {vb: self.on_disk.get(vb, 0) for vb, uuid in vb_uuids.items() if self.vbuckets[vb].log[0][0] == uuid}

    def vbucket_stats(self, group: str, vbuckets: Collection[int] | None = None) -> dict[int, dict[str, str]]:
        self._ask("stats" if vbuckets is None else f"stats of {', '.join(map(str, sorted(vbuckets)))}")
        return {
            vb: {"uuid": str(vbucket.log[0][0]), "purge_seqno": str(vbucket.purge)}
            for vb, vbucket in self.vbuckets.items()
            if vbuckets is None or vb in vbuckets
        }

    def failover_log(self, vb: int) -> list[tuple[int, int]]:
        self._ask(f"log {vb}")
        return list(self.vbuckets[vb].log)

    def failover_logs(self, vbuckets: Iterable[int]) -> dict[int, list[tuple[int, int]]]:
        return {vb: self.failover_log(vb) for vb in sorted(vbuckets)}

    def batches(self, start: Mapping[int, Any], *, until: Mapping[int, int], **options: Any) -> FakeBatches:
        self._ask("batches")
        return FakeBatches(self, start, until)


class FakeBatches:
    """One batch a vbucket; a vbucket that has less than was asked for keeps silent after it."""

    def __init__(self, client: FakeClient, start: Mapping[int, Any], until: Mapping[int, int]) -> None:
        self._client, self._start, self._until = client, start, until
        self.positions = dict(start)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.asked.append("closed")

    def __iter__(self) -> Iterator[Any]:
        logs = {vb: self._client.vbuckets[vb].log for vb in self._start}
        waiting = False
        for vb, position in self._start.items():
            vbucket, end = self._client.vbuckets[vb], self._until[vb]
            self._decide(vb, position)
            waiting |= end > vbucket.high
            broken, vbucket.breaks_at = vbucket.breaks_at or vbucket.high, 0
            seqnos = [seqno for seqno in vbucket.seqnos if position.seqno < seqno <= broken]
            ended = () if end > vbucket.high or vbucket.purges_amid else (SimpleNamespace(vbucket=vb, reason=0),)
            last = max([position.seqno, *seqnos])
            told = {"failover_logs": logs, "ended": ended, "collection_events": ()}
            behind = Position(vb, logs[vb][0][0], last, last if broken == vbucket.high else 0, vbucket.high)
            self.positions[vb] = behind
            yield SimpleNamespace(records=_records(vb, seqnos), positions={vb: behind}, **told)
            if vbucket.purges_amid:
                vbucket.purge, vbucket.purges_amid = vbucket.purges_amid, 0
                vbucket.seqnos = range(vbucket.purge + 1, vbucket.high + 1)
                self._decide(vb, behind)
        while waiting:
            yield SimpleNamespace(records=_records(0, []), failover_logs=logs, ended=(), collection_events=())

    def _decide(self, vb: int, position: Any) -> None:
        """Answer a stream request as a node does; RollbackRequired is a refusal."""
        vbucket, end = self._client.vbuckets[vb], self._until[vb]
        claim = Claim(
            position.seqno,
            max(end, position.seqno),
            position.vb_uuid,
            position.snapshot_start,
            position.snapshot_end,
        )
        decision = decide(claim, vbucket.log, vbucket.high, purge_seqno=vbucket.purge)
        if self._client.old and 0 < position.snapshot_start < vbucket.purge:
            decision = Rollback(0, "purged")
        if isinstance(decision, Rollback):
            raise RollbackRequired(vb, position.seqno, decision.seqno, decision.reason)


def synced_files(monkeypatch: pytest.MonkeyPatch, path: Path) -> list[tuple[int, bool]]:
    """Return a list that gets the inode of each file or folder that is synced, and whether `path` was there then."""
    synced: list[tuple[int, bool]] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, path.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return synced


def _records(vb: int, seqnos: list[int]) -> pa.RecordBatch:
    blank = {field.name: b"" if field.type == pa.binary() else 0 for field in SCHEMA} | {"opcode": 0x57}
    rows = [blank | {"vbucket": vb, "seqno": seqno, "key": b"k%d" % seqno} for seqno in seqnos]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
