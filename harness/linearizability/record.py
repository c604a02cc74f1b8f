"""A history: the clients' requests, the answers and their times, and the faults that could explain an answer.

    recorder = Recorder()
    number = recorder.asked(1, "k", Kind.SET, Argument(value="v"), called=0.10)
    recorder.answered(number, result_of(status, cas=7), at=0.12)
    recorder.fault(FaultKind.FAILOVER, began=0.2, ended=0.4)
    history = recorder.history()
    for line in to_lines(history): ...          # JSON lines, which both judges read

Times are arguments, in Unix seconds of one clock that all clients of a history share. An operation without an answer,
or with one that leaves open whether it happened, is a "maybe": it may take effect at any time after its request, or
never. Keys and values are text here; `text_of` converts bytes.

An expiry is recorded as the Unix second that was sent. `History.clock_error_seconds` is the largest difference between
a node's clock and that of the history, including the rounding to whole seconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import IntEnum, StrEnum
from typing import Any

from headwater.wire.status import Status

__all__ = [
    "Argument",
    "Fault",
    "FaultKind",
    "History",
    "Kind",
    "Level",
    "Operation",
    "Outcome",
    "Recorder",
    "Result",
    "from_lines",
    "outcome_of",
    "result_of",
    "text_of",
    "to_lines",
]

CAS_OF_LOCKED = 0xFFFF_FFFF_FFFF_FFFF
"""GET returns this value in place of a locked document's CAS. Source: kv.md 2, "Locked document"."""
CLOCK_ERROR_SECONDS = 1.5


class Kind(StrEnum):
    """The operations on a document."""

    GET = "get"
    SET = "set"
    ADD = "add"
    REPLACE = "replace"
    DELETE = "delete"
    APPEND = "append"
    INCREMENT = "increment"
    DECREMENT = "decrement"
    TOUCH = "touch"
    GET_AND_TOUCH = "get_and_touch"
    GET_AND_LOCK = "get_and_lock"
    UNLOCK = "unlock"


class Level(IntEnum):
    """How many copies must have a change before it is answered; numbered as on the wire (wire.md 1.4)."""

    NONE = 0
    MAJORITY = 1
    MAJORITY_AND_PERSIST_ON_ACTIVE = 2
    PERSIST_TO_MAJORITY = 3


class Outcome(StrEnum):
    """The outcome of an operation, as its client knows it."""

    DONE = "done"
    MISSING = "missing"  # there is no such document
    EXISTS = "exists"  # an ADD met a document, or a CAS is not the document's
    LOCKED = "locked"  # another client's lock, or a token that is not the lock's
    NOT_LOCKED = "not_locked"
    NOT_STORED = "not_stored"  # APPEND to a document that is not there
    NOT_A_NUMBER = "not_a_number"
    REFUSED = "refused"  # before anything was done: it did not happen and never will
    MAYBE = "maybe"  # a time-out, a lost connection, SYNC_WRITE_AMBIGUOUS: it happened, will happen, or never does


class FaultKind(StrEnum):
    """Faults that change which answers are possible."""

    RESTART = "restart"  # a process was killed, and is started again: locks are forgotten
    MOVE = "move"  # vbuckets change hands in order: locks are forgotten
    FAILOVER = "failover"  # a replica was promoted: locks and the newest plain writes are forgotten


@dataclass(frozen=True, slots=True)
class Argument:
    """The parts of a request.

    Attributes:
        value: the value to store, or to append.
        cas: 0 for any; of UNLOCK, and of changes of a locked document, the token.
        expiry: Unix seconds, 0 for never; ignored for a counter that exists.
        delta, initial: of counters; initial None: the counter must exist.
        seconds: of a lock, 0 for the node's own default, which is 15.
        level: NONE is a plain write.
    """

    value: str = ""
    cas: int = 0
    expiry: int = 0
    delta: int = 0
    initial: int | None = None
    seconds: int = 0
    level: Level = Level.NONE


