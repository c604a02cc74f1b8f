"""Durations and sizes on the command line."""

from __future__ import annotations

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from headwater.cli.app import app
from headwater.cli.units import reader_of, seconds
from headwater.options import MIB, Option


def test_a_size_is_read_in_its_own_unit_or_in_another() -> None:
    read = reader_of(Option("quota", 0, "", kind=int, unit=MIB, least=0))
    assert (read("64"), read("64MiB"), read("1GiB"), read(7)) == (64, 64, 1024, 7)
    with pytest.raises(typer.BadParameter, match=r"'3 apples' is not a number of MiB, 0 or more; or such as 64MiB"):
        read("3 apples")


@pytest.mark.parametrize(("typed", "shown"), [("90", "90.0"), ("90s", "90.0"), ("1.5m", "90.0"), (None, "60.0")])
def test_an_option_in_seconds_takes_a_duration_and_keeps_its_default(typed: str | None, shown: str) -> None:
    program = typer.Typer()

    @program.command()
    def wait(patience: Annotated[float, seconds("--patience", "So long.")] = 60.0) -> None:
        typer.echo(patience)

    done = CliRunner().invoke(program, [] if typed is None else ["--patience", typed])
    assert (done.exit_code, done.stdout.strip()) == (0, shown)


@pytest.mark.parametrize(
    "words",
    [
        ["set", "a", "b", "--expiry", "-1"],
        ["set", "a", "b", "--durability-timeout", "soon"],
        ["move", "--from", "a:1", "--to", "b:1", "--patience", "5 parsecs"],
        ["cluster", "rebalance", "a:1", "--patience", "x"],
        ["bucket", "create", "carts", "--quota-mib", "much"],
        ["collection", "create", "shop.carts", "--max-ttl", "0"],
        ["backup", "restore", "./b", "--retry", "-1s"],
    ],
    ids=lambda words: words[-2],
)
def test_each_duration_and_size_that_can_not_be_is_refused_with_one_that_can(words: list[str]) -> None:
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, "such as" in done.stderr) == (2, True), done.stderr
