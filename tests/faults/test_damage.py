"""Damaged stores: a node says in one line which file is damaged and where, does not start, and changes nothing."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from shutil import copytree
from zlib import crc32

import pytest

from headwater import testing
from headwater.errors import StatusError
from headwater.node.storage.manifest import Manifest
from headwater.node.storage.segment import name_of
from headwater.wire.header import Frame
from tests.node.wire import Client

VBUCKETS = 4
FLIPS = 8
KEEP_TOMBSTONES = bytes(7) + b"\1" + bytes(16)  # compact_db: purge what was deleted before 1970


def compacted_store(node: testing.Node) -> None:
    """Some hundred changes in a segment that compaction wrote, and some more in the open one."""
    with Client(node.port) as client:
        for turn in range(2):
            for number in range(100):
                value = b"%d" % turn * 300
                stored = client.ask(1, key=b"k%d" % number, extras=bytes(8), value=value, vbucket=number % VBUCKETS)
                assert stored.status == 0
            if turn == 0:
                assert client.ask(0xB3, extras=KEEP_TOMBSTONES).status == 0


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store as kill -9 leaves it."""
    with testing.node(vbuckets=VBUCKETS, segment_mib=48) as node:
        compacted_store(node)
        node.kill()
        return Path(copytree(node.data, tmp_path_factory.mktemp("stores") / "crashed"))


@pytest.fixture
def store(crashed: Path, tmp_path: Path) -> Path:
    return Path(copytree(crashed, tmp_path / "store"))


def contents(store: Path) -> dict[str, int]:
    """A checksum of every file, but for the lock, which belongs to whoever runs."""
    return {path.name: crc32(path.read_bytes()) for path in store.iterdir() if path.name != "LOCK"}


OPTIONS: dict[str, object] = {"vbuckets": VBUCKETS, "segment_mib": 48}


def refusal(store: Path, options: dict[str, object] = OPTIONS) -> str:
    """The one line with which a node refuses to start on a store, which it leaves as it was."""
    before = contents(store)
    node = testing.Node(store, options)
    earlier = node.log
    with pytest.raises(testing.NodeError, match=r"did not come up \(status 1\)"):
        node.start()
    told = node.log.removeprefix(earlier)
    assert len(told.splitlines()) == 1 and told.startswith("headwater: "), told
    assert contents(store) == before
    return told


def segments(store: Path) -> list[Path]:
    """The files of the log in the order in which they are read; the last one is open."""
    manifest = Manifest.decode((store / "MANIFEST").read_bytes(), store / "MANIFEST")
    return [store / name_of(entry.id) for entry in manifest.segments]


def used(path: Path) -> int:
    """Bytes up to the last one written."""
    return len(path.read_bytes().rstrip(b"\0"))


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def test_a_flipped_byte_in_a_sealed_segment_is_told_with_file_and_offset(store: Path) -> None:
    random = Random(1)
    for path in segments(store)[:-1]:
        for _ in range(FLIPS):
            at = random.randrange(used(path))
            flip(path, at)
            told = refusal(store)
            assert path.name in told and (found := re.search(r"byte (\d+)", told)), told
            assert int(found.group(1)) <= at
            flip(path, at)


