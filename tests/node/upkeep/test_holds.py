"""How long files that were compacted are kept for a reader."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headwater.node.upkeep.holds import BYTES_MIN, SECONDS_FULL, SECONDS_MIN, Holds

SECONDS = 300.0


class Reader:
    def __init__(self, holds: bool) -> None:
        self.holds_removed_files = holds

    def let_go(self) -> None:
        self.holds_removed_files = False


class Bucket:
    """A bucket whose store keeps `held` bytes of files that were retired at `oldest`."""

    def __init__(self) -> None:
        self.slots = SimpleNamespace(oldest_retired=7, retired_bytes=1)
        self.store = SimpleNamespace(
            slots=self.slots,
            staging=SimpleNamespace(lacks_room=False),
            index=SimpleNamespace(live_bytes=2 * BYTES_MIN),
        )
        self.slow, self.other = Reader(True), Reader(False)
        self.vbuckets = {3: SimpleNamespace(readers={self.slow, self.other})}


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def holds(bucket: Bucket) -> Holds:
    faked: Any = bucket
    return Holds(faked, SECONDS)


def test_whoever_keeps_files_for_too_long_lets_go_and_nobody_else(bucket: Bucket, holds: Holds) -> None:
    for now in (0.0, SECONDS - 1):
        holds.look(now)
        assert bucket.slow.holds_removed_files
    holds.look(SECONDS)
    assert not bucket.slow.holds_removed_files and holds.ended == 1


def test_time_begins_with_the_files_that_are_kept_now(bucket: Bucket, holds: Holds) -> None:
    holds.look(0.0)
    bucket.slots.oldest_retired = 9  # those of before have gone
    holds.look(SECONDS)
    holds.look(2 * SECONDS - 1)
    assert bucket.slow.holds_removed_files
    holds.look(2 * SECONDS)
    assert holds.ended == 1


def test_where_nothing_is_kept_nobody_is_disturbed(bucket: Bucket, holds: Holds) -> None:
    bucket.slots.oldest_retired = None
    for now in (0.0, 2 * SECONDS):
        holds.look(now)
    assert bucket.slow.holds_removed_files and holds.ended == 0


@pytest.mark.parametrize(
    ("why", "seconds"),
    [
        ("the disk is full", SECONDS_FULL),
        ("compaction waits", SECONDS_FULL),
        ("more than all that is live", SECONDS_MIN),
    ],
)
def test_it_is_sooner_when_room_is_short(bucket: Bucket, holds: Holds, why: str, seconds: float) -> None:
    bucket.store.staging.lacks_room, needed = why == "the disk is full", why == "compaction waits"
    bucket.slots.retired_bytes = 2 * BYTES_MIN + 1 if seconds == SECONDS_MIN else 1
    holds.look(0.0, needed=needed)
    holds.look(seconds - 0.5, needed=needed)
    assert bucket.slow.holds_removed_files
    holds.look(seconds, needed=needed)
    assert holds.ended == 1
