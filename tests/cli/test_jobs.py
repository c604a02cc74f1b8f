"""The command of a job is made of its declaration."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from headwater.cli.jobs import add_job
from headwater.options import option
from headwater.pipelines.jobs import DeclaredJob

BEGUN: list[Any] = []


@dataclass
class Brew(DeclaredJob[str]):
    """Brew [coffee] until it is ended."""

    NAME = "brew"
    WORK = f"{__name__}:brew"
    DONE = "brewed"
    EXAMPLES = ("headwater brew mild",)

    strength: str = option(..., "How strong.", positional=True, choices=("mild", "black"))
    _: KW_ONLY
    once: bool = option(False, "End when all cups are {done}.")
    cups: int = option(2, "How many.", metavar="N", least=1, most=12)
    beans: tuple[str, ...] = option(("robusta",), "Which; repeatable.", many=True, metavar="NAME", read=tuple)
    warm: bool = option(True, "Keep it warm.", flag="warm/--cold")
    till_user: str | None = option(None, "Who pays.", metavar="NAME")
    till_password: str | None = option(None, "Their password.", metavar="TEXT", secret=True)

    def line(self, progress: str) -> str:
        """Return it."""
        return progress


def brew(job: Brew) -> str:
    BEGUN.append(job)
    return "done"


@pytest.fixture
def app() -> typer.Typer:
    BEGUN.clear()
    made = typer.Typer()
    made.callback()(lambda: None)
    add_job(made, Brew, "Jobs")
    return made


def test_a_job_has_the_options_that_it_declares_and_those_of_all_jobs(app: typer.Typer) -> None:
    line = "brew black --cups 3 --beans a --beans b --cold --retry 2m --user ann --password x --progress none"
    done = CliRunner().invoke(app, line.split())
    assert (done.exit_code, done.output) == (0, "")
    job = BEGUN[0]
    assert (job.strength, job.cups, job.beans, job.warm, job.once) == ("black", 3, ("a", "b"), False, False)
    assert (job.retry_seconds, job.user, job.password) == (120.0, "ann", "x")


def test_what_is_left_out_is_as_declared(app: typer.Typer) -> None:
    assert CliRunner().invoke(app, ["brew", "mild"]).exit_code == 0
    job = BEGUN[0]
    assert (job.cups, job.beans, job.warm, job.retry_seconds, job.user) == (2, ("robusta",), True, None, None)


def test_a_password_of_a_user_comes_from_a_file_too(app: typer.Typer, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("beans\n")
    (tmp_path / "secret").chmod(0o600)
    line = ["brew", "mild", "--till-user", "ann", "--till-password-file", str(tmp_path / "secret")]
    assert CliRunner().invoke(app, line).exit_code == 0
    assert (BEGUN[0].till_user, BEGUN[0].till_password) == ("ann", "beans")
    assert CliRunner().invoke(app, ["brew", "mild", "--till-user", "ann"]).exit_code != 0


@pytest.mark.parametrize("line", ["brew weak", "brew mild --cups 13", "brew mild --retry soon", "brew"])
def test_a_value_that_cannot_be_ends_with_status_2(app: typer.Typer, line: str) -> None:
    assert CliRunner().invoke(app, line.split()).exit_code == 2
    assert BEGUN == []


def test_the_help_says_what_the_declaration_does(app: typer.Typer) -> None:
    shown = " ".join(CliRunner().invoke(app, ["brew", "--help"]).output.split())
    for words in ("all cups are brewed.", "--retry TIME", "Brew [coffee]"):
        assert words in shown.replace(" │ │ ", " ")
