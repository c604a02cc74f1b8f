"""Disks that are full, and disks that fail: writers hear of it, readers do not, and nothing acknowledged is lost."""

from __future__ import annotations

import errno
import resource
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from harness.checker import Ledger
from harness.small_disk import may_mount, small_filesystem
from harness.workload import Follower, Writer, everything, read_back
from headwater import testing
from headwater.testing.embedded import embedded
from headwater.testing.faults import FaultyDisk
from headwater.wire.header import Frame
from tests.node.wire import Client

VBUCKETS = 4
DEADLINE_SECONDS = 120.0


def until(true: Callable[[], bool], what: str) -> None:
    """Wait for it, not for ever."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


class Writers:
    """One writer after the other, each of the same keys: when its connection is dropped the next one goes on."""

    def __init__(self, ledger: Ledger, port: int, url: str) -> None:
        self.ledger, self.port, self.url = ledger, port, url
        self.dropped = 0
        self.now = self._next()

    def _next(self) -> Writer:
        writer = Writer(self.ledger, 0, self.port, vbuckets=VBUCKETS, random=Random(self.dropped), keys=60)
        writer.start()
        return writer

    def write_until(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not true():
            assert time.monotonic() < deadline, what
            self.now.join(0.02)
            if not self.now.is_alive():
                self.now.end()
                self.dropped += 1
                self.ledger.settle(everything(self.url))
                self.now = self._next()

    def stop(self) -> None:
        self.now.stopping.set()
        self.now.end(DEADLINE_SECONDS)

    def go_on(self) -> None:
        """Start a writer again after `stop`."""
        self.ledger.settle(everything(self.url))
        self.now = self._next()


def acknowledged_since(ledger: Ledger) -> Callable[[], bool]:
    before = ledger.acknowledged
    return lambda: ledger.acknowledged > before + 100


def survives_a_full_disk(url: str, port: int, full: Callable[[], None], free: Callable[[], None]) -> tuple[int, Ledger]:
    """Write, fill the disk, see that reads and streams go on, free it, see that writes do; returns drops, ledger."""
    ledger = Ledger()
    follower = Follower(ledger, url)
    follower.start()
    writers = Writers(ledger, port, url)
    writers.write_until(acknowledged_since(ledger), "nothing was written")
    full()
    writers.write_until(lambda: writers.now.refusals > 0, "nobody was told that the disk is full")
    # Deletions go on in the room that is kept for them: what is read back must not change meanwhile.
    writers.stop()
    there = {(change.vbucket, change.key): change for change in everything(url)}
    read_back(url, {place: change for place, change in there.items() if place[0] == 3})
    writers.go_on()
    writers.write_until(lambda: writers.now.refusals > 0, "the disk is full, and writes are taken again")
    free()
    writers.write_until(acknowledged_since(ledger), "the disk has room again, and nobody may write")
    writers.stop()
    follower.stop()
    follower.catch_up()
    ledger.settle(everything(url))
    assert follower.held == {(change.vbucket, change.key): change for change in everything(url)}
    return writers.dropped, ledger


def test_a_disk_that_fills_up_and_is_freed_through_the_whole_node() -> None:
    disk = FaultyDisk()
    with embedded(disk=disk) as node:

        def full() -> None:
            disk.capacity = 1 << 20

        def free() -> None:
            disk.capacity = None

        dropped, _ = survives_a_full_disk(f"couchbase://127.0.0.1:{node.port}/default", node.port, full, free)
        assert dropped == 0  # room was set aside before: no write was taken that could not be kept


def test_a_file_that_may_not_grow_is_a_full_disk_as_well() -> None:
    """A limit that is lowered later can't be foreseen by setting room aside. Its writers are hung up on, unanswered."""
    with testing.node(vbuckets=VBUCKETS, segment_mib=48) as node:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

        def full() -> None:
            # Below what is set aside, by more than that for which documents are refused before they are taken.
            (log,) = node.data.glob("*.log")
            limit = 512 * log.stat().st_blocks - (160 << 10)
            resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (limit, hard))

        def free() -> None:
            resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (soft, hard))

        dropped, ledger = survives_a_full_disk(node.url, node.port, full, free)
        assert dropped >= 1
        node.kill()
        node.start()
        ledger.settle(everything(node.url))


if may_mount():

    def test_a_real_filesystem_without_room(tmp_path: Path) -> None:
        with small_filesystem(tmp_path / "small", 160):
            node = testing.Node(tmp_path / "small" / "data", {"vbuckets": VBUCKETS, "segment_mib": 48}).start()
            ballast = tmp_path / "small" / "ballast"
            try:

                def full() -> None:
                    with ballast.open("wb") as file:  # all that is left
                        try:
                            while True:
                                file.write(bytes(1 << 16))
                                file.flush()
                        except OSError as error:
                            assert error.errno == errno.ENOSPC

                dropped, ledger = survives_a_full_disk(node.url, node.port, full, ballast.unlink)
                assert dropped == 0
                node.kill()
                node.start()
                ledger.settle(everything(node.url))
            finally:
                node.kill()
            assert "Traceback" not in node.log


@pytest.mark.parametrize("nth", range(1, 12, 2))
def test_whichever_change_of_the_disk_fails_nothing_acknowledged_is_lost(nth: int) -> None:
    """The nth write, sync, reservation or rename from now on fails, once: at most the writers of a batch are dropped,
    and none of what they were not told of is there."""
    disk = FaultyDisk()
    with embedded(disk=disk) as node:
        url, ledger = f"couchbase://127.0.0.1:{node.port}/default", Ledger()
        writers = Writers(ledger, node.port, url)
        writers.write_until(acknowledged_since(ledger), "nothing was written")
        disk.fail(nth, errno.EIO)
        called = disk.calls + nth
        writers.write_until(lambda: disk.calls > called, "the disk was not asked")
        writers.write_until(acknowledged_since(ledger), "nothing is written after one failure")
        writers.stop()
        ledger.settle(everything(url))
    crashed = disk.crash(Random(nth))
    with embedded(disk=crashed) as node:
        ledger.settle(everything(f"couchbase://127.0.0.1:{node.port}/default"))


def test_a_disk_that_fails_for_good_takes_no_writes_and_goes_on_reading() -> None:
    disk = FaultyDisk()
    with embedded(disk=disk) as node:
        with Client(node.port) as client:
            assert client.ask(1, key=b"k", extras=bytes(8), value=b"kept").status == 0
        disk.fail(1, errno.EIO, forever=True)
        with Client(node.port) as client:
            client.send(Frame(0x80, 1, b"k", bytes(8), b"lost").encode())
            answer = client.read()
            assert answer is None or answer.status == 0x86
        with Client(node.port) as client:
            assert client.ask(0, key=b"k").value == b"kept"
        disk.heal()

        def writes() -> bool:
            with Client(node.port) as client:
                client.send(Frame(0x80, 1, b"again", bytes(8), b"v").encode())
                answer = client.read()
                return answer is not None and answer.status == 0

        until(writes, "the disk works again, and nobody may write")
        with Client(node.port) as client:
            assert client.ask(0, key=b"k").value == b"kept" and client.ask(0, key=b"again").value == b"v"
