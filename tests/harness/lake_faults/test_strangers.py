"""Statements for Iceberg on Spark. That Spark carries them out, test_world.py tries where it is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.lake_faults import strangers
from harness.lake_faults.strangers import IcebergOnSpark, Refused, named

PROGRAM = """
import json, sys
print("a line of Spark's")
for line in sys.stdin:
    asked = json.loads(line)["statement"]
    answer = {"refused": "no"} if asked.startswith("DROP") else {"rows": [[asked]]}
    print("ANSWER" + json.dumps(answer), flush=True)
    if asked == "END":
        break
"""


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> IcebergOnSpark:
    monkeypatch.setattr(strangers, "PROGRAM", PROGRAM)
    opened = IcebergOnSpark()
    opened.python = sys.executable
    return opened


def test_a_folder_is_a_name_below_the_root() -> None:
    assert named(Path("/tmp/a-b/table/_iceberg")) == "strangers.`tmp`.`a-b`.`table`.`_iceberg`"


def test_a_statement_has_rows_or_is_refused(session: IcebergOnSpark) -> None:
    assert session.run(Path("/t"), "SELECT 1 FROM {table}") == [["SELECT 1 FROM strangers.`t`"]]
    with pytest.raises(Refused, match="no"):
        session.run(Path("/t"), "DROP TABLE {table}")
    session.close()


def test_a_session_that_ended_is_a_refusal(session: IcebergOnSpark) -> None:
    assert session.run(Path("/t"), "END") == [["END"]]
    with pytest.raises((Refused, OSError)):
        session.run(Path("/t"), "SELECT 1")
    assert session.run(Path("/t"), "a new one") == [["a new one"]]
    session.close()


def test_an_answer_that_was_not_waited_for_is_not_taken_for_the_next(
    session: IcebergOnSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.begin()
    with monkeypatch.context() as late:
        late.setattr(strangers.json, "loads", lambda text: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            session.run(Path("/t"), "first")
    assert session.run(Path("/t"), "second") == [["second"]]
    session.close()
