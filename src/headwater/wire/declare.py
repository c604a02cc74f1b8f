"""The tables behind messages: a declaration becomes a table when its class is made.

`Declared` reads a class body's `about` fields into a `Layout` and makes the class a frozen dataclass.
`headwater.wire.layout` describes how to write a declaration; other modules import from there.

There are some two hundred messages. Compiling the methods that `@dataclass` generates for each would take a quarter of
a node's start. So `@dataclass` only collects the fields here; the methods are written once for all messages.
"""

from __future__ import annotations

import dataclasses
import inspect
import struct
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Union, dataclass_transform, get_args, get_origin

from headwater.errors import BadMessage
from headwater.wire.codec import Codec
from headwater.wire.header import HEADER_BYTES, RESPONSES, Frame, Magic
from headwater.wire.privilege import Beyond, Privilege
from headwater.wire.sections import Field, FieldPlace, Section, Shape, section_of

__all__ = ["ANY_FAILURE", "ANY_STATUS", "ENGINE", "EXTRAS", "FORBIDDEN", "NO_OPCODE", "OPTIONAL", "REQUIRED", "VALUE"]
__all__ += ["Declared", "Layout", "Presence", "Short", "about", "measured"]

EXTRAS, ENGINE, VALUE = FieldPlace.EXTRAS, FieldPlace.ENGINE, FieldPlace.VALUE
ANY_STATUS = -1
ANY_FAILURE = -2
NO_OPCODE = -1


class Presence(Enum):
    """Rules for the key or value of a message."""

    FORBIDDEN = "no"
    OPTIONAL = "may be empty"
    REQUIRED = "yes"

    def refuses(self, data: bytes) -> bool:
        """Return True if the key or value `data` breaks the rule: present but forbidden, or empty but required."""
        return bool(data) if self is Presence.FORBIDDEN else self is Presence.REQUIRED and not data


FORBIDDEN, OPTIONAL, REQUIRED = Presence.FORBIDDEN, Presence.OPTIONAL, Presence.REQUIRED


def about(
    text: str,
    *,
    default: Any = dataclasses.MISSING,
    place: FieldPlace = EXTRAS,
    only: tuple[int, ...] = (),
    when: int = 0,
) -> Any:
    """Declare a field.

    Args:
        text: meaning, with units; printed in the reference.
        default: None for a field that may be absent (annotate it `u32 | None`).
        place: EXTRAS, or VALUE.
        only: values of this version of the message; other values belong to another class.
        when: the bit of the message's flags that makes the field present.
    """
    return dataclasses.field(default=default, metadata={"about": text, "place": place, "only": only, "when": when})


def measured(text: str, *, init: Literal[False] = False) -> Any:
    """Declare the field with the length of TAP's engine-private section, which is computed from the section."""
    return dataclasses.field(init=init, default=0, metadata={"about": text})


_MAGICS: dict[int, frozenset[int]] = {
    Magic.CLIENT_REQUEST: frozenset({Magic.CLIENT_REQUEST, Magic.FLEXIBLE_REQUEST}),
    Magic.CLIENT_RESPONSE: frozenset({Magic.CLIENT_RESPONSE, Magic.FLEXIBLE_RESPONSE}),
    Magic.SERVER_REQUEST: frozenset({Magic.SERVER_REQUEST}),
    Magic.SERVER_RESPONSE: frozenset({Magic.SERVER_RESPONSE}),
}


_NO_EXTRAS = section_of(EXTRAS, (), ())


