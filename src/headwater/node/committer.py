"""Group commit: all changes that are staged while one batch is written are in the next batch.

    open batch (filling) --freeze--> in flight (a thread writes and syncs) --settle--> durable
                                             \\--abandon--> connections that depend on it are dropped unanswered

Batches are numbered; `durable` is the number of the newest one on disk. A session that has staged a change, or has read
a change that is not durable yet, holds back its answer until batch `gate()` is durable. So every acknowledged or
visible change is durable. There is no timer: the first write of an idle node is committed at once, at the end of the
event loop's turn; on a busy node changes gather while a batch is written.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final, Protocol

from headwater.invariants import node_invariant
from headwater.node.process import threads
from headwater.node.reporting.durations import Durations
from headwater.node.reporting.log_lines import event

# A disk stays full for seconds, so shorter pauses would only use the processor; longer ones would delay the first write
# after the disk has room again.
FULL_DISK_SECONDS = 0.25

log: Final = logging.getLogger(__name__)


class Waiter(Protocol):
    """A session whose output waits for a batch."""

    def flush(self) -> None:
        """Send the output that waited for a batch, which is durable now."""

    def drop(self, cause: str, *, fault: bool = True) -> None:
        """Drop the session after its batch was lost: its requests must not be answered."""


class BatchStore(Protocol):
    """The part of the store that the committer needs (node/storage/store.py)."""

    @property
    def full(self) -> bool:
        """True if the disk has no room for another batch; while it is full, this tries at intervals to get room."""

    def more_room(self) -> bool:
        """Try to get more room, for a change that does not fit although nothing is staged; return True if there is more
        room now.
        """

    def freeze(self) -> Any:
        """Close the open batch and return it; None if nothing was staged."""

    def write(self, batch: Any) -> None:
        """Write and sync a batch. Blocking; may be called from any thread."""

    def settle(self, batch: Any) -> None:
        """Note that a batch is durable."""

    def abandon(self, batch: Any, error: BaseException) -> list[int]:
        """Undo all changes that are not durable, because a batch is lost; return the vbuckets whose record was lost."""


class Committer:
    """Commits batches: freeze, write, settle, in this order. Call all methods from the event loop's thread.

    Args:
        store: the store.
        loop: the event loop.
        thread: the thread that writes, one batch at a time; None to start one.
        halt: ends the process, as a crash would.

    Attributes:
        durable: the number of the newest batch on disk.
        open: the number of the batch that is being filled.
        commits: the number of batches written.
        durations: the durations of the writes.
        failures: the number of lost batches.
        waiting: the sessions whose output waits for a batch; they add themselves, again after each call of `flush`.
        on_durable: functions to call after a batch has become durable.
        on_failure: functions to call, with the error and the vbuckets whose record was lost, after a batch was lost.

    Raises:
        StorageError: no thread can be started.
    """

    def __init__(
        self,
        store: BatchStore,
        loop: asyncio.AbstractEventLoop,
        thread: Executor | None = None,
        *,
        halt: Callable[[], object] = lambda: os._exit(1),
    ) -> None:
        self.durable: int = 0
        self.open: int = 1
        self.commits: int = 0
        self.durations: Final = Durations()
        self.failures: int = 0
        self.waiting: set[Waiter] = set()
        self.on_durable: list[Callable[[], None]] = []
        self.on_failure: list[Callable[[BaseException, list[int]], None]] = []
        self._store = store
        self._loop = loop
        self._thread = thread or threads.pool(1, "commit")
        self._halt = halt
        self._dirty = False
        self._scheduled = self._closed = False
        self._in_flight = 0
        self._begun_at = 0.0
        self._room: list[Callable[[], None]] = []
        self._watchers: list[tuple[int, asyncio.Future[bool]]] = []

    def wrote(self) -> int:
        """Note that a change was staged and must be committed; return the number of its batch."""
        self._dirty = True
        self._schedule()
        return self.open

    def gate(self) -> int:
        """Return the number of the batch that makes all staged changes durable; 0 if all are durable."""
        # If nothing was staged since the freeze, the newest row that can have been read is in the batch in flight.
        return self.open if self._dirty else self._in_flight

    async def wait(self, gate: int) -> bool:
        """Wait until batch `gate` is durable; return False if it was lost instead."""
        if gate <= self.durable:
            return True
        node_invariant(gate <= self.open, "a gate of batch {}, batch {} is open", gate, self.open)
        future: asyncio.Future[bool] = self._loop.create_future()
        watcher = gate, future
        self._watchers.append(watcher)
        try:
            return await future
        except asyncio.CancelledError:  # a wait with a time limit; without writes, no commit would remove it
            if watcher in self._watchers:
                self._watchers.remove(watcher)
            raise

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when an empty arena has replaced the staging arena."""
        self._room.append(callback)
        self.wrote()

    def commit_now(self) -> None:
        """Commit all staged changes before returning, at a start or stop, when no other work runs.

        Raises:
            DiskFull, StorageError: a batch could not be written.
        """
        while (batch := self._store.freeze()) is not None:
            self._dirty = False
            node_invariant(self.durable < self.open, "batch {} is durable, batch {} open", self.durable, self.open)
            self.open += 1
            # The write blocks this thread, which has no other work now, and raises its error to the caller.
            self._store.write(batch)
            self._store.settle(batch)
            self.durable = self.open - 1
            self.commits += 1
        self._dirty = False

    async def drain(self) -> None:
        """Wait until no change is staged or in flight."""
        while self._dirty or self._in_flight:
            await self.wait(self.gate())

    async def run_alone(self, work: Callable[[], None]) -> None:
        """Run a function on the commit thread, so that it does not run during a write."""
        await self._loop.run_in_executor(self._thread, work)

    def close(self) -> None:
        """Stop committing, and end the thread; may be called again."""
        # The flag comes first, because a scheduled turn of the loop must not submit work to a pool that is shut down.
        self._closed = True
        self._thread.shutdown(wait=True)

    def _schedule(self) -> None:
        # At most one batch is in flight. So only the last batch of a log can be incomplete, and the changes that
        # survive a crash are a prefix of all changes.
        if not self._scheduled and not self._in_flight:
            self._scheduled = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._scheduled = False
        # If a batch was submitted since this turn was scheduled, its end schedules the next turn.
        if self._in_flight or self._closed:
            return
        # Cleared before the arena is frozen, in the same turn of the loop: changes that are staged from here on are in
        # the next batch, whose number `gate()` returns.
        self._dirty = False
        batch = self._store.freeze()
        number, self.open = self.open, self.open + 1
        node_invariant(self.durable < number, "batch {} is frozen, batch {} is durable", number, self.durable)
        if batch is None:  # nothing was staged: the empty batch counts as durable
            self.durable = number
            self._release()
            # Without a pause, a change that has no room although nothing is staged would be tried again at once, for
            # ever.
            if self._room and (self._store.full or not self._store.more_room()):
                self._loop.call_later(FULL_DISK_SECONDS, self._call_room)
            else:
                self._call_room()
            return
        self._in_flight, self._begun_at = number, self._loop.time()
        try:
            future = self._thread.submit(self._store.write, batch)
        except Exception as error:  # probably no memory; without this, the batch would never end
            self._end(batch, error)
            return
        # The callback runs in the commit thread; the index and the sessions belong to the loop's thread.
        future.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._end, batch, done.exception()))
        # The freeze has exchanged the arenas, so changes that had no room can be staged while the other arena is
        # written.
        self._call_room()

    def _end(self, batch: Any, error: BaseException | None) -> None:
        """Handle the end of a batch, which is durable or lost. On return no batch is in flight, or the node ends."""
        lost_vbuckets: list[int] = []
        try:
            in_flight, durable = self._in_flight, self.durable
            node_invariant(durable < in_flight, "batch {} ends, batch {} is durable", in_flight, durable)
            node_invariant(in_flight < self.open, "batch {} ends, batch {} gathers", in_flight, self.open)
            if error is None:
                self._store.settle(batch)
            else:
                lost_vbuckets = self._store.abandon(batch, error)
        except Exception:
            # Memory and disk differ, so seqnos could be used twice. After a crash, the next start reads the intact log.
            message = "the index can't follow the log any more, the node ends as in a crash"
            log.critical(message, exc_info=True, extra=event("index.lost"))
            self._halt()
            return
        if error is None:
            # Only now, after `settle`, because the sessions that are woken read the index.
            self.durable, self._in_flight = self._in_flight, 0
            self.commits += 1
            self.durations.add(self._loop.time() - self._begun_at)
            self._release()
        else:
            self._lost(error, lost_vbuckets)
        if self._dirty:
            self._schedule()

    def _release(self) -> None:
        """Wake all waiting sessions; a session that waits for a later batch adds itself to `waiting` again."""
        # A session may add itself again during its call, so that must change a new set.
        waiting, self.waiting = self.waiting, set()
        for waiter in waiting:
            self._wake(waiter)
        for callback in self.on_durable:
            callback()
        self._resolve(True)

    def _wake(self, waiter: Waiter) -> None:
        """Wake a session; if that raises, drop the session, so that the others still get their answers."""
        try:
            waiter.flush()
        except Exception:  # a fault in one session is logged with its traceback, and ends only that connection
            log.exception("a connection failed when its batch was on disk", extra=event("node.failed"))
            waiter.drop("internal error", fault=False)

    def _lost(self, error: BaseException, vbuckets: list[int]) -> None:
        """Drop the waiting sessions, because a batch was lost: the store has undone all changes that are not durable,
        also those of the open batch.
        """
        log.error("a batch could not be written, its writers are disconnected: %s", error, extra=event("batch.lost"))
        self.failures += 1
        # The store has undone the batch in flight and the open batch, so nothing is staged now.
        self._in_flight = 0
        self._dirty = False
        # The open batch is lost too: both numbers are skipped, and sessions that wait for either are dropped. The next
        # batch is open before any call below, because these calls may stage changes.
        passed, self.open = self.open, self.open + 1
        waiting, self.waiting = self.waiting, set()
        for waiter in waiting:
            waiter.drop(f"its batch could not be written: {error}", fault=False)
        for callback in self.on_failure:
            callback(error, vbuckets)
        self._resolve(False)
        # Last of all: before the sessions above are dropped and the watchers have got False, a lost batch must not seem
        # durable.
        self.durable = passed
        self._call_room()

    def _resolve(self, durable: bool) -> None:
        # After a lost batch all watchers get False, because all changes staged after it are undone as well.
        reached = [pair for pair in self._watchers if pair[0] <= self.durable or not durable]
        self._watchers = [pair for pair in self._watchers if pair not in reached]
        for _, future in reached:
            if not future.done():
                future.set_result(durable)

    def _call_room(self) -> None:
        callbacks, self._room = self._room, []
        for callback in callbacks:
            callback()
