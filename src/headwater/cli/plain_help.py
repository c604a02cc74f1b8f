"""Help as a person reads it, where typer's own says less plainly what is meant: `headwater load FILE`, not `{FILE}
<path>`; a switch without `<bool>`."""

from functools import partial
from typing import Any

from headwater.cli.values import take_as_it_is

__all__ = ["PARTS", "plain", "plain_command", "plain_group", "usage"]

PARTS = {
    "first": "First steps",
    "follow": "What follows a bucket",
    "operate": "Operate",
    "inside": "Look inside",
    "older": "TAP, and nodes without a cluster map",
}
"""The parts of the list of commands, in their order."""


def plain_group(group: Any) -> None:
    """Let the help of a group and of all commands in it be plain."""
    plain_command(group)
    for command in getattr(group, "commands", {}).values():
        plain_group(command)


def plain_command(command: Any) -> None:
    """Let the help of a command be plain; of a group, without those in it."""
    command.get_help_option = partial(_help_of, command.get_help_option)
    for each in command.params:
        plain(each)


def _help_of(command: Any, context: Any) -> Any:
    return take_as_it_is(plain(command(context)))


def plain(parameter: Any) -> Any:
    """Let a parameter show no type where its name says it all: of a switch, and of an argument that is no choice."""
    if parameter.param_type_name == "argument":
        shown = parameter.display_type_rich
        parameter.display_type_rich = lambda ctx: text if "|" in (text := shown(ctx) or "") else None
        parameter.get_usage_pieces = lambda ctx: [usage(parameter)]
    elif getattr(parameter, "is_flag", False) or getattr(parameter, "count", False):
        parameter.display_type_rich = lambda ctx: None
    return parameter


def usage(argument: Any) -> str:
    """An argument as it stands in a command line: FILE, [FILE] if it may be left out, NODE... if there may be more."""
    name = (argument.metavar or argument.name.upper()) + "..." * (argument.nargs != 1)
    return name if argument.required else f"[{name}]"