@dataclass(frozen=True, slots=True)
class Layout:
    """The table behind a message class.

    Attributes:
        opcode: NO_OPCODE for an answer, whose opcode is its request's.
        quiet: opcode of a request's quiet form, or NO_OPCODE. silent: the status of the answer that the quiet form
            omits.
        answers: classes of the answers, besides `Failure`; the usual one first.
        cas: True if a request may carry a CAS.
        refused: the status with which this node answers a request that it does not serve; 0 for a request that it
            serves.
        privilege: the right that a request needs; None for an answer, and for a server's request. beyond: additional
            rights that some flags need.
        opcodes: the opcodes of its frames: its own and its quiet form's.
        is_response: True for answers.
    """

    name: str = ""
    opcode: int = NO_OPCODE
    magic: int = Magic.CLIENT_REQUEST
    key: Presence = FORBIDDEN
    value: Presence = FORBIDDEN
    status: int = 0
    fields: tuple[Field, ...] = ()
    extras: Section = _NO_EXTRAS
    body: Section | None = None
    engine: bool = False
    quiet: int = NO_OPCODE
    silent: int = 0
    answers: tuple[type[Declared], ...] = ()
    cas: bool = False
    privilege: Privilege | None = None
    beyond: tuple[Beyond, ...] = ()
    refused: int = 0
    opcodes: frozenset[int] = dataclasses.field(init=False)
    is_response: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "opcodes", frozenset({self.opcode, self.quiet}) - {NO_OPCODE})
        object.__setattr__(self, "is_response", self.magic in RESPONSES)

    def allows(self, status: int) -> bool:
        """Return True if a response may have this status."""
        return status != 0 if self.status == ANY_FAILURE else self.status in (ANY_STATUS, status)

    @property
    def magics(self) -> frozenset[int]:
        """The magics of its frames: its own, and the flexible one for requests of clients and their answers."""
        return _MAGICS[self.magic]

    @property
    def plain(self) -> Shape | None:
        """The fields of the plain messages (compiled.py); None if the class has none, or their extras have several
        lengths.
        """
        if self.engine or self.body is not None or len(self.extras.shapes) != 1 or self.is_response:
            return None
        if self.opcode < 0 or self.key.refuses(b"") or self.value.refuses(b""):
            return None
        (form,) = self.extras.shapes.values()
        return form if form.packs and not form.looked_at else None

    def _one_length(self, section: Section | None, name: str) -> int:
        if section is None or len(section.shapes) != 1:
            raise TypeError(f"the {name} of {self.name} {'has' if name == 'value' else 'have'} no one length")
        (length,) = section.shapes
        return length

    @property
    def extras_bytes(self) -> int:
        """The length of the extras in bytes; TypeError if several lengths are allowed."""
        return self._one_length(self.extras, "extras")

    @property
    def value_bytes(self) -> int:
        """The length of the value in bytes; TypeError if it is not declared, or several lengths are allowed."""
        return self._one_length(self.body, "value")

    @property
    def extras_lengths(self) -> tuple[int, ...]:
        """All allowed lengths of the extras in bytes; empty if their fields have no fixed form."""
        return tuple(self.extras.shapes)

    def field_bytes(self, name: str) -> int:
        """Return the number of bytes of a field of fixed size; TypeError if there is no such field."""
        for field in self.fields:
            if field.name == name and field.codec.size is not None:
                return field.codec.size
        raise TypeError(f"{self.name} has no field {name!r} of a fixed size")

    @property
    def extras_struct(self) -> struct.Struct:
        """The extras as one `struct`; TypeError if several lengths are allowed."""
        return self.struct_of(self.extras_bytes)

    def struct_of(self, extras_bytes: int) -> struct.Struct:
        """Return the extras of length `extras_bytes` as one `struct`; TypeError if that length is not allowed."""
        if extras_bytes not in self.extras.shapes:
            raise TypeError(f"the extras of {self.name} are never {extras_bytes} bytes")
        return self.extras.shapes[extras_bytes].struct

    def offset(self, name: str) -> int:
        """Return the offset of a field of the extras in a frame without framing extras, in bytes.

        Raises:
            TypeError: there is no such field, or its offset depends on the message's content.
        """
        at = HEADER_BYTES
        for field in self.extras.fields:
            if field.name == name:
                return at
            if field.optional or field.codec.size is None:
                break
            at += field.codec.size
        raise TypeError(f"{self.name} has no field {name!r} whose place is known")

    def bad(self, opcode: int, problem: object) -> BadMessage:
        """Return the error for a frame that does not match this message."""
        return BadMessage(self.name, opcode, str(problem))


def _own_fields(cls: type) -> list[Field]:
    """Return the fields declared with `about` or `measured` in a class body, in order."""
    fields = []
    for name, hint in inspect.get_annotations(cls, eval_str=True).items():
        specifier = cls.__dict__.get(name)
        if isinstance(specifier, dataclasses.Field) and "about" in specifier.metadata:
            codec, optional = _codec_of(hint)
            fields.append(Field(name, codec, optional=optional, **specifier.metadata))
    return fields


def _codec_of(hint: Any) -> tuple[Codec, bool]:
    """Return the codec in an annotation, and whether the field may be None."""
    if get_origin(hint) in (Union, UnionType):
        (inner,) = (argument for argument in get_args(hint) if argument is not NoneType)
        return _codec_of(inner)[0], True
    if get_origin(hint) is not Annotated:
        raise TypeError(f"{hint!r} has no form on the wire; use u8 to u64 or another Annotated type")
    codec: Codec = get_args(hint)[1]
    return codec, False


