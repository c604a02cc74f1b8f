"""Finds the message class of a frame: the dialects, and decoding by dialect.

The families share one space of opcodes, and versions of a message differ in the length of their extras, in the status
of their answer, or in a version number inside. So the decoder tries all candidates for a frame, in the dialect's order;
if none of them accepts it, the error lists what each expected.

`Dialect.AUTO` reads every dialect: for captures, and for a connection whose first stream request has not yet shown
which one the peer speaks (dcp.md 14).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import cache
from types import ModuleType

from headwater.errors import BadMessage
from headwater.wire import admin, bootstrap, dcp, documents, meta, scans, subdoc, tap, upr
from headwater.wire.failure import Failure
from headwater.wire.header import Frame, Magic
from headwater.wire.layout import Answer, Message, Request
from headwater.wire.opcodes import RETIRED, Opcode, name_of
from headwater.wire.status import Status

__all__ = ["Dialect", "answers_of", "decode", "messages", "requests"]

_MEMCACHED = (bootstrap, documents, subdoc, meta, scans, admin)


class Dialect(Enum):
    """A dialect: the families that it reads, the preferred one first."""

    KV = _MEMCACHED
    DCP = (dcp, *_MEMCACHED)
    UPR = (upr, dcp, *_MEMCACHED)
    TAP = (tap, *_MEMCACHED)
    AUTO = (dcp, upr, tap, *_MEMCACHED)


def messages(module: ModuleType) -> Iterator[type[Message]]:
    """Yield the message classes of a module, in their order."""
    for kind in vars(module).values():
        is_message = isinstance(kind, type) and issubclass(kind, Message) and kind.__module__ == module.__name__
        if is_message and (kind.layout.opcodes or issubclass(kind, Answer)):
            yield kind


def decode(source: Frame | bytes | bytearray | memoryview, dialect: Dialect = Dialect.AUTO) -> Message:
    """Read one message.

    Args:
        source: a frame, or the bytes of exactly one.
        dialect: the families to consider.

    Returns: a Request or Response of the dialect's modules. An answer has one of the classes that its request declares;
    an error without such a class is a Failure.

    Raises:
        BadFrame: the bytes are not one frame.
        BadMessage: no message of the dialect fits; its `status` is the one to answer with.
    """
    frame = source if isinstance(source, Frame) else Frame.decode(source)
    problems = []
    for candidate in _candidates(dialect, frame):
        try:
            return candidate.decode(frame)
        except BadMessage as problem:
            problems.append(problem)
    raise _refusal(frame, problems)


def _candidates(dialect: Dialect, frame: Frame) -> Iterator[type[Message]]:
    server = frame.magic in (Magic.SERVER_REQUEST, Magic.SERVER_RESPONSE)
    classes = _table(dialect).get((server, frame.is_response, frame.opcode), ())
    for each in classes:
        if not frame.is_response or each.layout.allows(frame.status):
            yield each
    if frame.is_response and frame.status != Status.SUCCESS:
        yield Failure


@cache
def _table(dialect: Dialect) -> dict[tuple[bool, bool, int], tuple[type[Message], ...]]:
    """Return the dialect's classes by (is a server's message, is a response, opcode)."""
    table: dict[tuple[bool, bool, int], dict[type[Message], None]] = {}
    for each in (message for module in dialect.value for message in messages(module)):
        server = each.layout.magic in (Magic.SERVER_REQUEST, Magic.SERVER_RESPONSE)
        for opcode in each.layout.opcodes:
            table.setdefault((server, each.layout.is_response, opcode), {})[each] = None
            for answer in answers_of(each):
                table.setdefault((server, True, opcode), {})[answer] = None
    return {place: tuple(classes) for place, classes in table.items()}


def requests(opcode: int) -> tuple[type[Request], ...]:
    """Return the requests of clients and of stream ends with an opcode, in all families and forms."""
    classes = _table(Dialect.AUTO).get((False, False, opcode), ())
    return tuple(each for each in classes if issubclass(each, Request))


def answers_of(request: type[Message]) -> Iterator[type[Message]]:
    """Yield the classes of answers that a request may get, besides Failure."""
    for answer in request.layout.answers:
        if issubclass(answer, Message):
            yield answer


def _refusal(frame: Frame, problems: list[BadMessage]) -> BadMessage:
    """Return one error, from those of all classes, for a frame that no class accepted."""
    if not problems:
        is_known = frame.opcode in RETIRED or frame.opcode in Opcode.__members__.values()
        status = Status.NOT_SUPPORTED if is_known else Status.UNKNOWN_COMMAND
        kind = "response" if frame.is_response else "request"
        return BadMessage(name_of(frame.opcode), frame.opcode, f"no such {kind} in this dialect", status)
    if len(problems) == 1:
        return problems[0]
    expectations = dict.fromkeys(problem.problem for problem in problems)
    return BadMessage(name_of(frame.opcode), frame.opcode, "; or ".join(expectations))
