"""The privileges that a frame needs of its sender, by its opcode, as the requests declare them (wire/privilege.py).

Forms of one request that old and new clients send under one opcode need the same; an opcode that no request declares
has no rule, and no handler can be registered for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headwater.wire.codec import Codec
from headwater.wire.dialect import requests
from headwater.wire.header import HEADER_BYTES, Frame
from headwater.wire.layout import Request
from headwater.wire.privilege import Beyond

__all__ = ["Rule", "rule_of"]


@dataclass(frozen=True, slots=True)
class Rule:
    """The needs of the requests of one opcode.

    Attributes:
        privilege: what every one of them needs, as a number of bits.
        cases: what more is needed for some of their flags: the flags' place by the length of the extras.
    """

    privilege: int
    cases: tuple[tuple[int, int, Codec, Beyond], ...] = ()

    def needed(self, frame: Frame) -> int:
        """Return what this frame needs."""
        needed = self.privilege
        for length, offset, flags, beyond in self.cases:
            if len(frame.extras) == length and flags.read(frame.extras, offset)[0] & beyond.mask == beyond.bits:
                needed |= beyond.privilege
        return needed


def rule_of(opcode: int) -> Rule:
    """Return the rule of an opcode.

    Raises:
        TypeError: no request of this opcode is declared, or two of them need different things.
    """
    forms = requests(opcode)
    told = {form.layout.privilege for form in forms}
    if len(told) != 1 or (privilege := told.pop()) is None:
        raise TypeError(f"opcode 0x{opcode:02x}: its requests do not say, with one voice, who may send them")
    return Rule(int(privilege), tuple(dict.fromkeys(case for form in forms for case in _cases(form))))


def _cases(form: type[Request]) -> Iterator[tuple[int, int, Codec, Beyond]]:
    layout = form.layout
    for beyond in layout.beyond:
        at = layout.offset("flags") - HEADER_BYTES
        flags = next(each for each in layout.extras.fields if each.name == "flags")
        for length in layout.extras_lengths:
            if length >= at + layout.field_bytes("flags"):
                yield length, at, flags.codec, beyond