def _merged(above: Sequence[Field], own: Sequence[Field]) -> tuple[Field, ...]:
    """Return inherited and own fields; a redeclared field keeps the place of the inherited one."""
    fields = {field.name: field for field in above} | {field.name: field for field in own}
    return tuple(fields.values())


class Short(NamedTuple):
    """The fast paths of a class (compiled.py); each returns None for a case that needs the slow path.

    Attributes:
        read: returns the message in a frame.
        write: returns the bytes of a message without framing extras, from its fields, an opcode and an opaque.
        read_plain: returns the plain message at an offset of a buffer.
        write_plain: returns the bytes of a plain message, from vbucket, opaque and the numbers of its own fields.
    """

    read: Callable[[Frame], Any]
    write: Callable[[Mapping[str, Any], int, int], bytes | None]
    read_plain: Callable[[bytes | bytearray | memoryview, int], Any]
    write_plain: Callable[..., bytes | None]


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(about, measured))
class Declared:
    """Makes each subclass a frozen dataclass with a `Layout` of its declarations."""

    layout: ClassVar[Layout] = Layout()
    _defaults: ClassVar[Mapping[str, Any]] = {}
    """The value of a field that is left out, or that a frame lacks."""
    _arguments: ClassVar[frozenset[str]] = frozenset()
    """The names of the constructor's arguments: all fields except a computed one."""
    _short: ClassVar[Short | None] = None

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
        quiet: int = NO_OPCODE,
        silent: int | None = None,
        answer: type[Declared] | tuple[type[Declared], ...] | None = None,
        cas: bool | None = None,
        privilege: Privilege | None = None,
        beyond: tuple[Beyond, ...] | None = None,
        refused: int = 0,
    ) -> None:
        super().__init_subclass__()
        above = cls.layout
        fields = _merged(above.fields, _own_fields(cls))
        cls._collect_fields(status)
        in_extras = [field for field in fields if field.place is EXTRAS]
        in_value = [field for field in fields if field.place is VALUE]
        if extras_bytes is None:
            extras_bytes = tuple(above.extras.shapes) if above.fields == fields else ()
        changed: dict[str, Any] = {"opcode": opcode, "magic": magic, "key": key, "value": value, "status": status}
        changed |= {"silent": silent, "answers": (answer,) if isinstance(answer, type) else answer, "cas": cas}
        changed |= {"privilege": privilege, "beyond": beyond}
        cls.layout = layout = dataclasses.replace(
            above,
            name=cls.__name__,
            fields=fields,
            extras=section_of(EXTRAS, in_extras, extras_bytes),
            body=section_of(VALUE, in_value, value_bytes) if in_value else None,
            engine=any(field.place is ENGINE for field in fields),
            quiet=quiet,
            refused=refused,
            **{name: value for name, value in changed.items() if value is not None},
        )
        if layout.opcode != NO_OPCODE and layout.magic == Magic.CLIENT_REQUEST and layout.privilege is None:
            raise TypeError(f"{layout.name} does not say who may send it: declare its privilege=")

    @classmethod
    def _collect_fields(cls, status: int | None) -> None:
        """Make the class a dataclass, and collect the arguments of its constructor."""
        if status is not None and status >= 0:
            setattr(cls, "__annotations__", {**inspect.get_annotations(cls), "status": int})  # noqa: B010 -- as below
            setattr(cls, "status", status)  # noqa: B010 -- the default of a dataclass field, unknown to Declared
        dataclass(init=False, repr=False, eq=False, kw_only=True)(cls)
        all_fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # it is one since the line above
        arguments = [field for field in all_fields if field.init]
        cls._defaults = {
            argument.name: argument.default for argument in arguments if argument.default is not dataclasses.MISSING
        }
        cls._arguments = frozenset(argument.name for argument in arguments)
        cls._short = None  # a class above may have compiled its own

    def __init__(self, **arguments: Any) -> None:
        values = {**self._defaults, **arguments}
        if values.keys() != self._arguments:
            raise TypeError(f"{type(self).__name__}: {self._wrong(values.keys())}")
        object.__setattr__(self, "__dict__", values)
        self.__post_init__()

    def _wrong(self, arguments: Set[str]) -> str:
        wrong = (("missing field", self._arguments - arguments), ("unknown field", arguments - self._arguments))
        return "; ".join(f"{problem} {', '.join(map(repr, sorted(names)))}" for problem, names in wrong if names)

    def __post_init__(self) -> None:
        """Set the fields that are computed from others."""

    def __setattr__(self, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"{type(self).__name__}.{name} cannot be changed; make another message")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"{type(self).__name__}.{name} cannot be deleted; make another message")

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__[field.name] for field in dataclasses.fields(self)))  # type: ignore[arg-type]
