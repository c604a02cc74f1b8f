"""The privileges that the sender of a frame needs, by the frame's opcode, as the requests declare them
(wire/privilege.py).

All forms of a request with one opcode need the same privileges; an opcode without a declared request has no rule, and
no handler can be registered for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.wire.codec import Codec
from headwater.wire.dialect import requests
from headwater.wire.header import HEADER_BYTES, Frame
from headwater.wire.layout import Request
from headwater.wire.privilege import ADMINISTER, LOGIN, Beyond

if TYPE_CHECKING:
    from headwater.node.users.places import Places
    from headwater.wire.manifest import CollectionsManifest

__all__ = ["Access", "Rule", "rule_of"]


# Plain numbers, because `&` of an enum creates an enum each time, and a session needs them with each request.
_LOGIN, _ADMINISTER = int(LOGIN), int(ADMINISTER)


@dataclass(frozen=True, slots=True)
class Rule:
    """The privileges that the requests of one opcode need.

    Attributes:
        privilege: the privileges that all these requests need, as the bits of a number.
        cases: additional privileges for some flags. Each case has the length of the extras, the offset of the flags in
            them, the codec of the flags, and the rule for their values.
    """

    privilege: int
    cases: tuple[tuple[int, int, Codec, Beyond], ...] = ()

    def needed(self, frame: Frame) -> int:
        """Return the privileges that this frame needs."""
        needed = self.privilege
        for length, offset, flags, beyond in self.cases:
            if len(frame.extras) == length and flags.read(frame.extras, offset)[0] & beyond.mask == beyond.bits:
                needed |= beyond.privilege
        return needed


@dataclass(frozen=True, slots=True)
class Access:
    """The privileges of a user, each set of them as the bits of a number.

    Attributes:
        user: the name of the user; None before a login.
        rights: the privileges in the whole selected bucket; if no bucket is selected, those in any bucket.
        places: the privileges in scopes and collections of the bucket; None if the user has no roles for these.
    """

    user: str | None = None
    rights: int = 0
    places: Places | None = None

    @property
    def is_logged_in(self) -> bool:
        """True if the user has logged in; always True on a node without users."""
        return bool(self.rights & _LOGIN)

    @property
    def is_administrator(self) -> bool:
        """True if the user is an administrator of the bucket; always True on a node without users."""
        return bool(self.rights & _ADMINISTER)

    @property
    def anywhere(self) -> int:
        """The privileges that the user has in the bucket, or in any part of it."""
        return self.rights if self.places is None else self.places.anywhere

    def in_collection(self, manifest: CollectionsManifest, collection: int) -> int:
        """Return the privileges in a collection of the bucket, by its id."""
        return self.rights if self.places is None else self.places.in_collection(manifest, collection)


def rule_of(opcode: int) -> Rule:
    """Return the rule of an opcode.

    Raises:
        TypeError: no request of this opcode is declared, or two declared requests need different privileges.
    """
    forms = requests(opcode)
    privileges = {form.layout.privilege for form in forms}
    if len(privileges) != 1 or (privilege := privileges.pop()) is None:
        raise TypeError(f"opcode 0x{opcode:02x}: its requests do not say, with one voice, who may send them")
    return Rule(int(privilege), tuple(dict.fromkeys(case for form in forms for case in _cases(form))))


def _cases(form: type[Request]) -> Iterator[tuple[int, int, Codec, Beyond]]:
    layout = form.layout
    for beyond in layout.beyond:
        at = layout.offset("flags") - HEADER_BYTES
        flags = next(field for field in layout.extras.fields if field.name == "flags")
        for length in layout.extras_lengths:
            if length >= at + layout.field_bytes("flags"):
                yield length, at, flags.codec, beyond
