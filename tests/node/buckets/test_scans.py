"""A scan by itself: its bounds, its idleness, what ends it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.node.buckets import scans
from headwater.node.kv import scans as requests
from headwater.node.refused import CommandRefused
from headwater.wire import scans as wire
from headwater.wire.datatype import Datatype
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.support import Desk, desk


async def no_pause() -> None:
    return


def test_a_scan_of_more_keys_than_it_keeps_at_once_brings_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "KEPT_BYTES_MAX", 6 * (scans.PACKED_BYTES + 1))
    monkeypatch.setattr(scans, "KEYS_AT_LEAST", 3)
    monkeypatch.setattr(scans, "GATHERED_BYTES", 300)
    with desk(tmp_path) as here:
        talk = here.session()
        for number in (5, 3, 9, 1, 7, 2, 8, 0, 6, 4):
            talk.one(Opcode.SET, key=b"%d" % number, extras=bytes(8), value=b"v")
        here.committer.commit()

        async def work() -> list[bytes]:
            plan = scans.ScanPlan(keys=scans.KeyRange(b"1", b"8", with_last=False))
            scan = here.bucket.scans.create(here.bucket.vbuckets[0], plan, 0.0)
            found = []
            while (each := await scan.next(no_pause, 0)) is not None:
                found.append(each[0])
            scan.cancel()
            return found

        assert asyncio.run(work()) == [b"%d" % number for number in range(1, 8)]


def stored(here: Desk) -> None:
    here.session().one(Opcode.SET, key=b"k", extras=bytes(8), value=b"v")
    here.committer.commit()


def test_a_scan_that_nobody_goes_on_with_is_given_up(tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        stored(here)
        scan = here.bucket.scans.create(here.bucket.vbuckets[0], scans.ScanPlan(), 0.0)
        assert here.bucket.scans.find(scan.name, 0, scans.IDLE_SECONDS) is scan
        with pytest.raises(CommandRefused) as refused:
            here.bucket.scans.find(scan.name, 0, scans.IDLE_SECONDS + 1)
        assert refused.value.status == Status.KEY_ENOENT and scan.is_cancelled and not len(here.bucket.scans)
        assert scan not in here.bucket.vbuckets[0].readers


EVERYTHING = wire.RangeScanCreate(value=b'{"range": {"start": "", "end": "/w=="}}', datatype=Datatype.JSON)


def session_of(here: Desk, now: list[float], turn: Callable[[], Awaitable[None]] = no_pause) -> Any:
    """The part of a session that a scan is made by; `now` is its clock."""
    loop, queue = SimpleNamespace(time=lambda: now[0]), SimpleNamespace(turn=turn)
    server = SimpleNamespace(loop=loop, run_queue=queue, committer=here.committer)
    return SimpleNamespace(store_bucket=here.bucket, server=server, access=SimpleNamespace(places=None))


def test_a_first_look_that_takes_longer_than_a_scan_may_idle_is_no_idle_scan(tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        stored(here)
        now = [0.0]

        async def turn() -> None:
            now[0] += 2 * scans.IDLE_SECONDS
            here.bucket.scans.forget_idle(now[0])

        made = asyncio.run(requests.create(session_of(here, now, turn), EVERYTHING))
        assert here.bucket.scans.find((made.scan_high, made.scan_low), 0, now[0]).used_at == now[0]


@pytest.mark.parametrize("is_remade", [False, True])
def test_a_snapshot_of_another_history_is_not_the_one_that_was_waited_for(tmp_path: Path, is_remade: bool) -> None:
    """While a scan waits for seqno 2 the vbucket goes away and comes back, and another change gets that number."""
    with desk(tmp_path) as here:
        stored(here)
        vbucket = here.bucket.vbuckets[0]
        needs = {"vb_uuid": str(vbucket.failover.newest.vb_uuid), "seqno": 2, "timeout_ms": 1000}
        told = json.loads(EVERYTHING.value) | {"snapshot_requirements": needs}

        async def come_back(number: int) -> None:
            if is_remade:
                here.bucket.drop_vbucket(0)
                here.bucket.create_vbucket(0, State.ACTIVE)
                stored(here)
            else:
                vbucket.set_state(State.REPLICA)
                vbucket.set_state(State.ACTIVE)
            here.session().one(Opcode.SET, key=b"other", extras=bytes(8), value=b"v")
            here.committer.commit()

        here.committer.wait = come_back  # type: ignore[attr-defined]
        request = replace(EVERYTHING, value=json.dumps(told).encode())
        with pytest.raises(CommandRefused) as refused:
            asyncio.run(requests.create(session_of(here, [0.0]), request))
        assert refused.value.status == Status.VBUUID_NOT_EQUAL and not len(here.bucket.scans)


@pytest.mark.parametrize("end", ["state_changed", "rolled_back", "damaged", "let_go"])
def test_a_scan_brings_nothing_any_more_once_its_vbucket_is_another(tmp_path: Path, end: str) -> None:
    with desk(tmp_path) as here:
        stored(here)
        scan = here.bucket.scans.create(here.bucket.vbuckets[0], scans.ScanPlan(), 0.0)
        getattr(scan, end)()
        with pytest.raises(CommandRefused) as refused:
            asyncio.run(scan.next(no_pause, 0))
        assert refused.value.status == Status.RANGE_SCAN_CANCELLED and not len(here.bucket.scans)


@pytest.mark.parametrize("end", ["state_changed", "rolled_back", "damaged", "let_go"])
@pytest.mark.parametrize("keys", [scans.KeyRange(b"z"), scans.RandomSample(5)])
def test_a_scan_that_is_given_up_while_it_looks_is_not_taken_for_an_empty_one(
    tmp_path: Path, end: str, keys: scans.KeyRange | scans.RandomSample
) -> None:
    """Who hears that there is no such key takes the vbucket for one without any, and goes on."""
    with desk(tmp_path) as here:
        stored(here)
        scan = here.bucket.scans.create(here.bucket.vbuckets[0], scans.ScanPlan(keys=keys), 0.0)

        async def pause() -> None:
            getattr(scan, end)()

        with pytest.raises(CommandRefused) as refused:
            asyncio.run(scan.is_empty(pause))
        assert refused.value.status == Status.RANGE_SCAN_CANCELLED
        assert here.bucket.scans.kept_bytes == 0


def test_scans_that_keep_much_are_given_fewer_keys_at_a_time_and_bring_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "KEPT_BYTES_MAX", 5 * (scans.ENTRY_BYTES + 2))
    monkeypatch.setattr(scans, "KEYS_AT_LEAST", 3)
    monkeypatch.setattr(scans, "GATHERED_BYTES", 300)
    with desk(tmp_path) as here:
        talk = here.session()
        keys = [b"%02d" % number for number in range(20)]
        for key in reversed(keys):
            talk.one(Opcode.SET, key=key, extras=bytes(8), value=b"v")
        here.committer.commit()
        bucket = here.bucket

        async def work() -> None:
            scan = bucket.scans.create(bucket.vbuckets[0], scans.ScanPlan(), 0.0)
            assert not await scan.is_empty(no_pause)
            assert bucket.scans.kept_bytes <= scans.KEPT_BYTES_MAX
            found = []
            while (each := await scan.next(no_pause, 0)) is not None:
                found.append(each[0])
            assert found == keys and bucket.scans.kept_bytes == 0

        asyncio.run(work())


def test_a_sample_that_would_keep_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "KEPT_BYTES_MAX", scans.ENTRY_BYTES)
    with desk(tmp_path) as here:
        stored(here)
        scan = here.bucket.scans.create(
            here.bucket.vbuckets[0], scans.ScanPlan(keys=scans.RandomSample(1_000_000)), 0.0
        )
        with pytest.raises(CommandRefused) as refused:
            asyncio.run(scan.is_empty(no_pause))
        assert refused.value.status == Status.EBUSY
        scan.cancel()
        assert here.bucket.scans.kept_bytes == 0


@pytest.mark.parametrize("keys", [scans.KeyRange(), scans.RandomSample(1000)])
def test_no_turn_sorts_all_the_keys_of_a_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: scans.KeyRange | scans.RandomSample
) -> None:
    """A sample of a million keys held up all connections of the node for a second or two."""
    sizes: list[int] = []

    def in_order(some: list[tuple[bytes, int]]) -> list[tuple[bytes, int]]:
        sizes.append(len(some))
        return sorted(some)

    monkeypatch.setattr(scans, "SORTED_AT_ONCE", 4)
    monkeypatch.setattr(scans, "sorted", in_order, raising=False)
    with desk(tmp_path) as here:
        talk = here.session()
        for number in reversed(range(18)):
            talk.one(Opcode.SET, key=b"%02d" % number, extras=bytes(8), value=b"v")
        here.committer.commit()

        async def work() -> list[bytes]:
            scan = here.bucket.scans.create(here.bucket.vbuckets[0], scans.ScanPlan(keys=keys), 0.0)
            found = []
            while (each := await scan.next(no_pause, 0)) is not None:
                found.append(each[0])
            return found

        assert asyncio.run(work()) == [b"%02d" % number for number in range(18)] and max(sizes) == 4


@pytest.mark.parametrize("turns", [1, 2, 3, 5, 7])
def test_a_scan_that_is_given_up_while_it_sorts_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    monkeypatch.setattr(scans, "SORTED_AT_ONCE", 4)
    with desk(tmp_path) as here:
        talk = here.session()
        for number in range(24):
            talk.one(Opcode.SET, key=b"%02d" % number, extras=bytes(8), value=b"v")
        here.committer.commit()
        scan = here.bucket.scans.create(here.bucket.vbuckets[0], scans.ScanPlan(), 0.0)
        left = [turns]

        async def pause() -> None:
            left[0] -= 1
            if not left[0]:
                scan.cancel()

        with pytest.raises(CommandRefused) as refused:
            asyncio.run(scan.is_empty(pause))
        assert refused.value.status == Status.RANGE_SCAN_CANCELLED and here.bucket.scans.kept_bytes == 0
        with pytest.raises(CommandRefused):
            asyncio.run(scan.next(no_pause, 0))


def test_a_scan_looks_at_each_frame_once_however_many_keys_it_brings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look over all frames for each 16,384 keys made a scan of 400,000 cost seven times as much a key."""
    looks = 0
    some = scans.RangeScan._some

    def counted(scan: scans.RangeScan) -> list[tuple[bytes, int]] | None:
        nonlocal looks
        looks += 1
        return some(scan)

    monkeypatch.setattr(scans.RangeScan, "_some", counted)
    with desk(tmp_path) as here:
        vbucket = here.bucket.vbuckets[0]
        for number in range(40_000):
            key = b"%06d" % (number * 7919 % 40_000)
            here.bucket.store.staging.mutation(0, key, b"", cas=1, rev_seqno=1)
        here.committer.wrote()
        here.committer.commit()

        async def work() -> int:
            scan = here.bucket.scans.create(vbucket, scans.ScanPlan(key_only=True), 0.0)
            found = [b""]
            while (each := await scan.next(no_pause, 0)) is not None:
                assert found[-1] < each[0]
                found.append(each[0])
            return len(found) - 1

        assert asyncio.run(work()) == 40_000 and here.bucket.scans.kept_bytes == 0
    assert looks < 1.2 * 40_000 * (24 + 31 + 6) / scans.GATHERED_BYTES + 2


def test_scans_at_once_each_leave_room_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [b"%03d" % number for number in range(200)]
    size = len(keys) * (scans.PACKED_BYTES + 3)
    monkeypatch.setattr(scans, "KEPT_BYTES_MAX", 2 * size)
    monkeypatch.setattr(scans, "KEYS_AT_LEAST", 3)
    monkeypatch.setattr(scans, "GATHERED_BYTES", 300)
    with desk(tmp_path) as here:
        for key in reversed(keys):
            here.bucket.store.staging.mutation(0, key, b"", cas=1, rev_seqno=1)
        here.committer.wrote()
        here.committer.commit()

        async def work() -> None:
            begun = []
            for _ in range(3):
                begun.append(here.bucket.scans.create(here.bucket.vbuckets[0], scans.ScanPlan(), 0.0))
                assert not await begun[-1].is_empty(no_pause)
                assert here.bucket.scans.kept_bytes < 2 * size + 4 * scans.ENTRY_BYTES * len(keys)
            for scan in begun:
                found = []
                while (each := await scan.next(no_pause, 0)) is not None:
                    found.append(each[0])
                assert found == keys
            assert here.bucket.scans.kept_bytes == 0

        asyncio.run(work())
