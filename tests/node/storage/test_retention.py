"""Retention keeps superseded versions up to its limits, in figures: none more, and none less."""

from __future__ import annotations

import pytest

from headwater.kernels import index
from headwater.node.storage.compaction import HISTORY_ROWS
from headwater.node.storage.retention import FOREVER, HistoryLimits, Retention
from headwater.node.storage.store import Store
from headwater.testing.faults import FaultyDisk
from tests.node.storage.model import commit, finish, frames, open_store

MIB = 1 << 20
SECOND = 1_000_000_000


def opened(vbuckets: int = 8) -> Store:
    return open_store(FaultyDisk(), vbuckets, segment_bytes=4 * MIB, arena_bytes=4 * MIB)


def write(store: Store, vb: int, key: bytes, size: int = 200, cas: int = 1) -> None:
    store.staging.mutation(vb, key, bytes(size), cas=cas, rev_seqno=1)


def overwrite(store: Store, rounds: int, keys: int, vbuckets: range, size: int = 200) -> None:
    """Each round writes each key of each of these vbuckets once."""
    for _ in range(rounds):
        for vb in vbuckets:
            for key in range(keys):
                write(store, vb, b"k%d" % key, size)
        commit(store)


def compact(store: Store, limits: HistoryLimits | None, least: int = 0) -> int:
    """A whole compaction; returns the bytes of history that it says it kept."""
    commit(store)
    store.log.seal()
    job = store.compact(history_rows=lambda vb: least, history=limits)
    assert job is not None
    finish(store, job)
    return job.history_bytes


def superseded(store: Store) -> int:
    """The bytes that are in the log beside the newest version of each key."""
    return sum(
        len(store.slots.frame(int(loc)))
        for vb, columns in enumerate(store.index.columns)
        for loc, after in zip(columns.loc[: store.index.rows(vb)], columns.next[: store.index.rows(vb)], strict=True)
        if after != 0xFFFFFFFF
    )


@pytest.mark.parametrize("mib", [1, 2, 5])
def test_of_the_bytes_that_a_bucket_may_keep_nine_tenths_are_kept_and_none_more(mib: int) -> None:
    store = opened()
    overwrite(store, 40, 100, range(8))
    assert superseded(store) > 7 * MIB
    kept = compact(store, HistoryLimits(0, mib * MIB))
    assert 0.9 * mib * MIB <= superseded(store) <= mib * MIB
    assert kept == superseded(store)


def test_what_quiet_vbuckets_do_not_use_is_the_busy_ones() -> None:
    store = opened()
    overwrite(store, 2, 10, range(7))
    overwrite(store, 80, 100, range(7, 8))
    compact(store, HistoryLimits(0, MIB))
    assert 0.9 * MIB <= superseded(store) <= MIB
    floors = [store.index.rollback_floor(vb) for vb in range(8)]
    assert floors[:7] == [0] * 7 and floors[7] > 0


def test_versions_that_are_larger_than_a_share_are_kept_where_they_fit() -> None:
    store = opened()
    overwrite(store, 4, 1, range(8), size=300_000)
    compact(store, HistoryLimits(0, MIB))
    assert 0.8 * MIB <= superseded(store) <= MIB, "three of 300 KB"


