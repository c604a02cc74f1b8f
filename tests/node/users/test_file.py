"""The file of users."""

from __future__ import annotations

import errno
import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headwater.accounts.keys import HASHES
from headwater.accounts.roles import read_grants
from headwater.accounts.users import (
    Account,
    edited,
)
from headwater.errors import CorruptStore, DiskFull, StorageError
from headwater.failpoints import InjectedFault, armed
from headwater.node.storage.disk import RealDisk
from headwater.node.storage.text_file import encode_text_file
from headwater.node.users.file import NAME, UsersFile
from headwater.node.users.logins import Users
from headwater.testing.faults import FaultyDisk
from headwater.wire.users import UserList


def made(folder: Path, *names: str) -> UsersFile:
    file = UsersFile(folder)
    with file.editing() as accounts:
        accounts |= {name: Account.create("secret", read_grants("read,write:b")) for name in names}
    return file


def test_what_was_written_is_read_back_and_is_nobody_elses_to_read(tmp_path: Path) -> None:
    file = made(tmp_path / "new", "ann", "bob")
    found = file.load()
    assert found is not None and list(found) == ["ann", "bob"]
    assert list(map(str, found["ann"].grants)) == ["read", "write[b]"] and set(found["ann"].keys) == set(HASHES)
    assert found["ann"].keys["sha1"].salt != found["bob"].keys["sha1"].salt
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").iterdir()} == {0o600}
    assert b"secret" not in file.path.read_bytes()


@pytest.mark.parametrize("mode", [0o666, 0o660, 0o602, 0o620, 0o640, 0o604])
def test_a_file_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    """Who can write to it adds an administrator."""
    file = made(tmp_path, "ann")
    file.path.chmod(mode)
    with pytest.raises(StorageError, match=r"USERS: others may read it or write to it; chmod 600 it"):
        file.load()
    with pytest.raises(StorageError), file.editing():
        raise AssertionError("nothing is edited")
    file.path.chmod(0o600)
    assert list(file.load() or {}) == ["ann"]


def test_a_file_system_that_gives_all_files_one_mode_is_told_before_the_list_is_replaced(tmp_path: Path) -> None:
    """SMB without Unix extensions: what was made for its owner alone is there for all, and chmod changes nothing."""

    class OneMode(RealDisk):
        def create(self, path: Path, size: int) -> Any:
            made = super().create(path, size)
            path.chmod(0o755)
            return made

    file = made(tmp_path, "ann")
    shared = UsersFile(tmp_path, OneMode())
    with pytest.raises(StorageError, match=r"USERS\.new: others may read .* mount it with file_mode=0600"):
        shared.save({"bea": Account.create("secret", ())})
    assert list(file.load() or {}) == ["ann"]


def test_the_group_of_a_containers_volume_is_the_nodes_own(tmp_path: Path) -> None:
    """As the kubelet gives it, with fsGroup: the folder has the set-group-ID bit, files are the group's to write."""
    file = made(tmp_path, "ann")
    tmp_path.chmod(0o2770)
    file.path.chmod(0o660)
    assert list(file.load() or {}) == ["ann"]
    file.path.chmod(0o666)
    with pytest.raises(StorageError):
        file.load()


