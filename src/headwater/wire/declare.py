"""The tables behind messages: what a declaration is turned into when its class is made.

`Declared` reads a class body's `about` fields into a `Layout` and makes the class a frozen dataclass. How to write a
declaration is told in `headwater.wire.layout`, which everyone imports from.

There are some two hundred messages, and what `@dataclass` writes and compiles for each of them would be a quarter of
the time in which a node starts. So it only collects the fields; the methods stand here, once for all.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, dataclass_transform, get_args, get_origin

from headwater.errors import BadMessage
from headwater.wire.codec import Codec
from headwater.wire.compact import Compact, compact_of
from headwater.wire.header import RESPONSES, Magic
from headwater.wire.sections import Field, Place, Section, section_of

__all__ = ["ANY_STATUS", "ENGINE", "EXTRAS", "FORBIDDEN", "OPTIONAL", "REQUIRED", "VALUE"]
__all__ += ["Declared", "Layout", "Presence", "about", "measured"]

EXTRAS, ENGINE, VALUE = Place.EXTRAS, Place.ENGINE, Place.VALUE
ANY_STATUS = -1


class Presence(Enum):
    """Whether a key or value is part of a message."""

    FORBIDDEN = "no"
    OPTIONAL = "may be empty"
    REQUIRED = "yes"

    def refuses(self, data: bytes) -> bool:
        """Tell whether these bytes may not be there, or should be and are not."""
        return bool(data) if self is Presence.FORBIDDEN else self is Presence.REQUIRED and not data


FORBIDDEN, OPTIONAL, REQUIRED = Presence.FORBIDDEN, Presence.OPTIONAL, Presence.REQUIRED


def about(
    text: str,
    *,
    default: Any = dataclasses.MISSING,
    where: Place = EXTRAS,
    only: tuple[int, ...] = (),
    when: int = 0,
) -> Any:
    """Declare a field.

    Args:
        text: what it means, with units; printed in the reference.
        default: None for a field that may be absent (annotate it `u32 | None`).
        where: EXTRAS, or VALUE.
        only: the values this version of the message has; others belong to a class of their own.
        when: the bit of the message's flags that makes the field present.
    """
    return dataclasses.field(default=default, metadata={"about": text, "where": where, "only": only, "when": when})


def measured(text: str, *, init: Literal[False] = False) -> Any:
    """Declare the length of TAP's engine-private section: it is counted, never given."""
    return dataclasses.field(init=init, default=0, metadata={"about": text, "where": EXTRAS, "only": (), "when": 0})


_MAGICS: dict[int, frozenset[int]] = {
    Magic.CLIENT_REQUEST: frozenset({Magic.CLIENT_REQUEST, Magic.FLEXIBLE_REQUEST}),
    Magic.CLIENT_RESPONSE: frozenset({Magic.CLIENT_RESPONSE, Magic.FLEXIBLE_RESPONSE}),
    Magic.SERVER_REQUEST: frozenset({Magic.SERVER_REQUEST}),
    Magic.SERVER_RESPONSE: frozenset({Magic.SERVER_RESPONSE}),
}


