"""The users who may log in to a node, and their rights: users in the store's folder, and users in its settings.

Without users everybody may connect and do everything. An unknown user gets a SCRAM challenge like any other, so that
nobody learns which users there are: its salt is derived from the name and a secret of this process, and the login fails
in the last step. The folder has only the users' keys; the keys of users in the settings are derived from their
passwords on first use.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import hmac
import operator
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from headwater.accounts.keys import HASHES, ITERATIONS, Keys, derive
from headwater.accounts.roles import CLUSTER_USER, ROLES, Grant, granted
from headwater.accounts.users import Account
from headwater.node.users.failures import TooManyWait
from headwater.node.users.file import UsersFile
from headwater.node.users.places import Places
from headwater.wire.privilege import ADMINISTER, EVERYTHING, LOGIN, NONE, REPLICATE
from headwater.wire.users import UserList

__all__ = ["OPEN_PASSWORD", "Users"]

OPEN_PASSWORD = "password"  # noqa: S105 - any name's password for SCRAM on a node without users
_PLAIN_HASH = "sha256"
THREADS = 2  # for deriving keys only; hashing releases the interpreter, so the event loop runs on
DERIVED_MAX = 256  # derivations that may wait for these threads, of all addresses: some seconds of work
REFUSED_MAX = 1024  # wrong passwords that are remembered
REFUSED_SECONDS = 60.0


Derived = TypeVar("Derived")


class Derivations:
    """Derives keys from passwords in threads of its own, so that the node's other work in threads never waits for it.

    The number of waiting derivations is limited in total; `Failures` limits that of one address.

    Attributes:
        waiting: the number of derivations that run or wait for a thread.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "login")
        self.waiting: int = 0

    async def run(self, work: Callable[[], Derived]) -> Derived:
        """Run `work` in a thread, and return its result.

        Raises:
            TooManyWait: DERIVED_MAX derivations are waiting already.
        """
        if self.waiting >= DERIVED_MAX:
            raise TooManyWait(f"{self.waiting} logins wait for their keys to be derived")
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self.waiting -= 1


