"""A view is one point in time, whatever happens after it was opened."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.testing.faults import FaultyDisk
from tests.node.storage.model import commit, filled, frames, open_store


def test_changes_growth_rollback_and_drop_leave_an_open_view_alone() -> None:
    store = open_store(FaultyDisk())
    for number in range(10):
        store.staging.mutation(0, b"%d" % number, b"old", cas=1, rev_seqno=1)
    commit(store)
    views = [store.view(0) for _ in range(4)]
    expected = [(number + 1, b"%d" % number, b"old") for number in range(10)]
    for step in (
        lambda: [store.staging.mutation(0, b"%d" % number, b"new", cas=1, rev_seqno=1) for number in range(60)],
        lambda: store.rollback(0, 5),
        lambda: [store.staging.mutation(0, b"x", b"other", cas=1, rev_seqno=1) for _ in range(9)],
        lambda: store.drop(0),
    ):
        step()
        commit(store)
        with views.pop() as view:
            assert [(one.seqno, one.key, one.value) for one in frames(view)] == expected


def test_both_paths_hand_over_the_same_changes() -> None:
    store = open_store(FaultyDisk())
    for number in range(40):
        store.staging.mutation(0, b"%d" % (number % 11), b"x" * number, cas=1, rev_seqno=1)
    commit(store)
    with store.view(0) as fast, store.view(0) as plain:
        got = filled(fast, size=300)
        stored = b""
        while not plain.nothing:
            frame = bytearray(plain.next_frame())
            frame[12:16] = (0xABCD).to_bytes(4, "big")
            stored += frame
    assert got == stored


def test_a_frame_that_goes_out_by_itself_is_not_copied_out_of_its_segment() -> None:
    store = open_store(FaultyDisk())
    store.staging.mutation(0, b"k", b"value", cas=1, rev_seqno=1)
    commit(store)
    (segment,) = store.log.segments
    with store.view(0) as view:
        for frame in (view.change(1), view.next_frame()):
            assert bytes(frame[-6:]) == b"kvalue"
            assert np.shares_memory(np.frombuffer(frame, np.uint8), segment.memory)


def test_a_closed_view_says_so() -> None:
    store = open_store(FaultyDisk())
    view = store.view(0)
    view.close()
    view.close()
    assert view.nothing
    with pytest.raises(ValueError, match="view of vbucket 0 is closed"):
        view.fill(np.zeros(10, np.uint8), 1)
    assert store.slots.readers == 0
