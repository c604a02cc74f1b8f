"""A query is waited for until it ends, or stopped; here it is one that ends at the second look."""

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.pipelines import query as query_module
from headwater.pipelines.query import JVM, until_ended
from headwater.pipelines.watch import NOBODY, BatchWatch


class Query:
    id = "q"

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.looks, self.stopped = error, 0, 0
        self.status: dict[str, Any] = {}

    def awaitTermination(self, seconds: float) -> bool:
        self.looks += 1
        if self.looks > 1 and self.error is not None:
            raise self.error
        return self.looks > 1 or bool(self.stopped)

    def stop(self) -> None:
        self.stopped += 1


def test_a_query_that_ends_by_itself_is_released() -> None:
    query = Query()
    until_ended(lambda: query, lambda: False, None, NOBODY)
    assert (query.looks, query.stopped) == (2, 1)


@pytest.mark.parametrize(
    ("message", "has_data", "is_calm"),
    [
        ("Waiting for next trigger", False, True),
        ("Waiting for next trigger", True, False),  # it was a batch, which is told by itself
        ("Getting offsets from the source", False, False),
        ("Initializing sources", False, False),
    ],
)
def test_a_query_that_waits_for_data_is_calm(
    message: str, has_data: bool, is_calm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_module, "CALM_SECONDS", 0.0)
    query, heard = Query(), list[bool]()
    query.status = {"message": message, "isDataAvailable": has_data, "isTriggerActive": False}
    until_ended(lambda: query, lambda: False, None, NOBODY, lambda: heard.append(True))
    assert heard == [True] * is_calm


def test_a_query_is_stopped_when_asked_to() -> None:
    query = Query()
    until_ended(lambda: query, lambda: True, None, NOBODY)
    assert query.stopped == 2


def test_a_query_that_fails_is_released_and_its_error_comes_through() -> None:
    query = Query(OSError("away"))
    with pytest.raises(OSError, match="away"):
        until_ended(lambda: query, lambda: False, None, NOBODY)
    assert query.stopped == 1


class Watch:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def batch(self, seconds: float) -> None:
        self.told.append(seconds)

    def lag(self, lag: Any) -> None:
        self.told.append(lag.changes)


def test_a_watch_hears_of_its_own_query_only_and_of_batches_that_had_something_to_do() -> None:
    pytest.importorskip("pyspark")
    watch, listeners = Watch(), []  # type: ignore[var-annotated]
    asked: BatchWatch = watch
    streams = SimpleNamespace(addListener=listeners.append, removeListener=listeners.remove)

    def report(query: str, *steps: str) -> Any:
        ends = {"endOffset": {"v": 1, "vb": {"0": ["00000000000000aa", 5]}}}
        ends["latestOffset"] = {"v": 1, "vb": {"0": ["00000000000000aa", 9]}}
        told = {"id": query, "name": None, "durationMs": dict.fromkeys(steps, 1), "batchDuration": 250}
        return SimpleNamespace(progress=SimpleNamespace(**told, sources=[SimpleNamespace(**ends)]))

    def stop() -> bool:
        (listener,) = listeners
        for event in (report("another", "addBatch"), report("q", "latestOffset"), report("q", "addBatch")):
            listener.onQueryProgress(event)
        return True

    until_ended(Query, stop, SimpleNamespace(streams=streams), asked)
    assert watch.told == [4, 0.25, 4] and listeners == []


@pytest.mark.battery
@pytest.mark.skipif(shutil.which("javac") is None, reason="no compiler of Java here")
def test_a_jvm_of_our_own_looks_through_a_long_error() -> None:
    """A job that was stopped in the middle of a batch printed a thousand lines of a StackOverflowError."""
    line = ["java", *JVM.split(), str(Path(__file__).with_name("Failed.java"))]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "false\n", "")
