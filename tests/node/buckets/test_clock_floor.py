"""The time up to which a bucket gives no more change a CAS: kept over clocks put back, restarts and full disks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headwater.errors import CorruptStore, DiskFull
from headwater.node.buckets.bucket import Bucket
from headwater.node.buckets.clock_floor import AHEAD_NANOSECONDS, NAME
from headwater.node.config import NodeConfig
from headwater.node.storage.store import Store
from tests.node.support import NOON, Clock, Desk, SteppedCommitter, Talk

NOW = NOON * 1_000_000_000
HOUR = 3600


def cas_of_write(talk: Talk, vbucket: int = 0) -> int:
    return talk.one(1, key=b"k", extras=bytes(8), vbucket=vbucket).cas


def reopened(path: Path, clock: Clock, vbuckets: int = 4) -> Bucket:
    store = Store.open(path, vbuckets=vbuckets)
    bucket = Bucket("default", store, SteppedCommitter(store), clock=clock)  # type: ignore[arg-type]
    bucket.recover(NodeConfig(vbuckets=vbuckets))
    return bucket


@pytest.mark.parametrize("fast", [True, False], ids=["kernel", "plain"])
def test_no_change_gets_a_cas_at_or_below_a_promise_though_the_clock_is_put_back(
    counter: Desk, talk: Talk, *, fast: bool
) -> None:
    counter.fast = fast
    asyncio.run(counter.bucket.clock_floor.promise(NOW))
    counter.bucket.clock.jumped_seconds = -HOUR  # type: ignore[attr-defined]
    assert [cas_of_write(counter.session(), vb) for vb in range(4)] == [NOW + 1] * 4
    assert cas_of_write(talk) == NOW + 2


def test_a_promise_of_less_changes_nothing(counter: Desk) -> None:
    asyncio.run(counter.bucket.clock_floor.promise(NOW))
    asyncio.run(counter.bucket.clock_floor.promise(NOW - 1))
    assert counter.bucket.clock_floor.held == NOW


def test_a_process_that_is_killed_leaves_its_promise_to_the_next_one(counter: Desk, tmp_path: Path) -> None:
    asyncio.run(counter.bucket.clock_floor.promise(NOW))
    counter.store.close(clean=False)
    behind = Clock()
    behind.jumped_seconds = -HOUR
    bucket = reopened(tmp_path / "store", behind)
    assert bucket.clock_floor.held >= NOW
    assert all(bucket.next_cas(vb) > NOW for vb in range(4))
    bucket.store.close()


def test_a_vbucket_that_comes_later_is_bound_as_well(counter: Desk) -> None:
    counter.bucket.drop_vbucket(2)
    asyncio.run(counter.bucket.clock_floor.promise(NOW))
    counter.bucket.clock.jumped_seconds = -HOUR  # type: ignore[attr-defined]
    talk = counter.session()
    talk.one(0x3D, extras=b"\1", vbucket=2)
    assert cas_of_write(talk, 2) > NOW


def test_the_file_is_written_once_in_some_seconds(counter: Desk) -> None:
    path = counter.store.path / NAME
    asyncio.run(counter.bucket.clock_floor.promise(NOW))
    before = path.read_bytes()
    asyncio.run(counter.bucket.clock_floor.promise(NOW + AHEAD_NANOSECONDS))
    assert path.read_bytes() == before
    asyncio.run(counter.bucket.clock_floor.promise(NOW + AHEAD_NANOSECONDS + 1))
    assert path.read_bytes() != before


def test_a_promise_that_a_full_disk_does_not_take_is_none(counter: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(counter.bucket.clock_floor.promise(NOW))

    def refuse(path: Path, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(counter.store.disk, "create", refuse)
    with pytest.raises(DiskFull):
        asyncio.run(counter.bucket.clock_floor.promise(NOW + 2 * AHEAD_NANOSECONDS))
    assert counter.bucket.clock_floor.held == NOW


def test_a_damaged_file_stops_the_start_with_its_name(counter: Desk, tmp_path: Path) -> None:
    asyncio.run(counter.bucket.clock_floor.promise(NOW))
    counter.store.close()
    path = tmp_path / "store" / NAME
    path.write_bytes(path.read_bytes().replace(b"17", b"18", 1))
    with pytest.raises(CorruptStore, match=NAME):
        reopened(tmp_path / "store", Clock())
