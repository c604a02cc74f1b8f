"""The waits of a plain connection's request: for room, for another state of its vbucket, for a coroutine.

The connection is not read meanwhile, so commands stay in order (kv.md, "Rules common to all commands"). After a wait
for room or for a state, the request is handled again; a coroutine returns its answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from headwater.errors import CorruptStore, StorageError
from headwater.node.refused import CommandRefused, NoRoom
from headwater.node.reporting.log_lines import event
from headwater.wire.layout import Answer
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket
    from headwater.node.committer import Committer
    from headwater.node.connections.connection import Connection
    from headwater.node.reporting.requests import Requests
    from headwater.wire.header import Frame

__all__ = ["ParkedSession", "Parking", "refusal_of"]

Answers = TypeVar("Answers")
log: Final = logging.getLogger(__name__)


class ParkedServer(Protocol):
    """The interface of the node, with a session's bucket, that a wait needs."""

    loop: asyncio.AbstractEventLoop

    @property
    def requests(self) -> Requests:
        """The counters of the bucket's requests."""


class ParkedSession(Protocol):
    """The interface of a session that a wait needs."""

    @property
    def server(self) -> ParkedServer:
        """The node with the selected bucket; a request may select another bucket."""

    def refuse(self, frame: Frame, refused: CommandRefused) -> None:
        """Refuse a request with a status that this client knows."""


class Parking:
    """The waits of one connection, one at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._task: asyncio.Task[None] | None = None
        self._lasts = False
        self._pending: tuple[Bucket, int] | None = None  # the vbucket whose state a request waits for

    @property
    def is_at_work(self) -> bool:
        """True while a coroutine works on an answer."""
        return self._task is not None

    def wait_for_room(self, committer: Committer) -> None:
        """Pause the connection until the staging arena is empty again; do nothing if it is paused already.

        If it is paused already, the request waits for something else than room, and another event will end the pause.
        """
        if not self._connection.is_paused:
            self._connection.pause("commit")
            committer.when_room(lambda: self._connection.resume("commit"))

    def wait_for_state(self, bucket: Bucket, vbucket: int) -> NoRoom:
        """Pause the connection until a vbucket has another state; return the exception that the caller must raise."""
        self._connection.pause("pending")
        self._pending = bucket, vbucket
        bucket.when_state_changes(vbucket, self._state_changed)
        return NoRoom()

    def _state_changed(self) -> None:
        self._pending = None
        self._connection.resume("pending")

    def wait_for_answer(
        self,
        session: ParkedSession,
        frame: Frame,
        work: Awaitable[Answers],
        send: Callable[[Frame, Answers], None],
        *,
        lasts: bool,
    ) -> None:
        """Pause the connection until a coroutine has returned the answers, or raised an error, which refuses the
        request.

        Args:
            session: the session of the connection.
            frame: the request.
            work: the coroutine.
            send: queues the answers to the request.
            lasts: True if the coroutine must run to its end even if the connection is closed.
        """
        # Reading stops, so the next request of this connection can't overtake this one (kv.md, "commands run in
        # order").
        self._connection.pause("parked")
        self._lasts = lasts
        begun_at = session.server.requests.begun_at
        self._task = session.server.loop.create_task(self._finish(session, frame, work, send, begun_at))

    async def _finish(
        self,
        session: ParkedSession,
        frame: Frame,
        work: Awaitable[Answers],
        send: Callable[[Frame, Answers], None],
        begun_at: float,
    ) -> None:
        try:
            answer = await work
            send(frame, answer)
            status = answer.status if isinstance(answer, Answer) else Status.SUCCESS
        except CommandRefused as refused:
            session.refuse(frame, refused)
            status = refused.status
        except StorageError as error:
            session.refuse(frame, refusal := refusal_of(error))
            status = refusal.status
        except Exception:  # a fault of ours in one handler: it is logged in full, and the connection goes on
            peer = self._connection.peer
            extra = event("node.failed", peer=peer, opcode=frame.opcode)
            log.exception("%s: opcode 0x%02x failed", peer, frame.opcode, extra=extra)
            session.refuse(frame, CommandRefused(Status.EINTERNAL))
            status = Status.EINTERNAL
        session.server.requests.answered(frame.opcode, status)
        session.server.requests.finished(frame.opcode, begun_at)
        self._task = None
        self._connection.resume("parked")

    def end(self) -> None:
        """End all waits, because the connection is closed."""
        # A command that makes several changes is not cancelled, because some of them would remain undone.
        if self._task is not None and not self._lasts:
            self._task.cancel()
        if self._pending is not None:
            (bucket, vbucket), self._pending = self._pending, None
            bucket.waits_no_more(vbucket, self._state_changed)


def refusal_of(error: StorageError) -> CommandRefused:
    """Return the refusal for a storage error: a temporary one for lack of room, a permanent one for damage."""
    return CommandRefused(Status.EINTERNAL if isinstance(error, CorruptStore) else Status.ETMPFAIL, str(error))
