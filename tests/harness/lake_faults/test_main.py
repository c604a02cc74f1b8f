"""Many seeds, told and remembered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.lake_faults import __main__ as command
from harness.lake_faults.scenario import Result, profile_of


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """In place of scenarios; seed 3 goes wrong."""
    seeds: list[int] = []

    def run(seed: int, told: object, engine: object, **also: object) -> Result:
        seeds.append(seed)
        return Result(seed, profile_of(seed, str(also["form"])).name, 9, 0.1, "Wrong: it differs" if seed == 3 else "")

    monkeypatch.setattr(command, "run", run)
    return seeds


def test_a_seed_whose_result_is_in_the_report_is_not_run_again(
    ran: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "folder" / "report.jsonl"
    assert command.main(["--seeds", "0-1", "--report", str(report)]) == 0
    assert command.main(["--seeds", "0-2,4", "--report", str(report)]) == 0
    assert ran == [0, 1, 2, 4]
    assert command.main(["--seeds", "4", "--again", "--report", str(report)]) == 0
    assert [json.loads(line)["seed"] for line in report.read_text().splitlines()] == [0, 1, 2, 4, 4]
    assert "| all | 1 | 9 | 0 |  |" in capsys.readouterr().out


def test_one_that_went_wrong_is_named_and_is_the_exit_status(
    ran: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--seeds", "2-4", "--report", str(tmp_path / "r")]) == 1
    told = capsys.readouterr().out
    assert "seed    3     0.1 s   9 steps  purges: Wrong: it differs" in told
    assert "| purges | 1 | 9 | 1 | 3 |" in told and "| all | 3 | 27 | 1 | 3 |" in told


def test_each_engine_and_format_has_a_report_of_its_own() -> None:
    names = [command.report_of(engine, form).name for engine in command.ENGINES for form in ("delta", "delta,iceberg")]
    both = ["lake-faults.jsonl", "lake-faults-delta-iceberg.jsonl"]
    assert names == [*both, "lake-faults-spark.jsonl", "lake-faults-spark-delta-iceberg.jsonl"]


def test_tables_of_iceberg_have_kinds_of_their_own(
    ran: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--seeds", "17", "--format", "iceberg", "--report", str(tmp_path / "r")]) == 0
    assert "| a catalog that goes away | 1 |" in capsys.readouterr().out
