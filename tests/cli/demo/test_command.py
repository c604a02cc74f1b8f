from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwater.cli.app import app
from headwater.cli.demo import failover, story
from headwater.cli.demo.contents import TableFormat
from headwater.cli.demo.story import StoryPlan


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[StoryPlan]:
    plans: list[StoryPlan] = []
    monkeypatch.setattr(story, "tell", plans.append)
    return plans


def test_without_options_the_whole_year_is_told(told: list[StoryPlan]) -> None:
    assert CliRunner().invoke(app, ["demo"]).exit_code == 0
    assert told == [StoryPlan(rows=None, rounds=6, share=0.02, seed=2013, report=Path("artifacts/demo"), keep=None)]


def test_options_become_the_plan(told: list[StoryPlan]) -> None:
    words = ["demo", "--rows", "500", "--rounds", "2", "--share", "0.1", "--seed", "7", "--report", "r", "--keep", "k"]
    words += ["--format", "iceberg"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert told == [
        StoryPlan(rows=500, rounds=2, share=0.1, seed=7, report=Path("r"), keep=Path("k"), form=TableFormat.ICEBERG)
    ]


@pytest.mark.parametrize("words", ["--rows 99", "--rounds 0", "--share 0.9"])
def test_what_can_not_be_told_is_refused(told: list[StoryPlan], words: str) -> None:
    assert CliRunner().invoke(app, ["demo", *words.split()]).exit_code == 2
    assert told == []


def test_the_other_story_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch, told: list[StoryPlan]) -> None:
    kept: list[tuple[Path | None, TableFormat]] = []
    monkeypatch.setattr(failover, "tell", lambda keep, form: kept.append((keep, form)))
    assert CliRunner().invoke(app, ["demo", "failover", "--keep", "k", "--format", "iceberg"]).exit_code == 0
    assert (told, kept) == ([], [(Path("k"), TableFormat.ICEBERG)])


@pytest.mark.parametrize("words", ["--rows 500", "--rounds 2", "--share 0.1", "--seed 7", "--report r"])
def test_what_the_other_story_has_no_use_for_is_refused(
    monkeypatch: pytest.MonkeyPatch, told: list[StoryPlan], words: str
) -> None:
    monkeypatch.setattr(failover, "tell", pytest.fail)
    done = CliRunner().invoke(app, ["demo", "failover", *words.split()])
    option, given = words.removeprefix("--").split()
    expected = (
        f'option "{option}": "{given}" is not possible with failover, which has no option but --keep and --format'
    )
    assert (done.exit_code, done.stderr) == (2, f"headwater: {expected}\n")
