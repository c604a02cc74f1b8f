"""Which rows stay, against the rule in plain words."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headwater.kernels import compact
from headwater.kernels.builds import debug_copy
from headwater.kernels.guard import register
from headwater.node.storage.compaction import NONE_DROPPED
from headwater.node.storage.records import deletion_frame, mutation_frame

CHECKED = debug_copy("headwater.kernels.compact")
Changes = list[tuple[tuple[int, int], int | None]]
changes = st.lists(
    st.tuples(st.tuples(st.sampled_from([0, 0, 8, 300]), st.integers(0, 2)), st.one_of(st.none(), st.integers(1, 9))),
    min_size=1,
    max_size=30,
)


@given(changes, st.booleans(), st.data())
def test_a_row_stays_unless_it_was_superseded_early_or_is_an_old_tombstone_with_a_later_row_of_its_collection(
    changes: Changes, is_mixed: bool, data: st.DataObject
) -> None:
    """A change is ((collection, key), delete time or None for a document); its seqno is twice its row, plus 2."""
    if not is_mixed:
        changes = [((0, key), deleted) for (_, key), deleted in changes]
    end = data.draw(st.integers(0, len(changes)))
    first = data.draw(st.integers(0, end))
    history = data.draw(st.integers(0, len(changes)))
    before, limit = data.draw(st.integers(0, 10)), data.draw(st.integers(0, 70))
    frames = []
    for row, ((collection, key), deleted) in enumerate(changes):
        numbers = {"seqno": 2 * row + 2, "cas": 1, "rev_seqno": 1, "collection": collection}
        name = b"%d" % key
        frames.append(
            mutation_frame(0, name, b"v", **numbers)
            if deleted is None
            else deletion_frame(0, name, delete_time=deleted, expired=deleted % 2 == 0, **numbers)
        )
    later = [
        next((r for r in range(row + 1, len(changes)) if changes[r][0] == changes[row][0]), None)
        for row in range(len(changes))
    ]
    earlier = [later.index(row) if row in later else None for row in range(len(changes))]
    memory = np.frombuffer(b"".join(frames), np.uint8).copy()
    register(memory)
    segments = np.array([[memory.ctypes.data, len(memory)]], np.uint64)
    locs = np.cumsum([0, *map(len, frames[:-1])]).astype(np.uint64)
    seqs = np.arange(2, 2 * len(changes) + 2, 2).astype(np.uint64)
    prevs, nexts = (
        np.array([0xFFFFFFFF if row is None else row for row in rows], np.uint32) for rows in (earlier, later)
    )

    stay, floor, purge = [], 0, 0
    for row in range(first, end):
        (collection, _), deleted = changes[row]
        after = later[row]
        behind = [r for r in range(row + 1, history) if changes[r][0][0] == collection]
        if after is not None and after < history:
            floor = max(floor, 2 * after + 2)
        elif (
            after is None
            and row < history
            and deleted is not None
            and deleted < before
            and 2 * row + 2 <= limit
            and changes[row][0] not in [key for key, _ in changes[:first]]
            and behind
        ):
            purge = 2 * row + 2
            floor = max(floor, 2 * (behind[-1] if is_mixed else behind[0]) + 2)
        else:
            stay.append(row)

    ids = np.array(sorted({collection for (collection, _), _ in changes}) if is_mixed else [], np.uint64)
    for build in (compact, CHECKED):
        keep = np.zeros(end - first, np.uint32)
        columns, newest = (seqs, locs, prevs, nexts), np.zeros(len(ids), np.int64)
        told = build.survivors(
            columns, first, end, history, segments, before, np.uint64(limit), ids, newest, keep, NONE_DROPPED
        )
        count, *bounds = (int(number) for number in told)
        assert keep[:count].tolist() == stay
        assert bounds == [max(floor, purge), purge]


rows = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=20)


@given(rows, st.data())
def test_a_history_ends_where_what_it_superseded_takes_more_than_there_is_for_it(
    changes: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """A change is (key, bytes of its value, CAS); its seqno is twice its row, plus 2. Drops superseded 50 and 70."""
    frames = [
        mutation_frame(0, b"%d" % key, bytes(size), seqno=2 * row + 2, cas=cas, rev_seqno=1)
        for row, (key, size, cas) in enumerate(changes)
    ]
    memory = np.frombuffer(b"".join(frames), np.uint8).copy()
    register(memory)
    segments = np.array([[memory.ctypes.data, len(memory)]], np.uint64)
    locs = np.cumsum([0, *map(len, frames[:-1])]).astype(np.uint64)
    seqs = np.arange(2, 2 * len(changes) + 2, 2).astype(np.uint64)
    keys = [key for key, _, _ in changes]
    prevs = [max((r for r in range(row) if keys[r] == keys[row]), default=0xFFFFFFFF) for row in range(len(changes))]
    first, budget = data.draw(st.integers(0, len(changes))), data.draw(st.integers(0, 600))
    seqnos = sorted((data.draw(st.integers(0, 2 * len(changes) + 2)) for _ in range(2)), reverse=True)
    dropped = np.array([*zip(seqnos, (50, 70), strict=True)], np.int64)
    since = data.draw(st.integers(1, 10))

    at_drops = [max((row for row in range(len(changes)) if 2 * row + 2 <= seqno), default=-1) for seqno in seqnos]
    sizes = [
        (0 if prevs[row] == 0xFFFFFFFF else len(frames[prevs[row]]))
        + 50 * (row == at_drops[0])
        + 70 * (row == at_drops[1])
        for row in range(len(changes))
    ]
    begin = next(row for row in range(first, len(changes) + 1) if sum(sizes[row:]) <= budget)
    younger = next((row for row in range(first, len(changes)) if changes[row][2] >= since), len(changes))
    for build in (compact, CHECKED):
        columns = seqs, locs, np.array(prevs, np.uint32)
        row, used = build.history_within(columns, first, len(changes), segments, budget, dropped)
        assert (int(row), int(used)) == (begin, sum(sizes[begin:]))
        found = build.first_younger(locs, first, len(changes), segments, np.uint64(since))
        assert int(found) == younger
