"""Care for a table while batches are written to it: folds (folds.py), checkpoints and vacuums (vacuum.py).

The work runs in a thread, or in a process of its own; what fails is tried again after a pause, and never ends a mirror.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Protocol, TypeVar

from headwater import tracing
from headwater.lake import checkpoints, removals
from headwater.lake.folds import HANG_SECONDS, Folded, FoldTask, choose, commit
from headwater.lake.log import FOLDER, TableLog
from headwater.lake.vacuum import opened_log, retention, vacuum_at, with_removals

CHECKPOINT_EVERY = 100
VACUUM_SECONDS = 3600.0
REST_SECONDS, LONGEST_REST_SECONDS = 1.0, 300.0
"""The pause after a failure of upkeep, and the longest pause; each further failure doubles it."""

T = TypeVar("T")


class Doer(Protocol):
    """A runner of folds and checkpoints beside the batches."""

    def submit(self, work: Callable[[], T], seconds: float, /) -> Future[T]:
        """Start the work. If it takes longer than `seconds`, it is ended where that is possible."""


class _InThread:
    """A runner of work in a thread of this process, which can't be ended."""

    def __init__(self, thread: ThreadPoolExecutor) -> None:
        self._thread = thread

    def submit(self, work: Callable[[], T], seconds: float, /) -> Future[T]:
        return self._thread.submit(work)


class _Chore:
    """One kind of upkeep. After a failure it pauses, and longer after each further failure.

    Args:
        work: does the work that is due; returns True if something succeeded.
        clock: returns seconds.
    """

    def __init__(self, work: Callable[[], bool], clock: Callable[[], float]) -> None:
        self._work, self._clock = work, clock
        self._failures, self._rests_until = 0, -math.inf

    def tried(self) -> str:
        """Run the work unless it pauses; return the problem of the last failure, or an empty text."""
        if self._clock() < self._rests_until:
            return ""
        try:
            if self._work():
                self._failures = 0
        except Exception as error:  # whatever it is, the mirror goes on, and the caller tells it
            pause_seconds = min(REST_SECONDS * 2.0 ** min(self._failures, 32), LONGEST_REST_SECONDS)
            self._failures, self._rests_until = self._failures + 1, self._clock() + pause_seconds
            return f"upkeep: {str(error) or type(error).__name__}"
        return ""


def checkpoint(log: TableLog, now: float | None = None) -> str:
    """Write a checkpoint of the newest version, without expired removals; return its path.

    Raises:
        TableAway: there is no table, or not the one that was read.
    """
    log_with_removals = with_removals(log)
    state = log_with_removals.state
    # An expired removal keeps no file any more, and a checkpoint that carried all of them would grow for ever.
    oldest = 1000 * ((now or time.time()) - retention(state))
    removed_rows = removals.of_checkpoint(log_with_removals.removals(), state.files, oldest)
    # Writing takes seconds, in which another mirror may put the table away and make the next one here: this one's state
    # would be the newest checkpoint of that.
    with log_with_removals.holding() as is_still_ours:
        return checkpoints.write(log.store, FOLDER, state.version, state.actions(), removed_rows, is_still_ours)


def checkpoint_at(place: str, table: str) -> str:
    """Write a checkpoint of the table with this id at a place; see `checkpoint`."""
    return checkpoint(opened_log(place, table))


