"""The commit of a batch by foreachBatch, with a batch that is a list. With Spark: test_mirror.py."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.errors import TableChanged
from headwater.lake.writer import TaskResult
from headwater.pipelines.sink import TableSink
from headwater.pipelines.sinks import REPEATS_MAX
from headwater.pipelines.streaming import _Batches

END = {"v": 1, "vb": {"0": ["00000000000000aa", 7]}}


class Frame:
    """A DataFrame that is collected, each time as if its tasks ran again."""

    def __init__(self, *rows: Any) -> None:
        self.rows, self.times = rows, 0

    def collect(self) -> list[Any]:
        self.times += 1
        return list(self.rows)


def row(after: str, written: TaskResult | None = None) -> Any:
    told = b"" if written is None else written.to_bytes()
    return SimpleNamespace(written=told, after=after, end=json.dumps(END))


def batches(sink: TableSink, told: list[Any]) -> _Batches:
    made = _Batches("mirror", sink, lambda written, end: told.append((written, end)))
    made.query.set_result("query")
    return made


def test_a_batch_is_committed_under_its_query_and_number(tmp_path: Path) -> None:
    sink, told = TableSink(tmp_path, "b"), []  # type: ignore[var-annotated]
    batches(sink, told).take(Frame(row(sink.record.digest, TaskResult(0))), 5)  # type: ignore[arg-type]
    assert (sink.record.end, sink.log.state.transactions) == (END, {"query": 5})
    assert told == [([TaskResult(0)], END)]


def test_nothing_and_what_was_planned_from_another_record_is_left_out(tmp_path: Path) -> None:
    sink, told = TableSink(tmp_path, "b"), []  # type: ignore[var-annotated]
    made = batches(sink, told)
    made.take(Frame(), 0)  # type: ignore[arg-type]
    made.take(Frame(row("another")), 1)  # type: ignore[arg-type]
    made.take(Frame(row(sink.record.digest, TaskResult(0, unread=[3]))), 2)  # type: ignore[arg-type]
    assert (told, sink.refresh().batch) == ([], 0)


def test_tasks_run_again_when_somebody_elses_commit_came_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = TableSink(tmp_path, "b")

    def refused(*arguments: Any) -> None:
        raise TableChanged("t", "x")

    monkeypatch.setattr(sink, "commit", refused)
    frame = Frame(row(sink.record.digest))
    with pytest.raises(TableChanged):
        batches(sink, []).take(frame, 0)  # type: ignore[arg-type]
    assert frame.times == REPEATS_MAX
