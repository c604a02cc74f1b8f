"""Cells of the matrix: what counts as right, and what is said where it is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.readers import matrix
from harness.readers.environments import Reader
from harness.readers.kinds import Expected
from harness.readers.matrix import cells, difference, judged

COLUMNS = ("key", "value")
ROWS = [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}]
TABLE = Expected("kind", "delta", "/tables/t", COLUMNS, ROWS)  # nothing is written there


def test_rows_are_right_in_any_order_and_with_columns_besides() -> None:
    seen = [row | {"other": 1} for row in reversed(ROWS)]
    assert judged(TABLE, {"rows": seen}) == ("right", "")


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ([*ROWS, ROWS[0]], "2 rows expected, 3 seen; 1 too many"),
        (ROWS[1:], "2 rows expected, 1 seen; 1 missing"),
        ([ROWS[0], {"key": "b", "value": "3"}], "other values in value"),
        ([ROWS[0], {"key": "c", "value": "2"}], "1 too many; 1 missing"),
    ],
)
def test_a_difference_is_said_in_words(seen: list[dict[str, str]], words: str) -> None:
    assert difference(COLUMNS, ROWS, seen) == words
    assert judged(TABLE, {"rows": seen}) == ("wrong", words)


def test_a_refusal_is_in_the_readers_words_and_without_places(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {"refused": "OSError: no /tmp/x/0-delta/t/_delta_log of 0f0f0f0f-1111-2222-3333-444455556666"}
    monkeypatch.setattr(matrix, "read", lambda *given: [refused])
    monkeypatch.setattr(matrix, "python_of", lambda reader: "python")
    (cell,) = cells([Reader("r", "r", "delta", ("r",))], [TABLE], Path("/tmp/x"))
    assert (cell.outcome, cell.words) == ("refuses", "OSError: no TABLE/_delta_log of ...")


def test_a_reader_that_is_not_installed_is_named_so() -> None:
    reader = Reader("nobody's", "polars-delta", "delta", ("no_such_package",))
    (cell,) = cells([reader], [TABLE], Path("/tmp"))
    assert (cell.reader, cell.outcome) == ("nobody's", "not installed")


def test_a_table_of_delta_is_given_to_no_reader_of_iceberg() -> None:
    assert list(cells([Reader("r", "r", "iceberg", ("no_such_package",))], [TABLE], Path("/tmp"))) == []


def test_behind_a_table_that_a_reader_dies_of_the_next_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "reading.py"
    program.write_text(
        "import json, os, sys\n"
        "for each in json.load(sys.stdin):\n"
        "    if each['place'] == 'bad': print('gone', file=sys.stderr); sys.stderr.flush(); os._exit(7)\n"
        "    print(json.dumps({'rows': []}), flush=True)\n"
    )
    monkeypatch.setattr(matrix, "READING", program)
    tables = [Expected("k", "delta", place, COLUMNS) for place in ("good", "bad", "good")]
    answers = matrix.read(Reader("r", "r", "delta", ("r",)), sys.executable, tables)
    assert answers == [{"rows": []}, {"crashed": "ends with 7: gone"}, {"rows": []}]