@dataclass(frozen=True, slots=True)
class Layout:
    """The table behind a message class."""

    name: str
    opcode: int
    magic: int
    key: Presence
    value: Presence
    status: int
    fields: tuple[Field, ...]
    extras: Section
    body: Section | None
    engine: bool
    compact: Compact | None = dataclasses.field(init=False, repr=False, compare=False)
    magics: frozenset[int] = dataclasses.field(init=False, repr=False, compare=False)
    """The magics its frames may have: its own, and for what clients send and get the flexible one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "compact", compact_of(self))
        object.__setattr__(self, "magics", _MAGICS[self.magic])

    @property
    def is_response(self) -> bool:
        """Whether the message answers something."""
        return self.magic in RESPONSES

    def bad(self, opcode: int, problem: object) -> BadMessage:
        """Return the error for a frame that is not this message."""
        return BadMessage(self.name, opcode, str(problem))


def _own_fields(cls: type) -> list[Field]:
    """Return the fields declared with `about` or `measured` in a class body, in order."""
    declared = []
    for name, hint in inspect.get_annotations(cls, eval_str=True).items():
        specifier = cls.__dict__.get(name)
        if isinstance(specifier, dataclasses.Field) and "about" in specifier.metadata:
            codec, optional = _codec_of(hint)
            told = specifier.metadata
            declared.append(Field(name, codec, told["about"], told["where"], optional, told["only"], told["when"]))
    return declared


def _codec_of(hint: Any) -> tuple[Codec, bool]:
    """Return the codec in an annotation, and whether the field may be None."""
    if get_origin(hint) in (Union, UnionType):
        (inner,) = (each for each in get_args(hint) if each is not NoneType)
        return _codec_of(inner)[0], True
    if get_origin(hint) is not Annotated:
        raise TypeError(f"{hint!r} has no form on the wire; use u8 to u64 or another Annotated type")
    codec: Codec = get_args(hint)[1]
    return codec, False


def _merged(above: Sequence[Field], own: Sequence[Field]) -> tuple[Field, ...]:
    """Return inherited and own fields; a field declared anew replaces the one above, in its place."""
    fields = {each.name: each for each in above} | {each.name: each for each in own}
    return tuple(fields.values())


def _inherited_lengths(above: Layout | None, fields: tuple[Field, ...]) -> Sequence[int]:
    same = above is not None and above.fields == fields
    return tuple(getattr(above.extras, "shapes", ())) if same and above else ()


def _first(*choices: Any) -> Any:
    return next(choice for choice in choices if choice is not None)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(about, measured))
class Declared:
    """Makes a frozen dataclass, and from the declarations a `Layout`, of every subclass."""

    layout: ClassVar[Layout]
    _defaults: ClassVar[Mapping[str, Any]] = {}
    """What a field is that was not given, or that a frame lacks."""
    _required: ClassVar[frozenset[str]] = frozenset()
    _accepted: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(
        cls,
        *,
        opcode: int | None = None,
        key: Presence | None = None,
        value: Presence | None = None,
        status: int | None = None,
        magic: int | None = None,
        extras_bytes: Sequence[int] | None = None,
        value_bytes: Sequence[int] = (),
    ) -> None:
        super().__init_subclass__()
        above: Layout | None = getattr(cls, "layout", None)
        fields = _merged(above.fields if above else (), _own_fields(cls))
        if status is not None and status != ANY_STATUS:
            cls.__annotations__ = {**inspect.get_annotations(cls), "status": int}
            setattr(cls, "status", status)  # noqa: B010 -- the default of a dataclass field, unknown to Declared
        dataclass(init=False, repr=False, eq=False, kw_only=True)(cls)
        made = dataclasses.fields(cls)  # type: ignore[arg-type]  # it is one since the line above
        cls._defaults = {each.name: each.default for each in made if each.default is not dataclasses.MISSING}
        cls._required = frozenset(each.name for each in made) - cls._defaults.keys()
        cls._accepted = frozenset(each.name for each in made if each.init)
        in_extras = [each for each in fields if each.place is EXTRAS]
        in_value = [each for each in fields if each.place is VALUE]
        lengths = extras_bytes if extras_bytes is not None else _inherited_lengths(above, fields)
        cls.layout = Layout(
            name=cls.__name__,
            opcode=_first(opcode, above and above.opcode, -1),
            magic=_first(magic, above and above.magic, Magic.CLIENT_REQUEST),
            key=_first(key, above and above.key, FORBIDDEN),
            value=_first(value, above and above.value, FORBIDDEN),
            status=_first(status, above and above.status, 0),
            fields=fields,
            extras=section_of(EXTRAS, in_extras, lengths),
            body=section_of(VALUE, in_value, value_bytes) if in_value else None,
            engine=any(each.place is ENGINE for each in fields),
        )

    def __init__(self, **given: Any) -> None:
        if not self._required <= given.keys() <= self._accepted:
            raise TypeError(f"{type(self).__name__}: {self._wrong(given.keys())}")
        self.__dict__.update(self._defaults)
        self.__dict__.update(given)
        self.__post_init__()

    def _wrong(self, given: Set[str]) -> str:
        wrong = (("missing field", self._required - given), ("unknown field", given - self._accepted))
        return "; ".join(f"{what} {', '.join(map(repr, sorted(names)))}" for what, names in wrong if names)

    def __post_init__(self) -> None:
        """Put in what follows from the other fields."""

    def __setattr__(self, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"{type(self).__name__}.{name} cannot be changed; make another message")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"{type(self).__name__}.{name} cannot be deleted; make another message")

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__[each.name] for each in dataclasses.fields(self)))  # type: ignore[arg-type]
