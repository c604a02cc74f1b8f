"""The disk that fails fails as told."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from headwater.testing.faults import FaultyDisk

FOLDER, PATH = Path("/d"), Path("/d/f")


def test_a_crash_keeps_what_was_synced_and_may_lose_the_rest() -> None:
    disk = FaultyDisk()
    file = disk.create(PATH, 4096)
    file.write([b"safe"], 0)
    file.sync()
    disk.sync_directory(FOLDER)
    file.write([b"x" * 2000], 1000)
    assert disk.crash(Random(1), lose=1.0).read(PATH)[:2000] == b"safe" + bytes(1996)
    assert disk.crash(Random(1), lose=0.0).read(PATH)[1000:3000] == b"x" * 2000
    torn = {disk.crash(Random(seed)).read(PATH).count(b"x") for seed in range(50)}
    assert len(torn) > 5
    assert max(torn) <= 2000


def test_a_name_that_was_not_synced_may_be_lost() -> None:
    disk = FaultyDisk()
    disk.create(PATH, 10).sync()
    assert disk.crash(Random(1), lose=1.0).files() == {}
    assert {len(disk.crash(Random(seed)).files()) for seed in range(20)} == {0, 1}


def test_a_failed_sync_loses_what_it_should_have_saved_for_good() -> None:
    disk = FaultyDisk()
    file = disk.create(PATH, 10)
    file.sync()
    disk.sync_directory(FOLDER)
    file.write([b"lost"], 0)
    disk.fail(1)
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.sync()
    assert disk.read(PATH)[:4] == b"lost"
    assert disk.crash(Random(1), lose=1.0).read(PATH)[:4] == bytes(4)


def test_a_failing_write_is_a_short_one() -> None:
    disk = FaultyDisk()
    file = disk.create(PATH, 10)
    disk.fail(1, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        file.write([b"abcd"], 0)
    assert disk.read(PATH)[:4] == b"ab\0\0"
    file.write([b"abcd"], 0)
    disk.fail(1, errno.EIO, forever=True)
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output"):
            file.write([b"abcd"], 0)
    disk.heal()
    file.write([b"abcd"], 0)


def test_capacity_counts_what_is_written_or_reserved_not_holes() -> None:
    disk = FaultyDisk(capacity=100)
    file = disk.create(PATH, 1000)
    file.reserve(0, 60)
    file.write([b"x" * 60], 0)
    with pytest.raises(OSError, match="No space"):
        disk.create(FOLDER / "g", 0).write([b"x" * 41], 0)
    file.truncate(20)
    disk.create(FOLDER / "h", 0).write([b"x" * 41], 0)