class Users:
    """The users of a node.

    Args:
        passwords: the passwords of the users in the settings.
        roles: the roles of these users.
        file: the file of users in the store's folder, which `refresh` reads; None for none.
        clock: returns the seconds of a monotonic clock.

    Attributes:
        list: the list in the file when it was last read; None if there was no file.
        derivations: derives the keys of passwords.
    """

    def __init__(
        self,
        passwords: Mapping[str, str] | None = None,
        roles: Mapping[str, Iterable[Grant]] | None = None,
        file: UsersFile | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._passwords = dict(passwords or {})
        self._roles = {name: tuple(grants) for name, grants in (roles or {}).items()}
        self._file = file
        self._signature: tuple[int, int, int] | None = None
        self._accounts: dict[str, Account] | None = None
        self.list: UserList | None = None
        self._secret = secrets.token_bytes(32)
        self._derived: dict[tuple[str, str], Keys] = {}
        self._right: dict[str, tuple[Keys, bytes]] = {}
        self._refused: OrderedDict[bytes, float] = OrderedDict()
        self._clock, self._reads = clock, 0
        self.derivations: Final = Derivations()

    def refresh(self) -> bool:
        """Read the file of users if it has changed since it was last read.

        A file that may hold a refused list is not read until the old list is back in it. If the file was removed, the
        users stay as they were: a node that required logins requires them until it is restarted.

        Returns:
            True if the file was read.

        Raises:
            StorageError: the file can't be read, or is damaged; the users stay as they were. Raised once for each
                version of the file.
        """
        signature = self._file.signature() if self._file is not None else None
        if self._file is None or self._file.unsure or signature is None or signature == self._signature:
            return False
        # Noted before the file is read: a change during the reading is then seen by the next call. A damaged file is
        # reported only once.
        self._signature = signature
        users = self._file.load_list()
        if users is None:
            return False
        self._accounts, self.list = self._file.accounts_in(users), users
        self._refused.clear()  # one of these passwords may be right now
        self._reads += 1
        return True

    @property
    def file(self) -> UsersFile | None:
        """The file of users in the store's folder; None for none."""
        return self._file

    @property
    def required(self) -> bool:
        """True if a login is needed: there are users besides the members of the cluster."""
        return bool(self._passwords.keys() - {CLUSTER_USER}) or self._accounts is not None

    @property
    def names(self) -> list[str]:
        """The names of all users, without the members of the cluster."""
        return sorted({*self._passwords, *(self._accounts or ())} - {CLUSTER_USER})

    def knows(self, user: str) -> bool:
        """Return True if there is such a user; without users every name counts as one."""
        return not self.required or user in self._passwords or user in (self._accounts or ())

    def is_administered(self, accounts: Mapping[str, Account]) -> bool:
        """Return True if a user in `accounts` or in the settings administers all buckets.

        Only such a user can change the list of users.
        """
        grants = [*(self.grants(name) for name in self._passwords), *(account.grants for account in accounts.values())]
        return any(granted(grant, None) & ADMINISTER for grant in grants)

    def grants(self, user: str) -> tuple[Grant, ...]:
        """Return the roles of a user; none for an unknown one."""
        if user in self._passwords:
            return self._roles.get(user, ())
        account = (self._accounts or {}).get(user)
        return account.grants if account else ()

    def rights(self, user: str | None, bucket: str | None) -> int:
        """Return the privileges of a user in a bucket as bits; if `bucket` is None, those that the user has in all
        buckets.

        On a node without users everybody has all privileges.
        """
        if not self.required:
            return int(EVERYTHING)
        return int(NONE) if user is None or not self.knows(user) else granted(self.grants(user), bucket)

    def places(self, user: str | None, bucket: str) -> Places | None:
        """Return the rights of a user who has roles for scopes or collections of a bucket; None for any other user."""
        if user is None or not self.required:
            return None
        fine = [grant for grant in self.grants(user) if grant.bucket == bucket and grant.scope is not None]
        return Places(self.rights(user, bucket), fine) if fine and self.knows(user) else None

    def may_enter(self, user: str | None, bucket: str) -> bool:
        """Return True if a user may do anything in a bucket."""
        return self.rights(user, bucket) > LOGIN or self.places(user, bucket) is not None

    def is_trusted(self, user: str | None) -> bool:
        """Return True if a user is a member of the cluster, or administers all of it."""
        return bool(self.rights(user, None) & (REPLICATE | ADMINISTER))

    def rights_anywhere(self, user: str | None) -> int:
        """Return the privileges that a user has in any bucket, or in a part of one, as bits."""
        if user is None or not self.required:
            return self.rights(user, None)
        by_role = (int(ROLES[grant.role]) for grant in self.grants(user))
        return functools.reduce(operator.or_, by_role, self.rights(user, None))

    # --- passwords ----------------------------------------------------------------------------------------------------

    def keys(self, hash_name: str, user: str) -> Keys:
        """Return the SCRAM keys of a user; for an unknown user, keys that match no proof.

        The first call for a user in the settings derives the keys, which takes some milliseconds.
        """
        if not self.required:
            return self._derive(hash_name, "", OPEN_PASSWORD)  # the same for all names, so that the table stays small
        if user in self._passwords:
            return self._derive(hash_name, user, self._passwords[user])
        account = (self._accounts or {}).get(user)
        if account is not None:
            return account.keys[hash_name]
        size = hashlib.new(hash_name).digest_size
        random = secrets.token_bytes(2 * size)
        return Keys(self._salt(hash_name, user), ITERATIONS, random[:size], random[size:])

    async def keys_for(self, hash_name: str, user: str) -> Keys:
        """Return the same as `keys`; keys that must be derived first are derived in a thread.

        Raises:
            TooManyWait: too many derivations are waiting already.
        """
        has_keys = not self.required or user in self._passwords
        if has_keys and (hash_name, user if self.required else "") not in self._derived:
            return await self.derivations.run(lambda: self.keys(hash_name, user))
        return self.keys(hash_name, user)

    async def has_keys(self, hash_name: str, user: str, keys: Keys) -> bool:
        """Return True if these keys, as `keys_for` once returned them, are still the user's.

        Raises:
            TooManyWait: as `keys_for`.
        """
        return await self.keys_for(hash_name, user) == keys

    def remembers(self, user: str, password: str) -> bool:
        """Return True if this password of the user was found right before, so that no keys need to be derived."""
        if not self.required:
            return True
        if user == CLUSTER_USER:
            return False
        keys, digest = self._right.get(user, (None, b""))
        # The same object, not only equal keys: a user whose password was changed, or who was removed and added again,
        # has another object.
        if keys is None or not self.knows(user) or keys is not self.keys(_PLAIN_HASH, user):
            return False
        # Only a digest of the password, keyed with a secret of this process, is kept; it is compared in constant time.
        return hmac.compare_digest(digest, self._digest(password))

    def was_refused(self, user: str, password: str) -> bool:
        """Return True if this password of the user was found wrong less than REFUSED_SECONDS ago.

        It can be refused without a check: so a program with an old password causes no work, and delays no other login.
        """
        until = self._refused.get(self._digest(f"{user}\0{password}"))
        return until is not None and self._clock() < until

    async def is_right(self, user: str, password: str) -> bool:
        """Return True if a user has this password; for an unknown user the check takes as long, and fails.

        The members' secret does not count as a password: it can be proved by SCRAM only.

        Raises:
            TooManyWait: too many derivations are waiting already.
        """
        if self.remembers(user, password):
            return True
        if user == CLUSTER_USER or self.was_refused(user, password):
            return False
        reads = self._reads
        keys = await self.derivations.run(lambda: self._keys_if_right(user, password))
        # The user may have been removed, or got another password, while the keys were derived.
        if keys is not None and self.knows(user) and await self.has_keys(_PLAIN_HASH, user, keys):
            self._right[user] = (keys, self._digest(password))
            return True
        if reads == self._reads:  # otherwise the users have changed meanwhile, and the password may be right now
            self._refused[self._digest(f"{user}\0{password}")] = self._clock() + REFUSED_SECONDS
            if len(self._refused) > REFUSED_MAX:
                self._refused.popitem(last=False)
        return False

    async def derive_all(self) -> None:
        """Derive the keys of all users in the settings before any login, so that all logins take the same time."""
        for user, password in self._passwords.items():
            for hash_name in HASHES:
                await asyncio.to_thread(self._derive, hash_name, user, password)

    def _keys_if_right(self, user: str, password: str) -> Keys | None:
        keys = self.keys(_PLAIN_HASH, user)
        derived = derive(_PLAIN_HASH, password, keys.salt, keys.iterations)
        return keys if hmac.compare_digest(derived.stored_key, keys.stored_key) else None

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._secret, password.encode(), "sha256")

    def _salt(self, hash_name: str, user: str) -> bytes:
        """Return a salt that depends only on the name, the hash and a secret of this process; the user need not
        exist.
        """
        return hmac.digest(self._secret, f"{hash_name}/{user}".encode(), "sha256")[:16]

    def _derive(self, hash_name: str, user: str, password: str) -> Keys:
        keys = self._derived.get((hash_name, user))
        if keys is None:
            derived = derive(hash_name, password, self._salt(hash_name, user))
            keys = self._derived.setdefault((hash_name, user), derived)  # another thread may have been first
        return keys
