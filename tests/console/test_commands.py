"""Each command of the command line has its place in the console, or a reason why not, in the guide's table."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from headwater.cli.app import app
from headwater.cluster.work import USER_WORKS
from headwater.console.chores import KINDS
from headwater.console.desk import HERE, PAGES

GUIDE = Path(__file__).parents[2] / "docs" / "howto" / "console.md"
ROW = re.compile(r"^\| ((?:`[^`]+`(?:, )?)+) \| (.+) \|$", re.MULTILINE)
NOT_THERE = "not there: "


def commands(group: Any = None, above: str = "") -> Iterator[str]:
    for name, command in (group or typer.main.get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{above}{name} ")
        else:
            yield f"{above}{name}"


ROWS = [(re.findall(r"`([^`]+)`", names), place) for names, place in ROW.findall(GUIDE.read_text("utf-8"))]


def test_each_command_stands_once_in_the_table_of_the_guide() -> None:
    assert sorted(name for names, _ in ROWS for name in names) == sorted(commands())


@pytest.mark.parametrize(("names", "place"), ROWS, ids=[names[0] for names, _ in ROWS])
def test_a_command_is_on_a_page_that_there_is_or_has_a_reason(names: list[str], place: str) -> None:
    if place.startswith(NOT_THERE):
        assert len(place) > len(NOT_THERE) + 20, "a reason is a sentence"
        return
    page = place.partition(":")[0]
    assert page in dict(PAGES).values()
    templates = "".join(path.read_text("utf-8") for path in (HERE / "templates").iterdir())
    works = re.findall(r'\bwork_form\("([a-z-]+)"', templates)
    offered = templates + "".join(f'action="/actions/{kind}/plan"' for kind in works)
    offered += "".join(f'action="/users/{name}"' for name in USER_WORKS if "user_form(name, work)" in templates)
    for form in re.findall(r"`([^`]+)`", place):
        assert f'action="/{form}"' in offered, f"no page has the form that {names} name"


def test_each_kind_of_work_has_a_form_and_a_command() -> None:
    told = {form for _, place in ROWS for form in re.findall(r"`actions/([^`/]+)/plan`", place)}
    assert told | {"compaction", "flush"} == set(KINDS), "compaction and flush have no command of their own"
