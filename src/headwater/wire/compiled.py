"""The fast paths between a message and its bytes: functions of a class, compiled from its table on first use.

A node reads requests and encodes answers tens of thousands of times a second; walking the table behind the class
(declare.py) field by field would take longer than the search for the document. So source is generated from the table,
as `@dataclass` does, and compiled to functions. For GET's answer, four bytes of flags and a value, it is:

    def write(values, opcode, opaque):
        key, value = values['key'], values['value']
        if key:
            return None
        try:
            size = 4 + len(key) + len(value)
            head = pack_0(129, opcode, len(key), 4, values['datatype'], values['status'], size, opaque,
                          values['cas'], values['flags'])
        except (StructError, TypeError, ValueError):
            return None
        return b''.join((head, key, value)) if size <= 31457280 else None

For a case that they do not cover (a number out of range, a key that is not allowed, framing extras) the fast paths
return None, and the slow path through the table returns the bytes or raises the error. So the rules are in one place;
tests compare the two paths. The functions are compiled at the first use of a class: there are some hundred and fifty
classes, and one process uses few of them.

Plain messages are requests of nothing but numbers, without framing, key, value, datatype or CAS. Requests that come by
the thousand (a drain begins with a stream request for each vbucket) are nearly all plain: `read_plain` reads them in
the buffer, and `write_plain` encodes them without a message object.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from typing import Any

from headwater.wire.declare import ANY_FAILURE, ANY_STATUS, Declared, Layout, Presence, Short
from headwater.wire.header import BODY_BYTES_MAX, HEADER, HEADER_BYTES
from headwater.wire.sections import Field, Fixed, Running, Shape

__all__ = ["short_of"]


def short_of(cls: type[Declared], defaults: Mapping[str, Any]) -> Short:
    """Compile the fast paths of a message class; `defaults` are the values of fields that a frame lacks.

    For a class without a fixed form, all four functions always return None.
    """
    extras = cls.layout.extras
    if cls.layout.engine or not isinstance(extras, Fixed) or not all(shape.packs for shape in extras.shapes.values()):
        return Short(*[lambda *_: None] * 4)
    source = _Source(cls, extras, defaults)
    lines = "\n".join([*source.reading(), *source.writing(), *source.reading_plain()])
    exec(compile(lines, f"<short ways of {cls.__name__}>", "exec"), source.names)  # noqa: S102 - of our own tables
    return Short(*[source.names[name] for name in Short._fields])


class _Source:
    """Generates the source of the fast paths of one class, line by line; `names` has the objects that the source refers
    to.
    """

    def __init__(self, cls: type[Declared], extras: Fixed, defaults: Mapping[str, Any]) -> None:
        self._defaults = defaults
        self._layout = cls.layout
        self._extras = extras
        self._fixed_value = _fixed_value(cls.layout)
        self.names: dict[str, Any] = {
            "StructError": struct.error,
            "cls": cls,
            "new": object.__new__,
            "fill": object.__setattr__,  # a message is frozen for everyone else
        }
        if self._layout.body is not None:
            self.names |= {"read_body": self._layout.body.read, "write_body": self._layout.body.write}
        self._only_value = _only_value(cls.layout)
        if self._only_value is not None:
            self.names |= {"read_body": self._only_value.codec.read, "write_body": self._only_value.codec.write}

    def _misplaced(self) -> list[str]:
        """Return the conditions, in source, for a key or value that is forbidden but present, or required but
        absent.
        """
        return [*_wrong("key", self._layout.key), *(() if self._layout.body else _wrong("value", self._layout.value))]

    # --- writing ------------------------------------------------------------------------------------------------------

    def writing(self) -> Iterator[str]:
        """Yield the lines of `write`."""
        yield "def write(values, opcode, opaque):"
        yield "    key, value = values['key'], values['value']"
        yield from _leaving("    ", [*self._misplaced(), *(["value"] if self._layout.body else [])])
        yield "    try:"
        if self._layout.body is not None and self._fixed_value is None:
            part = "" if self._only_value is None else f"[{self._only_value.name!r}]"
            yield f"        value = write_body(values{part})"
        for number, (absent_names, shape) in enumerate(self._extras.chosen.items()):
            absent = dict(zip(self._extras.optional, absent_names, strict=True))
            tests = [f"values[{name!r}] is {'' if is_gone else 'not '}None" for name, is_gone in absent.items()]
            yield f"        {'el' * bool(number)}if {' and '.join(tests) or True}:"
            yield from self._packing(number, shape)
        yield "        else:"
        yield "            return None"
        yield "    except (StructError, TypeError, ValueError):"
        yield "        return None"
        yield f"    return b''.join((head, key, value)) if size <= {BODY_BYTES_MAX} else None"

    def _packing(self, number: int, shape: Shape) -> Iterator[str]:
        """Yield the lines that encode header and numbers of one form."""
        shapes = [shape] if self._fixed_value is None else [shape, self._fixed_value]
        fields = [field for part in shapes for field in part.fields]
        codes = "".join(part.struct.format.removeprefix(">") for part in shapes)
        self.names[f"pack_{number}"] = Struct(HEADER.format + codes).pack
        third = "status" if self._layout.is_response else "vbucket"
        own_names = "".join(f", values[{field.name!r}]" for field in fields)
        yield from _leaving("            ", _disallowed(fields, "values[{!r}]"))
        yield f"            size = {sum(part.struct.size for part in shapes)} + len(key) + len(value)"
        yield f"            head = pack_{number}({int(self._layout.magic)}, opcode, len(key), {shape.struct.size}, "
        yield f"                values['datatype'], values[{third!r}], size, opaque, values['cas']{own_names})"

    # --- reading ------------------------------------------------------------------------------------------------------

    def reading(self) -> Iterator[str]:
        """Yield the lines of `read`."""
        yield "def read(frame):"
        yield from _leaving("    ", self._of_others())
        yield "    extras, key, value = frame.extras, frame.key, frame.value"
        yield from _leaving("    ", self._misplaced())
        for number, (size, shape) in enumerate(self._extras.shapes.items()):
            self.names[f"unpack_{number}"] = shape.struct.unpack
            absent = [field.name for field in self._extras.fields if field not in shape.fields]
            yield f"    {'el' * bool(number)}if len(extras) == {size}:"
            yield f"        {_targets(shape.fields)} = unpack_{number}(extras)"
            yield from (f"        of_{name} = None" for name in absent)
            yield from _leaving("        ", _disallowed(shape.fields, "of_{}"))
        yield "    else:"
        yield "        return None"
        yield from self._reading_body()
        has_body = self._layout.body is not None and self._fixed_value is None and self._only_value is None
        yield from _making(self._values(), ["**body"] if has_body else [])

    def reading_plain(self) -> Iterator[str]:
        """Yield the lines of `read_plain` and `write_plain`, which convert header and numbers with one struct."""
        yield "def read_plain(data, offset):"
        if (plain := self._layout.plain) is None:
            yield from ("    return None", "def write_plain(*numbers):", "    return None")
            return
        size, layout, codes = plain.struct.size, self._layout, plain.struct.format.removeprefix(">")
        begin = HEADER.pack(layout.magic, layout.opcode, 0, size, 0, 0, 0, 0, 0)[:6]
        self.names |= {"unpack_plain": Struct(">6sHIIQ" + codes).unpack_from, "begin_plain": begin}
        self.names["pack_plain"] = Struct(HEADER.format + codes).pack
        yield from _leaving("    ", [f"len(data) - offset < {HEADER_BYTES + size}"])
        own_names = "".join(f", of_{name}" for name in plain.names)
        yield f"    begin, vbucket, size, opaque, cas{own_names} = unpack_plain(data, offset)"
        yield from _leaving("    ", ["begin != begin_plain", f"size != {size}", "cas"])
        values = {"vbucket": "vbucket", "opaque": "opaque"} | {name: f"of_{name}" for name in plain.names}
        yield from _making({name: f"default_{name}" for name in self._defaults} | values)
        yield "def write_plain(vbucket, opaque, numbers):"
        yield "    try:"
        head = f"{int(layout.magic)}, {int(layout.opcode)}, 0, {size}, 0, vbucket, {size}, opaque, 0"
        yield f"        return pack_plain({head}, *numbers)"
        yield "    except StructError:"
        yield "        return None"

    def _of_others(self) -> Iterator[str]:
        """Yield the conditions, in source, for a frame of another message or with a flexible magic."""
        layout = self._layout
        yield f"frame.magic != {int(layout.magic)}"
        if layout.opcodes:
            yield " and ".join(f"frame.opcode != {int(opcode)}" for opcode in layout.opcodes)
        if layout.is_response and layout.status == ANY_FAILURE:
            yield "frame.vbucket == 0"
        elif layout.is_response and layout.status != ANY_STATUS:
            yield f"frame.vbucket != {int(layout.status)}"

    def _reading_body(self) -> Iterator[str]:
        if self._fixed_value is not None:
            self.names["unpack_behind"] = self._fixed_value.struct.unpack
            yield from _leaving("    ", [f"len(value) != {self._fixed_value.struct.size}"])
            yield f"    {_targets(self._fixed_value.fields)} = unpack_behind(value)"
            yield from _leaving("    ", _disallowed(self._fixed_value.fields, "of_{}"))
        elif self._layout.body is not None:
            yield "    try:"
            if self._only_value is not None:
                yield f"        of_{self._only_value.name}, end = read_body(value, 0)"
            else:
                yield f"        body = read_body(value, {self._flags()})"
            yield "    except ValueError:"
            yield "        return None"
            yield from _leaving("    ", ["end != len(value)"] if self._only_value is not None else [])

    def _flags(self) -> str:
        return "of_flags or 0" if "flags" in {field.name for field in self._extras.fields} else "0"

    def _values(self) -> dict[str, str]:
        """Return the source expression for each field of a message, by the field's name."""
        layout = self._layout
        values = {name: f"default_{name}" for name in self._defaults}
        self.names |= {f"default_{name}": value for name, value in self._defaults.items()}
        values |= {"key": "key", "value": "value" if layout.body is None else "b''", "framing": "None"}
        values |= {name: f"frame.{name}" for name in ("opaque", "cas", "datatype")}
        if layout.is_response:
            values |= {"status": "frame.vbucket"} | ({} if layout.opcodes else {"opcode": "frame.opcode"})
        else:
            values |= {"vbucket": "frame.vbucket", "quiet": f"frame.opcode == {int(layout.quiet)}"}
        trailing = self._fixed_value.fields if self._fixed_value is not None else ()
        alone = () if self._only_value is None else (self._only_value,)
        return values | {each.name: f"of_{each.name}" for each in (*self._extras.fields, *trailing, *alone)}


