"""The users who may log in to a node, and their rights: users in the store's folder, and users in its settings.

Without users everybody may connect and do everything. An unknown user gets a SCRAM challenge like any other (its salt
is derived from the name and a secret of this process) and fails in the last step. The folder has only the users' keys;
the keys of users in the settings are derived from their passwords on first use.
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

OPEN_PASSWORD = "password"  # noqa: S105 - for SCRAM on a node that lets everybody in
_PLAIN_HASH = "sha256"
THREADS = 2  # that derive keys: hashing lets go of the interpreter, so the loop goes on, and other threads are others'
DERIVED_MAX = 256  # derivations that wait for them, of all addresses: some seconds' worth
REFUSED_MAX = 1024  # wrong passwords that are remembered
REFUSED_SECONDS = 60.0


Derived = TypeVar("Derived")


class Derivations:
    """Derives keys from passwords in separate threads, a bounded number at a time.

    `Failures` limits the number of waiting derivations from one address; the node's other work in threads waits for
    none of them.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "login")
        self.waiting: int = 0

    async def run(self, work: Callable[[], Derived]) -> Derived:
        """Return the result of `work`, which runs in a thread. Raises TooManyWait."""
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
        passwords: the passwords of the users in the settings; roles: their roles.
        file: the file in the store's folder, None for none. `refresh` reads it.
        clock: seconds of a monotonic clock.

    Attributes:
        list: the list in the file when it was last read; None if there was no file.
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
        """Read the file if it has changed; return True if it had.

        A file that may hold a refused list is not read until the old list is back in it. Removal of the file changes
        nothing: a node that required logins requires them until it is restarted.

        Raises:
            StorageError: it can't be read, or is damaged; the users stay as they were. Raised once.
        """
        signature = self._file.signature() if self._file is not None else None
        if self._file is None or self._file.unsure or signature is None or signature == self._signature:
            return False
        # Before the reading: a change during it shows at the next look. A damaged file is told of once.
        self._signature = signature
        users = self._file.load_list()
        if users is None:
            return False
        self._accounts, self.list = self._file.accounts_in(users), users
        self._refused.clear()  # of these one may be right by now
        self._reads += 1
        return True

    @property
    def file(self) -> UsersFile | None:
        """The file in the store's folder."""
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
        """Return True if with these accounts some user administers all buckets: no other user can change the list."""
        grants = [*(self.grants(name) for name in self._passwords), *(each.grants for each in accounts.values())]
        return any(granted(each, None) & ADMINISTER for each in grants)

    def grants(self, user: str) -> tuple[Grant, ...]:
        """Return the roles of a user; none for an unknown one."""
        if user in self._passwords:
            return self._roles.get(user, ())
        account = (self._accounts or {}).get(user)
        return account.grants if account else ()

    def rights(self, user: str | None, bucket: str | None) -> int:
        """Return the privileges of a user in a bucket, or (None) in all of them, as bits; without users everybody has
        all.
        """
        if not self.required:
            return int(EVERYTHING)
        return int(NONE) if user is None or not self.knows(user) else granted(self.grants(user), bucket)

    def places(self, user: str | None, bucket: str) -> Places | None:
        """Return the rights of a user who has roles for scopes or collections of a bucket; None for any other user."""
        if user is None or not self.required:
            return None
        fine = [each for each in self.grants(user) if each.bucket == bucket and each.scope is not None]
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
        by_role = (int(ROLES[each.role]) for each in self.grants(user))
        return functools.reduce(operator.or_, by_role, self.rights(user, None))

    # --- passwords ----------------------------------------------------------------------------------------------------

    def keys(self, hash_name: str, user: str) -> Keys:
        """Return the SCRAM keys of a user; for an unknown user, keys that match no proof. Takes some milliseconds the
        first time.
        """
        if not self.required:
            return self._derive(hash_name, "", OPEN_PASSWORD)  # the same for all names, so nobody fills the table
        if user in self._passwords:
            return self._derive(hash_name, user, self._passwords[user])
        account = (self._accounts or {}).get(user)
        if account is not None:
            return account.keys[hash_name]
        size = hashlib.new(hash_name).digest_size
        random = secrets.token_bytes(2 * size)
        return Keys(self._salt(hash_name, user), ITERATIONS, random[:size], random[size:])

    async def keys_for(self, hash_name: str, user: str) -> Keys:
        """Return the result of `keys`, derived in a thread if necessary: usually the keys are known, and there is no
        wait.

        Raises:
            TooManyWait: too many derivations wait already.
        """
        given = not self.required or user in self._passwords
        if given and (hash_name, user if self.required else "") not in self._derived:
            return await self.derivations.run(lambda: self.keys(hash_name, user))
        return self.keys(hash_name, user)

    def remembers(self, user: str, password: str) -> bool:
        """Return True if this password was found right before, so that no derivation is needed."""
        if not self.required:
            return True
        if user == CLUSTER_USER:
            return False
        keys, digest = self._right.get(user, (None, b""))
        # The very keys object: a user whose password was changed, or who was removed and added, has another one.
        if keys is None or not self.knows(user) or keys is not self.keys(_PLAIN_HASH, user):
            return False
        # Of the password only a digest by a secret of this process is kept, and it is compared in constant time.
        return hmac.compare_digest(digest, self._digest(password))

    def was_refused(self, user: str, password: str) -> bool:
        """Return True if this password was found wrong a moment ago.

        So a program with an old password causes no work, delays no other login, and learns nothing new.
        """
        until = self._refused.get(self._digest(f"{user}\0{password}"))
        return until is not None and self._clock() < until

    async def is_right(self, user: str, password: str) -> bool:
        """Return True if a user has this password; the check of an unknown user takes as long.

        The members' secret is not a password: only SCRAM proves it. Raises TooManyWait.
        """
        if self.remembers(user, password):
            return True
        if user == CLUSTER_USER or self.was_refused(user, password):
            return False
        reads = self._reads
        keys = await self.derivations.run(lambda: self._keys_if_right(user, password))
        # The user may have been removed while the keys were derived.
        if keys is not None and self.knows(user):
            self._right[user] = (keys, self._digest(password))
            return True
        if reads == self._reads:  # else the users are others by now, and it may be right
            self._refused[self._digest(f"{user}\0{password}")] = self._clock() + REFUSED_SECONDS
            if len(self._refused) > REFUSED_MAX:
                self._refused.popitem(last=False)
        return False

    async def derive_all(self) -> None:
        """Derive the keys of all users in the settings, so that all logins take the same time."""
        for user, password in self._passwords.items():
            for hash_name in HASHES:
                await asyncio.to_thread(self._derive, hash_name, user, password)  # at the start, before any login

    def _keys_if_right(self, user: str, password: str) -> Keys | None:
        keys = self.keys(_PLAIN_HASH, user)
        derived = derive(_PLAIN_HASH, password, keys.salt, keys.iterations)
        return keys if hmac.compare_digest(derived.stored_key, keys.stored_key) else None

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._secret, password.encode(), "sha256")

    def _salt(self, hash_name: str, user: str) -> bytes:
        """Return the same salt for the same name while this process lives, whether the user exists or not."""
        return hmac.digest(self._secret, f"{hash_name}/{user}".encode(), "sha256")[:16]

    def _derive(self, hash_name: str, user: str, password: str) -> Keys:
        keys = self._derived.get((hash_name, user))
        if keys is None:
            derived = derive(hash_name, password, self._salt(hash_name, user))
            keys = self._derived.setdefault((hash_name, user), derived)  # whichever thread was first
        return keys
