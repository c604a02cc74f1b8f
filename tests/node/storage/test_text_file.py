import errno
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from headwater.errors import CorruptStore, StorageError
from headwater.node.storage.text_file import (
    NotPutBackError,
    decode_text_file,
    encode_text_file,
    put_back,
    write_synced,
)
from headwater.testing.faults import FaultyDisk

PATH = Path("/data/NOTE")
WRITTEN = encode_text_file("NOTE", "1", b"body\nof two lines")


def read(data: bytes) -> bytes:
    return decode_text_file(data, PATH, "NOTE", ["1"], "note")


def test_what_was_written_is_read() -> None:
    assert WRITTEN.startswith(b"NOTE 1 ")
    assert WRITTEN.endswith(b"\nbody\nof two lines\n")
    assert read(WRITTEN) == b"body\nof two lines"


@pytest.mark.parametrize("data", [b"", b"NOTE\n", b"OTHER 1 0\nbody\n"])
def test_another_file_is_told_as_such(data: bytes) -> None:
    with pytest.raises(CorruptStore, match="byte 0: not a note"):
        read(data)


def test_a_body_that_is_not_the_one_written_is_told_with_its_offset() -> None:
    with pytest.raises(CorruptStore, match="byte 24: the checksum of the note is wrong"):
        read(WRITTEN.replace(b"two", b"too"))


def test_a_newer_format_is_told() -> None:
    with pytest.raises(StorageError, match="format 2; this headwater reads up to format 1"):
        read(encode_text_file("NOTE", "2", b"x"))


def test_what_is_written_synced_is_there_after_any_power_cut() -> None:
    for seed in range(50):
        disk = FaultyDisk()
        disk.make_directory(PATH.parent)
        write_synced(disk, PATH, WRITTEN)
        disk.sync_directory(PATH.parent)
        assert disk.crash(Random(seed)).read(PATH) == WRITTEN


def test_a_disk_that_is_full_is_told_and_the_file_is_closed() -> None:
    disk = FaultyDisk(capacity=4)
    disk.make_directory(PATH.parent)
    with pytest.raises(OSError) as full:
        write_synced(disk, PATH, WRITTEN)
    assert full.value.errno == errno.ENOSPC


@pytest.mark.parametrize("before", [None, b"before"])
def test_what_failed_in_its_midst_leaves_the_file_of_before(before: bytes | None) -> None:
    fresh = PATH.with_suffix(".new")
    for nth in range(1, 6):
        disk = FaultyDisk()
        disk.make_directory(PATH.parent)
        if before is not None:
            write_synced(disk, PATH, before)
            disk.sync_directory(PATH.parent)
        disk.fail(nth, errno.EIO)
        with suppress(OSError), put_back(disk, PATH, fresh):
            write_synced(disk, fresh, b"after")
            disk.rename(fresh, PATH)
            disk.sync_directory(PATH.parent)
            before = b"after"
        found = disk.read(PATH) if PATH.name in disk.names(PATH.parent) else None
        assert found == before


@pytest.mark.parametrize("before", [None, b"before"])
def test_who_can_put_nothing_back_hears_that_either_file_may_be_there(before: bytes | None) -> None:
    fresh = PATH.with_suffix(".new")
    disk = FaultyDisk()
    disk.make_directory(PATH.parent)
    if before is not None:
        write_synced(disk, PATH, before)
        disk.sync_directory(PATH.parent)
    with pytest.raises(NotPutBackError, match="Input/output"), put_back(disk, PATH, fresh):
        write_synced(disk, fresh, b"after")
        disk.rename(fresh, PATH)
        disk.fail(1, errno.EIO, forever=True)
        disk.sync_directory(PATH.parent)
