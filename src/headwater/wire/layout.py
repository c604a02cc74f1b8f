"""A message is declared once, as a class; encoding, decoding, reference pages and random examples read the table.

    class Mutation(Request, opcode=Opcode.DCP_MUTATION, key=REQUIRED, value=OPTIONAL):
        \"\"\"A document was stored; never answered. Source: DCP, commands/mutation.md.\"\"\"

        by_seqno: u64 = about("place of this change in the vbucket's history")

The fields, in wire order, are the message's extras; `where=VALUE` puts a field into the value. Fields that every
message has (vbucket or status, opaque, cas, datatype, framing, key, value) come from `Request` and `Response`. A
request also declares `answer=` the classes of its answers, `quiet=` the opcode of its quiet form and `silent=` the
status that this form does not answer, `cas=` True if it may carry a CAS.

Classes are frozen dataclasses with keyword arguments only, also for type checkers (`dataclass_transform`): a forgotten
or mistyped field is a type error.

Decoding loses no bit of a frame: `Class.decode(data).encode() == data` for all data that is accepted.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

from headwater.errors import LocalProtocolError
from headwater.wire.codec import i64, u8, u16, u24, u32, u56, u64
from headwater.wire.compiled import short_of
from headwater.wire.declare import (
    ANY_FAILURE,
    ANY_STATUS,
    ENGINE,
    EXTRAS,
    FORBIDDEN,
    NO_OPCODE,
    OPTIONAL,
    REQUIRED,
    VALUE,
    Declared,
    Layout,
    Presence,
    Short,
    about,
    measured,
)
from headwater.wire.header import FLEXIBLE, Frame, Magic

__all__ = ["ANY_FAILURE", "ANY_STATUS", "ENGINE", "EXTRAS", "FORBIDDEN", "NO_OPCODE", "OPTIONAL", "REQUIRED", "VALUE"]
__all__ += ["Answer", "Done", "Layout", "Message", "Presence", "Request", "Response", "about", "measured"]
__all__ += ["i64", "u8", "u16", "u24", "u32", "u56", "u64"]


class Message(Declared):
    """Any message: a Request or a Response."""

    opaque: int = 0
    cas: int = 0
    datatype: int = 0
    framing: bytes | None = None
    key: bytes = b""
    value: bytes = b""

    def encode(self) -> bytes:
        """Return the message's bytes; LocalProtocolError if a field does not fit the wire."""
        if self.framing is None:
            short = self._short or self._shorten()
            data = short.write(self.__dict__, self._opcode(), self.opaque)
            if data is not None:
                return data
        return self.frame().encode()

    def frame(self) -> Frame:
        """Return the message as a frame; a flexible one if `framing` is not None."""
        extras, key, value = self._sections()
        return Frame(
            magic=self._magic(),
            opcode=self._opcode(),
            key=key,
            extras=extras,
            value=value,
            datatype=self.datatype,
            vbucket=self._vbucket_or_status(),
            opaque=self.opaque,
            cas=self.cas,
            framing=self.framing or b"",
        )

    @classmethod
    def decode(cls, source: Frame | bytes | bytearray | memoryview) -> Self:
        """Read one message from a frame, or from the bytes of exactly one frame.

        Raises:
            BadFrame: the bytes are not one frame.
            BadMessage: the frame does not contain this message; the error names the difference.
        """
        frame = source if isinstance(source, Frame) else Frame.decode(source)
        short = cls._short or cls._shorten()
        message: Self | None = short.read(frame)
        return cls._decode(frame) if message is None else message

    @classmethod
    def _decode(cls, frame: Frame) -> Self:
        """Read a frame by the table: the slow path, which raises the exact error."""
        layout = cls.layout
        if frame.magic not in layout.magics or (layout.opcodes and frame.opcode not in layout.opcodes):
            difference = f"a frame with magic 0x{frame.magic:02x} and opcode 0x{frame.opcode:02x} is not this message"
            raise layout.bad(frame.opcode, difference)
        if layout.is_response and not layout.allows(frame.status):
            expected = "which is no failure" if layout.status == ANY_FAILURE else f"expected 0x{layout.status:02x}"
            raise layout.bad(frame.opcode, f"status is 0x{frame.status:02x}, {expected}")
        message = cls.__new__(cls)
        values = message.__dict__
        values.update(cls._defaults)
        try:
            cls._read(frame, values)
        except ValueError as error:
            raise layout.bad(frame.opcode, error) from None
        if layout.engine:
            message.__post_init__()
        return message

    @classmethod
    def _shorten(cls) -> Short:
        """Compile the fast paths of this class, on first use."""
        cls._short = short_of(cls, cls._defaults)
        return cls._short

    @classmethod
    def _read(cls, frame: Frame, values: dict[str, Any]) -> None:
        """Read the sections of a frame into `values`; ValueError if the frame does not fit the table."""
        layout = cls.layout
        values.update(layout.extras.read(frame.extras, 0))
        key, value = frame.key, frame.value
        if layout.engine:
            values["engine_specific"], key, value = _split_engine(frame, values.pop("engine_len"))
        if layout.key.refuses(key):
            raise _unexpected("key", key)
        if layout.body:
            values.update(layout.body.read(value, values.get("flags") or 0))
            value = b""
        elif layout.value.refuses(value):
            raise _unexpected("value", value)
        values["opaque"], values["cas"], values["datatype"] = frame.opaque, frame.cas, frame.datatype
        values["key"], values["value"] = key, value
        if frame.magic in FLEXIBLE:
            values["framing"] = frame.framing
        if not layout.is_response:
            values["vbucket"], values["quiet"] = frame.vbucket, frame.opcode == layout.quiet
        else:
            values["status"] = frame.status
            if layout.opcode == NO_OPCODE:
                values["opcode"] = frame.opcode

    def _sections(self) -> tuple[bytes, bytes, bytes]:
        """Return the bytes of extras, key and value; LocalProtocolError if they can't be encoded."""
        layout = self.layout
        try:
            extras = layout.extras.write(self.__dict__)
            value = layout.body.write(self.__dict__) if layout.body else self.value
        except ValueError as error:
            raise LocalProtocolError(f"{layout.name}: {error}") from None
        if layout.key.refuses(self.key):
            raise self._unfit("key", self.key)
        if (FORBIDDEN if layout.body else layout.value).refuses(self.value):
            raise self._unfit("value", self.value)
        key, value = self._behind_engine(value) if layout.engine else (self.key, value)
        return extras, key, value

    def _unfit(self, name: str, data: bytes) -> LocalProtocolError:
        expected = "has none" if data else "needs one"
        return LocalProtocolError(f"{self.layout.name}: a {name} of {len(data)} bytes; this message {expected}")

    def _behind_engine(self, value: bytes) -> tuple[bytes, bytes]:
        """Return the key and value sections of a frame, with TAP's engine-private bytes in front."""
        body: bytes = self.__dict__["engine_specific"] + self.key + value
        return body[: len(self.key)], body[len(self.key) :]

    def _magic(self) -> int:
        if self.framing is None:
            return self.layout.magic
        return Magic.FLEXIBLE_RESPONSE if self.layout.is_response else Magic.FLEXIBLE_REQUEST

    def _opcode(self) -> int:
        return self.layout.opcode

    def _vbucket_or_status(self) -> int:
        return 0

    def __post_init__(self) -> None:
        if self.layout.engine:
            self.__dict__["engine_len"] = len(self.__dict__["engine_specific"])

    def __repr__(self) -> str:
        set_fields = (f for f in dataclasses.fields(self) if getattr(self, f.name) != f.default)
        return f"{type(self).__name__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in set_fields)})"


