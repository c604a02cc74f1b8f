"""The answers of a plain connection: answers to changes, answers in several parts, and refusals with a status that the
client knows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from headwater.node.refused import CommandRefused
from headwater.wire.datatype import Datatype
from headwater.wire.failure import Failure
from headwater.wire.features import Feature
from headwater.wire.json_text import error_body
from headwater.wire.layout import Answer
from headwater.wire.status import Status, without_xerror

if TYPE_CHECKING:
    from headwater.node.durable_writes import DurableWrite
    from headwater.node.kv.api import Session
    from headwater.node.kv.command import Answers
    from headwater.wire.documents import Stored
    from headwater.wire.header import Frame

Answered = TypeVar("Answered", bound=Answer)


class StagedChange(NamedTuple):
    """A change that was staged.

    Attributes:
        stored: the answer: CAS, vb uuid and seqno.
        write: the durable write that the answer waits for; None for a plain change.
    """

    stored: Stored
    write: DurableWrite | None

    @property
    def outcome(self) -> Stored | Awaitable[Stored]:
        """The result of a handler whose answer is just `stored`."""
        return self.answer(self.stored)

    def answer(self, answer: Answered) -> Answered | Awaitable[Answered]:
        """Return a handler's result: `answer`, or for a durable write an awaitable that waits for the commit."""
        return answer if self.write is None else Committed(self.write, answer)


class Committed(Awaitable[Answered]):
    """The awaitable answer of a durable write, with the seqno of its commit.

    It is no coroutine, because it is never awaited if the connection is closed, and Python warns about a coroutine that
    is never awaited.
    """

    def __init__(self, write: DurableWrite, answer: Answered) -> None:
        self._write, self._answer = write, answer

    def __await__(self) -> Generator[Any, None, Answered]:
        seqno = yield from self._write.outcome.__await__()
        if getattr(self._answer, "seqno", None) is None:
            return self._answer
        return replace(self._answer, seqno=seqno)  # type: ignore[call-arg]


def failure_of(session: Session, frame: Frame, refused: CommandRefused) -> Failure | None:
    """Return the answer for a refusal, with a status that this client knows (wire.md 3.1 for clients without XERROR).

    Returns:
        The answer; None if there is no such status: the connection was then dropped.
    """
    status = refused.status
    before_login = status == Status.EACCESS and not session.access.is_logged_in  # "always sent as 0x24"
    if not session.has(Feature.XERROR) and not before_login:
        status_known = without_xerror(refused.status, collections=session.knows_collections)
        # "Disconnect" (wire 3.1), because a client may misunderstand a status that it does not know.
        if status_known is None:
            name = f"status 0x{refused.status:02x} for opcode 0x{frame.opcode:02x}"
            session.connection.drop(f"{name} can't be told to a client without XERROR: {refused.context}")
            return None
        status = status_known
    value = refused.value
    if refused.context and not value and session.has(Feature.XERROR):
        value = error_body(refused.context)
    datatype = (
        Datatype.JSON if value and session.has(Feature.JSON) else 0
    )  # wire.md 1.3: all values of refusals are JSON
    return Failure(status=status, value=value, datatype=datatype)


def answer_with(session: Session, frame: Frame, answer: Answers) -> None:
    """Queue the answers of a request: one, several at once, or none."""
    if isinstance(answer, Answer):
        session.reply(frame, answer)
    elif answer:
        session.send(b"".join(session.encoded(frame, each) for each in answer))


def send_some(session: Session, frame: Frame, answers: Iterator[Answer]) -> bool:
    """Send as many answers as this turn has time for; return True if all answers were sent.

    The clock is checked after each answer, because one answer of STAT collections counts all rows of a vbucket.
    """
    out = bytearray()
    for answer in answers:
        out += session.encoded(frame, answer)
        if session.connection.turn_is_over():
            session.send(out)
            return False
    session.send(out)
    return True


async def send_rest(session: Session, frame: Frame, answers: Iterator[Answer]) -> None:
    """Send all remaining answers, letting other work run in between."""
    is_done = False
    while not is_done:
        await session.server.run_queue.turn()  # others first
        session.connection.begin_turn()
        is_done = send_some(session, frame, answers)


def is_held_back(session: Session) -> bool:
    """Return True if answers of this session may still wait for a batch of the bucket."""
    return bool(session.gate or session.server.committer.gate())


async def settle(session: Session) -> None:
    """Wait until no answer of this session waits for a batch of the bucket, because another bucket numbers its batches
    by itself.

    Raises:
        CommandRefused: ETMPFAIL, the batch was lost.
    """
    committer = session.server.committer
    if not await committer.wait(max(committer.gate(), session.gate)):
        raise CommandRefused(Status.ETMPFAIL, "what was written before could not be")
