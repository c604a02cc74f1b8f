"""The command of work is made of its declaration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from headwater.cli.cluster.work import NODE_ARGUMENT, NODE_OPTION, add_work
from headwater.client.routing import Address
from headwater.cluster.work import NODE, DeclaredWork, WorkOutcome, WorkPlan, WorkRun
from headwater.options import option

BEGUN: list[DeclaredWork] = []


@dataclass(frozen=True)
class Brew(DeclaredWork):
    """Brew [coffee] on all nodes."""

    KIND, HEADING, TITLE = "coffee-brew", "Brew", "Brew {0.cups} cups"
    EXAMPLES = ("headwater coffee brew",)
    HAS_DRY_RUN = ASKS = True

    cups: int = option(2, "How many.", metavar="N", least=1, most=12)
    beans: Sequence[str] = option((), "Which; repeatable.", many=True, choices=("arabica", "robusta"))
    near: Sequence[Address] = option((), "Where; repeatable.", many=True, metavar=NODE)

    async def plan(self, members: Any, seeds: Sequence[Address]) -> WorkPlan:
        """Return it."""
        return WorkPlan((f"{self.cups} cups", "on a node"), {"cups": self.cups})

    async def run(self, members: Any, seeds: Sequence[Address], run: WorkRun) -> WorkOutcome:
        """Do it."""
        BEGUN.append(self)
        return WorkOutcome("brewed", {"at": [str(seed) for seed in seeds]}, details=("one was cold",))


@dataclass(frozen=True)
class Serve(Brew):
    """Serve it."""

    KIND = "coffee-serve"
    SHOWS_PLAN = True
    UNIT = "cups"

    async def plan(self, members: Any, seeds: Sequence[Address]) -> WorkPlan:
        """Return it."""
        return WorkPlan(
            ("to all",), {"map": "1:1"}, ("node", "cups"), (("a", "2"),), "coffee", 2, is_empty=self.cups == 1
        )

    async def run(self, members: Any, seeds: Sequence[Address], run: WorkRun) -> WorkOutcome:
        """Do it."""
        BEGUN.append(self)
        return WorkOutcome("served", {"map": "1:2"})


@pytest.fixture
def app() -> Iterator[typer.Typer]:
    BEGUN.clear()
    coffee = typer.Typer()
    add_work(coffee, Brew, NODE_OPTION)
    add_work(coffee, Serve, NODE_ARGUMENT)
    yield coffee


def invoke(app: typer.Typer, *words: str, typed: str | None = None) -> tuple[int, list[str]]:
    result = CliRunner().invoke(app, list(words), input=typed)
    return result.exit_code, result.stdout.splitlines()


def test_options_become_fields_of_the_work(app: typer.Typer) -> None:
    words = ("--cups", "3", "--beans", "robusta", "--near", "a:1", "--near", "b:2", "--node", "c:3", "--yes")
    assert invoke(app, "brew", *words) == (0, ["brewed", "one was cold"])
    assert [Brew(3, ("robusta",), (Address("a", 1), Address("b", 2)))] == BEGUN  # type: ignore[comparison-overlap]


def test_a_dry_run_answers_with_the_plan_and_begins_nothing(app: typer.Typer) -> None:
    assert invoke(app, "brew", "--dry-run") == (0, ["2 cups", "on a node"])
    status, lines = invoke(app, "brew", "--dry-run", "--json")
    assert (status, json.loads(lines[0]), BEGUN) == (0, {"cups": 2}, [])


def test_it_is_asked_by_its_title_and_a_no_begins_nothing(app: typer.Typer) -> None:
    status, lines = invoke(app, "brew", typed="n\n")
    assert (status, lines[0].startswith("Brew 2 cups? [y/N]"), BEGUN) == (1, True, [])


def test_json_has_the_facts_and_no_details(app: typer.Typer) -> None:
    status, lines = invoke(app, "brew", "--yes", "--json", "--node", "c:3")
    assert (status, [json.loads(line) for line in lines]) == (0, [{"at": ["c:3"]}])


def test_work_that_shows_its_plan_prints_a_table_and_asks_then(app: typer.Typer) -> None:
    status, lines = invoke(app, "serve", "c:3", typed="y\n")
    assert (status, lines[0].strip(), len(BEGUN)) == (0, "coffee", 1)
    assert any(line.split() == ["a", "2"] for line in lines)
    assert "to all" in lines
    assert lines[-1].endswith("cups/s, map 1:2")
    status, lines = invoke(app, "serve", "c:3", "--yes", "--json")
    facts = json.loads(lines[-1])
    assert (facts["begun"], facts["map"], "seconds" in facts) == (True, "1:2", True)


def test_where_there_is_nothing_to_do_nobody_is_asked(app: typer.Typer) -> None:
    assert invoke(app, "serve", "c:3", "--cups", "1") == (0, ["there is nothing to do"])
    assert BEGUN == []
