"""The file of users."""

from __future__ import annotations

import errno
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.errors import CorruptStore, DiskFull, OptionError, StorageError
from headwater.node.users.file import NAME, Account, UsersFile, check_name, check_password
from headwater.node.users.roles import read_grants
from headwater.node.users.scram import HASHES
from headwater.testing.faults import FaultyDisk


def made(folder: Path, *names: str) -> UsersFile:
    file = UsersFile(folder)
    with file.editing() as accounts:
        accounts |= {name: Account.made("secret", read_grants("read,write:b")) for name in names}
    return file


def test_what_was_written_is_read_back_and_is_nobody_elses_to_read(tmp_path: Path) -> None:
    file = made(tmp_path / "new", "ann", "bob")
    found = file.load()
    assert found is not None and list(found) == ["ann", "bob"]
    assert list(map(str, found["ann"].grants)) == ["read", "write[b]"] and set(found["ann"].keys) == set(HASHES)
    assert found["ann"].keys["sha1"].salt != found["bob"].keys["sha1"].salt
    assert {stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "new").iterdir()} == {0o600}
    assert b"secret" not in file.path.read_bytes()


def test_where_there_is_no_file_there_are_no_users(tmp_path: Path) -> None:
    assert UsersFile(tmp_path).load() is None and UsersFile(tmp_path).signature() is None


def test_a_user_without_roles_and_a_file_without_users_are_kept(tmp_path: Path) -> None:
    file = UsersFile(tmp_path)
    with file.editing() as accounts:
        accounts["ann"] = Account.made("secret", ())
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
    file.path.write_bytes(file.path.read_bytes().replace(b"headwater-users 1", b"headwater-users 2"))
    with pytest.raises(StorageError, match="format 2"):
        file.load()


@pytest.mark.parametrize(("number", "error"), [(errno.EIO, StorageError), (errno.ENOSPC, DiskFull)])
def test_when_the_disk_fails_the_users_of_before_are_still_there(number: int, error: type[Exception]) -> None:
    folder, ann = Path("/s"), Account.made("secret", ())
    for nth in range(1, 4):  # write, sync, rename
        disk = FaultyDisk()
        file = UsersFile(folder, disk)
        file.save({"ann": ann})
        disk.fail(nth, number)
        with pytest.raises(error, match=NAME):
            file.save({})
        assert file.load() == {"ann": ann}


def test_two_processes_at_once_lose_nobody(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headwater", "user", "add", "--data", str(tmp_path)]
    workers = [subprocess.Popen([*command, f"u{number}"], stdin=subprocess.PIPE, text=True) for number in range(4)]
    for worker in workers:
        worker.communicate("secret\n", timeout=240)
    assert sorted(UsersFile(tmp_path).load() or {}) == [f"u{number}" for number in range(4)]


@pytest.mark.parametrize("name", ["", "@cluster", "a:b", "a\nb", "x" * 129])
def test_a_name_that_can_be_no_users_is_refused(name: str) -> None:
    with pytest.raises(OptionError):
        check_name(name)


@pytest.mark.parametrize("password", ["", "x" * 513])
def test_a_password_that_can_be_none_is_refused_and_not_repeated(password: str) -> None:
    with pytest.raises(OptionError) as caught:
        check_password(password)
    assert "xx" not in str(caught.value)
    assert check_password("x") == "x" and check_name("ann") == "ann"
