"""The engines of the scenarios' mirrors: without Spark, in this process and in forked ones that die, or on a real
Spark.

On Spark a batch's steps run in three kinds of processes: planning in a Python process of the query, tasks in workers,
the commit in the driver. So a failpoint is armed in all of them, and this process can act when one of them stops there.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from harness.lake_faults.catalog import REST, configured
from harness.lake_faults.judge import Wrong
from harness.processes import descendants, end_with_all_its_own, is_stopped, lives
from headwater import failpoints
from headwater.errors import HeadwaterError
from headwater.lake.iceberg import entry
from headwater.lake.log import TableLog
from headwater.lake.store import TableStore
from headwater.pipelines.mirror import MirrorProgress, mirror

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_SECONDS = 240.0
LOOK_SECONDS = 0.05
DRIVER_SECONDS = 600.0
"""How long a driver with a JVM of its own may take to come to its point, or to its end."""

ELSEWHERE = ("lake.planned", "lake.reading", "lake.files_written")
"""Failpoints that a mirror on Spark passes in other processes than its driver."""

_CONTEXT = multiprocessing.get_context("forkserver")


class Engine(Protocol):
    """The engine of a scenario's mirrors."""

    name: str

    def run(self, url: str, place: Path, **asked: Any) -> MirrorProgress:
        """Run a mirror in this process; the arguments are those of `mirror`."""

    def die(self, url: str, place: Path, points: str, options: Mapping[str, Any], random: Random) -> None:
        """Run a mirror once that dies at the armed failpoint, if it reaches it. The options are those of `mirror`."""

    def armed(self, points: str) -> Any:
        """Arm failpoints for the mirrors of a block."""

    def met(self, point: str, step: Callable[[], None]) -> Any:
        """Run `step` when a mirror of the block passes a failpoint for the first time."""


def mirror_and_die(url: str, place: Path, points: str, options: Mapping[str, Any], rest: str) -> None:
    """Run a mirror to its end, or to the end of its process. `rest` is the address of a REST catalog, or empty."""
    failpoints.arm(points)
    with configured(rest), suppress(HeadwaterError):
        mirror(None, url, place, once=True, workers=0, retry_seconds=0, **options)


def leave_and_die(place: Path, points: str, rest: str) -> None:
    """Take a table out of its catalog, or die at the armed failpoint. `rest` is the address of the catalog."""
    failpoints.arm(points)
    log = TableLog(TableStore(place))
    log.refresh()
    with configured(rest), suppress(HeadwaterError):
        entry.leave_catalog(log)


def run_and_wait(points: str, target: Callable[..., None], *given: Any) -> None:
    """Run a function in a forked process that may be killed at a failpoint.

    Raises:
        Wrong: it does not end.
    """
    _CONTEXT.set_forkserver_preload(["headwater.pipelines.mirror", "headwater.pipelines.tasks"])
    process = _CONTEXT.Process(target=target, args=given)
    process.start()
    process.join(PATIENCE_SECONDS)
    if process.is_alive():
        process.kill()
        raise Wrong(f"a process that was to meet {points} did not end in {PATIENCE_SECONDS:.0f} s")


class WithoutSpark:
    """Mirrors on the local engine, in this very process where nothing has to die."""

    name = "local"

    def run(self, url: str, place: Path, **asked: Any) -> MirrorProgress:
        """As `Engine.run`."""
        return mirror(None, url, place, **({"workers": 0} | asked))

    def die(self, url: str, place: Path, points: str, options: Mapping[str, Any], random: Random) -> None:
        """Run a mirror in a forked process that is killed at one of its steps."""
        rest = os.environ.get(REST, "")
        run_and_wait(points, mirror_and_die, url, place, points, dict(options), rest)

    armed = staticmethod(failpoints.armed)

    @contextmanager
    def met(self, point: str, step: Callable[[], None]) -> Iterator[None]:
        """As `Engine.met`, at a failpoint of this process."""
        failpoints.ACTIONS["meet"] = lambda name: step()
        try:
            with failpoints.armed(f"{point}=meet"):
                yield
        finally:
            del failpoints.ACTIONS["meet"]


