"""A job's file: the record and the rows move together, or not at all."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.errors import LedgerError, OptionError, TableChanged
from headwater.pipelines.ledger import JobLedger, folder, open_for_reading

BEGINNING = {"v": 1, "vb": {}}
END = {"v": 1, "vb": {"0": ["00000000000000aa", 7]}}
ROWS = "CREATE TABLE IF NOT EXISTS rows (n INTEGER)"


def made(path: Path, **more: object) -> JobLedger:
    asked: dict[str, object] = {"kind": "index", "bucket": "b", "shape": None, "beginning": BEGINNING, "schema": ROWS}
    return JobLedger(path / "x.sqlite", **(asked | more))  # type: ignore[arg-type]


def rows(ledger: JobLedger) -> int:
    with ledger.transaction() as database:
        return int(database.execute("SELECT count(*) FROM rows").fetchone()[0])


def test_rows_and_record_are_there_together_for_whoever_opens_it_next(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    ledger.begin(END, {"a": 1})
    assert (made(tmp_path).begun, made(tmp_path).notes) == (END, {"a": 1})
    with ledger.advance(ledger.record.digest, END) as database:
        database.execute("INSERT INTO rows VALUES (1)")
    again = made(tmp_path)
    assert (again.record.end, again.record.batch, again.begun, again.notes, rows(again)) == (END, 1, None, {"a": 1}, 1)


def test_a_batch_that_was_planned_from_another_record_changes_nothing(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    before = ledger.record.digest
    with ledger.advance(before, END):
        pass
    with pytest.raises(TableChanged, match="at batch 1 by now"), ledger.advance(before, END) as database:
        database.execute("INSERT INTO rows VALUES (1)")
    assert (rows(ledger), ledger.record.batch) == (0, 1)


def test_a_failure_within_a_batch_takes_all_of_it_back(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    with pytest.raises(ZeroDivisionError), ledger.advance(ledger.record.digest, END) as database:
        database.execute("INSERT INTO rows VALUES (1)")
        raise ZeroDivisionError
    assert (rows(ledger), ledger.record.end) == (0, BEGINNING)


def test_a_full_disk_is_told_as_such_and_the_next_batch_goes_in_once_there_is_room(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    with ledger.transaction() as database:
        (pages,) = database.execute("PRAGMA page_count").fetchone()
    ledger._database.execute(f"PRAGMA max_page_count = {pages}")

    def bring() -> None:
        with ledger.advance(ledger.record.digest, END) as database:
            database.executemany("INSERT INTO rows VALUES (?)", [(n,) for n in range(10_000)])

    for _ in range(2):
        with pytest.raises(sqlite3.OperationalError, match="database or disk is full"):
            bring()
    ledger._database.execute("PRAGMA max_page_count = 1000000")
    bring()
    assert (rows(ledger), ledger.record.batch) == (10_000, 1)


@pytest.mark.parametrize(("place", "kept"), [("ledger.before_commit", 0), ("ledger.after_commit", 1)])
def test_a_process_that_is_killed_around_a_commit_leaves_both_or_none(place: str, kept: int, tmp_path: Path) -> None:
    script = (
        "from tests.pipelines.test_ledger import *\n"
        f"ledger = made(Path({str(tmp_path)!r}))\n"
        "with ledger.advance(ledger.record.digest, END) as database:\n"
        "    database.execute('INSERT INTO rows VALUES (1)')\n"
    )
    arm = f"from headwater import failpoints\nfailpoints.arm('{place}=kill')\n"
    done = subprocess.run([sys.executable, "-c", arm + script], cwd=Path(__file__).parents[2], check=False, timeout=120)
    assert done.returncode == -9
    ledger = made(tmp_path)
    assert (rows(ledger), ledger.record.batch) == (kept, kept)


def test_a_file_of_another_job_bucket_or_shape_is_refused_by_name(tmp_path: Path) -> None:
    made(tmp_path, shape={"fields": ["a"]}).close()
    with pytest.raises(LedgerError, match='the index of the bucket "b", not the index of "c"'):
        made(tmp_path, bucket="c")
    with pytest.raises(LedgerError, match=r"it was made with fields \['a'\]: give the same options"):
        made(tmp_path, shape={"fields": []})
    assert made(tmp_path).shape == {"fields": ["a"]}


def test_what_is_no_file_of_ours_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "x.sqlite").write_bytes(b"something else" * 100)
    with pytest.raises(LedgerError, match="no file of ours, or a damaged one"):
        made(tmp_path)
    assert (tmp_path / "x.sqlite").read_bytes() == b"something else" * 100
    with pytest.raises(LedgerError, match="there is no such file"):
        open_for_reading(tmp_path / "y.sqlite")
    with pytest.raises(OptionError, match="a folder on a disk of this machine"):
        folder("s3://bucket/place")


def test_readers_are_not_disturbed_by_a_batch_that_is_under_way(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    with ledger.advance(ledger.record.digest, END) as database:
        database.execute("INSERT INTO rows VALUES (1)")
        reader = open_for_reading(tmp_path / "x.sqlite")
        assert reader.execute("SELECT count(*) FROM rows").fetchone()[0] == 0
        with pytest.raises(sqlite3.OperationalError):
            reader.execute("INSERT INTO rows VALUES (2)")
        reader.close()