def test_every_version_above_the_floor_is_there_and_the_state_at_it() -> None:
    store = opened(1)
    overwrite(store, 30, 100, range(1))
    written = store.index.high_seqno(0)
    compact(store, HistoryLimits(0, MIB // 4))
    floor = store.index.rollback_floor(0)
    assert 0 < floor < written
    with store.view(0, floor, every_version=True) as view:
        assert [frame.seqno for frame in frames(view)] == list(range(floor + 1, written + 1))
    with store.view(0, 0, floor) as view:
        assert len(list(frames(view))) == 100


def test_the_next_compaction_keeps_as_much_and_no_more() -> None:
    store = opened()
    for _ in range(3):
        overwrite(store, 15, 100, range(8))
        compact(store, HistoryLimits(0, MIB))
        assert 0.9 * MIB <= superseded(store) <= MIB


def test_what_is_older_than_the_seconds_goes_and_what_is_younger_stays() -> None:
    store = opened(1)
    for second in range(100):
        for key in range(10):
            write(store, 0, b"k%d" % key, cas=second * SECOND + key)
    commit(store)
    compact(store, HistoryLimits(40 * SECOND, FOREVER))
    assert store.index.rollback_floor(0) == 400, "the last seqno of second 39"
    assert superseded(store) == 600 * len(store.slots.frame(int(store.index.columns[0].loc[0])))
    compact(store, HistoryLimits(90 * SECOND, FOREVER))
    assert store.index.rollback_floor(0) == 900


def test_with_both_limits_the_shorter_history_counts() -> None:
    floors = []
    for limits in (
        HistoryLimits(90 * SECOND, FOREVER),
        HistoryLimits(90 * SECOND, MIB),
        HistoryLimits(10 * SECOND, 5000),
        HistoryLimits(0, 5000),
    ):
        store = opened(1)
        for second in range(100):
            write(store, 0, b"k", cas=second * SECOND)
        compact(store, limits)
        floors.append(store.index.rollback_floor(0))
    assert floors[0] == floors[1] == 90 and floors[2] == floors[3]
    assert 90 > floors[2] > 70


def test_an_old_cas_behind_a_young_one_counts_as_young() -> None:
    store = opened(1)
    for cas in (10, 20, 50, 5, 5, 60):
        write(store, 0, b"k", cas=cas * SECOND)
    compact(store, HistoryLimits(40 * SECOND, FOREVER))
    assert store.index.rollback_floor(0) == 2


def test_what_short_rollbacks_need_stays_whatever_the_limits_say() -> None:
    store = opened(2)
    overwrite(store, 200, 1, range(2), size=5000)
    kept = compact(store, HistoryLimits(0, MIB), HISTORY_ROWS)
    assert [store.index.rows(vb) for vb in range(2)] == [HISTORY_ROWS + 1] * 2
    assert kept == superseded(store) > MIB


def test_without_retention_all_of_it_goes() -> None:
    store = opened()
    overwrite(store, 3, 10, range(8))
    assert compact(store, None) == superseded(store) == 0


def test_what_a_drop_superseded_is_weighed_as_a_version_is() -> None:
    """Of 3 rows behind the drop and what goes with it, the budget holds the rows alone."""
    store = opened(1)
    for _ in range(10):
        write(store, 0, b"k", 100)
    commit(store)
    size = len(store.slots.frame(int(store.index.columns[0].loc[0])))
    for of_drop, first in ((0, 4), (size, 5), (100 * size, 7)):
        with store.history(
            HistoryLimits(0, 6 * size), lambda vb: 0, lambda vb, of_drop=of_drop: ((7, of_drop),)
        ) as measured:  # type: ignore[misc]
            assert measured() == (10 - first) * size + (of_drop if first < 7 else 0), of_drop


def test_rows_that_are_rolled_back_while_it_is_measured_are_no_obstacle() -> None:
    store = opened(1)
    overwrite(store, 20, 10, range(1))
    with store.history(HistoryLimits(0, FOREVER), lambda vb: 0) as measured:
        before = measured()
        store.rollback(0, 100)
        commit(store)
        assert measured() == before
    with store.history(HistoryLimits(0, FOREVER), lambda vb: 0) as measured:
        assert measured() < before
    assert store.table.item(0, index.ROWS) == 100


@pytest.mark.parametrize(
    ("retention", "said"),
    [
        (Retention(), "no history on purpose"),
        (Retention(60), "60 s of history"),
        (Retention(0, MIB), "1048576 bytes of history"),
        (Retention(60, MIB), "60 s and at most 1048576 bytes of history"),
    ],
)
def test_a_retention_in_words(retention: Retention, said: str) -> None:
    assert str(retention) == said
    assert bool(retention) == (retention != Retention())
