"""A job with a sink, without Spark: the same tasks in worker processes of our own, a loop instead of a query.

For a laptop, for tests, and for a bucket that one machine can follow. The sink is the only state: a run begins at the
sink's record, so it may be killed at any moment.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import replace
from importlib.abc import MetaPathFinder
from typing import Any, Final, TypeVar

from headwater import failpoints
from headwater.client.routing import parse as parse_url
from headwater.errors import TableChanged, TransportError
from headwater.pipelines import early, spans
from headwater.pipelines.sinks import REPEATS_MAX, ChangeSink, Done, SinkTask
from headwater.pipelines.tasks import forget
from headwater.pipelines.watch import NOBODY, BatchWatch, LagWatch
from headwater.spark.offsets import Offset
from headwater.spark.planning import Planning
from headwater.spark.settings import SourceSettings
from headwater.tracing import SpanAttributes, past, span

T = TypeVar("T")

NICE = 5
"""The niceness of a process that folds, so that the processes that bring batches in come first."""


def _answer(task: SinkTask) -> bytes:
    return task.answer()


def _end_with_parent() -> None:
    """End this worker when the job's process ends, in any way; no other process would end it."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, name="job-parent", daemon=True).start()


class _NoPandas(MetaPathFinder):
    """An import hook that hides pandas: Arrow imports it for its first array, which takes half a second, and no task
    uses it.
    """

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Refuse to find pandas."""
        if fullname == "pandas":
            raise ModuleNotFoundError("a worker does without pandas", name=fullname)


def _begin(environment: Mapping[str, str]) -> None:
    """Initialize this process as a worker, with the environment of the job's process.

    The server that it was forked from may have older credentials of a store.
    """
    os.environ.clear()
    os.environ.update(environment)
    sys.meta_path.insert(0, _NoPandas())
    failpoints.arm_from_environment()
    _end_with_parent()


def _begin_behind(environment: Mapping[str, str], folder: str) -> None:
    """Initialize this process as a worker of lower priority, with a folder for unfinished files."""
    _begin(environment)
    tempfile.tempdir = folder
    os.nice(NICE)


class Workers:
    """Worker processes, started with the first task.

    Args:
        count: the most processes; 0 runs tasks in this process.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ProcessPoolExecutor | None = None

    def run(self, tasks: Sequence[SinkTask]) -> list[bytes]:
        """Run tasks in parallel, one per worker; return their answers.

        Raises:
            TransportError: a worker died; the next call starts new ones.
            HeadwaterError, OSError: the error of the first failed task.
        """
        if not self.count:
            return [task.answer() for task in tasks]
        self._pool = self._pool or self._started()
        try:
            return list(self._pool.map(_answer, tasks))
        except BrokenProcessPool as error:
            # A pool with a dead process takes no more work.
            self.close()
            raise TransportError("job", "a worker process died") from error

    def close(self) -> None:
        """End the workers."""
        forget()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)

    def _started(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self.count, mp_context=early.context(), initializer=_begin, initargs=(dict(os.environ),)
        )