def test_the_group_of_a_volume_may_be_one_of_several_that_a_container_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsGroup is beside the group of runAsGroup, or of the image: both need not be the same."""
    file, group = made(tmp_path, "ann"), tmp_path.stat().st_gid
    tmp_path.chmod(0o2770)
    file.path.chmod(0o660)
    monkeypatch.setattr("os.getegid", lambda: group + 1)
    monkeypatch.setattr("os.getgroups", lambda: [group + 1, group])
    assert list(file.load() or {}) == ["ann"]
    monkeypatch.setattr("os.getgroups", lambda: [group + 1])
    with pytest.raises(StorageError):
        file.load()


def test_a_list_that_was_refused_for_its_rights_is_taken_up_when_they_are_put_right(tmp_path: Path) -> None:
    """A chmod, which the refusal advises, changes neither the content nor its time."""
    file = made(tmp_path, "ann")
    users = Users(file=file)
    users.refresh()
    made(tmp_path, "bea")
    file.path.chmod(0o644)
    with pytest.raises(StorageError, match="chmod 600 it"):
        users.refresh()
    file.path.chmod(0o600)
    assert users.refresh() and users.names == ["ann", "bea"]


def test_where_there_is_no_file_there_are_no_users(tmp_path: Path) -> None:
    assert UsersFile(tmp_path).load() is None and UsersFile(tmp_path).signature() is None


def test_a_user_without_roles_and_a_file_without_users_are_kept(tmp_path: Path) -> None:
    file = UsersFile(tmp_path)
    with file.editing() as accounts:
        accounts["ann"] = Account.create("secret", ())
    assert (file.load() or {})["ann"].grants == ()
    with file.editing() as accounts:
        accounts.clear()
    assert file.load() == {}


def test_an_error_in_the_block_changes_nothing(tmp_path: Path) -> None:
    file = made(tmp_path, "ann")
    before = file.path.read_bytes()
    with pytest.raises(RuntimeError), file.editing() as accounts:
        accounts.clear()
        raise RuntimeError
    assert file.path.read_bytes() == before


@pytest.mark.parametrize("cut", [0, 5, 40, -3])
def test_a_file_that_was_cut_is_refused(tmp_path: Path, cut: int) -> None:
    file = made(tmp_path, "ann")
    file.path.write_bytes(file.path.read_bytes()[:cut])
    with pytest.raises(CorruptStore, match=NAME):
        file.load()


def test_each_flipped_byte_is_found(tmp_path: Path) -> None:
    file = made(tmp_path, "ann")
    whole = file.path.read_bytes()
    for at in range(0, len(whole), 7):
        file.path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(StorageError):
            file.load()


def test_a_format_of_later_is_told_as_such(tmp_path: Path) -> None:
    file = made(tmp_path, "ann")
    file.path.write_bytes(file.path.read_bytes().replace(b"headwater-users 2", b"headwater-users 3"))
    with pytest.raises(StorageError, match="format 3"):
        file.load()


def test_a_file_of_format_1_is_read_and_becomes_one_of_format_2_with_the_first_change(tmp_path: Path) -> None:
    file = UsersFile(tmp_path)
    entry = edited(UserList(), {}, {"ann": Account.create("secret", read_grants("read"))}).as_json()["users"]["ann"]
    del entry["revision"]
    file.path.write_bytes(encode_text_file("headwater-users", "1", json.dumps({"ann": entry}).encode()))
    file.path.chmod(0o600)
    before = file.load()
    assert before is not None and list(before) == ["ann"] and (file.load_list() or UserList()).revision == 0
    with file.editing() as accounts:
        accounts["bob"] = accounts["ann"]
    assert file.path.read_bytes().startswith(b"headwater-users 2 ")
    found = file.load_list() or UserList()
    assert {name: each.revision for name, each in found.entries.items()} == {"ann": 0, "bob": 1}
    assert (file.load() or {})["ann"] == before["ann"]


def test_who_was_removed_is_remembered_and_who_was_not_touched_keeps_his_revision(tmp_path: Path) -> None:
    file = made(tmp_path, "ann", "bob")
    with file.editing() as accounts:
        del accounts["bob"]
    found = file.load_list() or UserList()
    assert {name: (entry.revision, entry.is_removed) for name, entry in found.entries.items()} == {
        "ann": (1, False),
        "bob": (3, True),
    }


def test_a_change_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    file = made(tmp_path, "ann")
    before = file.signature()
    file.change(lambda found: found)
    file.change(lambda found: None)
    assert file.signature() == before


@pytest.mark.parametrize(("place", "is_new"), [("users.before_rename", False), ("users.after_rename", True)])
def test_killed_at_any_instant_the_file_is_the_old_one_or_the_new_one(tmp_path: Path, place: str, is_new: bool) -> None:
    file = made(tmp_path, "ann")
    with armed(f"{place}=raise"), pytest.raises(InjectedFault), file.editing() as accounts:
        accounts.clear()
    assert (file.load() == {}) == is_new


@pytest.mark.parametrize(("number", "error"), [(errno.EIO, StorageError), (errno.ENOSPC, DiskFull)])
def test_when_the_disk_fails_the_users_of_before_are_still_there(number: int, error: type[Exception]) -> None:
    folder, ann = Path("/s"), Account.create("secret", ())
    for nth in range(1, 6):  # create, write, sync, rename, sync of the folder
        disk = FaultyDisk()
        file = UsersFile(folder, disk)
        file.save({"ann": ann})
        disk.fail(nth, number)
        with pytest.raises(error, match=NAME):
            file.save({})
        assert file.load() == {"ann": ann}


def test_a_change_that_may_be_in_force_is_no_change_that_was_made(tmp_path: Path) -> None:
    """The refused list is in the file, so the same change found nothing to do: and was called done, not on disk."""
    disk = FaultyDisk()
    file = UsersFile(tmp_path, disk)
    file.save({"ann": Account.create("secret", ())})
    nobody = edited(file.load_list() or UserList(), file.load() or {}, {})
    disk.fail(5, errno.EIO, forever=True)  # the sync of the folder
    for _ in ("the first time", "and again"):
        with pytest.raises(StorageError, match="the change may be in force after a restart"):
            file.change(lambda found: nobody)
    disk.heal()
    assert file.settle() and set(file.load() or ()) == {"ann"}
    file.change(lambda found: nobody)
    assert file.load() == {}


def test_two_processes_at_once_lose_nobody(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headwater", "user", "add", "--data", str(tmp_path)]
    workers = [subprocess.Popen([*command, f"u{number}"], stdin=subprocess.PIPE, text=True) for number in range(4)]
    for worker in workers:
        worker.communicate("secret\n", timeout=240)
    assert sorted(UsersFile(tmp_path).load() or {}) == [f"u{number}" for number in range(4)]
