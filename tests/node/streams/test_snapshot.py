"""One view on its way out: budgets, turns, and what of it is sent."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.node.streams.encoding import Encoding
from headwater.node.streams.outlet import Outlet
from headwater.node.streams.snapshot import SentAmount, SnapshotSender
from tests.node.streams.support import StreamDesk

CHANGE_BYTES = 55 + 1 + 5


def outlet(size: int = 4096) -> Outlet:
    return Outlet(np.zeros(size, np.uint8))


def snapshot(desk: StreamDesk, encoding: Encoding | None = None) -> SnapshotSender:
    view = desk.store.view(0)
    return SnapshotSender(view, encoding or Encoding(), covers_seqno=view.end_seqno, last_seqno=view.end_seqno)


@pytest.fixture
def four(desk: StreamDesk) -> StreamDesk:
    for key in "abcd":
        desk.set(0, key)
    desk.commit()
    return desk


def test_a_budget_is_overshot_by_one_change_at_most(four: StreamDesk) -> None:
    sent = snapshot(four)
    assert sent.move(outlet(), 7, CHANGE_BYTES + 1) == SentAmount(2 * CHANGE_BYTES, 2, 2)
    assert not sent.is_done
    assert sent.left == 2
    assert sent.move(outlet(), 7, 1 << 20) == SentAmount(2 * CHANGE_BYTES, 2, 4)
    assert sent.is_done
    sent.close()


def test_frames_that_are_dressed_one_by_one_count_with_what_is_on_the_wire(four: StreamDesk) -> None:
    sent = snapshot(four, Encoding(framing=bytes.fromhex("220047")))
    assert sent.move(outlet(), 7, 1 << 20) == SentAmount(CHANGE_BYTES + 3, 1, 1)
    sent.close()


def test_a_change_that_does_not_fit_waits_for_an_empty_arena(four: StreamDesk) -> None:
    nearly_full = outlet()
    nearly_full.fill(4096 - CHANGE_BYTES + 1)
    sent = snapshot(four)
    assert sent.move(nearly_full, 7, 1 << 20).bytes == 0
    assert nearly_full.is_full
    assert sent.move(outlet(), 7, 1 << 20).changes == 4
    sent.close()


class Sink:
    """Takes what is sent, and keeps where it lay."""

    def __init__(self) -> None:
        self.taken: list[bytes | bytearray | memoryview] = []

    def send(self, data: bytes | bytearray | memoryview, gate: int = 0) -> None:
        self.taken.append(data)


@pytest.mark.parametrize(
    "encoding",
    [Encoding(), Encoding(framing=bytes.fromhex("220047")), Encoding(xattrs=True), Encoding(collections=True)],
    ids=["plain", "with a stream id", "with attributes", "with collections"],
)
def test_the_value_of_a_large_change_leaves_from_where_the_store_has_it(desk: StreamDesk, encoding: Encoding) -> None:
    desk.set(0, "k", b"large" * 1000)
    desk.commit()
    sink, arena = Sink(), outlet()
    arena.begin(sink)
    sent = snapshot(desk, encoding)
    moved = sent.move(arena, 7, 1 << 20)
    assert b"".join(sink.taken).endswith(b"k" + b"large" * 1000)
    assert moved.bytes == sum(map(len, sink.taken))
    value = np.frombuffer(sink.taken[-1], np.uint8)
    assert any(np.shares_memory(value, segment.memory) for segment in desk.store.log.segments)
    sent.close()


@pytest.mark.parametrize(
    "encoding", [Encoding(), Encoding(framing=bytes.fromhex("220047"))], ids=["bulk", "one by one"]
)
def test_deletions_are_left_out_but_for_the_one_that_ends_the_snapshot(four: StreamDesk, encoding: Encoding) -> None:
    four.delete(0, "b")
    four.delete(0, "a")
    four.commit()
    sent = SnapshotSender(four.store.view(0), encoding, covers_seqno=6, last_seqno=6, without_deletions=True)
    moved = []
    while not sent.is_done:
        moved.append(sent.move(outlet(), 7, 1 << 20))
    assert [each.last_seqno for each in moved if each.changes][-1] == 6
    assert sum(each.changes for each in moved) == 3
    assert all(each.last_seqno < 6 for each in moved[:-1])
    sent.close()


def test_where_the_end_is_told_by_itself_the_last_deletion_is_left_out_too(four: StreamDesk) -> None:
    four.delete(0, "a")
    four.commit()
    view = four.store.view(0)
    sent = SnapshotSender(view, Encoding(), covers_seqno=5, last_seqno=5, without_deletions=True, advances=True)
    assert sent.move(outlet(), 7, 1 << 20) == SentAmount(3 * CHANGE_BYTES, 3, 4)
    assert sent.is_done
    sent.close()
