"""A disk that is full is a state: nothing acknowledged is lost, a node starts on it, and it ends by itself."""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import disk_usage

import pytest

from harness.small_disk import may_mount, small_filesystem
from headwater import testing
from headwater.wire.header import Frame
from tests.node.aware import Aware, manifest
from tests.node.wire import Client

VBUCKETS = 4
OPTIONS: dict[str, object] = {"vbuckets": VBUCKETS, "segment_mib": 48, "compact_dead_percent": 99}
OK, ETMPFAIL, UNKNOWN_COLLECTION = 0x00, 0x86, 0x88
VALUE = bytes(range(256)) * 400  # 100 KiB
BY_ITSELF: dict[str, object] = {"vbuckets": VBUCKETS}
DEADLINE_SECONDS = 120.0
ALL = bytes(16) + b"\1" + bytes(7)


class Disk:
    """A node on a file system of its own, and something else that takes all the room that is left."""

    def __init__(self, root: Path, options: dict[str, object]) -> None:
        self.node = testing.Node(root / "data", options)
        self._ballast = root / "ballast"

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as file:
            try:
                while file.write(bytes(1 << 16)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC

    def free(self) -> None:
        self._ballast.unlink()


@contextmanager
def disk(path: Path, mebibytes: int, options: dict[str, object] = OPTIONS) -> Iterator[Disk]:
    with small_filesystem(path, mebibytes):
        made = Disk(path, options)
        made.node.start()
        try:
            yield made
        finally:
            made.node.kill()
        assert "Traceback" not in made.node.log


def store(client: Client, number: int, turn: int, deadline_seconds: float = 0.0) -> bool:
    """Store a document; tried again for a while when the disk is full. Whether it was acknowledged."""
    deadline = time.monotonic() + deadline_seconds
    while True:
        value = b"%d " % turn + VALUE
        status = client.ask(1, key=b"k%d" % number, extras=bytes(8), value=value, vbucket=number % VBUCKETS).status
        assert status in (OK, ETMPFAIL)
        if status == OK or time.monotonic() > deadline:
            return status == OK
        time.sleep(0.1)


def version(client: Client, number: int) -> int:
    return int(client.ask(0, key=b"k%d" % number, vbucket=number % VBUCKETS).value.split(b" ")[0] or b"-1")


def figure(client: Client, name: str) -> bytes:
    """One of what STAT tells."""
    client.send(Frame(0x80, 0x10).encode())
    told: dict[bytes, bytes] = {}
    while (answer := client.read()) is not None and answer.key:
        told[answer.key] = answer.value
    return told[name.encode()]


def filled(client: Client, first: int = 0) -> int:
    """Store documents until the disk is full; how many there are."""
    number = first
    while store(client, number, 0):
        number += 1
    return number


if may_mount():

    def test_a_node_starts_on_a_full_disk_after_a_crash_and_after_a_stop(tmp_path: Path) -> None:
        with disk(tmp_path / "small", 160) as small:
            with Client(small.node.port) as client:
                number = 300
                assert all(store(client, each, 0) for each in range(number))
                small.fill()
                assert filled(client, number) > number
            for end in (small.node.kill, small.node.stop, small.node.kill):
                end()
                small.fill()
                small.node.start()
                with Client(small.node.port) as client:
                    assert all(version(client, each) == 0 for each in range(0, number, 50))
                    assert filled(client, 10_000) < 10_200  # what was set aside before the crash, and no more
            small.free()
            with Client(small.node.port) as client:
                assert store(client, 0, 2, DEADLINE_SECONDS) and version(client, 0) == 2

    def test_what_is_deleted_on_a_full_disk_makes_room_again(tmp_path: Path) -> None:
        with disk(tmp_path / "small", 200) as small, Client(small.node.port) as client:
            number = filled(client)
            small.fill()
            for each in range(0, number, 2):
                assert client.ask(4, key=b"k%d" % each, vbucket=each % VBUCKETS).status == OK
            assert store(client, number, 1, DEADLINE_SECONDS)
            small.node.kill()
            small.node.start()
            with Client(small.node.port) as again:
                for each in range(0, number, 2):
                    assert again.ask(0, key=b"k%d" % each, vbucket=each % VBUCKETS).status == 1
                assert all(version(again, each) == 0 for each in range(1, number, 2)) and version(again, number) == 1

    def test_compaction_that_is_asked_for_on_a_full_disk_is_done(tmp_path: Path) -> None:
        with disk(tmp_path / "small", 200) as small, Client(small.node.port) as client:
            number = filled(client)
            for each in range(0, number):
                client.ask(4, key=b"k%d" % each, vbucket=each % VBUCKETS)
            small.fill()
            assert client.ask(0xB3, extras=ALL).status == OK

    @pytest.mark.parametrize("vbuckets", [VBUCKETS, 1024])
    def test_dropping_a_collection_on_a_full_disk_makes_room_again(tmp_path: Path, vbuckets: int) -> None:
        options: dict[str, object] = {**OPTIONS, "vbuckets": vbuckets}
        with disk(tmp_path / "small", 200, options) as small, Aware(small.node.port) as client:
            assert client.becomes(manifest(1, kept=8, gone=9)) == OK
            assert all(client.put(b"k%d" % each, VALUE, 8, each % VBUCKETS) == OK for each in range(100))
            number = 0
            while client.put(b"k%d" % number, VALUE, 9, number % VBUCKETS) == OK:
                number += 1
            small.fill()
            assert client.put(b"late", VALUE, 8) == ETMPFAIL
            assert client.becomes(manifest(2, kept=8, gone=9, more=10)) == ETMPFAIL
            assert client.becomes(manifest(3, kept=8)) == OK
            assert client.got(b"k0", 9) == UNKNOWN_COLLECTION
            assert client.compacts() == OK  # by itself it waits for a minute: replicas may not have heard of the drop
            deadline = time.monotonic() + DEADLINE_SECONDS
            while (status := client.put(b"late", VALUE, 8)) != OK:
                assert status == ETMPFAIL and time.monotonic() < deadline
                time.sleep(0.1)
            small.node.kill()
            small.node.start()
            with Aware(small.node.port) as again:
                assert all(again.got(b"k%d" % each, 8, each % VBUCKETS) == VALUE for each in range(100))
                assert (again.got(b"late", 8), again.got(b"k0", 9)) == (VALUE, UNKNOWN_COLLECTION)

    @pytest.mark.battery
    @pytest.mark.timeout(900)
    def test_overwriting_a_third_of_the_disk_for_ever_is_never_the_end_of_it(tmp_path: Path) -> None:
        with disk(tmp_path / "small", 300) as small, Client(small.node.port) as client:
            for turn in range(4):
                for number in range(1000):  # 100 MiB
                    assert store(client, number, turn, DEADLINE_SECONDS), (turn, number)
            small.node.kill()
            small.node.start()
            with Client(small.node.port) as again:
                assert all(version(again, number) == 3 for number in range(1000))

    @pytest.mark.slow
    @pytest.mark.timeout(900)
    def test_overwriting_nearly_half_of_the_disk_for_ever_is_never_the_end_of_it(tmp_path: Path) -> None:
        with disk(tmp_path / "small", 300, BY_ITSELF) as small, Client(small.node.port) as client:
            number = 1450  # 142 MiB
            for turn in range(4):
                for each in range(number):
                    assert store(client, each, turn, DEADLINE_SECONDS), (turn, each)
            small.node.kill()
            small.node.start()
            with Client(small.node.port) as again:
                assert all(version(again, each) == 3 for each in range(number))

    def test_a_disk_with_room_for_small_documents_only_says_so_and_takes_large_ones_again(tmp_path: Path) -> None:
        """Nearly all of it is old versions, which nobody can take back in the end: 128 of them can't be kept here."""
        value = bytes(1 << 20)
        with disk(tmp_path / "small", 100) as small, Client(small.node.port) as client:

            def is_taken(number: int) -> bool:
                vb = number % VBUCKETS
                return client.ask(1, key=b"k%d" % (number % 8), extras=bytes(8), value=value, vbucket=vb).status == OK

            taken = 0
            while is_taken(taken):
                taken += 1
                assert taken < 400, "it never became full"
            assert taken > 50
            assert figure(client, "ep_disk_full") == b"1"
            deadline = time.monotonic() + 60
            while not is_taken(taken):
                assert time.monotonic() < deadline, "it does not come back"
                time.sleep(0.2)
            assert figure(client, "ep_disk_full") == b"0"

    def test_an_empty_node_takes_little_of_the_disk_and_large_documents_as_well(tmp_path: Path) -> None:
        options: dict[str, object] = {"vbuckets": 1024}
        with disk(tmp_path / "small", 100, options) as small, Client(small.node.port) as client:
            assert disk_usage(tmp_path / "small").used < 8 << 20
            large = bytes(20 << 20)
            assert client.ask(1, key=b"large", extras=bytes(8), value=large).status == OK
            assert client.ask(0, key=b"large").value == large

    def test_what_the_disk_has_no_room_for_is_refused_and_what_is_smaller_is_taken(tmp_path: Path) -> None:
        with disk(tmp_path / "small", 16, BY_ITSELF) as small, Client(small.node.port) as client:
            assert client.ask(1, key=b"large", extras=bytes(8), value=bytes(20 << 20)).status == ETMPFAIL
            assert store(client, 0, 1) and version(client, 0) == 1
            assert client.ask(0, key=b"large").status == 1

    def test_a_start_that_lacks_room_says_how_much_and_what_to_do(tmp_path: Path) -> None:
        with small_filesystem(tmp_path / "small", 1):
            (tmp_path / "small" / "ballast").write_bytes(bytes(960 << 10))
            node = testing.Node(tmp_path / "small" / "data", {"vbuckets": 1024})
            try:
                with pytest.raises(testing.NodeError) as refused:
                    node.start()
            finally:
                node.kill()
            told = str(refused.value)
            assert re.search(r"small/data: no room for \d+ more bytes, \d+ are free; free some space and start", told)
            assert "Traceback" not in told
