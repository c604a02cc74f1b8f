"""Clocks that jump: CAS values rise all the same, and nothing but expiry minds the time of day."""

from __future__ import annotations

from random import Random

from harness.checker import Ledger
from harness.workload import Writer, everything
from headwater.testing.embedded import Embedded, WallClock, embedded
from headwater.testing.faults import FaultyDisk
from tests.node.wire import Client

HOUR, YEAR = 3600.0, 365 * 86400.0
JUMPS = [0.0, -1.0, 1.0, -HOUR, HOUR, -10 * YEAR, 10 * YEAR, -50 * YEAR, 100 * YEAR, 0.0]


def url(node: Embedded) -> str:
    return f"couchbase://127.0.0.1:{node.port}/default"


def write_some(ledger: Ledger, node: Embedded, seed: int) -> None:
    writer = Writer(ledger, 0, node.port, vbuckets=4, random=Random(seed), keys=40)
    enough = ledger.acknowledged + 150
    writer.start()
    while ledger.acknowledged < enough and writer.is_alive():
        writer.join(0.01)
    writer.stopping.set()
    writer.end()
    ledger.settle(everything(url(node)))  # holds every CAS against every other of its vbucket


def test_cas_rises_whatever_the_clock_does() -> None:
    clock, ledger = WallClock(), Ledger()
    with embedded(disk=FaultyDisk(), clock=clock) as node:
        for seed, jump in enumerate(JUMPS):
            clock.shift_seconds = jump
            write_some(ledger, node, seed)
    assert ledger.acknowledged >= 150 * len(JUMPS)


def test_cas_rises_over_restarts_into_the_past_clean_and_unclean() -> None:
    clock, ledger, disk = WallClock(), Ledger(), FaultyDisk()
    for seed, jump in enumerate([0.0, -HOUR, -10 * YEAR, 10 * YEAR, -10 * YEAR]):
        clock.shift_seconds = jump
        with embedded(disk=disk, clock=clock) as node:
            write_some(ledger, node, seed)
            crashed = disk.crash(Random(seed), lose=1.0) if seed % 2 else disk
        disk = crashed
    assert ledger.acknowledged >= 150 * 5


def test_a_document_expires_once_and_stays_gone_when_the_clock_goes_back() -> None:
    clock = WallClock()
    with embedded(disk=FaultyDisk(), clock=clock) as node, Client(node.port) as client:
        for key, seconds in ((b"short", 60), (b"long", 30 * 86400 - 1), (b"never", 0)):
            assert client.ask(1, key=key, extras=bytes(4) + seconds.to_bytes(4, "big"), value=b"v").status == 0
        clock.shift_seconds = HOUR
        assert [client.ask(0, key=key).status for key in (b"short", b"long", b"never")] == [1, 0, 0]
        clock.shift_seconds = -HOUR
        assert [client.ask(0, key=key).status for key in (b"short", b"long", b"never")] == [1, 0, 0]
        assert client.ask(1, key=b"short", extras=bytes(8), value=b"again").status == 0
        assert client.ask(0, key=b"short").value == b"again"
