"""The staging arena."""

from __future__ import annotations

from headwater.node.storage.arena import Batch, StagingArena
from headwater.node.storage.records import VBucketRecord


def test_frames_lie_one_behind_the_other_and_are_the_batch() -> None:
    arena = StagingArena(1, 100)
    assert [arena.append(b"abc"), arena.append(b"de")] == [0, 3]
    batch = Batch(arena)
    assert bytes(batch.frames) == b"abcde"
    assert batch.bytes_on_disk == 48 + 5


def test_a_cleared_arena_remembers_nothing() -> None:
    arena = StagingArena(0, 100)
    arena.append(b"abc")
    arena.records[3] = VBucketRecord(1)
    arena.destroyed.add(3)
    arena.clear()
    assert (arena.used, arena.records, arena.destroyed) == (0, {}, set())


def test_a_batch_is_unread_if_it_is_much_and_nearly_all_of_it_is() -> None:
    arena = StagingArena(0, 4 << 20)
    batch = Batch(arena)
    arena.used = arena.unread_bytes = (1 << 20) - 1
    assert not batch.is_unread
    arena.used = arena.unread_bytes = 1 << 20
    assert batch.is_unread
    arena.used = 1_200_000
    assert not batch.is_unread
    arena.clear()
    assert arena.unread_bytes == 0