@dataclass(frozen=True, slots=True)
class Result:
    """The parts of an answer.

    Attributes:
        value: the value that was read, or the counter's new value in decimal digits; None if the answer has none.
        cas: of the document, or the token of a lock; 0 if the answer has none.
        is_locked: True if a read showed that the document is locked (it has no CAS then).
        vb_uuid, seqno: of a change; 0 if the answer has none.
        node: the node that answered, if known. text: for people.
    """

    outcome: Outcome
    value: str | None = None
    cas: int = 0
    is_locked: bool = False
    vb_uuid: int = 0
    seqno: int = 0
    node: str = ""
    text: str = ""


UNANSWERED = Result(Outcome.MAYBE)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of one client on one key. `answered` is None if no answer came."""

    client: int
    key: str
    kind: Kind
    argument: Argument
    result: Result
    called: float
    answered: float | None

    @property
    def outcome(self) -> Outcome:
        """The outcome of the operation, as its client knows it."""
        return self.result.outcome

    @property
    def end(self) -> float:
        """The time after which it has no effect; infinite for a "maybe", even if an answer came."""
        return math.inf if self.answered is None or self.outcome is Outcome.MAYBE else self.answered

    @property
    def is_read(self) -> bool:
        """True if it changes nothing."""
        return self.kind is Kind.GET


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: its effect on each key, if any, is at one moment between `began` and `ended`.

    Attributes:
        ended: None if the effect may still come.
        keys: the keys that it can concern; None for all.
    """

    kind: FaultKind
    began: float
    ended: float | None = None
    keys: tuple[str, ...] | None = None
    text: str = ""

    @property
    def end(self) -> float:
        """The time after which it has no effect."""
        return math.inf if self.ended is None else self.ended

    def concerns(self, key: str) -> bool:
        """Return True if it can have an effect on a key."""
        return self.keys is None or key in self.keys


@dataclass(frozen=True, slots=True)
class History:
    """All operations and faults, in the order of their requests."""

    operations: tuple[Operation, ...] = ()
    faults: tuple[Fault, ...] = ()
    clock_error_seconds: float = CLOCK_ERROR_SECONDS

    @property
    def keys(self) -> list[str]:
        """The keys that operations are on, sorted."""
        return sorted({operation.key for operation in self.operations})

    def of(self, key: str) -> History:
        """Return the part of one key."""
        return replace(
            self,
            operations=tuple(operation for operation in self.operations if operation.key == key),
            faults=tuple(fault for fault in self.faults if fault.concerns(key)),
        )


class Recorder:
    """A recorder of operations while they are in progress.

    Not for several threads at once, unless `asked`, `answered` and `fault` are called under one lock.
    """

    def __init__(self, clock_error_seconds: float = CLOCK_ERROR_SECONDS) -> None:
        self._operations: list[Operation] = []
        self._faults: list[Fault] = []
        self._clock_error_seconds = clock_error_seconds

    def __len__(self) -> int:
        return len(self._operations)

    def asked(self, client: int, key: str, kind: Kind, argument: Argument, *, called: float) -> int:
        """Record that a client is about to send a request; return the number for `answered`."""
        self._operations.append(Operation(client, key, kind, argument, UNANSWERED, called, None))
        return len(self._operations) - 1

    def answered(self, number: int, result: Result, *, at: float) -> None:
        """Record an answer, or that none will come."""
        self._operations[number] = replace(self._operations[number], result=result, answered=at)

    def fault(
        self, kind: FaultKind, *, began: float, ended: float | None, keys: tuple[str, ...] | None = None, text: str = ""
    ) -> None:
        """Record a fault that changes which answers are possible."""
        self._faults.append(Fault(kind, began, ended, keys, text))

    def history(self) -> History:
        """Return the history up to now; operations without an answer yet are "maybes"."""
        return History(tuple(self._operations), tuple(self._faults), self._clock_error_seconds)


# --- answers as nodes give them ---------------------------------------------------------------------------------------