class Request(Message, magic=Magic.CLIENT_REQUEST):
    """A request: header bytes 6-7 are a vbucket.

    `quiet` is True for the quiet form, whose usual answer is not sent.
    """

    vbucket: int = 0
    quiet: bool = False

    @classmethod
    def encode_plain(cls, vbucket: int, opaque: int, *numbers: int) -> bytes:
        """Return the bytes of a plain message (compiled.py) without creating a message; `numbers` are its own fields,
        in order.

        Raises:
            LocalProtocolError: a number does not fit the wire.
        """
        short = cls._short or cls._shorten()
        data = short.write_plain(vbucket, opaque, numbers)
        if data is not None:
            return data
        own_fields: dict[str, Any] = dict(zip((field.name for field in cls.layout.fields), numbers, strict=True))
        return cls(vbucket=vbucket, opaque=opaque, **own_fields).encode()

    @classmethod
    def read_plain(cls, data: bytes | bytearray | memoryview, offset: int) -> Self | None:
        """Return the plain message (compiled.py) at `offset`; None if the frame there is not plain, or not this
        message.
        """
        short = cls._short or cls._shorten()
        message: Self | None = short.read_plain(data, offset)
        return message

    def _vbucket_or_status(self) -> int:
        return self.vbucket

    def _opcode(self) -> int:
        layout = self.layout
        if self.quiet and layout.quiet == NO_OPCODE:
            raise LocalProtocolError(f"{layout.name} has no quiet form")
        return layout.quiet if self.quiet else layout.opcode


class Response(Message, magic=Magic.CLIENT_RESPONSE):
    """A response: header bytes 6-7 are a status."""

    status: int = 0

    def _vbucket_or_status(self) -> int:
        return self.status


class Answer(Response):
    """A response that several requests may share: its opcode is the request's."""

    opcode: int = NO_OPCODE

    def answering(self, request: Frame) -> bytes:
        """Return the bytes of this answer to a client's request: the same opcode and opaque, no framing extras."""
        short = self._short or self._shorten()
        data = short.write(self.__dict__, request.opcode, request.opaque)
        if data is not None:
            return data
        return self._frame_for(request).encode()

    def answering_apart(self, request: Frame) -> tuple[bytes, bytes]:
        """Return the head and the value of this answer as two byte strings, so that a large value is not copied."""
        frame = self._frame_for(request)
        return frame.head(), frame.value

    def _frame_for(self, request: Frame) -> Frame:
        header = {"opcode": request.opcode, "opaque": request.opaque, "magic": Magic.CLIENT_RESPONSE, "framing": b""}
        return dataclasses.replace(self.frame(), **header)  # type: ignore[arg-type]

    def _opcode(self) -> int:
        return self.opcode


class Done(Answer):
    """Success without extras, key or value."""


def _unexpected(section: str, data: bytes) -> ValueError:
    expected = "none is expected" if data else "one is required"
    return ValueError(f"the {section} is {len(data)} bytes, {expected}")


def _split_engine(frame: Frame, engine_len: int) -> tuple[bytes, bytes, bytes]:
    """Split the bytes after the extras into TAP's engine-private section, key and value (tap.md 2).

    In the frame the engine-private section shifts the three: together they are the frame's key and value, and the key
    has the header's length. A value of 20 MiB is copied at most once, and not at all without engine-private bytes.
    """
    if engine_len > len(frame.value):
        size = len(frame.key) + len(frame.value)
        raise ValueError(f"engine-private part of {engine_len} bytes and key of {len(frame.key)} in {size}")
    front = frame.key + frame.value[:engine_len]
    return front[:engine_len], front[engine_len:], frame.value[engine_len:]