class Maintenance:
    """The upkeep of a table while batches are written to it; the work runs in a thread of its own.

    Args:
        log: log of the driver.
        seed: seed of the table's indexes; None for a table without.
        clock: returns seconds.
        folds: runs the folds; None for the same thread, where a fold holds the interpreter's lock against the batches.
    """

    def __init__(
        self,
        log: TableLog,
        seed: bytes | None,
        clock: Callable[[], float] = time.monotonic,
        folds: Doer | None = None,
    ) -> None:
        self._log, self._clock, self._seed = log, clock, seed
        self._thread = ThreadPoolExecutor(1, "lake-upkeep")
        self._folds: Doer = folds or _InThread(self._thread)
        self._folding: tuple[FoldTask, Future[Folded]] | None = None
        self._files_max: int | None = None
        self._fold_began = 0.0
        self._vacuuming: Future[list[str]] | None = None
        self._checkpoint: tuple[int, Future[str]] | None = None
        self._checkpointed = log.checkpointed
        self._vacuumed = clock()
        self._chores = [_Chore(work, clock) for work in (self._fold, self._write_checkpoint, self._vacuum)]
        self._closing = False
        self.problem: str = ""

    def step(self) -> None:
        """Do the upkeep that is due, between two batches. A failure never ends a mirror: the work is tried again."""
        problems = [chore.tried() for chore in self._chores]
        self.problem = next(filter(None, problems), "")

    def close(self, *, finish: bool = False, seconds: float | None = None) -> None:
        """End the thread. With `finish`, first commit the fold that is under way, if it ends within `seconds`."""
        self._closing, self.problem = True, ""
        under_way: list[Future[Any]] = [piece[1] for piece in (self._folding, self._checkpoint) if piece is not None]
        if finish and under_way:
            wait(under_way, seconds)
            self.step()
        # Work that has not begun is dropped. What runs in this thread is waited for, since threads can't be ended.
        for future in under_way:
            future.cancel()
        self._thread.shutdown()

    def _fold(self) -> bool:
        brought = False
        if self._folding is not None and self._folding[1].done():
            (task, folding), self._folding = self._folding, None
            # Only here, between two batches: a batch under way has looked rows up in the files that the fold replaces.
            brought = self._bring_in(task, folding)
        if self._folding is None and not self._closing and (files := choose(self._log.state)[: self._files_max]):
            state = self._log.state
            identity = self._log.store.root, state.id
            task = FoldTask(*identity, state.fields, self._seed, files, state.layout, state.id_columns)
            self._fold_began = time.time()
            self._folding = task, self._folds.submit(task.run, task.seconds)
        return brought

    def _bring_in(self, task: FoldTask, folding: Future[Folded]) -> bool:
        try:
            folded = folding.result()
        except Exception:  # raised again
            # Its process died, perhaps for its memory: fewer files want less. Nobody else knows what it had written.
            self._files_max = max(2, len(task.files) // 2)
            self._thread.submit(task.discard)
            raise
        if not commit(self._log, folded):
            self._thread.submit(task.discard)
            return False
        numbers = {"files": len(folded.sources), "into": len(folded.files)}
        tracing.past("batch.fold", self._fold_began, time.time(), **numbers)
        self._files_max = None
        return True

    def _write_checkpoint(self) -> bool:
        """Write a checkpoint by the runner of folds: the first one would take seconds here, since Arrow imports pandas
        for it.
        """
        is_written = False
        if self._checkpoint is not None and self._checkpoint[1].done():
            (version, future), self._checkpoint = self._checkpoint, None
            future.result()
            self._checkpointed, is_written = version, True
        versions = self._log.state.version - self._checkpointed
        if self._checkpoint is None and not self._closing and versions >= CHECKPOINT_EVERY:
            work = partial(checkpoint_at, self._log.store.root, self._log.state.id)
            self._checkpoint = self._log.state.version, self._folds.submit(work, HANG_SECONDS)
        return is_written

    def _vacuum(self) -> bool:
        has_ended = False
        if self._vacuuming is not None and self._vacuuming.done():
            future, self._vacuuming = self._vacuuming, None
            future.result()
            has_ended = True
        is_due = self._clock() - self._vacuumed >= VACUUM_SECONDS
        if self._closing or not is_due or self._vacuuming is not None:
            return has_ended
        # Set before the work: a vacuum that fails is due again after an hour, and not at once.
        self._vacuumed = self._clock()
        # The driver's state is the driver's: it is read anew.
        self._vacuuming = self._thread.submit(vacuum_at, self._log.store.root, self._log.state.id)
        return has_ended
