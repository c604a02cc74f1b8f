"""A mirror that waits for a call before each batch, so that a batch can be prepared and timed."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwater.lake.writer import TaskResult
from headwater.pipelines.job import Engine
from headwater.pipelines.local import Folds, LocalEngine
from headwater.pipelines.sink import TableSink
from headwater.pipelines.streaming import SparkEngine
from headwater.spark.settings import parse

PATIENCE_SECONDS = 600.0
SOURCE = {"pollIntervalSeconds": "0.01"}


class Paced:
    """A mirror that follows a bucket in a thread of its own and waits after each batch. It does the same upkeep as any
    mirror.

    Args:
        spark: a session; None for worker processes.
        url: of the bucket.
        place: of the table.
    """

    def __init__(self, spark: Any, url: str, place: Path) -> None:
        self.sink = TableSink(place, "default")
        self._folds = Folds() if spark is None else None
        self._maintenance = self.sink.maintenance(self._folds)
        self._stands, self._may = threading.Semaphore(0), threading.Semaphore(0)
        self._ending, self._failure = False, ""
        self.visible = 0.0
        engine = _engine(spark, self.sink, {"url": url} | SOURCE)
        self._thread = threading.Thread(target=self._follow, args=(engine,))
        self._thread.start()

    def wait(self) -> float:
        """Wait until a batch is in the table; return the time of that, by `time.perf_counter`."""
        if not self._stands.acquire(timeout=PATIENCE_SECONDS) or self._failure:
            raise AssertionError(f"the mirror came to nothing: {self._failure or 'it is late'}")
        return self.visible

    def go(self) -> None:
        """Let the next batch begin."""
        self._may.release()

    def batch(self) -> float:
        """Let the mirror do the next batch; return the time when it was in the table, by `time.perf_counter`."""
        self.go()
        return self.wait()

    def close(self) -> None:
        """End the mirror. It must be waiting after a batch."""
        self._ending = True
        self.go()
        self._thread.join()
        for each in self._maintenance:
            each.close(finish=True)
        if self._folds is not None:
            self._folds.close()

    def _follow(self, engine: Engine) -> None:
        try:
            engine.follow(once=False, interval_seconds=0, on_batch=self._done, stop=lambda: self._ending)
        except Exception as error:
            self._failure = repr(error)
            self._stands.release()

    def _done(self, written: list[TaskResult], end: Mapping[str, Any]) -> None:
        self.visible = time.perf_counter()
        for each in self._maintenance:
            each.step()
            if each.problem:
                self._failure = each.problem
        self._stands.release()
        self._may.acquire()


def _engine(spark: Any, sink: TableSink, options: Mapping[str, str]) -> Engine:
    return LocalEngine(sink, parse(options, streaming=True)) if spark is None else SparkEngine(spark, sink, options)