def _fixed_value(layout: Layout) -> Shape | None:
    """Return the fields of the value, if they follow the extras directly and have one fixed form."""
    body = layout.body
    if not isinstance(body, Fixed) or len(body.shapes) != 1 or not layout.key.refuses(b"?"):
        return None
    (shape,) = body.shapes.values()
    return shape if shape.packs else None


def _only_value(layout: Layout) -> Field | None:
    """Return the only field of the value, whatever its form, such as a list of rows."""
    if not isinstance(layout.body, Running) or len(layout.body.fields) != 1:
        return None
    (field,) = layout.body.fields
    return None if field.when or field.only else field


def _targets(fields: Iterable[Field]) -> str:
    """Return the source of the left side of an assignment from an unpacked struct."""
    return f"({''.join(f'of_{field.name}, ' for field in fields)})"


def _wrong(name: str, presence: Presence) -> Iterator[str]:
    if presence.refuses(b"?"):
        yield name
    if presence.refuses(b""):
        yield f"not {name}"


def _making(values: Mapping[str, str], more_entries: Iterable[str] = ()) -> Iterator[str]:
    """Yield the source lines that return a message with these values."""
    yield "    message = new(cls)"
    yield "    fill(message, '__dict__', {"
    yield from (
        f"        {entry}," for entry in (*(f"{name!r}: {value}" for name, value in values.items()), *more_entries)
    )
    yield "    })"
    yield "    return message"


def _disallowed(fields: Iterable[Field], pattern: str) -> Iterator[str]:
    """Return the conditions, in source, for field values that belong to another version of the message."""
    return (f"{pattern.format(field.name)} not in {field.only!r}" for field in fields if field.only)


def _leaving(indent: str, conditions: Iterable[str]) -> Iterator[str]:
    """Yield the lines that return None, for the slow path, under any of the conditions."""
    if test := " or ".join(conditions):
        yield f"{indent}if {test}:"
        yield f"{indent}    return None"
