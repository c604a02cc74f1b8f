"""Work that is done before its request is handled: the connection pauses meanwhile, then handles the request again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from headwater.node.refused import NoRoom
from headwater.node.reporting.log_lines import event

if TYPE_CHECKING:
    from headwater.node.connections.connection import Connection

log: Final = logging.getLogger(__name__)


class Prepared(Protocol):
    """A part of a request's work, done in advance."""

    def drop(self) -> None:
        """Free its resources: the request was handled, or never will be."""


class Preparation:
    """The work of one connection, for one request at a time.

    Attributes:
        done: the work prepared for the request that is handled again; None if there is none.
    """

    def __init__(self, connection: Connection) -> None:
        self.done: Prepared | None = None
        self._connection = connection
        self._task: asyncio.Task[None] | None = None

    def begin(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Prepared]) -> NoRoom:
        """Pause the connection until the work is done; then its request is handled again.

        Returns: the exception that the handler must raise.
        """
        self.drop()
        self._connection.pause("preparing")
        self._task = loop.create_task(self._run(work))
        self._task.add_done_callback(lambda _: work.close())  # it may be cancelled before it has begun
        return NoRoom()

    async def _run(self, work: Coroutine[Any, Any, Prepared]) -> None:
        try:
            self.done = await work
        except Exception:  # the request would meet it again and again
            peer = self._connection.peer
            log.exception("%s: a request could not be prepared", peer, extra=event("node.failed", peer=peer))
            self._connection.drop("its request could not be prepared")
        finally:
            self._task = None
            self._connection.resume("preparing")

    def drop(self) -> None:
        """Free the prepared work: the request was handled, or never will be."""
        if self.done is not None:
            self.done.drop()
            self.done = None

    def end(self) -> None:
        """Stop the work, because the connection is closed, and free the prepared part."""
        if self._task is not None:
            self._task.cancel()
        self.drop()
