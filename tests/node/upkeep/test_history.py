"""The versions that retention keeps: they count as live, are measured seldom, and are given up on a full disk."""

from __future__ import annotations

import asyncio

import pytest

from headwater.node.storage.retention import FOREVER, HistoryLimits
from headwater.node.upkeep import compactor
from headwater.node.upkeep.history import PAUSE_SECONDS
from tests.node.support import NOON
from tests.node.upkeep.test_compactor import Desk, run

SECOND = 1_000_000_000
KIB = 1 << 10


def overwritten(desk: Desk, times: int, cas: int = 1) -> None:
    for _ in range(times):
        desk.store.staging.mutation(0, b"k", bytes(KIB), cas=cas, rev_seqno=1)
    desk.committer.wrote()


def test_limits_go_by_the_clock_and_by_the_vbuckets_that_are_here() -> None:
    async def story(desk: Desk) -> None:
        history, keep = desk.compactor.history, desk.store.declarations.keep_history
        assert history.limits() is None
        keep(60, 0)
        assert history.limits() == HistoryLimits((NOON - 60) * SECOND, FOREVER)
        keep(0, 10_000_000)
        assert history.limits() == HistoryLimits(0, 10_000_000)
        desk.bucket.drop_vbucket(1)
        assert history.limits() == HistoryLimits(0, 5_000_000)
        keep(1 << 31, 0)
        assert history.limits() == HistoryLimits(1, FOREVER), "before there was time"

    run(story)


def test_no_compaction_begins_for_the_sake_of_what_retention_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compactor, "DEAD_BYTES_MIN", 100 * KIB)
    monkeypatch.setattr(compactor, "HISTORY_ROWS", 0)

    async def story(desk: Desk) -> None:
        made = desk.compactor
        desk.store.declarations.keep_history(60)
        overwritten(desk, 400, cas=NOON * SECOND)
        await desk.committer.drain()
        made._look()
        assert made._task is not None
        await made._task
        assert (made.runs, made.history.bytes > 390 * KIB) == (0, True)
        made._look()
        assert made._task is None, "it was measured a moment ago"
        desk.clock.seconds += 61
        assert not made.history.is_due(desk.loop.time())
        assert made.history.is_due(desk.loop.time() + 2 * PAUSE_SECONDS)
        desk.store.declarations.keep_history(59)
        assert made.history.is_due(desk.loop.time()), "it is another retention"
        made._look()
        assert made._task is not None
        await made._task
        assert (made.runs, made.history.bytes) == (1, 0), "by now all of it is too old"

    run(story)


def test_on_a_full_disk_none_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(desk: Desk) -> None:
        desk.store.declarations.keep_history(60)
        overwritten(desk, 400, cas=NOON * SECOND)
        await desk.committer.drain()
        await desk.purge()
        assert desk.store.index.rows(0) == 400, "COMPACT_DB keeps it"
        monkeypatch.setattr(type(desk.store.staging), "lacks_room", property(lambda _: True))
        await desk.compactor._automatic()
        assert desk.store.index.rows(0) == 1
        assert (desk.store.index.rollback_floor(0), desk.compactor.history.bytes) == (400, 0)

    run(story)


def test_tombstones_in_the_history_are_not_purged() -> None:
    async def story(desk: Desk) -> None:
        desk.store.declarations.keep_history(0, 1 << 30)
        desk.deleted("a", age_days=9)
        desk.write()
        await desk.purge(everything=True)
        assert (desk.tombstones(), desk.store.index.purge_seqno(0)) == ("a", 0)
        desk.store.declarations.keep_history(0, 0)
        await desk.purge(everything=True)
        assert (desk.tombstones(), desk.store.index.purge_seqno(0)) == ("", 2)

    run(story)


def test_without_retention_nothing_is_measured() -> None:
    async def story(desk: Desk) -> None:
        overwritten(desk, 10)
        await desk.committer.drain()
        await desk.compactor.history.measure()
        assert desk.compactor.history.bytes == 0
        await asyncio.sleep(0)

    run(story)
