"""The kernels that walk over all live documents, in the bounds-checked build as well."""

from pathlib import Path

import numpy as np

from headwater.kernels import sweep
from headwater.kernels.builds import debug_copy
from headwater.kernels.guard import registered
from tests.node.support import NOON, Desk, Talk, desk

checked = debug_copy("headwater.kernels.sweep")


def fill(talk: Talk, count: int) -> None:
    for number in range(count):
        talk.ask(0x11, key=b"key-%03d" % number, extras=bytes(8), value=b"v")


def delete_all(counter: Desk, limit: int, build: object = sweep) -> tuple[int, int]:
    store = counter.store
    if build is checked:
        store.staging.grow(0)
    arena, used = store.staging.room()
    most = min(len(arena), used + limit)
    columns = store.index.columns[0]
    arrays = [arena, columns.seq, columns.loc, columns.hash, columns.prev, columns.next, columns.slots]
    with registered(*arrays):
        stop, row, end = build.delete_all(  # type: ignore[attr-defined]
            store.table, 0, store.segments, 0, store.staging.slot, used, most, counter.clock.time_ns()
        )
    store.staging.use(int(end))
    return int(stop), int(row)


def test_a_full_arena_stops_before_the_document_that_does_not_fit(tmp_path: Path) -> None:
    with desk(tmp_path) as counter:
        fill(counter.session(), 5)
        assert delete_all(counter, 3 * (45 + 7) + 51, checked) == (checked.STAGE_FULL, 3)
        assert counter.store.index.items(0) == 2
        assert delete_all(counter, 1 << 20, checked)[0] == checked.DONE
        assert counter.store.index.items(0) == 0 and counter.store.index.high_seqno(0) == 10


def test_an_index_without_room_is_told(tmp_path: Path) -> None:
    with desk(tmp_path) as counter:
        talk, number = counter.session(), 0
        while counter.store.table[0, 0] < counter.store.table[0, 3] or number == 0:  # rows, capacity
            talk.ask(0x11, key=b"%d" % number, extras=bytes(8))
            number += 1
        assert delete_all(counter, 1 << 20) == (sweep.GROW, 0)
        assert counter.bucket.flush() and counter.store.index.items(0) == 0


def test_keys_stop_at_the_end_of_the_buffer_and_go_on(tmp_path: Path) -> None:
    with desk(tmp_path) as counter:
        fill(counter.session(), 5)
        store, out, found, row = counter.store, np.zeros(2 * 9 + 8, np.uint8), b"", 0
        columns = store.index.columns[0]
        with registered(store.staging.room()[0], columns.loc, columns.next):
            while row < 5:
                used, row = map(int, checked.live_keys(store.table, 0, store.segments, row, NOON, out, 0))
                assert used in (9, 18)
                found += out[:used].tobytes()
        assert found == b"".join(b"\0\x07key-%03d" % number for number in range(5))
