"""The users of a store, in its folder: names, roles, and the SCRAM keys of passwords; never a password.

The file USERS holds the line `headwater-users 2 <XXH3-64 of the rest>` and the JSON of a list of users (wire/users.py),
which has the revision of each user's last change, and the removed users. Format 1 had users without revisions, {"ann":
{"roles": ["read", "write[b]"], "keys": {"sha256": [SALT, ITERATIONS, STORED KEY, SERVER KEY], ...}}}; those count as
revision 0.

A new file is written and synced beside the old one, and takes its place by a rename. If the checksum shows any other
change, the node does not start, because it must not guess its users. Nor does it start if other users of the system may
read or write the file. If there is a file, every client needs a login, even if the file names no user; the manifest
records that there was one (Declarations.has_users).

The file is changed by `headwater user`, and by a node that learns of changes elsewhere in its cluster (sharing.py); a
lock allows one process at a time. A running node notices each change and applies it.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from headwater.accounts.users import Account, Accounts, accounts_of, edited
from headwater.errors import CorruptStore, OptionError, StorageError, UnsureFile
from headwater.node.storage.disk import Disk, RealDisk
from headwater.node.storage.text_file import WholeFile, decode_text_file, encode_text_file
from headwater.wire.json_text import read_json
from headwater.wire.users import UserList

__all__ = ["NAME", "UsersFile"]

NAME: Final = "USERS"
_NEXT_NAME: Final = "USERS.new"
_FAILPOINTS: Final = ("users.before_rename", "users.after_rename")
_LOCK_NAME: Final = "USERS.lock"
_TITLE: Final = "headwater-users"
_FORMAT: Final = "2"
_FORMATS: Final = ("1", _FORMAT)
_ONE_MODE: Final = "this file system gives it a mode of its own, which chmod can't change: mount it with file_mode=0600"


class UsersFile:
    """The file of users in a store's folder.

    Attributes:
        path: the path of the file.
    """

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self.path: Path = folder / NAME
        self._folder = folder
        self._disk = disk or RealDisk()
        self._whole = WholeFile(self._disk, self.path, folder / _NEXT_NAME, _FAILPOINTS)

    def load(self) -> dict[str, Account] | None:
        """Return the accounts by name; None if there is no file.

        Raises:
            CorruptStore, StorageError: as `load_list`.
        """
        users = self.load_list()
        return None if users is None else self.accounts_in(users)

    def load_list(self) -> UserList | None:
        """Return the list of users; None if there is no file.

        Raises:
            CorruptStore: the file is not as it was written.
            StorageError: the file has an unknown format, can't be read, or other users of the system may read or write
                it.
        """
        try:
            data = self._disk.read(self.path)
            # Checked after the reading, so that a file that others put there just before it is refused too.
            self._refuse_others(self.path, "chmod 600 it, and look who is in it")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror or error}") from error
        body = decode_text_file(data, self.path, _TITLE, _FORMATS, "file of users")
        try:
            content = read_json(body)
            return UserList.from_json(_of_format_1(content) if data.split(b" ", 2)[1] == b"1" else content)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptStore(self.path, 0, f"not a file of users: {error}") from None

    def _refuse_others(self, path: Path, advice: str) -> None:
        """Raise StorageError if other users of the system may read or write a file.

        Whoever can write it could become an administrator. The group of a container's volume (fsGroup), which its files
        belong to, may have access: it is one of the node's groups, although not necessarily the first one (runAsGroup,
        root's or the image's).
        """
        try:
            status, folder = path.stat(), self._folder.stat()
        except FileNotFoundError:  # replaced since it was read; the next reading checks the new file
            return
        is_ours = status.st_gid in (os.getegid(), *os.getgroups())
        is_volume = folder.st_mode & stat.S_ISGID and is_ours and status.st_gid == folder.st_gid
        if status.st_mode & (stat.S_IRWXO if is_volume else stat.S_IRWXG | stat.S_IRWXO):
            raise StorageError(f"{path}: others may read it or write to it; {advice}")

    def accounts_in(self, users: UserList) -> dict[str, Account]:
        """Return the accounts in the file's list.

        Raises:
            CorruptStore: the list has unknown roles or kinds of keys.
        """
        try:
            return accounts_of(users)
        except (ValueError, OptionError) as error:
            raise CorruptStore(self.path, 0, f"not a file of users: {error}") from None

    def save(self, accounts: Accounts) -> None:
        """Replace all accounts by these; the file is durable on return.

        Raises:
            DiskFull, StorageError: the file could not be written, and the old one is still there. Also raised on a file
                system that gives all files the same mode (SMB), because the node would refuse the new file.
            UnsureFile: the old list or the new one is in the file.
        """
        self.save_list(edited(UserList(), {}, accounts))

    def save_list(self, users: UserList) -> None:
        """Replace the list; the file is durable on return.

        Raises:
            DiskFull, StorageError, UnsureFile: as `save`.
        """
        body = json.dumps(users.as_json(), indent=1).encode()
        data = encode_text_file(_TITLE, _FORMAT, body)
        # Checked on the new file before it is renamed: the old list stays if this file system can't keep other users
        # out.
        self._whole.replace(data, lambda fresh: self._refuse_others(fresh, _ONE_MODE))

    @property
    def unsure(self) -> bool:
        """True if a list whose writing failed may be in the file."""
        return self._whole.unsure

    def settle(self) -> bool:
        """Write the old list again if one whose writing failed may be in the file.

        Returns:
            True if the old list is certainly in the file.
        """
        with suppress(StorageError), self._changing():
            return True
        return False

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Lock the file for a block, in which no other process can change it.

        Before the block the file is settled, so that a list whose writing failed is not read as the present one.

        Raises:
            UnsureFile: the file can't be settled.
        """
        # The lock is held from the reading to the writing. Otherwise two processes that change the list at the same
        # time would lose one of the changes.
        with self._alone():
            if not self._whole.settle():
                raise UnsureFile(self.path, "the disk refuses writes")
            yield

    @contextmanager
    def editing(self) -> Iterator[dict[str, Account]]:
        """Yield the present accounts, and save the changes that the block makes to them.

        No other process can change the file meanwhile.
        """
        with self._changing():
            users = self.load_list() or UserList()
            before = self.accounts_in(users)
            accounts = dict(before)
            yield accounts
            self.save_list(edited(users, before, accounts))

    def change(self, edit: Callable[[UserList | None], UserList | None]) -> None:
        """Replace the list by the result of `edit`; the file is durable on return.

        Args:
            edit: called with the present list, None if there is no file; returns the new list, or None for no change.

        Raises:
            DiskFull, StorageError, UnsureFile: as `save`. Errors of `edit` are raised too.
        """
        with self._changing():
            before = self.load_list()
            after = edit(before)
            if after is not None and after != before:
                self.save_list(after)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            self._disk.make_directory(self._folder)
            lock = os.open(self._folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(f"{self._folder}: {error.strerror or error}") from error
        try:
            # A separate file is locked, because the list's own file is replaced at each change.
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def signature(self) -> tuple[int, int, int] | None:
        """Return numbers that change with the file's content or permissions; None if there is no file.

        Raises:
            StorageError: the file can't be accessed.
        """
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror or error}") from error
        return status.st_ino, status.st_ctime_ns, status.st_size  # not st_mtime, which a change of permissions leaves


def _of_format_1(content: Mapping[str, Any]) -> dict[str, Any]:
    return {"users": {name: {"revision": 0, **each} for name, each in content.items()}}
