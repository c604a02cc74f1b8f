"""Group commit: all changes staged while one batch is written go into the next.

    open batch (filling) --freeze--> in flight (a thread writes and syncs) --settle--> durable
                                             \\--abandon--> connections that depend on it are dropped unanswered

Batches are numbered; `durable` is the number of the newest one on disk. A session that staged a change, or read a
change that is not durable yet, holds its answer back until batch `gate()` is durable: an acknowledged or visible change
is durable. There is no timer: the first write of an idle node is committed at once, at the end of the event loop's
turn; on a busy node changes gather while a batch is written.
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

# A disk stays full for seconds, so a tighter loop would only burn the processor; a longer one would delay the first
# write after space came back.
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
        """True if the disk has no room for another batch; at intervals, reading it tries to make room."""

    def more_room(self) -> bool:
        """Make room for a change that does not fit although nothing is staged; return True if there is more
        room now.
        """

    def freeze(self) -> Any:
        """Close the open batch and return it; None if nothing was staged."""

    def write(self, batch: Any) -> None:
        """Write and sync a batch. Blocking; may be called from any thread."""

    def settle(self, batch: Any) -> None:
        """Note that a batch is durable."""

    def abandon(self, batch: Any, error: BaseException) -> list[int]:
        """Undo all changes that are not durable, because the batch is lost; return the vbuckets whose record
        was lost.
        """


class Committer:
    """Commits batches: freeze, write, settle, in this order. Call all methods from the event loop's thread.

    Args:
        thread: the thread that writes, one batch at a time; None to start one.
        halt: ends the process, as a crash would.

    Raises StorageError if no thread can be started.
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
        """Return the number of the batch that makes all staged changes durable (0 if they are already)."""
        # With nothing staged since the freeze, the newest row that anybody can have read is in the batch in flight. A
        # batch number that is already durable opens its gate at once.
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
        except asyncio.CancelledError:  # who waits with a limit of time, while nobody writes, would stay here
            if watcher in self._watchers:
                self._watchers.remove(watcher)
            raise

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the staging arena has been replaced by an empty one."""
        self._room.append(callback)
        self.wrote()

    def commit_now(self) -> None:
        """Commit all staged changes before returning: for start and stop, when no other work runs."""
        while (batch := self._store.freeze()) is not None:
            self._dirty = False
            node_invariant(self.durable < self.open, "batch {} is durable, batch {} open", self.durable, self.open)
            self.open += 1
            # The write blocks this thread, for nothing else runs at a start or a stop, and its error must reach the
            # caller.
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
        # The flag comes first: a turn of the loop that is already scheduled would otherwise submit to a pool that is
        # shut down.
        self._closed = True
        self._thread.shutdown(wait=True)

    def _schedule(self) -> None:
        # One batch is in flight at most. So only the last batch of a log can be torn, and what survives a crash is a
        # prefix of what was sent.
        if not self._scheduled and not self._in_flight:
            self._scheduled = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._scheduled = False
        # A batch that was submitted after this turn was scheduled schedules the next turn itself when it ends.
        if self._in_flight or self._closed:
            return
        # Cleared before the arena is frozen, both within one turn of the loop: what is staged from here on is in the
        # next batch, and `gate()` says its number.
        self._dirty = False
        batch = self._store.freeze()
        number, self.open = self.open, self.open + 1
        node_invariant(self.durable < number, "batch {} is frozen, batch {} is durable", number, self.durable)
        if batch is None:  # nothing came of it: durable as it stands
            self.durable = number
            self._release()
            # What had no room although nothing was staged would ask again at once, and so for ever.
            if self._room and (self._store.full or not self._store.more_room()):
                self._loop.call_later(FULL_DISK_SECONDS, self._call_room)
            else:
                self._call_room()
            return
        self._in_flight, self._begun_at = number, self._loop.time()
        try:
            future = self._thread.submit(self._store.write, batch)
        except Exception as error:  # no memory, most likely: nobody would ever tell us that the batch is done
            self._end(batch, error)
            return
        # The callback runs in the commit thread; the index and the sessions belong to the loop's thread.
        future.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._end, batch, done.exception()))
        # The freeze exchanged the arenas, so whoever lacked room can stage into the empty one while the other is
        # written.
        self._call_room()

    def _end(self, batch: Any, error: BaseException | None) -> None:
        """Handle the end of a batch, which is durable or lost. On return no batch is in flight, or the node ends."""
        lost: list[int] = []
        try:
            in_flight, durable = self._in_flight, self.durable
            node_invariant(durable < in_flight, "batch {} ends, batch {} is durable", in_flight, durable)
            node_invariant(in_flight < self.open, "batch {} ends, batch {} gathers", in_flight, self.open)
            if error is None:
                self._store.settle(batch)
            else:
                lost = self._store.abandon(batch, error)
        except Exception:
            # Memory and disk differ: to go on would give seqnos twice. What a crash leaves is whole, and read at start.
            message = "the index can't follow the log any more, the node ends as in a crash"
            log.critical(message, exc_info=True, extra=event("index.lost"))
            self._halt()
            return
        if error is None:
            # Only now, behind `settle`: who is woken reads the index, and must find there what its gate promised.
            self.durable, self._in_flight = self._in_flight, 0
            self.commits += 1
            self.durations.add(self._loop.time() - self._begun_at)
            self._release()
        else:
            self._lost(error, lost)
        if self._dirty:
            self._schedule()

    def _release(self) -> None:
        """Wake every session whose batch is durable (sessions that wait for a later batch register again)."""
        # A waiter may register again for a later batch while it is flushed; it must land in the new set, not in the one
        # that is walked.
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
        except Exception:  # a fault of ours in one session: it is logged in full, and ends that connection alone
            log.exception("a connection failed when its batch was on disk", extra=event("node.failed"))
            waiter.drop("internal error", fault=False)

    def _lost(self, error: BaseException, vbuckets: list[int]) -> None:
        """Drop the waiting sessions, because the store has undone every change that is not durable, later batches
        included.
        """
        log.error("a batch could not be written, its writers are disconnected: %s", error, extra=event("batch.lost"))
        self.failures += 1
        # The store has undone what was in flight and what gathered on top of it, so nothing is staged now.
        self._in_flight = 0
        self._dirty = False
        # What gathered meanwhile is lost as well: both numbers are passed over, and who was behind their gates is
        # gone. The next one is open before anybody is told, for who hears of it may stage what it makes up for.
        passed, self.open = self.open, self.open + 1
        waiting, self.waiting = self.waiting, set()
        for waiter in waiting:
            waiter.drop(f"its batch could not be written: {error}", fault=False)
        for callback in self.on_failure:
            callback(error, vbuckets)
        self._resolve(False)
        # Last of all: until the sessions above are dropped and the watchers have their False, a lost batch must not
        # look durable to anybody.
        self.durable = passed
        self._call_room()

    def _resolve(self, durable: bool) -> None:
        # A lost batch takes every later gate with it, since all that was staged on top of it is undone as well.
        reached = [pair for pair in self._watchers if pair[0] <= self.durable or not durable]
        self._watchers = [pair for pair in self._watchers if pair not in reached]
        for _, future in reached:
            if not future.done():
                future.set_result(durable)

    def _call_room(self) -> None:
        callbacks, self._room = self._room, []
        for callback in callbacks:
            callback()
