"""The table from requests to the handlers that answer them.

A handler is a function of (session, request), registered for requests that `headwater.wire` declares. The session
decodes a frame by that declaration before it calls the handler (kv.md, "Wrong ext length / missing or forbidden key or
value / CAS set where forbidden: EINVAL"), so handlers get well-formed requests only. A handler returns a declared
answer, which the session sends with the request's opcode and opaque.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from headwater.errors import BadMessage
from headwater.node.kv.rights import Rule, rule_of
from headwater.node.refused import CommandRefused
from headwater.wire import dialect
from headwater.wire.header import KEY_BYTES_MAX, VALUE_BYTES_MAX, Frame
from headwater.wire.layout import Answer, Request
from headwater.wire.opcodes import RETIRED, Opcode
from headwater.wire.privilege import LOGIN
from headwater.wire.sections import Fixed
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.kv.api import Session


Answers: TypeAlias = Answer | Sequence[Answer] | Iterator[Answer] | None
"""The result of a handler: one answer, no answer, several answers, or an iterator that creates answers while earlier
ones are sent."""

VALUE_BYTES_ELSEWHERE = 1 << 20
"""The longest value of a request that is not about a document, because the event loop's thread reads it."""
Handler: TypeAlias = "Callable[[Session, Any], Answers | Awaitable[Answers]]"
Registered = TypeVar("Registered", bound="Callable[[Session, Any], Any]")


@dataclass(frozen=True, slots=True)
class Command:
    """A handler and the forms of its requests.

    Attributes:
        handler: the function that answers the requests.
        forms: the declared requests; if empty, the handler gets undecoded frames.
        rule: the privileges that the sender needs, in the selected bucket unless other attributes say otherwise.
        document: True if the command names a document; the privileges must be in the document's collection.
        writes: True if the command stages records.
        frees: True if the command may use the room that the store reserves on a full disk.
        value_bytes_max: the longest value.
        of_node: True if the command concerns the node, and the privileges must be in all buckets.
        anywhere: True if the privileges in any part of the bucket are enough.
        lasts: True if the handler runs to its end even if its client disconnects.
    """

    handler: Handler
    forms: tuple[type[Request], ...]
    rule: Rule
    document: bool
    writes: bool
    frees: bool = False
    value_bytes_max: int = 1 << 20
    of_node: bool = False
    anywhere: bool = False
    lasts: bool = False
    silent: Mapping[int, int] = field(init=False)
    """The status of answers that are omitted, by the opcode of a quiet form (kv.md, "Quiet forms")."""
    needs_bucket: bool = field(init=False)
    """True if a connection must have selected a bucket: all commands of a bucket that need more than a login."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "silent", {form.layout.quiet: form.layout.silent for form in self.forms})
        needs_bucket = self.rule.privilege > LOGIN or bool(self.rule.cases)
        object.__setattr__(self, "needs_bucket", needs_bucket and not self.of_node)

    def read(self, frame: Frame) -> Request | Frame:
        """Return the request in a frame, or the frame itself if there are no forms.

        Raises:
            CommandRefused: the frame breaks a rule of the request's declaration.
        """
        if not self.forms:
            return frame
        if len(frame.value) > self.value_bytes_max:  # before the value is decoded
            raise CommandRefused(
                Status.E2BIG, f"the value has {len(frame.value)} bytes, {self.value_bytes_max} are allowed"
            )
        form = self.forms[0] if len(self.forms) == 1 else self._form_of(frame)
        try:
            request = form.decode(frame)
        except BadMessage as bad:
            raise CommandRefused(Status.EINVAL, bad.problem) from None
        if frame.cas and not form.layout.cas:
            raise CommandRefused(Status.EINVAL, "a CAS is not allowed here")
        if self.document and len(frame.key) > KEY_BYTES_MAX:
            raise CommandRefused(Status.EINVAL, f"the key has {len(frame.key)} bytes, {KEY_BYTES_MAX} are allowed")
        return request

    def loud(self, opcode: int) -> int:
        """Return the opcode of the loud form of a request, given the opcode of its loud or quiet form."""
        return next((form.layout.opcode for form in self.forms if opcode == form.layout.quiet), opcode)

    def _form_of(self, frame: Frame) -> type[Request]:
        """Return the form whose extras have the length of the frame's extras. Old clients send the same request with
        extras of other lengths.
        """
        for form in self.forms:
            if isinstance(form.layout.extras, Fixed) and len(frame.extras) in form.layout.extras.shapes:
                return form
        return self.forms[0]


COMMANDS: dict[int, Command] = {}
_KNOWN = frozenset(int(opcode) for opcode in Opcode) | RETIRED


def refusal_of(opcode: int) -> int:
    """Return the status with which to refuse a request without a handler: the status in its declaration; without a
    declaration, NOT_SUPPORTED for a known opcode and UNKNOWN_COMMAND for any other.
    """
    declared = (request.layout.refused for request in dialect.requests(opcode))
    return next(filter(None, declared), Status.NOT_SUPPORTED if opcode in _KNOWN else Status.UNKNOWN_COMMAND)


def handles(
    *requests: type[Request],
    document: bool = False,
    writes: bool = False,
    frees: bool = False,
    value_bytes_max: int = 0,
    of_node: bool = False,
    anywhere: bool = False,
    lasts: bool = False,
) -> Callable[[Registered], Registered]:
    """Register the handler of declared requests, loud and quiet. Requests with the same opcode are forms of one
    request.

    Args:
        requests: the declared requests.
        document: the command names a key of a vbucket that must be active here (kv.md, "vbucket checks").
        writes: the command stages records, so it is refused while the disk is full, and waits while the arena is full.
        frees: the command leads to a smaller log, or changes ownership, so it may use the room that the store reserves
            on a full disk.
        of_node: the command concerns the node, not one bucket, so it needs its rights in all buckets.
        anywhere: the command reveals nothing of documents, so its rights in any one scope or collection are enough.
        lasts: the command makes several changes, so it runs to its end even if its client disconnects.
        value_bytes_max: the longest value in bytes; 0 for the limit of documents, or VALUE_BYTES_ELSEWHERE for commands
            that are not about a document.

    Raises:
        TypeError: a request is declared as refused.
    """

    if refused := [request.__name__ for request in requests if request.layout.refused]:
        raise TypeError(f"{', '.join(refused)}: declared as refused, and yet there is a handler")
    most = value_bytes_max or (VALUE_BYTES_MAX if document else VALUE_BYTES_ELSEWHERE)

    def register(handler: Registered) -> Registered:
        for opcode in {opcode for request in requests for opcode in request.layout.opcodes}:
            forms = tuple(request for request in requests if opcode in request.layout.opcodes)
            COMMANDS[opcode] = Command(
                handler, forms, rule_of(opcode), document, writes, frees, most, of_node, anywhere, lasts
            )
        return handler

    return register


def passes(*opcodes: int, anywhere: bool = False) -> Callable[[Registered], Registered]:
    """Register a handler that gets undecoded frames, for a protocol object of headwater.protocol.

    Args:
        opcodes: the opcodes of the frames.
        anywhere: as for `handles`.
    """

    def register(handler: Registered) -> Registered:
        for opcode in opcodes:
            COMMANDS[opcode] = Command(
                handler, (), rule_of(opcode), document=False, writes=False, value_bytes_max=0, anywhere=anywhere
            )
        return handler

    return register
