"""The notes of how far the log was synced."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from headwater.errors import CorruptStore
from headwater.node.storage.synced import NAME, NEXT_NAME, Note, SyncedFile
from headwater.testing.faults import FaultyDisk

FOLDER, STORE = Path("/store"), bytes(range(16))


@pytest.fixture
def disk() -> FaultyDisk:
    made = FaultyDisk()
    made.make_directory(FOLDER)
    return made


def started(disk: FaultyDisk) -> SyncedFile:
    file = SyncedFile(disk, FOLDER, STORE)
    file.load()
    file.start()
    return file


def test_a_note_has_these_bytes() -> None:
    note = Note(STORE, segment=5, end=136, next_number=4, sequence=2)
    assert note.encode().hex(" ", -8) == (
        "485753594e430001 0001020304050607 08090a0b0c0d0e0f 0000000000000005"
        " 0000000000000088 0000000000000004 0000000000000002 da42101e4c874c3c"
    )
    assert Note.decode(note.encode()) == note
    assert all(Note.decode(note.encode()[:at] + b"?" + note.encode()[at + 1 :]) is None for at in range(64))


def test_the_newest_note_counts(disk: FaultyDisk) -> None:
    file = SyncedFile(disk, FOLDER, STORE)
    assert file.load() is None
    file.start()
    for number in range(1, 6):
        file.write(7, 100 * number, number)
        assert SyncedFile(disk, FOLDER, STORE).load() == Note(STORE, 7, 100 * number, number, number)
    file.close()
    file.close()
    started(disk).write(8, 64, 0)
    assert SyncedFile(disk, FOLDER, STORE).load() == Note(STORE, 8, 64, 0, 6)


def test_whatever_of_the_notes_a_power_cut_takes_one_that_was_true_is_left(disk: FaultyDisk) -> None:
    file = started(disk)
    for number in range(1, 9):
        file.write(7, 100 * number, number)
    for seed in range(50):
        found = SyncedFile(disk.crash(Random(seed)), FOLDER, STORE).load()
        assert found is not None and (found.end, found.next_number) == (100 * found.sequence, found.sequence)


def test_a_note_that_could_not_be_written_leaves_the_one_before(disk: FaultyDisk) -> None:
    file = started(disk)
    file.write(7, 100, 1)
    for _ in range(3):
        disk.fail(1, errno.EIO)
        file.write(7, 200, 2)
    assert SyncedFile(disk, FOLDER, STORE).load() == Note(STORE, 7, 100, 1, 1)
    file.write(7, 300, 3)
    assert SyncedFile(disk, FOLDER, STORE).load() == Note(STORE, 7, 300, 3, 2)


def test_a_file_that_was_not_finished_is_made_again(disk: FaultyDisk) -> None:
    for step in range(1, 5):
        again = FaultyDisk()
        again.make_directory(FOLDER)
        again.fail(step, errno.EIO, forever=True)
        with pytest.raises(OSError):
            started(again)
        again.heal()
        left = again.crash(Random(step))
        started(left).write(7, 100, 1)
        assert SyncedFile(left, FOLDER, STORE).load() == Note(STORE, 7, 100, 1, left_sequence(left))
    assert NEXT_NAME not in disk.names(FOLDER)


def left_sequence(disk: FaultyDisk) -> int:
    note = SyncedFile(disk, FOLDER, STORE).load()
    assert note is not None
    return note.sequence


def test_what_is_no_note_of_this_store_is_named(disk: FaultyDisk) -> None:
    disk.put(FOLDER / NAME, bytes(576))
    with pytest.raises(CorruptStore, match="neither of the two"):
        SyncedFile(disk, FOLDER, STORE).load()
    disk.put(FOLDER / NAME, Note(b"another store ..").encode())
    with pytest.raises(CorruptStore, match="another one"):
        SyncedFile(disk, FOLDER, STORE).load()
