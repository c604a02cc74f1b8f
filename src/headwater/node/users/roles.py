"""The roles of users, and the privileges that each of them grants.

A role is given for all buckets, `read`, or for one of them, `read:orders`. What a privilege is needed for is said by
the requests themselves (wire/privilege.py); docs/reference/rights.md is printed from both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from headwater.errors import OptionError
from headwater.wire.privilege import EVERYTHING, LOGIN, MONITOR, READ, REPLICATE, STREAM, WRITE, Privilege

__all__ = ["ADMINISTRATOR", "NODE", "ORDINARY", "ROLES", "Grant", "granted", "read_grants"]

ROLES: dict[str, Privilege] = {
    "read": READ,
    "write": WRITE,
    "stream": STREAM,
    "replicate": STREAM | REPLICATE,
    "monitor": MONITOR,
    "administer": EVERYTHING,
}
"""The privileges that each role grants, besides those of every user who has logged in."""


class Grant(NamedTuple):
    """A role, for one bucket or (None) for all of them."""

    role: str
    bucket: str | None = None

    def __str__(self) -> str:
        return self.role if self.bucket is None else f"{self.role}:{self.bucket}"


ORDINARY = tuple(map(Grant, ("read", "write", "stream", "monitor")))
"""The roles of those users of a --users-file that are no administrators."""
NODE = tuple(map(Grant, ("replicate", "monitor")))
"""The roles of another node of the cluster."""
ADMINISTRATOR = (Grant("administer"),)


def granted(grants: Iterable[Grant], bucket: str | None) -> int:
    """Return the privileges of a user with these roles in a bucket, or (None) in all of them, as a number of bits."""
    rights = int(LOGIN)
    for role, place in grants:
        if place is None or place == bucket:
            rights |= ROLES[role]
    return rights


def read_grants(text: str) -> tuple[Grant, ...]:
    """Read roles by commas: `read,write:orders`.

    Raises:
        OptionError: there is no role of a name; none is given; or it is for something smaller than a bucket.
    """
    grants = [_grant(each.strip()) for each in text.split(",") if each.strip()]
    if not grants:
        raise OptionError("roles", text, f"one or more of {', '.join(ROLES)}, by commas")
    return tuple(dict.fromkeys(grants))


def _grant(text: str) -> Grant:
    role, colon, bucket = text.partition(":")
    if role not in ROLES:
        raise OptionError("roles", text, f"of {', '.join(ROLES)}; for one bucket as read:BUCKET")
    if colon and (not bucket or ":" in bucket):  # what follows a second colon is kept for scopes and collections
        raise OptionError("roles", text, "for a whole bucket: ROLE:BUCKET")
    return Grant(role, bucket if colon else None)
