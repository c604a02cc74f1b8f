"""The commands for a table, beside a real node and a mirror without Spark."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headwater import testing
from headwater.cli.app import app
from headwater.lake.index import FOLDER
from headwater.pipelines.mirror import mirror


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["lake", *words])


def test_a_table_is_described_verified_folded_and_vacuumed(tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    with testing.node(vbuckets=8) as node, node.client() as client:
        for n in range(4):
            client.set_many((f"k{i}", f"{n}") for i in range(n * 20, 100))
            client.delete(f"k{n}")
            mirror(None, node.url, place, once=True, changelog=True, upkeep=False)
        url = node.url
        before = json.loads(run("describe", place).stdout)
        assert (before["rows"], before["bucket"], before["files"]) == (96, "default", 4)
        told = run("verify", place, "--bucket", url)
        assert (told.exit_code, told.stdout) == (0, "96 rows, 96 documents: all is well\n")
        assert "folded 4 files: the table had 4 and has 1" in run("optimize", place, "--all").stdout
        assert run("verify", place, "--bucket", url).exit_code == 0
        assert "0 files would be removed" in run("vacuum", place, "--dry-run").stdout
        assert "the table had 4 and has 1" in run("optimize", f"{place}_changes", "--all").stdout
        client.set("k50", "later")
        next(Path(place, FOLDER).glob("fold*")).unlink()
        wrong = run("verify", place, "--bucket", url)
    assert wrong.exit_code == 1
    assert "its index is missing or damaged" in wrong.stdout
    assert "1 documents are of another seqno or CAS" in wrong.stdout
    assert wrong.stderr == "headwater: 96 rows, 96 documents: 2 problems\n"


def test_old_records_of_transactions_are_told_and_no_problem(tmp_path: Path) -> None:
    """An older release brought them in; a mirror that leaves them out keeps them as they were."""
    place = str(tmp_path / "t")
    wanted = {"transactionRecords": "true"}
    with testing.node(vbuckets=8) as node, node.client() as client:
        client.set_many((key, "v") for key in ("a", "_txn:atr-1", "_txn:client-record"))
        mirror(None, node.url, place, once=True, workers=0, reading=wanted)
        client.delete("_txn:atr-1")
        told = run("verify", place, "--bucket", node.url)
    assert told.exit_code == 0
    stale = "1 rows are old records of transactions (repair --anew takes them out)"
    assert told.stdout == f"3 rows, 2 documents, {stale}: all is well\n"


def test_a_table_that_is_broken_is_mended_and_its_mirror_goes_on(tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    with testing.node(vbuckets=8) as node, node.client() as client:
        for n in range(2):
            client.set_many((f"k{n}-{i}", "v") for i in range(20))
            mirror(None, node.url, place, once=True, upkeep=False, workers=0)
        lost = next(Path(place).glob("*.parquet"))
        lost.unlink()
        wrong = run("verify", place)
        assert (wrong.exit_code, wrong.stdout.splitlines()[0]) == (1, f"{lost.name} is missing: the table names it")
        assert run("repair", place, "--dry-run").stdout == f"{lost.name} is missing: the table names it\n"
        assert "start it" in run("repair", place).stdout
        mirror(None, node.url, place, once=True, upkeep=False, workers=0)
        told = run("verify", place, "--bucket", node.url)
        assert (told.exit_code, told.stdout) == (0, "40 rows, 40 documents: all is well\n")
        assert run("repair", place).stdout == "nothing is wrong that a repair mends\n"


def test_a_quarantine_is_described_and_verified_with_its_table(tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    with testing.node(vbuckets=8) as node, node.client() as client:
        client.set_many({"good": b"{}", "bad": b"no JSON", b"\xff": b"{}"}.items())
        mirror(None, node.url, place, once=True, json=True, quarantine=True, workers=0)
        told = json.loads(run("describe", place).stdout)
        assert (told["rows"], told["quarantine"]["rows"]) == (2, 2)
        assert told["quarantine"]["place"] == f"{place}_quarantine"
        assert json.loads(run("describe", f"{place}_quarantine").stdout) == told["quarantine"]
        verified = run("verify", place, "--bucket", node.url)
        assert (verified.exit_code, verified.stdout) == (0, "3 rows, 3 documents: all is well\n")
        client.set("bad", "later")
        assert "1 documents are of another seqno or CAS" in run("verify", place, "--bucket", node.url).stdout
        assert "folded 1 files" in run("optimize", f"{place}_quarantine", "--all").stdout


@pytest.mark.parametrize("shape", ["json", "variant"])
def test_documents_that_a_table_of_text_leaves_out_are_told_and_are_no_problem(tmp_path: Path, shape: str) -> None:
    place = str(tmp_path / "t")
    with testing.node(vbuckets=8) as node, node.client() as client:
        client.set_many({"good": b"{}", b"\xff": b"{}"}.items())
        mirror(None, node.url, place, once=True, workers=0, **{shape: True})
        told = "1 rows, 2 documents, 1 of them left out, for their keys are not UTF-8"
        verified = run("verify", place, "--bucket", node.url)
        assert (verified.exit_code, verified.stdout) == (0, f"{told}: all is well\n")
        client.set("more", b"{}")
        wrong = run("verify", place, "--bucket", node.url)
        assert wrong.exit_code == 1 and "1 documents are only in the bucket" in wrong.stdout and "more" in wrong.stdout


@pytest.mark.parametrize("command", ["describe", "verify", "optimize", "vacuum", "repair"])
def test_where_there_is_no_table_one_line_says_so(command: str, tmp_path: Path) -> None:
    told = run(command, str(tmp_path))
    assert (told.exit_code, told.stderr) == (1, f"headwater: {tmp_path}: there is no table here\n")


def test_a_retention_of_less_than_an_hour_is_refused(tmp_path: Path) -> None:
    assert run("vacuum", str(tmp_path), "--older-than", "0").exit_code == 2
