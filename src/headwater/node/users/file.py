"""The users of a store, in its folder: names, roles, and what SCRAM needs to know of a password; never a password.

One file, USERS: `headwater-users 1 <XXH3-64 of the rest>` and JSON, {"ann": {"roles": ["read", "write[b]"], "keys":
{"sha256": [SALT, ITERATIONS, STORED KEY, SERVER KEY], ...}}}, bytes as base64. A new one is written and synced beside
the old one and takes its place by rename. A file that is not what was written stops the start: who may come in is not
guessed. Where there is a file nobody comes in without a login, even if it names nobody.

`headwater user` changes it, one process at a time; a node that runs sees the change and takes it up.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headwater.errors import CorruptStore, DiskFull, OptionError, StorageError
from headwater.node.storage.disk import Disk, RealDisk
from headwater.node.storage.text_file import decode_text_file, encode_text_file, write_synced
from headwater.node.users.roles import Grant, read_grants
from headwater.node.users.scram import HASHES, Keys, derive
from headwater.wire.json_text import read_json

__all__ = ["NAME", "Account", "UsersFile", "check_name", "check_password"]

NAME: Final = "USERS"
_NEXT_NAME: Final = "USERS.new"
_LOCK_NAME: Final = "USERS.lock"
_TITLE: Final = "headwater-users"
_FORMAT: Final = "1"
_NAME_BYTES_MAX: Final = 128
_PASSWORD_BYTES_MAX: Final = 512
_SALT_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Account:
    """A user: roles, and the keys by which a password is known, by the name of the hash."""

    grants: tuple[Grant, ...]
    keys: Mapping[str, Keys]

    @classmethod
    def made(cls, password: str, grants: tuple[Grant, ...]) -> Account:
        """Return the account of a user with this password. Some tens of milliseconds."""
        return cls(grants, {name: derive(name, password, os.urandom(_SALT_BYTES)) for name in HASHES})


Accounts = Mapping[str, Account]


def check_name(name: str) -> str:
    """Return a user's name; OptionError if it can't be one."""
    size = len(name.encode())
    if not 0 < size <= _NAME_BYTES_MAX or not name.isprintable() or name.startswith("@") or ":" in name:
        raise OptionError("name", name, f"1 to {_NAME_BYTES_MAX} bytes of text without a colon, not beginning with @")
    return name


def check_password(password: str) -> str:
    """Return a password; OptionError, which does not repeat it, if it can't be one."""
    if not 0 < len(password.encode()) <= _PASSWORD_BYTES_MAX:
        raise OptionError("password", "...", f"1 to {_PASSWORD_BYTES_MAX} bytes long")
    return password


class UsersFile:
    """The file in a store's folder."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self.path = folder / NAME
        self._folder = folder
        self._disk = disk or RealDisk()

    def load(self) -> dict[str, Account] | None:
        """The accounts by name; None if there is no file.

        Raises:
            CorruptStore: the file is not what was written.
            StorageError: another format, or it can't be read.
        """
        try:
            data = self._disk.read(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror or error}") from error
        body = decode_text_file(data, self.path, _TITLE, [_FORMAT], "file of users")
        try:
            return {name: _account(told) for name, told in read_json(body).items()}
        except (ValueError, TypeError, KeyError, AttributeError, OptionError) as error:
            raise CorruptStore(self.path, 0, f"not a file of users: {error}") from None

    def save(self, accounts: Accounts) -> None:
        """Put these accounts in the place of those before; durable on return.

        Raises:
            DiskFull, StorageError: the old ones are still there.
        """
        body = json.dumps({name: _told(account) for name, account in sorted(accounts.items())}, indent=1).encode()
        data, fresh = encode_text_file(_TITLE, _FORMAT, body), self._folder / _NEXT_NAME
        try:
            write_synced(self._disk, fresh, data)
            self._disk.rename(fresh, self.path)
            self._disk.sync_directory(self._folder)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise DiskFull(self.path, len(data)) from error
            raise StorageError(f"{self.path}: {error.strerror or error} while the users were written") from error

    @contextmanager
    def editing(self) -> Iterator[dict[str, Account]]:
        """Change the accounts in a block, which sees them as they are; nobody else changes them meanwhile."""
        try:
            self._disk.make_directory(self._folder)
            lock = os.open(self._folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(f"{self._folder}: {error.strerror or error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            accounts = self.load() or {}
            yield accounts
            self.save(accounts)
        finally:
            os.close(lock)

    def signature(self) -> tuple[int, int, int] | None:
        """Numbers that differ whenever another file is there; None without one. Raises StorageError."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror or error}") from error
        return found.st_ino, found.st_mtime_ns, found.st_size


def _told(account: Account) -> dict[str, Any]:
    keys = {
        name: [_text(each.salt), each.iterations, _text(each.stored_key), _text(each.server_key)]
        for name, each in account.keys.items()
    }
    return {"roles": list(map(str, account.grants)), "keys": keys}


def _account(told: dict[str, Any]) -> Account:
    keys = {}
    for name in HASHES:
        salt, iterations, stored_key, server_key = told["keys"][name]
        keys[name] = Keys(_bytes(salt), int(iterations), _bytes(stored_key), _bytes(server_key))
    return Account(read_grants(",".join(told["roles"])) if told["roles"] else (), keys)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
