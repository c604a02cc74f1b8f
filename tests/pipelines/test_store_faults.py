"""A mirror whose store is full or read-only for a while, on file systems that are; and documents at the limits."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.small_disk import may_mount, small_filesystem
from headwater.pipelines.mirror import mirror
from headwater.testing.node import Node, node
from tests.pipelines.support import Running, documents, folded, seqnos, table

MEBIBYTES = 8


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as running:
        yield running


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if not may_mount():
        pytest.skip("a small file system can't be mounted here: needs root and the right to mount")
    with small_filesystem(tmp_path / "disk", MEBIBYTES):
        yield tmp_path / "disk"


def is_equal(bucket: Node, place: Path) -> None:
    assert table(place) == documents(bucket) == folded(Path(f"{place}_changes"))


def test_a_store_that_is_full_is_waited_for_and_what_was_half_written_is_nowhere(bucket: Node, disk: Path) -> None:
    place, ballast = disk / "t", disk / "ballast"
    with bucket.client() as client:
        client.set_many((f"a{i}", os.urandom(1000)) for i in range(500))
        running = Running(bucket.url, place, changelog=True)
        try:
            running.wait_until(lambda: running.told.changes == 500)
            left = os.statvfs(disk)
            ballast.write_bytes(bytes(left.f_bavail * left.f_frsize - (200 << 10)))
            client.set_many((f"a{i}", os.urandom(2000)) for i in range(250, 750))
            running.wait_until(lambda: any("No space left" in problem for problem in running.problems))
            ballast.unlink()
            running.wait_until(lambda: running.told.changes == seqnos(bucket) and not running.told.problem)
        finally:
            running.stop()
    is_equal(bucket, place)


def test_a_store_that_is_read_only_for_a_while_is_waited_for(bucket: Node, disk: Path) -> None:
    place = disk / "t"
    with bucket.client() as client:
        client.set_many((f"a{i}", b"first") for i in range(60))
        running = Running(bucket.url, place, changelog=True)
        try:
            running.wait_until(lambda: running.told.changes == 60)
            remount(disk, "ro")
            client.set_many((f"a{i}", b"second") for i in range(30, 90))
            client.delete_many([f"a{i}" for i in range(10)])
            running.wait_until(lambda: any("Read-only" in problem for problem in running.problems))
            remount(disk, "rw")
            running.wait_until(lambda: running.told.changes == seqnos(bucket) and not running.told.problem)
        finally:
            remount(disk, "rw")
            running.stop()
    is_equal(bucket, place)


def remount(disk: Path, how: str) -> None:
    """As soon as nobody writes: a file that is open for writing keeps it from becoming read-only."""
    deadline = time.monotonic() + 120
    while subprocess.run(
        ["mount", "-o", f"remount,{how}", str(disk)], stderr=subprocess.DEVNULL, check=False
    ).returncode:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_keys_of_any_bytes_and_values_of_20_mib_are_rows_as_any_others(bucket: Node, tmp_path: Path) -> None:
    keys = [b"\0", b"\xff\xfe", b"a\nb", b"k" * 250, "größe ☃".encode(), b'"', b"%41", b" ", b"\xed\xa0\x80"]
    with bucket.client(timeout_seconds=60.0) as client:
        client.set_many((key, b"1") for key in keys)
        client.set("large", os.urandom(20 << 20))
        mirror(None, bucket.url, tmp_path / "t", once=True, workers=0)
        assert table(tmp_path / "t") == documents(bucket)
        client.set_many((key, bytes(n)) for n, key in enumerate(keys))
        client.set("large", b"\0" * (20 << 20))
    mirror(None, bucket.url, tmp_path / "t", once=True, workers=0)
    assert table(tmp_path / "t") == documents(bucket)


def test_2000_fields_and_types_that_change_are_columns_and_rest(bucket: Node, tmp_path: Path) -> None:
    wide = {f"field{i}": i for i in range(2000)}
    with bucket.client() as client:
        client.set_json("wide", wide)
        mirror(None, bucket.url, tmp_path / "t", once=True, json=True, workers=0)
        client.set_json("other", {"field1": "text", "field2": 2.5, "field3": [1], "field4": None, "field5": {"a": 1}})
        told = mirror(None, bucket.url, tmp_path / "t", once=True, json=True, workers=0)
    held = table(tmp_path / "t", *wide, "_rest", "value")
    assert {name: held["wide"][name] for name in wide} == wide
    assert all(held["other"][f"field{i}"] is None for i in range(1, 6))
    assert json.loads(held["other"]["_rest"]) == {"field1": "text", "field2": 2.5, "field3": [1], "field5": {"a": 1}}
    assert sorted(line.partition(":")[0] for line in told.conflicts) == ["field1", "field2", "field3", "field5"]
