"""The roles of users, and the privileges that each of them grants.

A role is granted for all buckets, `read`, or for one of them, `read[orders]`; some roles also for a scope or a
collection of it, `read[orders:shop]`, `read[orders:shop:carts]`. The requests themselves declare the privileges that
they need (wire/privilege.py); docs/reference/rights.md is printed from both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from headwater.errors import OptionError
from headwater.wire.privilege import EVERYTHING, LOGIN, MONITOR, READ, REPLICATE, STREAM, WRITE, Privilege

__all__ = ["ADMINISTRATOR", "CLUSTER_USER", "FINE", "NODE", "ORDINARY", "ROLES", "Grant", "granted", "read_grants"]

CLUSTER_USER = "@cluster"
"""Nodes log in to each other under this name; no user can have it."""

ROLES: dict[str, Privilege] = {
    "read": READ,
    "write": WRITE,
    "stream": STREAM,
    "replicate": STREAM | REPLICATE,
    "monitor": MONITOR,
    "administer": EVERYTHING,
}
"""The privileges that each role grants, besides those of every user who has logged in."""


FINE: frozenset[str] = frozenset({"read", "write", "stream"})
"""The roles that can be given for a scope or a collection: those that are about documents."""


class Grant(NamedTuple):
    """A role for all buckets, or for one bucket, one of its scopes, or one collection."""

    role: str
    bucket: str | None = None
    scope: str | None = None
    collection: str | None = None

    def __str__(self) -> str:
        place = ":".join(each for each in self[1:] if each is not None)
        return f"{self.role}[{place}]" if place else self.role


ORDINARY = tuple(map(Grant, ("read", "write", "stream", "monitor")))
"""The roles of those users of a --users-file that are no administrators."""
NODE = tuple(map(Grant, ("replicate", "monitor")))
"""The roles of another node of the cluster."""
ADMINISTRATOR = (Grant("administer"),)


def granted(grants: Iterable[Grant], bucket: str | None) -> int:
    """Return the privileges of a user with these roles, as bits.

    Args:
        bucket: the bucket in all of which the privileges hold; None for those that hold in all buckets.
    """
    rights = int(LOGIN)
    for role, place, scope, _ in grants:
        if (place is None or place == bucket) and scope is None:
            rights |= ROLES[role]
    return rights


def read_grants(text: str) -> tuple[Grant, ...]:
    """Read roles separated by commas: `read,write[orders],stream[orders:shop:carts]`; `write:orders` is an older form
    of `write[orders]`.

    Raises:
        OptionError: an unknown role, no role at all, or a place for which a role can't be granted.
    """
    grants = [_grant(each.strip()) for each in text.split(",") if each.strip()]
    if not grants:
        raise OptionError("roles", text, f"one or more of {', '.join(ROLES)}, by commas")
    return tuple(dict.fromkeys(grants))


_GRANT = re.compile(r"(?P<role>[^\[:]*)(?::(?P<bucket>[^\[\]:]+)|\[(?P<place>[^\[\]]+)\])?")


def _grant(text: str) -> Grant:
    match = _GRANT.fullmatch(text)
    role = text.partition("[")[0].partition(":")[0] if match is None else match["role"]
    if role not in ROLES:
        raise OptionError("roles", text, f"of {', '.join(ROLES)}; for one bucket as read[BUCKET]")
    place = [] if match is None else (match["bucket"] or match["place"] or "").split(":")
    if match is None or len(place) > 3 or (len(place) > 1 and not all(place)):
        raise OptionError("roles", text, "ROLE[BUCKET], ROLE[BUCKET:SCOPE] or ROLE[BUCKET:SCOPE:COLLECTION]")
    if place in ([""], ["*"]):
        return Grant(role)
    if len(place) > 1 and role not in FINE:
        raise OptionError("roles", text, f"for a whole bucket: only {', '.join(sorted(FINE))} are for less")
    return Grant(role, *place)
