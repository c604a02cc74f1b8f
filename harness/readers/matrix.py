"""Readers meet tables: a cell of the matrix is rows that are right, rows that are not, or a refusal in their words."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.readers.environments import READING, SECONDS, Reader, python_of
from harness.readers.kinds import Expected
from harness.readers.reading import Rows

RIGHT, WRONG, REFUSES, CRASHES, ABSENT = "right", "wrong", "refuses", "crashes", "not installed"


@dataclass(frozen=True)
class Cell:
    """The outcome of a reader at a table.

    Attributes:
        kind, form: of the table.
        reader, reads: the reader, and the format that it took the table for.
        outcome: one of the five words.
        words: what differs, or how it was refused.
    """

    kind: str
    form: str
    reader: str
    reads: str
    outcome: str
    words: str = ""


def cells(readers: Iterable[Reader], tables: Sequence[Expected], folder: Path) -> Iterator[Cell]:
    """Let each reader read each table that has its format; yield what came of it."""
    for reader in readers:
        wanted = [table for table in tables if not table.refused and _place(table, reader.form)]
        python = python_of(reader)
        answers = read(reader, python, wanted) if python else [{}] * len(wanted)
        for table, answer in zip(wanted, answers, strict=True):
            outcome, words = judged(table, answer)
            yield Cell(table.kind, table.form, reader.name, reader.form, outcome, _general(words, folder))


def _place(table: Expected, reads: str) -> str:
    """Return the folder that a reader of a format is given, empty if the table has none for it."""
    if reads == "delta":
        return table.place
    beside = f"{table.place}/_iceberg"
    return {"iceberg": table.place, "delta,iceberg": beside}.get(table.form, "")


def read(reader: Reader, python: str, tables: Sequence[Expected]) -> list[dict[str, Any]]:
    """Return a reader's answers; where its process dies, the next one goes on behind the table that it died of."""
    answers: list[dict[str, Any]] = []
    while len(answers) < len(tables):
        rest = tables[len(answers) :]
        told, words = _process(reader, python, rest)
        answers += [json.loads(line) for line in told if line.startswith("{")]
        if len(told) < len(rest):
            answers.append({"crashed": words})
    return answers


def _process(reader: Reader, python: str, tables: Sequence[Expected]) -> tuple[list[str], str]:
    asked = [{"place": _place(table, reader.form), "columns": _columns(table), "ids": table.ids} for table in tables]
    environment = dict(os.environ) | {
        "TZ": "UTC",
        "READERS_SPARK": json.dumps(dict(reader.settings)),
        "PYSPARK_PYTHON": python,
    }
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [python, str(READING), reader.program],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=environment,
        cwd="/",  # ClickHouse reads below its own folder only
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
    return lines, f"ends with {done.returncode}: {''.join(last)}"


def _columns(table: Expected) -> list[str]:
    return [column for column in table.columns if column != "row_id"]


def judged(table: Expected, answer: dict[str, Any]) -> tuple[str, str]:
    """Return an answer's outcome and what there is to say of it."""
    if "refused" in answer:
        return REFUSES, answer["refused"]
    if "crashed" in answer:
        return CRASHES, answer["crashed"]
    if "rows" not in answer:
        return ABSENT, ""
    words = difference(table.columns, table.rows, answer["rows"])
    return (WRONG, words) if words else (RIGHT, "")


def difference(columns: Sequence[str], expected: Rows, seen: Rows) -> str:
    """Return in words how rows differ, in any order; empty if they don't."""
    mine, its = (Counter(_text(columns, row) for row in rows) for rows in (expected, seen))
    if mine == its:
        return ""
    keys, others = (Counter(row.get("key") for row in rows) for rows in (expected, seen))
    said = [f"{len(expected)} rows expected, {len(seen)} seen"] if len(expected) != len(seen) else []
    if surplus := (others - keys).total():
        said.append(f"{surplus} too many")
    if missing := (keys - others).total():
        said.append(f"{missing} missing")
    if not surplus and not missing:
        said.append(f"other values in {', '.join(_differing(columns, expected, seen))}")
    return "; ".join(said)


def _differing(columns: Sequence[str], expected: Rows, seen: Rows) -> list[str]:
    return [
        column
        for column in columns
        if Counter(_text([column], row) for row in expected) != Counter(_text([column], row) for row in seen)
    ]


def _text(columns: Sequence[str], row: dict[str, Any]) -> str:
    return json.dumps({column: row.get(column) for column in columns}, sort_keys=True)


def _general(words: str, folder: Path) -> str:
    """Return words without what is another in each run: places, names of files, numbers of objects."""
    words = words.replace(str(folder), "")
    words = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "...", words)
    return re.sub(r"(file://|/)\S*/t(_\w+)?(?=[/'\" ]|$)", r"TABLE\2", words)
