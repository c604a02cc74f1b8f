"""Help is as plain as it can be: how a command is typed, and where it stands in the list."""

from typing import Any

import pytest
import typer

from headwater.cli.app import app
from headwater.cli.plain_help import PARTS
from tests.cli.test_help import commands


def test_every_command_stands_in_a_part_of_the_list_and_the_parts_in_their_order() -> None:
    group: Any = typer.main.get_command(app)
    parts = [command.rich_help_panel for command in group.commands.values()]
    titles = list(PARTS.values())
    assert list(dict.fromkeys(parts)) == titles and parts == sorted(parts, key=titles.index)


@pytest.mark.parametrize(("name", "command"), list(commands(typer.main.get_command(app))))
def test_usage_is_written_as_it_is_typed(name: str, command: Any) -> None:
    """FILE, [FILE], NODE...: no braces and no types; a choice shows what there is to choose."""
    usage = " ".join(command.make_context(name, [], resilient_parsing=True).get_usage().split())
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    assert "{" not in usage and usage.count("[") == 1 + sum(not argument.required for argument in arguments) + (
        "ARGS" in usage
    )
    for argument in arguments:
        assert (argument.display_type_rich(command.make_context(name, [], resilient_parsing=True)) or "|").count("|")
