"""A node inside the test's own process: its disk, its clock, and what it says when it can't start."""

from pathlib import Path

import pytest

from headwater.errors import CorruptStore
from headwater.testing.embedded import WallClock, embedded
from headwater.testing.faults import FaultyDisk
from tests.node.wire import Client


def test_documents_outlive_the_node_on_its_disk() -> None:
    disk = FaultyDisk()
    for turn in range(2):
        with embedded(disk=disk) as node, Client(node.port) as client:
            assert client.ask(0, key=b"k").status == 1 - turn
            assert client.ask(1, key=b"k", extras=bytes(8)).status == 0


def test_the_time_of_day_is_moved_and_nothing_else() -> None:
    clock, plain = WallClock(), WallClock()
    clock.shift_seconds = -3600
    assert plain.time_ns() - clock.time_ns() > 3599 * 1e9
    assert abs(plain.monotonic() - clock.monotonic()) < 3599


def test_a_store_that_can_not_be_opened_is_told_to_the_test() -> None:
    disk = FaultyDisk()
    disk.put(Path("/embedded/MANIFEST"), b"nonsense")
    with pytest.raises(CorruptStore, match="MANIFEST"), embedded(disk=disk):
        pass
