"""A sink on a ledger: findings and record move together. Jobs with one are tested with nodes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import LedgerError, TableChanged
from headwater.failpoints import InjectedFault, armed
from headwater.pipelines.jobs import JobProgress
from headwater.pipelines.ledger_sink import LedgerAnswer, LedgerSink
from headwater.pipelines.sinks import from_text, to_text
from headwater.protocol.dcp.position import Position
from headwater.spark.offsets import Offset

END = Offset({0: Position(0, 1, 2, 2, 2)}).to_json()


@dataclass(frozen=True)
class Nothing:
    columns: tuple[str, ...] = ("key",)

    def __call__(self, batches: Iterator[Any]) -> int:
        return 0


class Notes(LedgerSink):
    KIND = "notes"
    SCHEMA = "CREATE TABLE IF NOT EXISTS notes (line TEXT);\n"

    def take(self, database: sqlite3.Connection, found: Sequence[Any]) -> None:
        database.executemany("INSERT INTO notes VALUES (?)", [[line] for line in found])

    def lines(self) -> list[str]:
        with self.ledger.transaction() as database:
            return [row["line"] for row in database.execute("SELECT line FROM notes")]


def test_a_batch_that_dies_before_its_commit_leaves_neither_findings_nor_record(tmp_path: Path) -> None:
    sink = Notes(tmp_path, "default", Nothing())
    before = sink.refresh()
    with armed("ledger.before_commit=raise"), pytest.raises(InjectedFault):
        sink.commit(before.digest, END, [LedgerAnswer("a", [], 1, 0)])
    assert (sink.lines(), sink.refresh()) == ([], before)
    assert sink.commit(before.digest, END, [LedgerAnswer("a", [], 1, 0)]).batch == 1
    assert (sink.lines(), sink.refresh().end) == (["a"], END)


def test_a_batch_of_another_record_or_history_is_planned_anew(tmp_path: Path) -> None:
    sink = Notes(tmp_path, "default", Nothing())
    with pytest.raises(TableChanged):
        sink.commit("other", END, [LedgerAnswer("a", [], 1, 0)])
    with pytest.raises(TableChanged, match="another history"):
        sink.commit(sink.refresh().digest, END, [LedgerAnswer("a", [3], 1, 0)])
    assert sink.lines() == []


def test_another_process_opens_the_same_place_and_another_bucket_does_not(tmp_path: Path) -> None:
    sink = Notes(tmp_path, "default", Nothing())
    sink.commit(sink.refresh().digest, END, [])
    opened = from_text(to_text(sink.opening())).open()
    assert type(opened) is Notes and opened.refresh() == sink.refresh() and opened.begun() is None
    with pytest.raises(LedgerError, match='it is the notes of the bucket "default"'):
        Notes(tmp_path, "other", Nothing())


def test_rollbacks_are_counted() -> None:
    progress = JobProgress(rollbacks=1)
    LedgerSink.count(None, progress, [LedgerAnswer(None, [], 0, 2), LedgerAnswer(None, [], 0, 1)])  # type: ignore[arg-type]
    assert progress.rollbacks == 4
