"""A run whose backup another one took over, in a place without a lock: it removes nothing that the other counts on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.backup.archive import Archive, folder
from headwater.backup.create import Choice, _Run, _UnfinishedBackup
from headwater.backup.manifest import MANIFEST, BackupFile, BackupPart, sealed
from headwater.backup.place import Folder
from headwater.errors import BackupError, RollbackRequired
from headwater.protocol.dcp.position import Position

ID, FILE, NOTE = "20260101T000000Z-full", "00000-00000-aaaaaaaa.parquet", "part-00000-aaaaaaaa.json"
OWN = "00001-00000-bbbbbbbb.parquet"
END = Position(0, 7, 10, 10, 10)
LOST = RollbackRequired(0, 10, 0)


class Unlocked(Folder):
    """A folder that calls back before it removes a path."""

    before: Callable[[str], None] = staticmethod(lambda _: None)

    def remove(self, path: str) -> None:
        """Remove it, after that."""
        self.before(path)
        super().remove(path)


def a_run(place: Unlocked, choice: Choice | None = None) -> _Run:
    client: Any = SimpleNamespace(map=SimpleNamespace(vbuckets=1))
    return _Run(Archive(place), client, "default", choice or Choice(), lambda done: None)


@pytest.fixture
def place(tmp_path: Any) -> Unlocked:
    return Unlocked(tmp_path)


@pytest.fixture
def begun(place: Unlocked) -> _UnfinishedBackup:
    """The backup of a run that has noted its first part."""
    begun = _UnfinishedBackup(ID, [], "now", run="aaaaaaaa")
    a_run(place)._mark(begun)
    place.write(folder(ID, FILE), b"rows")
    part = BackupPart({0: 0}, {0: END}, (BackupFile(FILE, 1, 4, "00"),), {})
    place.write(folder(ID, NOTE), sealed(part.to_json()))
    begun.parts = [(NOTE, part)]
    return begun


def roll_back(place: Unlocked, begun: _UnfinishedBackup) -> None:
    a_run(place)._roll_back(begun, {0: END}, LOST)


def take_over(place: Unlocked) -> _UnfinishedBackup:
    taken = a_run(place)._resumed(ID, [])
    assert taken is not None
    return taken


def test_a_part_that_is_read_again_goes_with_its_files(place: Unlocked, begun: _UnfinishedBackup) -> None:
    roll_back(place, begun)
    assert place.names(folder(ID)) == ["begun.json"] and begun.parts == []


def test_a_run_that_finds_a_rollback_leaves_the_parts_of_who_has_taken_over(
    place: Unlocked, begun: _UnfinishedBackup
) -> None:
    taken = take_over(place)
    with pytest.raises(BackupError, match="another run has taken this backup over"):
        roll_back(place, begun)
    assert [note for note, _ in taken.parts] == [NOTE] and {NOTE, FILE} <= set(place.names(folder(ID)))


def test_who_takes_over_before_a_note_is_gone_keeps_the_files_that_it_names(
    place: Unlocked, begun: _UnfinishedBackup
) -> None:
    taken = []

    def before(path: str) -> None:
        if path.endswith(NOTE) and not taken:
            taken.append(take_over(place))

    place.before = before
    with pytest.raises(BackupError, match="another run has taken this backup over"):
        roll_back(place, begun)
    assert [note for note, _ in taken[0].parts] == [NOTE] and FILE in place.names(folder(ID))


def test_a_backup_that_another_run_has_finished_stays_where_the_first_collection_came_meanwhile(
    place: Unlocked, begun: _UnfinishedBackup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run read the default collection alone, and stood still; it would begin again with all of them."""
    there = iter([False, True])
    monkeypatch.setattr(_Run, "_wants_all", lambda _: next(there))
    monkeypatch.setattr(_Run, "_read_to_the_end", lambda _: begun)
    place.write(folder(ID, MANIFEST), b"finished")
    place.remove(folder(ID, "begun.json"))
    with pytest.raises(BackupError, match="another run has taken this backup over"):
        a_run(place).run()
    assert {MANIFEST, FILE} <= set(place.names(folder(ID)))


def finish(place: Unlocked, begun: _UnfinishedBackup) -> None:
    """Let the run that has the backup now finish it, with a file of its own and those that it read notes of."""
    files = [file.path for _, part in begun.parts for file in part.files]
    place.write(folder(ID, OWN), b"more rows")
    a_run(place)._require_ours(begun)
    place.write(folder(ID, MANIFEST), " ".join([OWN, *files]).encode())
    a_run(place)._require_ours(begun)
    Folder.remove(place, folder(ID, "begun.json"))


