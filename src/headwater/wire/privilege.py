"""The right that a request needs, declared with the request: `privilege=` of its class.

A session holds its user's rights as one number of these bits, so a check is one operation. If a flag of a request needs
more than the request itself (a stream that takes its vbucket over), the declaration has `beyond=`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag

__all__ = ["ADMINISTER", "EVERYTHING", "LOGIN", "MONITOR", "NONE", "READ", "REPLICATE", "STREAM", "WRITE"]
__all__ += ["Beyond", "Privilege", "in_words"]


class Privilege(IntFlag):
    """The right to send a request: for everybody, after any login, or for users with these rights in the bucket."""

    NONE = 0
    LOGIN = 0x01
    READ = 0x02
    WRITE = 0x04
    STREAM = 0x08
    REPLICATE = 0x10
    MONITOR = 0x20
    ADMINISTER = 0x40


NONE, LOGIN, READ, WRITE = Privilege.NONE, Privilege.LOGIN, Privilege.READ, Privilege.WRITE
STREAM, REPLICATE, MONITOR = Privilege.STREAM, Privilege.REPLICATE, Privilege.MONITOR
ADMINISTER = Privilege.ADMINISTER
EVERYTHING = LOGIN | READ | WRITE | STREAM | REPLICATE | MONITOR | ADMINISTER


@dataclass(frozen=True, slots=True)
class Beyond:
    """An additional privilege that a request needs if the bits `mask` of its field `flags` are `bits`; `about` is the
    reason.
    """

    about: str
    mask: int
    bits: int
    privilege: Privilege


def in_words(privilege: int) -> str:
    """Return a privilege in words, for people: "read and write"."""
    return " and ".join((bit.name or "").lower() for bit in Privilege if bit & privilege) or "nothing"
