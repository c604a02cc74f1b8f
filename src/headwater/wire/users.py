"""The list of users that nodes of a cluster exchange: names, roles, SCRAM verifiers, never a password.

    {"cluster": "5a1c", "users": {"ann": {"revision": 7, "roles": ["read"], "keys": {"sha256": [SALT, 15000, A, B]}}},
     "removed": {"bob": 8}}

Each change of a user gets a revision above all revisions of the list on the node that makes it. Two lists are merged
user by user: the entry with the higher revision wins; of two with equal revisions, from two nodes at once, a removal
wins, or else the greater text. So all nodes end with the same list in whatever order changes arrive, and a returning
member restores no removed user.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Final, TypeAlias

from headwater.wire.json_text import read_json

__all__ = ["LIST_BYTES_MAX", "REVISION_MAX", "UserEntry", "UserList", "UserListRefused", "Verifier"]

LIST_BYTES_MAX: Final = 4 << 20
"""The longest text of a list: some five thousand users."""
REVISION_MAX: Final = (1 << 53) - 1
HASHES: Final = ("sha512", "sha256", "sha1")

Verifier: TypeAlias = "tuple[str, int, str, str]"
"""Salt, iterations, stored key, server key (RFC 5802); bytes as base64."""


class UserListRefused(ValueError):  # noqa: N818 - what it is to its reader
    """A text is not a list of users."""


@dataclass(frozen=True, slots=True)
class UserEntry:
    """The list's entry for one name: a user, or (`is_removed` is True) the mark of a removed user."""

    revision: int
    roles: tuple[str, ...] = ()
    keys: Mapping[str, Verifier] = field(default_factory=dict)
    is_removed: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the JSON of a user."""
        keys = {name: list(key) for name, key in self.keys.items()}
        return {"revision": self.revision, "roles": list(self.roles), "keys": keys}

    def _rank(self) -> tuple[int, bool, str]:
        return self.revision, self.is_removed, json.dumps(self.as_json(), sort_keys=True)

    def newer_of(self, other: UserEntry) -> UserEntry:
        """Return the entry that wins when two lists are merged."""
        return self if self._rank() >= other._rank() else other


@dataclass(frozen=True, slots=True)
class UserList:
    """All users, and the names of removed users; `cluster` is the uuid of the list's cluster, or empty."""

    cluster: str = ""
    entries: Mapping[str, UserEntry] = field(default_factory=dict)

    @property
    def users(self) -> dict[str, UserEntry]:
        """The users that are not removed, by name."""
        return {name: entry for name, entry in sorted(self.entries.items()) if not entry.is_removed}

    @property
    def revision(self) -> int:
        """The revision of the newest change."""
        return max((entry.revision for entry in self.entries.values()), default=0)

    # --- changes ------------------------------------------------------------------------------------------------------

    def with_user(self, name: str, roles: Iterable[str], keys: Mapping[str, Verifier]) -> UserList:
        """Return the list with a new or changed user."""
        return self._with(name, UserEntry(self._next(), tuple(roles), keys))

    def without(self, name: str) -> UserList:
        """Return the list with a user removed."""
        return self._with(name, UserEntry(self._next(), is_removed=True))

    def merged(self, other: UserList) -> UserList:
        """Return the two lists merged, with this list's cluster."""
        own_entries = self.entries
        both = {
            name: entry.newer_of(own_entries[name]) if name in own_entries else entry
            for name, entry in other.entries.items()
        }
        return replace(self, entries={**own_entries, **both})

    def changes_since(self, before: UserList) -> Iterator[str]:
        """Yield a line for each user that changed, for people: "added user 'ann': read, write[orders]"."""
        for name in sorted(before.users.keys() - self.users.keys()):
            yield f"removed user {name!r}"
        for name, user in self.users.items():
            was = before.users.get(name)
            if was is None:
                yield f"added user {name!r}: {', '.join(user.roles) or 'no roles'}"
            elif was.roles != user.roles:
                yield f"gave user {name!r} other roles: {', '.join(user.roles) or 'none'}"
            elif was != user:
                yield f"gave user {name!r} another password"

    @classmethod
    def of_all(cls, lists: Iterable[UserList]) -> UserList:
        """Return the lists merged, without a cluster."""
        return reduce(cls.merged, lists, cls())

    def _next(self) -> int:
        if self.revision >= REVISION_MAX:
            raise UserListRefused("no revision is left above those that are taken")
        return self.revision + 1

    def _with(self, name: str, entry: UserEntry) -> UserList:
        return replace(self, entries={**self.entries, name: entry})

    # --- text ---------------------------------------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """Return the JSON of the list."""
        removed_users = {name: entry.revision for name, entry in sorted(self.entries.items()) if entry.is_removed}
        users = {name: user.as_json() for name, user in self.users.items()}
        return {"cluster": self.cluster, "users": users, "removed": removed_users}

    def encode(self) -> bytes:
        """Return the list as text; equal lists give equal texts."""
        return json.dumps(self.as_json(), sort_keys=True, separators=(",", ":")).encode()

    def digest(self) -> str:
        """Return a short hash of the list; different lists have different ones."""
        return hashlib.sha256(self.encode()).hexdigest()[:32]

    @classmethod
    def decode(cls, text: bytes) -> UserList:
        """Read a list from text.

        Raises:
            UserListRefused: the text is not a list of users.
        """
        if len(text) > LIST_BYTES_MAX:
            raise UserListRefused(f"{len(text)} bytes, {LIST_BYTES_MAX} are allowed")
        try:
            return cls.from_json(read_json(text))
        except UserListRefused:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserListRefused(f"no list of users: {type(error).__name__} {error}") from None

    @classmethod
    def from_json(cls, content: Any) -> UserList:
        """Read a list from parsed JSON.

        Raises:
            UserListRefused, KeyError, TypeError, AttributeError: the JSON is not a list of users.
        """
        entries = {_name(name): _entry(each) for name, each in content["users"].items()}
        for name, revision in content.get("removed", {}).items():
            if name in entries:
                raise UserListRefused(f"{name!r} is there and removed")
            entries[_name(name)] = UserEntry(_revision(revision), is_removed=True)
        cluster = content.get("cluster", "")
        if not isinstance(cluster, str):
            raise UserListRefused("its cluster is no text")
        return cls(cluster, entries)


def _name(name: str) -> str:
    size = len(name.encode())
    if not 0 < size <= 128 or not name.isprintable() or name.startswith("@") or ":" in name:
        raise UserListRefused(f"{name[:200]!r} is no user's name")
    return name


def _entry(item: Mapping[str, Any]) -> UserEntry:
    if not all(isinstance(each, str) for each in item["roles"]) or isinstance(item["roles"], str):
        raise UserListRefused("roles that are no list of texts")
    return UserEntry(
        _revision(item["revision"]), tuple(item["roles"]), {name: _verifier(item["keys"][name]) for name in HASHES}
    )


def _revision(number: Any) -> int:
    if type(number) is not int or not 0 <= number <= REVISION_MAX:
        raise UserListRefused(f"a revision of {str(number)[:40]}")
    return number


def _verifier(fields: Any) -> Verifier:
    salt, iterations, stored_key, server = fields
    texts = (salt, stored_key, server)
    if not all(isinstance(text, str) for text in texts) or type(iterations) is not int or not 0 < iterations < 1 << 31:
        raise UserListRefused("a verifier that is none")
    return salt, iterations, stored_key, server
