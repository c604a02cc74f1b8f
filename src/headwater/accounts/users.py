"""The accounts of users: roles and the keys of a password, by name, and their changes.

A change of accounts is a change of a list of users (wire/users.py), in a folder or on all nodes of a cluster: each user
who was changed gets a new revision there.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from headwater.accounts.keys import HASHES, Keys, derive
from headwater.accounts.roles import Grant, read_grants
from headwater.errors import OptionError, WorkRefused
from headwater.wire.users import UserEntry, UserList

__all__ = [
    "Account", "Accounts", "account_of", "accounts_of", "add_account", "change_account", "check_name",
    "check_new", "check_password", "edited", "has_administrator", "on_list", "remove_account",
]  # fmt: skip

_NAME_BYTES_MAX: Final = 128
_PASSWORD_BYTES_MAX: Final = 512
_SALT_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Account:
    """A user: the roles, and the keys of the password by the name of the hash."""

    grants: tuple[Grant, ...]
    keys: Mapping[str, Keys]

    @classmethod
    def create(cls, password: str, grants: tuple[Grant, ...]) -> Account:
        """Return the account of a user with this password. Takes some tens of milliseconds."""
        return cls(grants, {name: derive(name, password, os.urandom(_SALT_BYTES)) for name in HASHES})


Accounts = Mapping[str, Account]


def check_name(name: str) -> str:
    """Return a user's name; OptionError if it is invalid."""
    size = len(name.encode())
    if not 0 < size <= _NAME_BYTES_MAX or not name.isprintable() or name.startswith("@") or ":" in name:
        raise OptionError("name", name, f"1 to {_NAME_BYTES_MAX} bytes of text without a colon, not beginning with @")
    return name


def check_password(password: str) -> str:
    """Return a password; OptionError, which does not repeat it, if it is invalid."""
    if not 0 < len(password.encode()) <= _PASSWORD_BYTES_MAX:
        raise OptionError("password", "...", f"1 to {_PASSWORD_BYTES_MAX} bytes long")
    return password


def edited(users: UserList, before: Accounts, after: Accounts) -> UserList:
    """Return a list after a change of its accounts: each changed account gets a new revision."""
    for name in sorted(before.keys() - after.keys()):
        users = users.without(name)
    for name, account in sorted(after.items()):
        if before.get(name) != account:
            keys = {each: _verifier(account.keys[each]) for each in HASHES}
            users = users.with_user(name, map(str, account.grants), keys)
    return users


def accounts_of(users: UserList) -> dict[str, Account]:
    """Return the accounts of a list. Raises ValueError or OptionError for invalid keys or roles."""
    return {name: _account(entry) for name, entry in users.users.items()}


def has_administrator(accounts: Accounts) -> bool:
    """Return True if a user has the role `administer`, for all buckets or for one."""
    return any(grant.role == "administer" for account in accounts.values() for grant in account.grants)


def add_account(accounts: dict[str, Account], name: str, account: Account) -> None:
    """Add a user, whose name `check_new` has accepted."""
    check_new(accounts, name)
    accounts[name] = account


def change_account(accounts: dict[str, Account], name: str, *, force: bool = False, **fields: Any) -> None:
    """Replace a user's grants or keys.

    Args:
        force: True to allow it even if no user with the role `administer` is left.

    Raises:
        WorkRefused: there is no such user, or no administrator would be left.
    """
    with _an_administrator_left(accounts, force):
        accounts[name] = replace(account_of(accounts, name), **fields)


def remove_account(accounts: dict[str, Account], name: str, *, force: bool = False) -> None:
    """Remove a user.

    Args:
        force: True to allow it even if no user with the role `administer` is left.

    Raises:
        WorkRefused: there is no such user, or no administrator would be left.
    """
    with _an_administrator_left(accounts, force):
        account_of(accounts, name)
        del accounts[name]


@contextmanager
def _an_administrator_left(accounts: Accounts, force: bool) -> Iterator[None]:
    was_there = has_administrator(accounts)
    yield
    if was_there and not force and not has_administrator(accounts):
        raise WorkRefused("no user would be left with the role administer", "give it to another first, or --force")


def check_new(accounts: Accounts, name: str) -> None:
    """Check the name of a new user. Raises WorkRefused if the user exists, OptionError if the name is invalid."""
    if check_name(name) in accounts:
        raise WorkRefused(f"there is a user {name!r}", "change it: headwater user password, headwater user roles")


def account_of(accounts: Accounts, name: str) -> Account:
    """Return the account of an existing user. Raises WorkRefused if there is none."""
    if name not in accounts:
        raise WorkRefused(f"there is no user {name!r}", "see: headwater user list")
    return accounts[name]


def on_list(change: Callable[[dict[str, Account]], None]) -> Callable[[UserList], UserList]:
    """Return a change of accounts as a change of a list of users; if it raises, accounts and list stay as they were."""

    def changed(users: UserList) -> UserList:
        before = accounts_of(users)
        accounts = dict(before)
        change(accounts)
        return edited(users, before, accounts)

    return changed


def _account(entry: UserEntry) -> Account:
    keys = {name: Keys(_bytes(a), rounds, _bytes(b), _bytes(c)) for name, (a, rounds, b, c) in entry.keys.items()}
    return Account(read_grants(",".join(entry.roles)) if entry.roles else (), keys)


def _verifier(keys: Keys) -> tuple[str, int, str, str]:
    return _text(keys.salt), keys.iterations, _text(keys.stored_key), _text(keys.server_key)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