def is_whole(place: Unlocked) -> bool:
    """Whether all files are there that the manifest names."""
    there = set(place.names(folder(ID)))
    return MANIFEST in there and set(place.read(folder(ID, MANIFEST)).decode().split()) <= there


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_who_takes_over_while_an_unfinished_backup_is_removed_and_finishes_it_loses_nothing(
    nth: int, place: Unlocked, begun: _UnfinishedBackup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first collection came; the run stands still in the midst of removing what it had read of the default one."""
    there, removals = iter([False, True]), count(1)
    monkeypatch.setattr(_Run, "_wants_all", lambda _: next(there))
    monkeypatch.setattr(_Run, "_read_to_the_end", lambda self: begun if next(readings) == 1 else stopped())
    readings = count(1)

    def stopped() -> Any:
        raise KeyboardInterrupt

    def before(_: str) -> None:
        if next(removals) == nth:
            finish(place, take_over(place))

    place.before = before
    with pytest.raises((BackupError, KeyboardInterrupt)):
        a_run(place).run()
    assert is_whole(place)


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_who_has_read_the_mark_before_a_backup_of_another_choice_is_removed_loses_nothing(
    nth: int, place: Unlocked, begun: _UnfinishedBackup
) -> None:
    removals = count(1)

    def before(_: str) -> None:
        if next(removals) == nth:
            late = _UnfinishedBackup(ID, [], "now")
            a_run(place)._mark(late)
            late.parts = list(a_run(place)._noted_parts(ID))
            finish(place, late)

    place.before = before
    with suppress(BackupError):
        a_run(place, Choice(vbuckets=(0,)))._begin()
    assert is_whole(place)


def test_what_who_takes_over_is_writing_is_no_leftover(
    place: Unlocked, begun: _UnfinishedBackup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two that take over stands still between the notes and the look for files that none names."""
    sweep, taken = _Run._sweep, []

    def late(self: _Run, mine: _UnfinishedBackup) -> None:
        monkeypatch.setattr(_Run, "_sweep", sweep)
        taken.append(take_over(place))
        place.write(folder(ID, OWN), b"more rows")
        sweep(self, mine)

    monkeypatch.setattr(_Run, "_sweep", late)
    with pytest.raises(BackupError, match="another run has taken this backup over"):
        take_over(place)
    finish(place, taken[0])
    assert is_whole(place)


def test_a_backup_of_another_choice_is_taken_over_before_it_is_removed(
    place: Unlocked, begun: _UnfinishedBackup
) -> None:
    """Its run writes the manifest behind the look for one, and asks whose the backup is once more."""
    asked = []

    def before(path: str) -> None:
        with pytest.raises(BackupError, match="another run has taken this backup over"):
            a_run(place)._require_ours(begun)
        asked.append(path)

    place.before = before
    a_run(place, Choice(vbuckets=(0,)))._begin()
    assert folder(ID, FILE) in asked and ID not in place.names("backups")


def test_a_manifest_that_comes_behind_the_look_for_one_goes_with_the_files_that_it_names(
    place: Unlocked, begun: _UnfinishedBackup
) -> None:
    """Its run was killed between the manifest and its last look at the mark, so nobody was told of that backup."""

    def before(path: str) -> None:
        if path == folder(ID, FILE):
            place.write(folder(ID, MANIFEST), f"{FILE}".encode())

    place.before = before
    a_run(place, Choice(vbuckets=(0,)))._begin()
    assert ID not in place.names("backups")


def test_a_backup_that_is_finished_when_it_is_taken_over_stays(place: Unlocked, begun: _UnfinishedBackup) -> None:
    run = a_run(place, Choice(vbuckets=(0,)))
    write = place.write

    def finished_first(path: str, content: bytes) -> None:
        write(folder(ID, MANIFEST), b"finished")
        write(path, content)

    place.write = finished_first
    with pytest.raises(BackupError, match="another run has just finished it"):
        run._begin()
    assert {MANIFEST, FILE} <= set(place.names(folder(ID)))


def test_a_backup_that_was_to_be_removed_is_never_gone_on_with(place: Unlocked, begun: _UnfinishedBackup) -> None:
    def killed(path: str) -> None:
        raise KeyboardInterrupt

    place.before = killed
    with pytest.raises(KeyboardInterrupt):
        a_run(place, Choice(vbuckets=(0,)))._begin()
    assert a_run(place)._resumed(ID, []) is None
    assert a_run(place, Choice(vbuckets=(0,)))._resumed(ID, []) is None


def note_of(run: _UnfinishedBackup, number: int = 0) -> str:
    return f"part-{number:05d}-{run.run}.json"


def write_note(place: Unlocked, run: _UnfinishedBackup) -> None:
    """Write a note of vbucket 0 by a run, with its file."""
    file = f"00000-00000-{run.run}.parquet"
    place.write(folder(ID, file), b"rows")
    part = BackupPart({0: 0}, {0: END}, (BackupFile(file, 1, 4, "00"),), {})
    place.write(folder(ID, note_of(run)), sealed(part.to_json()))


def test_who_goes_on_does_not_count_what_another_run_had_noted_under_the_same_name(place: Unlocked) -> None:
    """Two runs begin within a second: the first reads the default collection alone, the second all of them."""
    first, second = _UnfinishedBackup(ID, [], "now"), _UnfinishedBackup(ID, [], "now")
    a_run(place)._mark(first)
    write_note(place, first)
    a_run(place)._mark(second)
    write_note(place, second)
    assert [note for note, _ in take_over(place).parts] == [note_of(second)]
    assert note_of(first) not in place.names(folder(ID))


def test_a_note_that_comes_behind_a_takeover_never_counts(place: Unlocked) -> None:
    """The run that was taken over had looked at the mark before, and writes its note when the other has read them."""
    first = _UnfinishedBackup(ID, [], "now")
    a_run(place)._mark(first)
    second = take_over(place)
    write_note(place, first)
    write_note(place, second)
    assert [note for note, _ in take_over(place).parts] == [note_of(second)]


def test_who_is_killed_while_it_takes_over_costs_no_note(
    place: Unlocked, begun: _UnfinishedBackup, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_note(place, begun)

    def killed(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_Run, "_noted_parts", killed)
        with pytest.raises(KeyboardInterrupt):
            take_over(place)
    assert [note for note, _ in take_over(place).parts] == [note_of(begun)]
