"""Write docs/reference/cli.md from the commands themselves: the content of `--help`, as a page.

The page is made from the commands' declarations, not from the drawn help, whose frames change with typer's version.
`make docs` runs this; tests/test_docs.py fails when the page is stale.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from headwater.cli.app import app
from headwater.cli.forms import FORMS
from headwater.cli.options import unescaped
from headwater.cli.plain_help import usage

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "cli.md"
HEAD = """# The command line

Written by `make docs` from the commands' own help; edit there, in `src/headwater/cli/`.

A command ends with status 0 when all went well, 1 with one line on stderr when it failed, 2 for a wrong option, and 130
or 143 when Ctrl-C or SIGTERM came before the work was done. `serve`, `tail` and `mirror` run until they are told to
end: for them that is status 0. [All statuses](exit-codes.md).

Each command but `serve` has `--json` (the result as JSON), `--quiet`, `-q` (nothing but what was asked for, and errors)
and `--verbose`, `-v` (what it does, on stderr; `-vv`: errors with traceback). Before a command, `--config FILE` names a
[file of options](../howto/configure.md) for it, also `HEADWATER_CONFIG` in the environment; `headwater --version`,
`-V`, prints the version; `--install-completion` and `--show-completion` are [for the shell](../howto/configure.md).

TIME is a duration such as `30s`, `5m`, `2h` or `1d`, SIZE is `512KiB`, `64MiB` or `1GiB`; a number alone counts in the
unit that the option names, or seconds.
"""


COMMON = {each.help for _, hint, _ in FORMS.values() for each in hint.__metadata__}
"""Options of every command: the head of the page tells of them."""


def page() -> str:
    """Return the whole page."""
    group: Any = typer.main.get_command(app)
    return unescaped("\n".join([HEAD, *_commands(group, "")]))


def _commands(group: Any, prefix: str) -> Iterator[str]:
    """Yield the text of all commands of a group; a group in it yields its own text and then its commands."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield f"## {prefix}{name}\n\n{command.help}\n"
            yield "\n".join(["```console", *_examples(command.epilog), "```\n"])
            yield from _commands(command, f"{prefix}{name} ")
        else:
            yield from _command(f"{prefix}{name}", command)


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and not _left_out(param)]
    yield f"## {name}\n"
    yield f"    headwater {' '.join([name, *map(usage, arguments), '[OPTIONS]'])}\n"
    yield f"{command.help}\n"
    if arguments:
        yield from _table("argument", [(f"`{argument.metavar}`", argument) for argument in arguments])
    if options:
        yield from _table("option", [(_flags(option), option) for option in options])
    yield "\n".join(["```console", *_examples(command.epilog), "```\n"])


def _left_out(option: Any) -> bool:
    return option.hidden or option.help in COMMON


def _table(title: str, rows: list[tuple[str, Any]]) -> Iterator[str]:
    yield f"| {title} | meaning | default |\n|---|---|---|"
    for name, parameter in rows:
        variable = f" Also `{parameter.envvar}` in the environment." if parameter.envvar else ""
        yield f"| {name} | {parameter.help.replace('|', '&#124;')}{variable} | {_default(parameter)} |"
    yield ""


def _flags(option: Any) -> str:
    names = "`, `".join([*option.opts, *option.secondary_opts])
    return f"`{names}`" if option.is_flag or option.metavar is None else f"`{names} {option.metavar}`"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = getattr(parameter.default, "value", parameter.default)
    if parameter.param_type_name == "option" and parameter.is_flag and parameter.secondary_opts:
        return f"`{(parameter.opts if default else parameter.secondary_opts)[0]}`"
    return "" if default in (None, False, "") else f"`{default}`"


def _examples(epilog: str) -> Iterator[str]:
    for line in epilog.split("\n\n")[1:]:
        yield line.strip()


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), "utf-8")
