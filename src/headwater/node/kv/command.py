"""What a command may look like, who answers it, and how handlers say no.

A handler is a function of (session, frame) registered with its rules; the session checks the rules first (kv.md,
"Wrong ext length / missing or forbidden key or value / CAS set where forbidden: EINVAL"), so handlers only see
well-formed requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from headwater.wire.header import KEY_BYTES_MAX, VALUE_BYTES_MAX, Frame
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.kv.session import KvSession


@dataclass(frozen=True, slots=True)
class Reply:
    """What a handler answers; the session adds opcode, opaque and the gate."""

    status: int = Status.SUCCESS
    extras: bytes = b""
    key: bytes = b""
    value: bytes = b""
    datatype: int = 0
    cas: int = 0


class Refused(Exception):  # noqa: N818 - an answer, not an error of ours
    """The request is refused with a status; `context` may go to a client that understands error bodies."""

    def __init__(self, status: int, context: str = "", *, value: bytes = b"", datatype: int = 0) -> None:
        super().__init__(status, context)
        self.status = status
        self.context = context
        self.value = value
        self.datatype = datatype


class NoRoom(Exception):  # noqa: N818 - not an error: the request runs again after the commit
    """The staging arena can't take this request now."""


class Part(Enum):
    """Whether a section of the request must, must not or may be there."""

    REQUIRED = 1
    FORBIDDEN = 2
    ANY = 3


class Needs(Enum):
    """What a connection must have before it may send a command."""

    NOTHING = 1
    LOGIN = 2
    BUCKET = 3


Answer: TypeAlias = "Reply | list[Frame] | None"
Handler: TypeAlias = "Callable[[KvSession, Frame], Answer | Awaitable[Answer]]"


@dataclass(frozen=True, slots=True)
class Command:
    """A handler with the rules its requests must keep. `extras` holds the lengths allowed; None allows any."""

    handler: Handler
    extras: tuple[int, ...] | None
    key: Part
    value: Part
    cas: bool
    needs: Needs
    document: bool
    writes: bool

    def check(self, frame: Frame) -> None:
        """Raise Refused when the request breaks a rule."""
        if self.extras is not None and len(frame.extras) not in self.extras:
            allowed = " or ".join(map(str, self.extras))
            raise Refused(Status.EINVAL, f"extras are {len(frame.extras)} bytes, expected {allowed}")
        _check_part("key", frame.key, self.key)
        _check_part("value", frame.value, self.value)
        if frame.cas and not self.cas:
            raise Refused(Status.EINVAL, "a CAS is not allowed here")
        if self.document:
            if len(frame.key) > KEY_BYTES_MAX:
                raise Refused(Status.EINVAL, f"the key has {len(frame.key)} bytes, {KEY_BYTES_MAX} are allowed")
            if len(frame.value) > VALUE_BYTES_MAX:
                raise Refused(Status.E2BIG, f"the value has {len(frame.value)} bytes, {VALUE_BYTES_MAX} are allowed")


def _check_part(name: str, data: bytes, part: Part) -> None:
    if part is Part.REQUIRED and not data:
        raise Refused(Status.EINVAL, f"the {name} is missing")
    if part is Part.FORBIDDEN and data:
        raise Refused(Status.EINVAL, f"a {name} of {len(data)} bytes where none belongs")


COMMANDS: dict[int, Command] = {}


def command(
    *opcodes: int,
    extras: tuple[int, ...] | None = (0,),
    key: Part = Part.FORBIDDEN,
    value: Part = Part.FORBIDDEN,
    cas: bool = False,
    needs: Needs = Needs.BUCKET,
    document: bool = False,
    writes: bool = False,
) -> Callable[[Handler], Handler]:
    """Register the handler of the given opcodes (quiet forms are listed like the others).

    Args:
        document: the command names a key of a vbucket that must be active here (kv.md, "vbucket checks").
        writes: it stages records, so it is refused while the disk is full and waits while the arena is.
    """

    def register(handler: Handler) -> Handler:
        for opcode in opcodes:
            COMMANDS[opcode] = Command(handler, extras, key, value, cas, needs, document, writes)
        return handler

    return register
