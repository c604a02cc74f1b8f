"""Help in a form for people, where typer's own is less plain: `headwater load FILE`, not `{FILE} <path>`; a switch
without `<bool>`.
"""

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
    """Give a group and all commands in it a plain help."""
    plain_command(group)
    for command in getattr(group, "commands", {}).values():
        plain_group(command)


def plain_command(command: Any) -> None:
    """Give a command a plain help; for a group, without the commands in it."""
    command.get_help_option = partial(_help_of, command.get_help_option)
    for param in command.params:
        plain(param)


def _help_of(command: Any, context: Any) -> Any:
    return take_as_it_is(plain(command(context)))


def plain(parameter: Any) -> Any:
    """Hide a parameter's type if its name is enough: of a switch, and of an argument that is no choice."""
    if parameter.param_type_name == "argument":
        display_type = parameter.display_type_rich
        parameter.display_type_rich = lambda ctx: text if "|" in (text := display_type(ctx) or "") else None
        parameter.get_usage_pieces = lambda ctx: [usage(parameter)]
    elif getattr(parameter, "is_flag", False) or getattr(parameter, "count", False):
        parameter.display_type_rich = lambda ctx: None
    return parameter


def usage(argument: Any) -> str:
    """Return an argument in its form on a command line: FILE, [FILE] if it is optional, NODE... if there may be
    several.
    """
    name = (argument.metavar or argument.name.upper()) + "..." * (argument.nargs != 1)
    return name if argument.required else f"[{name}]"