class OnSpark:
    """Mirrors on Spark: in a session of this process, or in a driver of their own where that has to die.

    Args:
        spark: the session, of this process's own JVM.
    """

    name = "spark"

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def run(self, url: str, place: Path, **asked: Any) -> MirrorProgress:
        """As `Engine.run`."""
        return mirror(self.spark, url, place, **asked)

    def die(self, url: str, place: Path, points: str, options: Mapping[str, Any], random: Random) -> None:
        """Kill a planner's or worker's process, or a driver with all processes that it has started."""
        if points.startswith(ELSEWHERE) and random.random() < 0.5:
            with self.armed(points), suppress(HeadwaterError):
                self.run(url, place, once=True, retry_seconds=0, **options)
        else:
            driver_that_dies(url, place, points.replace("=kill", "=stop"), *_typed(options))

    @contextmanager
    def armed(self, points: str) -> Iterator[None]:
        """Arm points here, and in the Python processes that Spark starts for a query of this block."""
        environment = self.spark.sparkContext.environment
        environment["HEADWATER_FAILPOINTS"] = points
        try:
            with failpoints.armed(points):
                yield
        finally:
            del environment["HEADWATER_FAILPOINTS"]

    @contextmanager
    def met(self, point: str, step: Callable[[], None]) -> Iterator[None]:
        """As `Engine.met`: the process that reaches the failpoint waits until the step is done."""
        if point not in ELSEWHERE:
            with WithoutSpark().met(point, step):
                yield
            return
        with _watched(step), self._stopping(point):
            yield

    @contextmanager
    def _stopping(self, point: str) -> Iterator[None]:
        environment = self.spark.sparkContext.environment
        environment["HEADWATER_FAILPOINTS"] = f"{point}=stop"
        try:
            yield
        finally:
            del environment["HEADWATER_FAILPOINTS"]


def _typed(options: Mapping[str, Any]) -> list[str]:
    """Return options of `mirror` as one types them; `--changelog` is given by itself."""
    named = [f"--{name}={options[name]}" for name in ("format", "catalog") if options.get(name)]
    return [*named, *(["--unfold"] if options.get("json") else [])]


@contextmanager
def _watched(step: Callable[[], None]) -> Iterator[None]:
    """Continue our processes that stop during a block, the first of them after a step."""
    ended, failed = threading.Event(), []

    def watch() -> None:
        todo = [step]
        while not ended.wait(LOOK_SECONDS):
            for pid in filter(is_stopped, descendants(os.getpid())):
                try:
                    todo.pop()() if todo else None
                except BaseException as error:
                    failed.append(error)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    if failed:
        raise failed[0]


def driver_that_dies(url: str, place: Path, points: str, *options: str, surely: bool = False) -> bool:
    """Run `headwater mirror --once` on a Spark of its own, and kill all its processes when one of them stops at a
    failpoint.

    The mirror may have begun anew before that: a Python worker is late on a busy machine.

    Args:
        surely: True if it must reach the failpoint.

    Returns: True if it was killed.

    Raises:
        Wrong: it failed, or did neither end nor stop, or ended well where it must not.
    """
    asked = [sys.executable, "-m", "headwater", "mirror", url, "--to", str(place), "--once", "--changelog"]
    asked += ["--retry", "300", "--progress", "json", *options]
    environment = {**os.environ, "HEADWATER_FAILPOINTS": points}
    with (
        tempfile.TemporaryFile() as told,
        subprocess.Popen(asked, env=environment, stdout=told, stderr=told) as driver,
    ):
        waiting = threading.Event()
        for _ in range(int(DRIVER_SECONDS / LOOK_SECONDS)):
            if driver.poll() is not None:
                told.seek(0)
                lines = told.read().decode(errors="replace").splitlines()
                if driver.returncode or surely:
                    raise Wrong(f"a mirror that was to meet {points} ended with {driver.returncode}: {lines[-3:]}")
                return False
            if any(map(is_stopped, (driver.pid, *descendants(driver.pid)))):
                end_all(driver.pid)
                return True
            waiting.wait(LOOK_SECONDS)
        end_all(driver.pid)
    raise Wrong(f"a mirror that was to meet {points} did not end in {DRIVER_SECONDS:.0f} s")


def end_all(pid: int) -> None:
    """Kill a process and its descendants, and wait until they are gone."""
    known = [pid, *descendants(pid)]
    end_with_all_its_own(pid)
    waiting = threading.Event()
    while any(map(lives, known)):
        waiting.wait(LOOK_SECONDS)