_ANSWERS: dict[int, Outcome] = {
    Status.SUCCESS: Outcome.DONE,
    Status.KEY_ENOENT: Outcome.MISSING,
    Status.KEY_EEXISTS: Outcome.EXISTS,
    Status.NOT_STORED: Outcome.NOT_STORED,
    Status.DELTA_BADVAL: Outcome.NOT_A_NUMBER,
    Status.LOCKED: Outcome.LOCKED,
    Status.NOT_LOCKED: Outcome.NOT_LOCKED,
}
_REFUSALS = frozenset(
    (
        Status.NOT_MY_VBUCKET,
        Status.ETMPFAIL,
        Status.EBUSY,
        Status.ENOMEM,
        Status.EINVAL,
        Status.E2BIG,
        Status.NOT_SUPPORTED,
        Status.UNKNOWN_COMMAND,
        Status.UNKNOWN_COLLECTION,
        Status.NO_BUCKET,
        Status.EACCESS,
        Status.AUTH_ERROR,
        Status.DURABILITY_INVALID_LEVEL,
        Status.DURABILITY_IMPOSSIBLE,
        Status.SYNC_WRITE_IN_PROGRESS,
        Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS,
    )
)
_OUTCOMES: dict[int, Outcome] = {**_ANSWERS, **dict.fromkeys(_REFUSALS, Outcome.REFUSED)}


def outcome_of(status: int) -> Outcome:
    """Return the outcome of an answer with this status, on a connection with XERROR; a status without a meaning is a
    "maybe".
    """
    return _OUTCOMES.get(status, Outcome.MAYBE)


def result_of(
    status: int, *, value: str | None = None, cas: int = 0, vb_uuid: int = 0, seqno: int = 0, node: str = ""
) -> Result:
    """Return an answer's parts; a CAS that stands for "locked" becomes `is_locked`."""
    outcome = outcome_of(status)
    if outcome is not Outcome.DONE:
        return Result(outcome, node=node, text=f"0x{status:02x}")
    is_locked = cas == CAS_OF_LOCKED
    return Result(outcome, value, 0 if is_locked else cas, is_locked, vb_uuid, seqno, node)


def text_of(data: bytes) -> str:
    """Return bytes as text, one character a byte: no two of them become the same."""
    return data.decode("latin-1")


# --- lines ------------------------------------------------------------------------------------------------------------


def to_lines(history: History) -> Iterator[str]:
    """Yield a history as JSON objects, one a line: first the clock, then operations and faults. Defaults are left
    out.
    """
    yield json.dumps({"clock_error_seconds": history.clock_error_seconds})
    for operation in history.operations:
        head = {"client": operation.client, "key": operation.key, "kind": operation.kind, "called": operation.called}
        yield json.dumps(
            head
            | {
                "answered": operation.answered,
                **_without_defaults(operation.argument),
                "result": _without_defaults(operation.result),
            }
        )
    for fault in history.faults:
        yield json.dumps({"fault": fault.kind} | {k: v for k, v in _without_defaults(fault).items() if k != "kind"})


def _without_defaults(part: Argument | Result | Fault) -> dict[str, Any]:
    values = ((field.name, getattr(part, field.name), field.default) for field in fields(part))
    return {name: value for name, value, default in values if default is MISSING or value != default}


@dataclass(slots=True)
class _Read:
    operations: list[Operation] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    clock_error_seconds: float = CLOCK_ERROR_SECONDS

    def line(self, found: dict[str, Any]) -> None:
        if "clock_error_seconds" in found:
            self.clock_error_seconds = float(found["clock_error_seconds"])
        elif "fault" in found:
            keys = found.pop("keys", None)
            kind = FaultKind(found.pop("fault"))
            self.faults.append(Fault(kind, keys=None if keys is None else tuple(keys), **found))
        else:
            self.operations.append(_operation(found))


def _operation(found: dict[str, Any]) -> Operation:
    head = [found.pop(name) for name in ("client", "key", "kind", "called", "answered", "result")]
    client, key, kind, called, answered, result = head
    level = Level(found.pop("level", 0))
    outcome = Outcome(result.pop("outcome"))
    argument = Argument(level=level, **found)
    return Operation(client, key, Kind(kind), argument, Result(outcome, **result), called, answered)


def from_lines(lines: Iterable[str]) -> History:
    """Return the history that `to_lines` wrote.

    Raises:
        ValueError: a line is no operation, fault or clock; with its number.
    """
    read = _Read()
    for number, line in enumerate(lines, 1):
        try:
            read.line(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"line {number} is no part of a history: {error}") from error
    return History(tuple(read.operations), tuple(read.faults), read.clock_error_seconds)
