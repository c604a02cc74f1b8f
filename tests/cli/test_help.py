"""Help shows what is written: text in brackets is no style of the screen."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from rich.text import Text

from headwater.cli.app import app
from headwater.cli.options import unescaped
from tests.cli.support import Run


def commands(group: Any, name: str = "headwater") -> Iterator[tuple[str, Any]]:
    yield name, group
    for each, command in getattr(group, "commands", {}).items():
        yield from commands(command, f"{name} {each}")


@pytest.mark.parametrize(("name", "command"), list(commands(typer.main.get_command(app))))
def test_nothing_of_the_help_is_taken_for_a_style(name: str, command: Any) -> None:
    for text in (command.help, command.epilog, *(getattr(param, "help", "") for param in command.params)):
        if text:
            assert Text.from_markup(text).plain == unescaped(text)


def test_the_list_of_commands_ends_with_first_steps_to_type(run: Run) -> None:
    _, shown, _ = run("--help")
    assert [shown.index(f"$ headwater {each}") for each in ("serve", "set", "get", "tail", "mirror")]
    assert "<bool>" not in shown


def test_no_two_commands_of_a_group_show_the_same_examples() -> None:
    shown = [
        (name.split()[1], command.epilog) for name, command in commands(typer.main.get_command(app)) if " " in name
    ]
    assert len(shown) == len(set(shown))


def test_an_example_of_a_role_in_one_bucket_is_shown_whole(run: Run) -> None:
    _, shown, _ = run("user", "roles", "--help")
    assert "headwater user roles app 'read,write[orders],stream[orders:shop]'" in shown
