import errno
from pathlib import Path
from random import Random

import pytest

from headwater.errors import CorruptStore, DiskFull, StorageError, UnsureFile
from headwater.node.storage.text_file import WholeFile, decode_text_file, encode_text_file, write_synced
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


def whole_file(before: bytes | None) -> tuple[FaultyDisk, WholeFile]:
    disk = FaultyDisk()
    disk.make_directory(PATH.parent)
    if before is not None:
        write_synced(disk, PATH, before)
        disk.sync_directory(PATH.parent)
    return disk, WholeFile(disk, PATH, PATH.with_suffix(".new"), ("users.before_rename", "users.after_rename"))


def content(disk: FaultyDisk) -> bytes | None:
    return disk.read(PATH) if PATH.name in disk.names(PATH.parent) else None


def refused_for_good(disk: FaultyDisk, file: WholeFile, data: bytes) -> None:
    """The rename is done, the sync of the folder is not, and nothing is from then on."""
    disk.fail(5, errno.EIO, forever=True)
    with pytest.raises(UnsureFile, match="may be in force after a restart"):
        file.replace(data)
    assert file.unsure


@pytest.mark.parametrize("before", [None, b"before"])
def test_what_failed_in_its_midst_leaves_the_file_of_before(before: bytes | None) -> None:
    for nth in range(1, 6):
        disk, file = whole_file(before)
        disk.fail(nth, errno.EIO)
        with pytest.raises(StorageError, match="Input/output error; nothing was changed"):
            file.replace(b"after")
        assert not file.unsure
        assert content(disk) == content(disk.crash(Random(nth))) == before


def test_a_disk_without_room_is_told_as_such_and_leaves_the_file_of_before() -> None:
    disk, file = whole_file(b"before")
    disk.fail(2, errno.ENOSPC)
    with pytest.raises(DiskFull):
        file.replace(b"after")
    assert content(disk) == b"before" and not file.unsure


@pytest.mark.parametrize("before", [None, b"before"])
def test_a_disk_that_takes_nothing_back_is_told_and_settled_once_it_takes_writes(before: bytes | None) -> None:
    disk, file = whole_file(before)
    refused_for_good(disk, file, b"after")
    assert not file.settle()
    disk.heal()
    assert file.settle() and not file.unsure
    assert content(disk) == content(disk.crash(Random(1))) == before


@pytest.mark.parametrize("nth", range(1, 6))
def test_a_change_that_fails_behind_one_that_was_refused_does_not_put_that_back(nth: int) -> None:
    """The refused file is in place, and was taken for the one of before."""
    disk, file = whole_file(b"before")
    refused_for_good(disk, file, b"refused")
    disk.heal()
    assert content(disk) == b"refused"
    disk.fail(nth, errno.EIO)
    with pytest.raises(StorageError):
        file.replace(b"another")
    assert file.settle() and content(disk) == content(disk.crash(Random(nth))) == b"before"


def test_a_change_that_is_done_behind_one_that_was_refused_settles_it() -> None:
    disk, file = whole_file(b"before")
    refused_for_good(disk, file, b"refused")
    disk.heal()
    file.replace(b"another")
    assert not file.unsure and content(disk.crash(Random(1))) == b"another"


def test_what_another_process_wrote_meanwhile_is_not_taken_back() -> None:
    disk, file = whole_file(b"before")
    refused_for_good(disk, file, b"refused")
    disk.heal()
    write_synced(disk, PATH.with_suffix(".new"), b"theirs")
    disk.rename(PATH.with_suffix(".new"), PATH)
    assert file.settle() and content(disk) == b"theirs"


def test_a_new_file_that_its_reader_would_refuse_does_not_take_its_place() -> None:
    disk, file = whole_file(b"before")

    def refuse(fresh: Path) -> None:
        raise StorageError(f"{fresh}: others may read it")

    with pytest.raises(StorageError, match="others may read it"):
        file.replace(b"after", refuse)
    assert content(disk) == b"before" and not file.unsure
