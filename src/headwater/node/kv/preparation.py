"""Work that is prepared for a request: the connection pauses meanwhile, then the request is handled again."""

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
    """A part of a request's work that was done before the request is handled."""

    def drop(self) -> None:
        """Free the resources of the work, because the request was handled, or never will be."""


class Preparation:
    """The prepared work of one connection, for one request at a time.

    Attributes:
        done: the work prepared for the request that is handled again; None if none was prepared.
    """

    def __init__(self, connection: Connection) -> None:
        self.done: Prepared | None = None
        self._connection = connection
        self._task: asyncio.Task[None] | None = None

    def begin(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Prepared]) -> NoRoom:
        """Pause the connection until the work is done; then its request is handled again.

        Returns:
            The exception that the handler must raise.
        """
        self.drop()
        self._connection.pause("preparing")
        self._task = loop.create_task(self._run(work))
        self._task.add_done_callback(lambda _: work.close())  # the task may be cancelled before the work has begun
        return NoRoom()

    async def _run(self, work: Coroutine[Any, Any, Prepared]) -> None:
        try:
            self.done = await work
        except Exception:  # handled again, the request would fail in the same way without end
            peer = self._connection.peer
            log.exception("%s: a request could not be prepared", peer, extra=event("node.failed", peer=peer))
            self._connection.drop("its request could not be prepared")
        finally:
            self._task = None
            self._connection.resume("preparing")

    def drop(self) -> None:
        """Free the prepared work, because the request was handled, or never will be."""
        if self.done is not None:
            self.done.drop()
            self.done = None

    def end(self) -> None:
        """Cancel the work and free its results, because the connection is closed."""
        if self._task is not None:
            self._task.cancel()
        self.drop()