class Folds:
    """A process in which files are folded (lake/folds.py), started with the first fold, and again after it died.

    In the driver's own process a fold would hold the interpreter's lock against the batches, the first one for a second
    and more: it needs Arrow's and the compiler's modules, which the server of workers has loaded. A process can also be
    ended: a fold that hangs is killed by us, and one that runs out of memory by the system, without harm to the
    batches.
    """

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._folder = ""
        # Hands one piece of work after the other over, and waits for it.
        self._watch = ThreadPoolExecutor(1, "job-folds")

    def submit(self, work: Callable[[], T], seconds: float, /) -> Future[T]:
        """Start a piece of work in the process, after all earlier ones; return its future.

        The future fails with ChildProcessError if the process died, and with TimeoutError if the work took longer than
        `seconds` and was killed; the next piece gets a new process.
        """
        return self._watch.submit(self._run_fold, work, seconds)

    def close(self) -> None:
        """End the process, and its work."""
        self._watch.shutdown(wait=False, cancel_futures=True)
        # The thread that watches waits for the process: killing that one lets it come to its end.
        self._end()
        self._watch.shutdown()
        self._end()  # one that was begun meanwhile

    def _run_fold(self, work: Callable[[], T], seconds: float) -> T:
        pool = self._pool or self._new_pool()
        try:
            answer = pool.submit(work)
            if not wait([answer], seconds).done:
                self._end()
                raise TimeoutError(f"a fold or checkpoint did not end in {seconds:.0f} s; its process was killed")
            return answer.result()
        except BrokenProcessPool:
            self._end()
            raise ChildProcessError("the process that folds files and writes checkpoints died") from None

    def _new_pool(self) -> ProcessPoolExecutor:
        self._folder = tempfile.mkdtemp(prefix="headwater-folds-")
        arguments = (dict(os.environ), self._folder)
        self._pool = ProcessPoolExecutor(1, mp_context=early.context(), initializer=_begin_behind, initargs=arguments)
        return self._pool

    def _end(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            for process in list(pool._processes.values()):
                process.kill()
            pool.shutdown(cancel_futures=True)
            shutil.rmtree(self._folder, ignore_errors=True)


class LocalEngine:
    """An engine that follows a bucket with worker processes.

    Args:
        sink: the sink of the changes.
        settings: the settings of the source.
        workers: the number of processes; None for one per core.
        watch: gets the time of each batch, and the lag after each look at the nodes.
    """

    def __init__(
        self, sink: ChangeSink, settings: SourceSettings, workers: int | None = None, watch: BatchWatch = NOBODY
    ) -> None:
        self.sink: Final = sink
        self.settings: SourceSettings = settings
        self.watch: BatchWatch = watch
        self._count = (os.cpu_count() or 1) if workers is None else workers
        self._workers = Workers(self._count)

    def follow(
        self,
        *,
        once: bool,
        interval_seconds: float,
        on_batch: Done,
        stop: Callable[[], bool],
        on_calm: Callable[[], None] = lambda: None,
    ) -> None:
        """Bring the sink up to date, and keep it so.

        Args:
            once: end when all changes that were there at the start are in the sink.
            interval_seconds: from the start of one batch to that of the next, at least.
            on_batch: called after each batch, with the answers of its tasks and the sink's offset.
            stop: called between batches; True ends the run.
            on_calm: called after each look that found nothing to do.

        Raises:
            HeadwaterError, OSError: the current batch is not in the sink, all earlier ones are.
        """
        with ExitStack() as stack:
            stack.callback(self._workers.close)
            planning = Planning(self.settings, settle=True)
            stack.callback(planning.close)
            if once:
                planning.aim()
            lag = LagWatch(self.watch, parse_url(self.settings.url).bucket)
            while not stop():
                began = time.monotonic()
                has_moved = self._batch(planning, on_batch)
                if has_moved:
                    self.watch.batch(time.monotonic() - began)
                lag.look(self.sink.refresh().end, planning.reported)
                if not has_moved:
                    on_calm()
                if once and not has_moved:
                    return
                _pause_until(began + (0 if once else interval_seconds), stop)

    def _batch(self, planning: Planning, on_batch: Done) -> bool:
        for repeat in range(REPEATS_MAX):
            began, before, begun_end = time.time(), self.sink.refresh(), self.sink.begun()
            end = planning.latest(dict(before.end), self.settings.max_changes) if begun_end is None else dict(begun_end)
            if end == before.end:
                return False
            with span("batch", began=began) as attributes:
                spans.tell_plan(attributes, parse_url(self.settings.url).bucket, before, end)
                try:
                    answers = self._task_answers(planning, end, began, attributes)
                    with span("batch.commit"):
                        new_record = self.sink.commit(before.digest, end, answers)
                except TableChanged:
                    if repeat == REPEATS_MAX - 1:
                        raise
                    # With what was known of the nodes before, the next plan would be refused as this one was.
                    planning.look_again()
                    continue
                on_batch(answers, new_record.end)
                spans.tell_lag(attributes, new_record.end, planning.reported)
                return True
        return False

    def _task_answers(
        self, planning: Planning, end: Mapping[str, Any], began: float, attributes: SpanAttributes
    ) -> list[Any]:
        settings = replace(planning.nodes.known().for_task(self.settings), coverage=Offset.from_json(end).coverage)
        tasks = self.sink.tasks(end, settings, max(self._count, 1))
        past("batch.plan", began, time.time(), tasks=len(tasks))
        with span("batch.tasks"):
            answers = [self.sink.read(answer) for answer in self._workers.run(tasks)]
            spans.tell_tasks(attributes, answers)
        return answers


def _pause_until(until: float, stop: Callable[[], bool]) -> None:
    while (remaining_seconds := until - time.monotonic()) > 0 and not stop():
        time.sleep(min(remaining_seconds, 0.05))
