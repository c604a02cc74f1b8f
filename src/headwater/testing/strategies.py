"""Random messages for hypothesis, made from the same declarations as the codec.

    @given(message_of(dcp.Mutation))       any message of one class
    @given(any_message())                  any message of any class

Numbers take their whole range, optional fields come and go in every legal combination, byte strings stay short.
Hypothesis is imported here only; the package runs without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar

from hypothesis import strategies as st

from headwater.wire import admin, bootstrap, dcp, documents, meta, tap, upr
from headwater.wire.codec import Codec, Counted, Number, Prefixed, RowsCodec, Tail
from headwater.wire.dialect import messages
from headwater.wire.failure import Failure
from headwater.wire.framing import FrameInfo, encode_framing
from headwater.wire.header import Frame, Magic
from headwater.wire.layout import FORBIDDEN, NO_OPCODE, REQUIRED, Answer, Done, Message, Presence
from headwater.wire.records import CacheItem
from headwater.wire.sections import Field, Fixed, Section

__all__ = ["FAMILIES", "any_class", "any_message", "cut", "frames", "message_of"]

FAMILIES = (dcp, upr, tap, bootstrap, documents, meta, admin)

AnyMessage = TypeVar("AnyMessage", bound=Message)

_BYTES_MAX = 40
_U8, _U16 = st.integers(0, 0xFF), st.integers(0, 0xFFFF)
_U32, _U64 = st.integers(0, 0xFFFF_FFFF), st.integers(0, 0xFFFF_FFFF_FFFF_FFFF)


def any_class() -> list[type[Message]]:
    """Return every declared message class of every family, and the answers that all families share."""
    return [*(message for family in FAMILIES for message in messages(family)), Done, Failure]


def any_message() -> st.SearchStrategy[Message]:
    """Generate a message of any class."""
    return st.sampled_from(any_class()).flatmap(message_of)


def message_of(cls: type[AnyMessage]) -> st.SearchStrategy[AnyMessage]:
    """Generate a message of one class with legal fields."""
    layout = cls.layout
    counted = {field.name for field in dataclasses.fields(cls) if not field.init}

    @st.composite
    def build(draw: st.DrawFn) -> AnyMessage:
        values = draw(_section(layout.extras))
        values |= draw(_section(layout.body, values.get("flags") or 0)) if layout.body else {}
        values |= draw(_header(cls))
        if layout.engine:
            values["engine_specific"] = draw(st.binary(max_size=_BYTES_MAX))
        return cls(**{name: value for name, value in values.items() if name not in counted})

    return build()


def _section(section: Section, flags: int = 0) -> st.SearchStrategy[dict[str, Any]]:
    """Generate the fields of a section, as keyword arguments; None for absent ones."""
    if isinstance(section, Fixed):
        absent = {field.name: None for field in section.fields}
        shapes = st.sampled_from([shape.fields for shape in section.shapes.values()])
        return shapes.flatmap(_fields).map(lambda values: absent | values)
    present = [field for field in section.fields if not field.when or flags & field.when]
    absent = {field.name: None for field in section.fields if field not in present}
    return _fields(present).map(lambda values: absent | _without_gaps(present, values))


def _fields(fields: Iterable[Field]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({field.name: _value(field) for field in fields})


def _without_gaps(present: Iterable[Field], values: dict[str, Any]) -> dict[str, Any]:
    """Set every optional field at the section's end to None that follows a missing one; return `values`."""
    is_missing = False
    for each in present:
        is_missing = is_missing or values[each.name] is None
        values[each.name] = None if is_missing else values[each.name]
    return values


def _value(field: Field) -> st.SearchStrategy[Any]:
    return st.sampled_from(field.only) if field.only else _coded(field.codec)


def _coded(codec: Codec) -> st.SearchStrategy[Any]:
    """Generate a value that a codec can write."""
    if isinstance(codec, Number):
        return st.integers(codec.lowest, codec.highest)
    if isinstance(codec, Tail):
        return st.none() | _coded(codec.codec)
    if isinstance(codec, Counted):
        return _coded(codec.rows)
    if isinstance(codec, RowsCodec):
        cells = [_coded(column) for _, column in codec.columns]
        row: st.SearchStrategy[Any] = cells[0] if len(cells) == 1 else st.tuples(*cells)
        return st.lists(row, min_size=codec.rows_min, max_size=4)
    if isinstance(codec, Prefixed):
        return st.binary(max_size=_BYTES_MAX)
    return st.lists(_cache_item(), max_size=3)


def _cache_item() -> st.SearchStrategy[CacheItem]:
    data = st.binary(max_size=_BYTES_MAX)
    return st.builds(CacheItem, _U64, _U64, _U64, _U32, _U32, _U8, _U8, data, data)


def _header(cls: type[Message]) -> st.SearchStrategy[dict[str, Any]]:
    """Generate the fields that every message has."""
    layout = cls.layout
    flexible = layout.magic in (Magic.CLIENT_REQUEST, Magic.CLIENT_RESPONSE)
    strategies: dict[str, st.SearchStrategy[Any]] = {
        "opaque": _U32,
        "cas": _U64,
        "datatype": st.integers(0, 7),
        "framing": st.none() | _framing() if flexible else st.none(),
        "key": _bytes(layout.key),
        "value": _bytes(FORBIDDEN if layout.body else layout.value),
    }
    if not layout.is_response:
        strategies["vbucket"] = _U16
        strategies["quiet"] = st.booleans() if layout.quiet != NO_OPCODE else st.just(False)
    else:
        strategies["status"] = st.just(layout.status) if layout.status >= 0 else st.integers(1, 0xFFFF)
    if issubclass(cls, Answer):
        strategies["opcode"] = _U8 if cls is Failure else st.sampled_from(_asked_with(cls))
    return st.fixed_dictionaries(strategies)


def _asked_with(answer: type[Message]) -> list[int]:
    """Return the opcodes of the requests that can have this answer."""
    requests = (message for family in FAMILIES for message in messages(family))
    return sorted(
        {opcode for request in requests if answer in request.layout.answers for opcode in request.layout.opcodes}
    )


def _bytes(presence: Presence) -> st.SearchStrategy[bytes]:
    if presence is FORBIDDEN:
        return st.just(b"")
    return st.binary(min_size=presence is REQUIRED, max_size=_BYTES_MAX)


def _framing() -> st.SearchStrategy[bytes]:
    info = st.builds(FrameInfo, st.integers(0, 270), st.binary(max_size=_BYTES_MAX))
    return st.lists(info, max_size=3).map(encode_framing)


def frames() -> st.SearchStrategy[Frame]:
    """Generate frames with any opcode and any sections, most of them not a message."""
    data = st.binary(max_size=_BYTES_MAX)
    return st.builds(
        Frame,
        magic=st.sampled_from([0x80, 0x81, 0x82, 0x83]),
        opcode=_U8,
        key=data,
        extras=data,
        value=data,
        datatype=_U8,
        vbucket=_U16,
        opaque=_U32,
        cas=_U64,
    ) | any_message().map(lambda message: message.frame())


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """Return `data` in pieces, cut at these offsets (taken modulo its length), as a network would deliver it."""
    ends = sorted({place % (len(data) + 1) for place in places})
    return [data[start:end] for start, end in zip([0, *ends], [*ends, len(data)], strict=True)]