def test_a_flipped_byte_in_front_of_whole_batches_of_the_open_segment_is_told(store: Path) -> None:
    path, random = segments(store)[-1], Random(2)
    for _ in range(FLIPS // 2):
        at = random.randrange(used(path) // 2)
        flip(path, at)
        told = refusal(store)
        assert path.name in told and "byte " in told
        flip(path, at)


def zero_the_end(path: Path) -> None:
    size = path.stat().st_size
    cut_in_half(path)
    with path.open("r+b") as file:
        file.truncate(size)


def cut_to_nothing(path: Path) -> None:
    path.write_bytes(b"")


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: used(path) // 2])


def zero_the_middle(path: Path) -> None:
    middle = used(path) // 2
    with path.open("r+b") as file:
        file.seek(middle)
        file.write(bytes(min(64, used(path) - middle)))


DAMAGES = [cut_to_nothing, cut_in_half, zero_the_middle, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("which", ["MANIFEST", "sealed"])
def test_what_is_cut_zeroed_or_missing_is_told_by_name(store: Path, which: str, damage: Callable[[Path], None]) -> None:
    path = store / "MANIFEST" if which == "MANIFEST" else segments(store)[0]
    damage(path)
    assert path.name in refusal(store)


@pytest.mark.parametrize("damage", [cut_to_nothing, cut_in_half, zero_the_end, zero_the_middle, Path.unlink])
def test_an_open_segment_that_lost_its_end_after_a_crash_is_told(store: Path, damage: Callable[[Path], None]) -> None:
    """By itself it looks like a write that was cut off; elsewhere it was written down how far the log was synced."""
    path = segments(store)[-1]
    damage(path)
    assert path.name in refusal(store)


def test_a_flipped_byte_in_the_very_last_batch_is_told_after_a_crash(store: Path) -> None:
    path = segments(store)[-1]
    flip(path, used(path) - 1)
    assert path.name in refusal(store)


@pytest.mark.parametrize("damage", [cut_to_nothing, lambda path: path.write_bytes(bytes(576))])
def test_a_note_of_what_was_synced_that_is_damaged_is_told(store: Path, damage: Callable[[Path], None]) -> None:
    damage(store / "SYNCED")
    assert "SYNCED" in refusal(store)


def test_an_older_manifest_put_back_is_no_older_store() -> None:
    """An old manifest names files that compaction has removed since."""
    with testing.node(vbuckets=VBUCKETS, segment_mib=48) as node:
        old = (node.data / "MANIFEST").read_bytes()
        compacted_store(node)
        node.kill()
        (node.data / "MANIFEST").write_bytes(old)
        assert ".log" in refusal(node.data)


def test_two_segments_that_changed_places_are_told(store: Path) -> None:
    first, last = segments(store)[0], segments(store)[-1]
    first.rename(store / "away")
    last.rename(first)
    (store / "away").rename(last)
    assert ".log" in refusal(store)


def test_a_byte_that_flips_under_a_running_node_is_not_copied_by_compaction() -> None:
    """Compaction reads the old files again before it vouches for their content with new checksums."""
    with testing.node(vbuckets=VBUCKETS, segment_mib=48) as node:
        compacted_store(node)
        with Client(node.port) as client:
            oldest = segments(node.data)[0]
            flip(oldest, used(oldest) - 10)
            before = {path.name for path in segments(node.data)}
            assert client.ask(0xB3, extras=KEEP_TOMBSTONES).status == 0x86
            assert before <= {path.name for path in segments(node.data)}
            assert client.ask(1, key=b"goes on", extras=bytes(8)).status == 0
        node.kill()
        assert oldest.name in refusal(node.data)


def test_a_byte_that_flips_under_a_running_node_is_told_and_not_served() -> None:
    with testing.node(vbuckets=VBUCKETS, segment_mib=48, scrub_interval_seconds=1) as node:
        compacted_store(node)
        with node.client() as bucket:
            high = bucket.seqnos()
            lost = max((key for key in map(b"k%d".__mod__, range(100))), key=lambda key: bucket_seqno(node, key))
            bucket.set("later", "a batch behind it")
            path = segments(node.data)[-1]
            raw = path.read_bytes()
            flip(path, raw.rindex(lost) + 20)
            wait_for(lambda: bucket.stats()["ep_damaged_batches"] != "0")
            stats = bucket.stats()
            assert (stats["ep_damaged_batches"], stats["ep_damaged_vbuckets"]) == ("1", "1")
            assert re.search(rf"{path.name}: byte \d+: the checksum of batch \d+ .* is wrong; not served", node.log)
        with Client(node.port) as client:
            number = int(lost[1:])
            told = client.ask(0, key=lost, vbucket=number % VBUCKETS)
            assert told.status == 0x84 and path.name.encode() not in told.key
            other = (number + 1) % 100
            assert client.ask(0, key=b"k%d" % other, vbucket=other % VBUCKETS).status == 0
        with node.client() as bucket:
            sound = {vb for vb in range(VBUCKETS) if vb != number % VBUCKETS}
            assert {change.vbucket for change in bucket.changes(vbuckets=sound, until="now")} == sound
            with pytest.raises(StatusError):
                list(bucket.changes(vbuckets=[number % VBUCKETS], until=high))
        node.kill()
        assert path.name in refusal(node.data)


def bucket_seqno(node: testing.Node, key: bytes) -> int:
    """The CAS of a key, which grows with every change of the node."""
    with Client(node.port) as client:
        return client.ask(0, key=key, vbucket=int(key[1:]) % VBUCKETS).cas


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_file_that_is_cut_under_a_running_node_ends_it_with_a_line_and_the_next_start_is_refused() -> None:
    with testing.node(vbuckets=VBUCKETS, segment_mib=48) as node:
        with Client(node.port) as client:
            for number in range(64):
                stored = client.ask(1, key=b"k%d" % number, extras=bytes(8), value=bytes(16 << 10))
                assert stored.status == 0
            (segment,) = node.data.glob("*.log")
            os.truncate(segment, 512 << 10)
            client.send(Frame(0x80, 0, b"k60").encode())
            assert client.read() is None
        assert node.wait() == 1, "an end by SIGBUS tells nobody why"
        (line,) = (each for each in node.log.splitlines() if each.startswith("error: "))
        assert str(segment) in line and "can't be read, the file was cut" in line
        with pytest.raises(testing.NodeError, match=segment.name):
            node.start()
