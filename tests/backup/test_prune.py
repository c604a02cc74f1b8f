"""Old chains go, whole; whoever is killed meanwhile leaves nothing that counts by half."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headwater.backup.archive import Archive, folder
from headwater.backup.manifest import BACKUPS
from headwater.backup.place import BackupPlace, Folder, place_of
from headwater.backup.prune import carry_out, plan
from headwater.backup.verify import verify
from headwater.errors import BackupError, OptionError
from headwater.testing import Node
from tests.backup.support import backed_up, fill

DAY = timedelta(days=1)


@pytest.fixture
def chains(bucket: Node, tmp_path: Path) -> list[str]:
    """Two full backups with an increment each, and a third alone."""
    made = []
    for full in (True, False, True, False, True):
        fill(bucket, "a", 10)
        made.append(backed_up(bucket, tmp_path, full=full).id)
    return made


def test_full_backups_go_with_all_that_goes_on_from_them(chains: list[str], tmp_path: Path) -> None:
    assert carry_out(Folder(tmp_path), 2, None).backups == tuple(chains[:2])
    left = Archive(Folder(tmp_path))
    assert sorted(left.backups) == chains[2:]
    assert verify(left).problems == []
    assert carry_out(Folder(tmp_path), 1, None).backups == tuple(chains[2:4])
    assert carry_out(Folder(tmp_path), 1, None).backups == ()


def test_age_is_that_of_a_chains_newest_backup_and_the_newest_chain_stays(chains: list[str], tmp_path: Path) -> None:
    archive = Archive(Folder(tmp_path))
    later = datetime.now(UTC) + 30 * DAY
    assert plan(archive, None, 7 * DAY, lambda: later).backups == tuple(chains[:4])
    assert plan(archive, 2, 7 * DAY, lambda: later).backups == tuple(chains[:2])
    assert plan(archive, None, 7 * DAY).backups == ()
    assert sorted(Archive(Folder(tmp_path)).backups) == chains


@pytest.mark.parametrize(("keep", "age"), [(None, None), (0, None), (-1, DAY)])
def test_what_stays_must_be_said_and_be_something(keep: int | None, age: timedelta | None, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="keep"):
        plan(Archive(Folder(tmp_path)), keep, age)


@pytest.mark.parametrize("step", ["removing", "removed"])
def test_a_prune_that_was_killed_is_finished_by_the_next(step: str, chains: list[str], tmp_path: Path) -> None:
    code = (
        "import sys; from headwater.backup.prune import carry_out; from headwater.backup.place import Folder; "
        "carry_out(Folder(sys.argv[1]), 1, None)"
    )
    environment = {**os.environ, "HEADWATER_FAILPOINTS": f"backup.{step}=kill"}
    asked = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(asked, env=environment, timeout=200, check=False).returncode == -9
    found = Archive(Folder(tmp_path))
    assert (sorted(found.backups), verify(found).problems) == (chains[4:], [])
    carry_out(Folder(tmp_path), 1, None)
    left = Archive(Folder(tmp_path))
    assert left.index is not None
    assert (left.index.removing, left.unfinished) == ((), [])
    assert not any((tmp_path / folder(name)).exists() for name in chains[:4])


def test_a_place_without_a_backup_is_an_error_and_stays_as_it_is(tmp_path: Path) -> None:
    place = tmp_path / "mistyped"
    with pytest.raises(BackupError, match="there is no backup here"):
        carry_out(Folder(place), 1, None)
    with pytest.raises(BackupError, match="there is no backup here"):
        plan(Archive(Folder(place)), 1, None)
    assert not place.exists()


# --- places without a lock --------------------------------------------------------------------------------------------


@pytest.fixture
def store(bucket: Node, tmp_path: Path) -> BackupPlace:
    """A place without a lock that has two full backups, the second with an increment."""
    place = place_of(f"memory://{tmp_path.name}/orders")
    for full in (True, True, False):
        fill(bucket, "a", 10)
        backed_up(bucket, place, full=full)
    return place


def test_a_create_that_read_the_archive_before_a_removal_brings_nothing_back(
    store: BackupPlace, bucket: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its index names what is gone: `create` and `prune` refused the archive for good."""
    enter, pruned = Archive.enter, list[str]()

    def late(archive: Archive) -> None:
        if not pruned:
            pruned.extend(carry_out(store, 1, None).backups)
        enter(archive)

    monkeypatch.setattr(Archive, "enter", late)
    new = backed_up(bucket, store, full=True)
    assert len(pruned) == 3
    found = Archive(store)
    assert (sorted(found.backups), verify(found).problems, found.removing) == ([new.id], [], ())
    assert backed_up(bucket, store).parent == new.id
    assert carry_out(store, 1, None).backups == ()


def test_what_a_killed_removal_left_does_not_count_though_a_later_index_names_it(
    store: BackupPlace, bucket: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Archive(store)
    gone = carry_out_until_first_removal(store, monkeypatch)
    before.enter()
    found = Archive(store)
    assert (sorted(found.backups), found.problems, found.removing) == (sorted(before.backups)[1:], [], (gone,))
    assert backed_up(bucket, store).parent == max(before.backups)
    assert carry_out(store, 1, None).leftovers == (gone,)
    assert store.names(folder(gone)) == []
    assert Archive(store).removing == ()


@pytest.mark.parametrize("notes", [0, 1, 2])
def test_a_removal_that_was_killed_among_its_notes_leaves_whole_chains(
    notes: int, bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An increment whose full backup is noted already could not be restored, and `verify` called it damaged."""
    store = place_of(f"memory://{tmp_path.name}/chain")
    for full in (True, False, False, True):
        fill(bucket, "a", 10)
        backed_up(bucket, store, full=full)
    write, written = type(store).write, list[str]()

    def until(place: BackupPlace, path: str, content: bytes) -> None:
        if len(written) == notes:
            raise KeyboardInterrupt
        written.append(path)
        write(place, path, content)

    before = sorted(Archive(store).backups)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(store), "write", until)
        carry_out(store, 1, None)
    found = Archive(store)
    assert (sorted(found.backups), verify(found).problems) == (before[: 3 - notes] + before[3:], [])
    assert [len(found.chain(each)) for each in before[: 3 - notes]] == [1, 2, 3][: 3 - notes]
    carry_out(store, 1, None)
    assert (sorted(Archive(store).backups), Archive(store).removing) == (before[3:], ())


def carry_out_until_first_removal(store: BackupPlace, monkeypatch: pytest.MonkeyPatch) -> str:
    """Keep one full backup; end as by a kill when the first manifest is gone. Return the backup of that."""
    remove, removed = type(store).remove, list[str]()

    def once(place: BackupPlace, path: str) -> None:
        if removed:
            raise KeyboardInterrupt
        removed.append(path)
        remove(place, path)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(store), "remove", once)
        carry_out(store, 1, None)
    return removed[0].split("/")[1]


def test_a_folder_has_a_lock_and_keeps_no_notes_of_removals(chains: list[str], tmp_path: Path) -> None:
    assert len(carry_out(Folder(tmp_path), 1, None).backups) == len(chains) - 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [BACKUPS]
