"""The sections of a message that hold fields: extras, value, and TAP's engine-private part.

A section is a sequence of fields. If every field has a fixed size, the section's length determines the optional fields
that are present (`Fixed`); protocols of this family version their messages that way. Otherwise (`Running`) a field with
a `when` bit is present if the message's flags have that bit.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from struct import Struct
from typing import Any, ClassVar, Final

from headwater.wire.codec import Codec, Number, Tail

__all__ = ["Field", "FieldPlace", "Fixed", "Running", "Section", "section_of"]


class FieldPlace(StrEnum):
    """The section of the frame that contains a field."""

    EXTRAS = "extras"
    ENGINE = "engine"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class Field:
    """One declared field."""

    name: str
    codec: Codec
    about: str
    place: FieldPlace = FieldPlace.EXTRAS
    optional: bool = False
    only: tuple[int, ...] = ()
    when: int = 0

    def check(self, value: Any) -> None:
        """Raise ValueError for a value that belongs to another version of the message."""
        if self.only and value not in self.only:
            allowed = " or ".join(map(str, self.only))
            raise ValueError(f"{self.name} is {value}, expected {allowed}")


def _struct_code(codec: Codec) -> str:
    packed = codec.struct if isinstance(codec, Number) else None
    return packed.format[1:] if packed else f"{codec.size}s"


class Shape:
    """The fields of a fixed section with one of its lengths.

    Attributes:
        packs: True if the struct converts all values without further steps.
        looked_at: the fields whose values are restricted and must be checked.
    """

    def __init__(self, fields: tuple[Field, ...]) -> None:
        codes = "".join(_struct_code(field.codec) for field in fields)
        self.fields = fields
        self.struct: Final = Struct(">" + codes)
        self.names: Final = tuple(field.name for field in fields)
        self.packs: Final = "s" not in codes
        self.looked_at: Final = tuple(field for field in fields if field.only)

    def pack(self, values: Mapping[str, Any]) -> bytes:
        """Return the fields' bytes: all at once if possible, one by one if a value must be checked."""
        for each in self.looked_at:
            each.check(values[each.name])
        if self.packs:
            try:
                return self.struct.pack(*[values[name] for name in self.names])
            except struct.error:
                pass  # it is told below, with the field's name
        return b"".join(_write(field, values[field.name]) for field in self.fields)

    def unpack(self, data: bytes) -> dict[str, Any]:
        """Return the fields' values; `data` has this shape's length."""
        values: dict[str, Any] = dict(zip(self.names, self.struct.unpack(data), strict=True))
        if not self.packs:
            values = {name: int.from_bytes(v) if isinstance(v, bytes) else v for name, v in values.items()}
        for field in self.looked_at:
            field.check(values[field.name])
        return values


class Fixed:
    """A section whose length determines its fields. `chosen` maps the optional fields' absence (True: missing) to a
    shape.
    """

    def __init__(self, place: FieldPlace, fields: tuple[Field, ...], shapes: Mapping[int, Shape]) -> None:
        optional = [field for field in fields if field.optional]
        self.place: FieldPlace = place
        self.fields: Final = fields
        self.shapes: Final = shapes
        self.optional: Final = tuple(field.name for field in optional)
        self.chosen: dict[tuple[bool, ...], Shape] = {}
        for shape in shapes.values():
            self.chosen.setdefault(tuple(field not in shape.fields for field in optional), shape)

    def read(self, data: bytes, flags: int) -> dict[str, Any]:
        """Return the fields' values; absent optional ones are None."""
        shape = self.shapes.get(len(data))
        if shape is None:
            expected = " or ".join(map(str, sorted(self.shapes)))
            verb = "is" if self.place is FieldPlace.VALUE else "are"
            raise ValueError(f"{self.place} {verb} {len(data)} bytes, expected {expected}")
        return shape.unpack(data)

    def write(self, values: Mapping[str, Any]) -> bytes:
        """Return the section's bytes; fields that are None are left out."""
        shape = self.chosen.get(tuple([values[name] is None for name in self.optional]))
        if shape is not None:
            return shape.pack(values)
        present = [field.name for field in self.fields if not field.optional or values[field.name] is not None]
        raise ValueError(f"no form of this message has exactly {', '.join(present) or 'no fields'}")


@dataclass(frozen=True, slots=True)
class Running:
    """A section of fields one after the other, some of them present only if the message's flags have their bit."""

    place: FieldPlace
    fields: tuple[Field, ...]
    shapes: ClassVar[Mapping[int, Shape]] = {}

    def read(self, data: bytes, flags: int) -> dict[str, Any]:
        """Return the fields' values; None for fields whose bit is not set."""
        values: dict[str, Any] = {}
        at = 0
        for field in self.fields:
            if field.when and not flags & field.when:
                values[field.name] = None
                continue
            values[field.name], at = field.codec.read(data, at)
            field.check(values[field.name])
        if at != len(data):
            raise ValueError(f"{self.place}: {len(data) - at} of {len(data)} bytes are left over")
        return values

    def write(self, values: Mapping[str, Any]) -> bytes:
        """Return the section's bytes."""
        flags, present, has_ended = values.get("flags") or 0, [], False
        for field in self.fields:
            value, expected = values[field.name], not field.when or bool(flags & field.when)
            is_missing = expected and value is None and isinstance(field.codec, Tail)
            if (value is not None) != expected and not is_missing:
                raise ValueError(f"{field.name} must be given exactly when flag 0x{field.when:x} is set")
            if has_ended and value is not None:
                raise ValueError(f"{field.name} can't follow a field that is missing")
            has_ended |= is_missing
            if expected:
                present.append(_write(field, value))
        return b"".join(present)


Section = Fixed | Running


def _write(each: Field, value: Any) -> bytes:
    each.check(value)
    try:
        return each.codec.write(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{each.name}: {error}") from None


def section_of(place: FieldPlace, fields: Sequence[Field], lengths: Sequence[int]) -> Section:
    """Build the section at `place` from its fields.

    Args:
        place: the section.
        fields: in wire order.
        lengths: the legal lengths in bytes; empty means the required fields and any prefix of the optional ones.
    """
    if not all(isinstance(field.codec, Number) for field in fields):
        return Running(place, tuple(fields))
    shapes = {length: _shape(place, fields, length) for length in lengths or _prefixes(fields)}
    return Fixed(place, tuple(fields), shapes)


def _prefixes(fields: Sequence[Field]) -> list[int]:
    total = sum(_size(field) for field in fields if not field.optional)
    return [total] + [total := total + _size(field) for field in fields if field.optional]


def _shape(place: FieldPlace, fields: Sequence[Field], length: int) -> Shape:
    """Return the shape with `length` bytes; of several choices of optional fields, a prefix of them is preferred."""
    optional = [field for field in fields if field.optional]
    spare = length - sum(_size(field) for field in fields if not field.optional)
    # Fewest optional fields first, so a length that several choices make is the older version's.
    for count in range(len(optional) + 1):
        for choice in combinations(optional, count):
            if sum(_size(field) for field in choice) == spare:
                return Shape(tuple(field for field in fields if not field.optional or field in choice))
    raise TypeError(f"no choice of fields makes {length} bytes of {place}")


def _size(each: Field) -> int:
    return each.codec.size or 0
