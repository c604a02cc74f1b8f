"""The iterators that a caller reads, blocking and asyncio: a drain that advances with each call.

Each call means that all earlier changes were processed; this gets acknowledged, and the positions cover it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Never, Self

from headwater.client.changes import ChangeBatch, ChangeFeed, Event, batch_of
from headwater.client.drainer import Drainer, Handout
from headwater.client.interruptions import noting_interruptions
from headwater.errors import LocalProtocolError, NothingCame
from headwater.protocol.dcp.position import Position
from headwater.transport import blocking
from headwater.transport.aio import Waiters
from headwater.transport.waiting import Steps


class _Feed:
    """A drain that is closed at the end of a `with` block."""

    def __init__(self, drainer: Drainer) -> None:
        self._drainer, self._torn = drainer, False
        self._reader: dict[str, object] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._drainer.progress)} vbuckets, {self._drainer.cluster}>"

    def close(self) -> None:
        """Close the drain's connections; `positions` stay readable. May be called again."""
        self._drainer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> Never:
        raise TypeError(f"{self!r} can't be pickled; give its `positions` to the other process")

    @contextmanager
    def _reading(self, kind: str, reader: object) -> Iterator[None]:
        """Allow one reader at a time, a thread or a task: two would wait for the same changes.

        KeyboardInterrupt comes between any two lines and may leave the reader registered; the same reader may go on.
        """
        if self._reader.setdefault(kind, reader) != reader:  # one step of the interpreter
            raise LocalProtocolError(f"another {kind} is reading from this drain; give each {kind} one of its own")
        try:
            yield
        finally:
            self._reader.clear()

    def _steps(self) -> Steps[Handout | None]:
        """Return the steps of the drain's next handout; an interruption that loses decoded changes marks this reader as
        torn.
        """
        self._expect_whole()
        return noting_interruptions(self, self._drainer.advance())

    def _expect_whole(self) -> None:
        if self._torn:
            raise LocalProtocolError(
                "this drain was interrupted in the middle of its work; begin another one at its positions"
            )


class _BatchPositions(_Feed):
    def __init__(self, drainer: Drainer) -> None:
        super().__init__(drainer)
        self._returned = drainer.positions

    @property
    def positions(self) -> dict[int, Position]:
        """The position of every vbucket after the last returned batch."""
        return self._returned.by_vbucket()

    def _return(self, handout: Handout) -> ChangeBatch:
        """Return a handout as a batch and move the positions behind it; an interruption undoes the move."""
        # Everything that takes long happens before the positions move: an interrupt in there leaves the drain torn, and
        # the rows uncounted.
        batch, before = batch_of(handout), self._returned
        try:
            self._returned, self._torn = handout.positions, False
            return batch
        except BaseException:
            self._returned, self._torn = before, True
            raise


class _EventPositions(_Feed):
    def __init__(self, drainer: Drainer) -> None:
        super().__init__(drainer)
        self._feed = ChangeFeed(drainer.positions.by_vbucket(), markers=drainer.options.markers)
        self._pending: Iterator[Event] = iter(())

    @property
    def positions(self) -> dict[int, Position]:
        """The position of every vbucket after the last returned event."""
        return self._feed.positions()

    def position(self, vbucket: int) -> Position:
        """Return the position of one vbucket after the last returned event; quicker than `positions`."""
        return self._feed.position(vbucket)

    def _next_event(self) -> Event | None:
        """Return the next event of the last handout, None if there is none left."""
        if self._torn:
            self._expect_whole()
        try:
            return next(self._pending, None)
        except BaseException:
            self._torn = True  # the iterator is over, whatever it still had
            raise

    def _take_back(self) -> None:
        """Undo the last event if the call that was to return it failed; the reader is torn then."""
        if self._feed.take_back():
            self._torn = True

    def _still_waits(self, waiting_since: float | None) -> float:
        """Return the time since which the caller waits.

        Seqnos of other collections do not end a wait, since they may pass all the time.

        Raises:
            NothingCame: the caller has waited for `max_wait_seconds`.
        """
        now, wait = self._drainer.clock(), self._drainer.options.max_wait_seconds
        if waiting_since is not None and wait is not None and now >= waiting_since + wait:
            raise NothingCame(wait)
        return now if waiting_since is None else waiting_since

    def _take(self, handout: Handout) -> None:
        """Take a handout as the source of the next events.

        Raises:
            NothingCame: the handout is empty, as after `max_wait_seconds`.
        """
        self._pending, self._torn = self._feed.take(handout), False
        wait = self._drainer.options.max_wait_seconds
        if wait is not None and not handout.records.num_rows and not handout.events:
            raise NothingCame(wait)


class Batches(_BatchPositions, Iterator[ChangeBatch]):
    """An iterator over batches of changes; ends when all streams have ended."""

    def __next__(self) -> ChangeBatch:
        """Return the next batch, blocking while nothing changes; all earlier batches count as processed."""
        with self._reading("thread", threading.get_ident()):
            handout = blocking.run(self._steps(), self._drainer.clock)
        if handout is None:
            raise StopIteration
        return self._return(handout)


class Changes(_EventPositions, Iterator[Event]):
    """An iterator over changes one at a time; ends when all streams have ended."""

    def __next__(self) -> Event:
        """Return the next event, blocking while nothing changes; raise NothingCame after `max_wait_seconds` without
        one.
        """
        waiting_since = None
        # This call means that the caller has the event before; from here on nothing may take it back.
        self._feed.settle()
        try:
            while (event := self._next_event()) is None:
                waiting_since = self._still_waits(waiting_since)
                with self._reading("thread", threading.get_ident()):
                    handout = blocking.run(self._steps(), self._drainer.clock)
                if handout is None:
                    raise StopIteration
                self._take(handout)
            return event
        except BaseException:
            # Also for StopIteration and NothingCame: they return no event, so none may be counted.
            self._take_back()
            raise


class _Async(_Feed):
    """A feed that is advanced inside an event loop."""

    def __init__(self, drainer: Drainer, waiters: Waiters) -> None:
        super().__init__(drainer)
        self._waiters = waiters

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the drain's connections; `positions` stay readable. May be called again."""
        super().close()
        self._waiters.sweep()

    async def _advance(self) -> Handout:
        with self._reading("task", asyncio.current_task()):
            handout = await self._waiters.run(self._steps())
        if handout is None:
            raise StopAsyncIteration
        return handout


class AsyncBatches(_Async, _BatchPositions, AsyncIterator[ChangeBatch]):
    """An asynchronous iterator over batches of changes."""

    async def __anext__(self) -> ChangeBatch:
        """Return the next batch. Cancelling loses nothing: the next call continues."""
        return self._return(await self._advance())


class AsyncChanges(_Async, _EventPositions, AsyncIterator[Event]):
    """An asynchronous iterator over changes one at a time."""

    async def __anext__(self) -> Event:
        """Return the next event. Cancelling loses nothing: the next call continues. NothingCame as in `Changes`."""
        waiting_since = None
        self._feed.settle()
        try:
            while (event := self._next_event()) is None:
                waiting_since = self._still_waits(waiting_since)
                self._take(await self._advance())
            return event
        except BaseException:
            self._take_back()
            raise
