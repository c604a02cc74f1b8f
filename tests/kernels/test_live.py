"""A live snapshot in one call: a marker and the very frames that a view shows, or nothing at all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.kernels import gather
from headwater.kernels.live import ROWS_MAX
from headwater.node.storage.store import Store
from headwater.testing.faults import FaultyDisk
from headwater.wire import dcp
from tests.node.storage.model import commit, open_store

OPAQUE = 0xDEADBEEF
BOTH = gather.DELETE_TIMES | gather.EXPIRY_OPCODE


def store_of(count: int, *, deletions: bool = True) -> Store:
    store = open_store(FaultyDisk())
    for number in range(count):
        key = b"key %d" % (number % 7)
        if deletions and number % 5 == 3:
            store.staging.deletion(
                1, key, cas=number + 1, rev_seqno=number, delete_time=77, datatype=0, expired=number % 3 == 0
            )
        else:
            store.staging.mutation(1, key, b"v" * (number % 90), cas=number + 1, rev_seqno=number, datatype=number % 2)
        if number % 20 == 19:
            commit(store)
    commit(store)
    return store


def live(
    store: Store, after: int, *, encoding: int = BOTH, slow: int = 0, room: int = 1 << 20, out: int = 1 << 17
) -> bytes:
    last = store.index.durable_seqno(1)
    memory = np.zeros(out, np.uint8)
    size, changes = store.gather_live(1, (after, last, after + 1, 5), memory, OPAQUE, encoding, slow, room)
    assert bool(size) == bool(changes)
    assert not memory[size:].any() or not size
    return memory[:size].tobytes()


def by_view(store: Store, after: int, encoding: int = BOTH) -> bytes:
    out = np.zeros(1 << 17, np.uint8)
    last = store.index.durable_seqno(1)
    marker = dcp.SnapshotMarker(vbucket=1, opaque=OPAQUE, start_seqno=after + 1, end_seqno=last, flags=5)
    with store.view(1, after) as view:
        filled = view.fill(out, OPAQUE, encoding)
        assert filled.done
    return marker.encode() + out[: filled.bytes].tobytes()


STORE = store_of(60)


@given(after=st.integers(0, 59))
def test_it_says_what_marker_and_view_say(after: int) -> None:
    assert live(STORE, after) == by_view(STORE, after)


@given(after=st.integers(0, 59), room=st.integers(0, 4000))
def test_without_room_for_all_of_it_nothing_happens(after: int, room: int) -> None:
    wanted = by_view(STORE, after)
    assert live(STORE, after, room=room) == (wanted if room >= len(wanted) else b"")
    assert live(STORE, after, out=room) == (wanted if room >= len(wanted) else b"")


@pytest.mark.parametrize("encoding", [0, gather.DELETE_TIMES, BOTH | gather.NO_VALUE, BOTH | gather.KEEP_DATATYPE])
def test_what_is_not_sent_as_it_is_stored_goes_the_long_way(encoding: int) -> None:
    store = store_of(3, deletions=False)
    store.staging.deletion(1, b"gone", cas=9, rev_seqno=1, delete_time=77, expired=True)
    commit(store)
    assert live(store, 0, encoding=BOTH)
    assert live(store, 0, encoding=encoding) == b""


def test_frames_that_python_must_look_at_go_the_long_way() -> None:
    store = store_of(2, deletions=False)
    assert live(store, 0, slow=1) == b""
    assert live(store, 0, slow=2) == by_view(store, 0)


def test_the_reader_that_has_everything_and_the_one_far_behind_go_the_long_way() -> None:
    assert live(STORE, 60) == b""
    far = store_of(ROWS_MAX + 1, deletions=False)
    assert live(far, 0) == b""
    assert live(far, 1) == by_view(far, 1)


def test_what_is_only_staged_is_not_seen() -> None:
    store = store_of(3, deletions=False)
    store.staging.mutation(1, b"later", b"v", cas=9, rev_seqno=1)
    assert live(store, 1) == by_view(store, 1)
