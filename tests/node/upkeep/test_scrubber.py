"""When the log is verified, how fast, and what a running node makes of damage; time is an argument."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path

import pytest

from headwater.node.buckets.bucket import Bucket
from headwater.node.committer import Committer
from headwater.node.config import NodeConfig
from headwater.node.storage.store import Store
from headwater.node.upkeep.scrubber import SLICE_BYTES, Scrubber
from tests.node.storage.test_scrub import flip
from tests.node.support import Clock

RATE = 1 << 20


class Desk:
    """A bucket over real files, and a scrubber whose waits are written down and over at once."""

    def __init__(self, path: Path) -> None:
        self.loop = asyncio.get_running_loop()
        self.store = Store.open(path, vbuckets=2, segment_bytes=8 << 20, arena_bytes=4 << 20)
        self.committer = Committer(self.store, self.loop)
        self.bucket = Bucket("default", self.store, self.committer, clock=Clock())
        self.bucket.recover(NodeConfig(data=path, vbuckets=2))
        self.committer.commit_now()
        self.waits: list[float] = []
        self.scrubber = Scrubber(self.bucket, self.loop, interval_seconds=60, bytes_per_second=RATE, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def write(self, vb: int, key: bytes, size: int = 2 << 20) -> None:
        self.store.staging.mutation(vb, key, bytes(size), cas=1, rev_seqno=1)
        await self.committer.wait(self.committer.wrote())

    async def close(self) -> None:
        await self.scrubber.stop()
        self.committer.close()
        self.store.close()


def with_desk(path: Path, work: object) -> None:
    async def run() -> None:
        desk = Desk(path)
        try:
            await work(desk)  # type: ignore[operator]
        finally:
            await desk.close()

    asyncio.run(run())


def test_a_pass_reads_no_faster_than_it_may(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.write(0, b"k")
        await desk.scrubber.run()
        assert (desk.scrubber.runs, desk.scrubber.bytes) == (1, desk.store.log.bytes - 64)
        assert sum(desk.waits) == pytest.approx(desk.scrubber.bytes / RATE)
        assert max(desk.waits) <= 2 * SLICE_BYTES / RATE

    with_desk(tmp_path, work)


def test_damage_is_told_once_with_file_and_offset(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(desk: Desk) -> None:
        for key in (b"a", b"b", b"c"):
            await desk.write(1, key, 3000)
        await desk.committer.run_alone(desk.store.log.seal)
        path = flip(desk.store, desk.store.log.segments[0].end - 50)
        with caplog.at_level(logging.ERROR, "headwater.node"):
            await desk.scrubber.run()
            await desk.scrubber.run()
        (line,) = [record.message for record in caplog.records]
        (damage,) = desk.store.quarantine.damage.values()
        assert line.startswith(f"{path}: byte {damage.offset}: the checksum of batch ")
        assert line.endswith("a part of vbuckets 1; replace the node, or restore the store from a copy")

    with_desk(tmp_path, work)


def test_the_readers_of_a_damaged_vbucket_are_told(tmp_path: Path) -> None:
    class Reader:
        def __init__(self) -> None:
            self.told = 0

        def damaged(self) -> None:
            self.told += 1

    async def work(desk: Desk) -> None:
        await desk.write(1, b"k", 3000)
        readers = [Reader(), Reader()]
        for vb, reader in enumerate(readers):
            desk.bucket.vbuckets[vb].readers.add(reader)  # type: ignore[arg-type]
        flip(desk.store, desk.store.log.bytes - 50)
        await desk.scrubber.run()
        assert [reader.told for reader in readers] == [0, 1]

    with_desk(tmp_path, work)


def test_the_first_pass_comes_after_one_interval_and_the_next_one_interval_after_its_end(tmp_path: Path) -> None:
    class Loop:
        def __init__(self, real: asyncio.AbstractEventLoop) -> None:
            self.real = real
            self.due: list[tuple[float, object]] = []

        def call_later(self, delay: float, callback: object) -> asyncio.TimerHandle:
            self.due.append((delay, callback))
            return self.real.call_later(3600, lambda: None)

        def create_task(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
            return self.real.create_task(work)

    async def work(desk: Desk) -> None:
        loop = Loop(desk.loop)
        scrubber = Scrubber(
            desk.bucket,
            loop,  # type: ignore[arg-type]
            interval_seconds=60,
            bytes_per_second=RATE,
            sleep=desk.sleep,
        )
        scrubber.start()
        ((delay, begin),) = loop.due
        assert (delay, scrubber.runs) == (60, 0)
        begin()  # type: ignore[operator]
        task = scrubber._task
        assert task is not None
        await task
        assert (scrubber.runs, [delay for delay, _ in loop.due]) == (1, [60, 60])
        await scrubber.stop()

    with_desk(tmp_path, work)


def test_stopping_gives_up_the_pass_that_is_under_way(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        stuck = asyncio.Event()
        desk.scrubber = Scrubber(
            desk.bucket,
            desk.loop,
            interval_seconds=1e-9,
            bytes_per_second=RATE,
            sleep=lambda seconds: stuck.wait(),
        )
        desk.scrubber.start()
        while not desk.scrubber.bytes:
            await asyncio.sleep(0)
        await desk.scrubber.stop()
        assert desk.scrubber.runs == 0

    with_desk(tmp_path, work)


def test_without_an_interval_nothing_is_verified(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        never = Scrubber(desk.bucket, desk.loop, interval_seconds=0, bytes_per_second=RATE)
        never.start()
        await never.stop()
        assert never.runs == 0

    with_desk(tmp_path, work)
