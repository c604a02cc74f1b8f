"""`headwater config`: show and check a file of settings before anything is started with it; and the options of all
other commands that such a file can have.
"""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headwater.cli.failures import CommandError
from headwater.cli.forms import FORMS, answer, forms
from headwater.cli.options import examples, paragraphs
from headwater.cli.profiles import VARIABLES
from headwater.cli.screen import several
from headwater.cli.settings import (
    Settings,
    child_of,
    command_tables,
    known_options,
    plain_name,
    profile_faults,
    read_settings,
    table_faults,
)
from headwater.errors import OptionError

PART = ("operate", 70)
HELP = """Look at a file of settings: what is wrong in it, and what counts in the end.

One TOML file serves a node and all commands: what stands at its top are options of `headwater serve`, the table of a
command, [mirror] or [backup.create], holds that command's. The command line comes first, then the environment, then the
file, then what is built in. A node is given it by `serve --config FILE`, a command by `headwater --config FILE
COMMAND`, both by HEADWATER_CONFIG."""
EXAMPLES = examples("headwater config check ./node.toml", "headwater config show ./node.toml")
EXITS_OF = {
    "check": {1: "something is wrong in the file; each is a line with its place"},
}

File = Annotated[Path, typer.Argument(metavar="FILE", help="A TOML file of settings.")]
DEFAULT = "default"
_FORM_OPTIONS = tuple(option.removeprefix("--") for option, _, _ in FORMS.values())


def check(
    context: typer.Context,
    file: File,
    skip_files: Annotated[
        bool, typer.Option("--skip-files", help="Files that it names (users, certificates) are on another machine.")
    ] = False,
) -> None:
    """Name every unknown key, wrong type, impossible value and impossible combination, each with its line.

    The environment is left out. Exit status 1 when something is wrong.
    """
    from headwater.node.config_check import Fault, faults_of, key_lines

    text = read_settings(file)
    faults = faults_of(text, with_files=not skip_files)
    try:
        lines, table = key_lines(text), tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        lines, table = {}, {}
    group = context.find_root().command
    of_profiles = profile_faults(table, file, group, with_files=not skip_files)
    for path, problem in (*table_faults(group, command_tables(table)), *of_profiles):
        faults.append(Fault(_line_of(lines, path), ".".join(path), problem))
    faults.sort()
    problems = [{"line": fault.line or None, "key": fault.key or None, "problem": fault.message} for fault in faults]
    messages = [
        f"{file}:{fault.line or ''}: {fault.key + ': ' if fault.key else ''}{fault.message}" for fault in faults
    ]
    answer("\n".join(messages) or f"{file}: all is well", file=str(file), faults=problems)
    if faults:
        raise CommandError(f"{file}: {several(len(faults), 'fault')}")


def show(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A TOML file; --config or HEADWATER_CONFIG if left out."),
    ] = None,
    command: Annotated[
        str | None, typer.Option("--for", metavar="COMMAND", help="The options of a command in place of a node's.")
    ] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Leave out what is as it is built in.")] = False,
) -> None:
    """Print each setting of a node or (--for) a command, its value, and where that comes from.

    That is a variable, the profile with file and line, the file and line, or the default. With --profile and without
    --for it is what a profile says to all commands. Passwords are never among them.
    """
    source = context.find_object(Settings) or Settings()
    source = replace(source, file=file or source.file)
    if source.profile or command is not None:
        rows = list(_of_command(context.find_root().command, command, source))
    else:
        from headwater.node.config_check import settings

        rows = [(setting.option.name, setting.value, setting.origin) for setting in settings(source.file)]
    shown_rows = [row for row in rows if not changed or row[2] != DEFAULT]
    if forms().json:
        typer.echo(
            json.dumps({name: {"value": value, "from": origin} for name, value, origin in shown_rows}, default=str)
        )
        return
    for name, value, origin in shown_rows:
        typer.echo(f"{name:<24} {json.dumps(value, ensure_ascii=False, default=str):<24} {origin}")


def _of_command(group: Any, name: str | None, source: Settings) -> Iterator[tuple[str, Any, str]]:
    """Yield (option, value, origin) of a command; without a name, of the profiles' options for all of them."""
    words = (name or "get").split()
    options: dict[str, tuple[Any, tuple[str, ...]]] = {}
    command = group
    for word in words:
        command = child_of(command, word)
        if command is None:
            raise OptionError("for", " ".join(words), "a command; headwater --help lists them")
    for layer, place in source.layers(group, words[0]):
        own_values = reduce(lambda below, word: below.get(word, {}), words, layer)
        options |= {each: (value, place) for each, value in own_values.items()}
    lines = {} if source.path is None else _lines(source.path)
    for option, parameter in sorted(known_options(command).items()):
        if (name is None and parameter.envvar not in VARIABLES) or option in ("help", *_FORM_OPTIONS):
            continue
        if parameter.hidden or f"--{option}" in getattr(parameter, "old_names", ()):
            continue
        value, origin = None if parameter.required else parameter.default, DEFAULT
        if parameter.envvar is not None and parameter.envvar in os.environ:
            value, origin = os.environ[parameter.envvar], parameter.envvar
        elif parameter.name in options:
            value, place = options[parameter.name]
            origin = _origin(lines, source, place, ((*words, option), (_key(parameter, words),)))
        yield option, "..." if option.endswith("password") and value else value, origin


def _key(parameter: Any, words: list[str]) -> str:
    """Return the key that a profile has for a parameter of all commands."""
    return VARIABLES.get(str(parameter.envvar), parameter.name if words[0] == "user" else "")


def _origin(
    lines: Mapping[tuple[str, ...], int], source: Settings, place: tuple[str, ...], keys: Sequence[tuple[str, ...]]
) -> str:
    """Return the origin of a default: the table of its command, or the profile."""
    paths_below = [path for path in lines if path[: len(place)] == place]
    paths = [path for key in keys for path in paths_below if _is_same_path(path[len(place) :], key)]
    return f"{f'profile {source.profile}, ' if place else ''}{source.path}:{lines.get([*paths, place][0], 0)}"


def _is_same_path(path: tuple[str, ...], other: tuple[str, ...]) -> bool:
    return tuple(map(plain_name, path)) == tuple(map(plain_name, other))


def _lines(path: Path) -> Mapping[tuple[str, ...], int]:
    from headwater.node.config_check import key_lines

    return key_lines(read_settings(path))


def _line_of(lines: Mapping[tuple[str, ...], int], path: tuple[str, ...]) -> int:
    """Return the line of a key; that of its table if it has none itself."""
    return next((lines[path[:length]] for length in range(len(path), 0, -1) if path[:length] in lines), 0)


group: Final = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
for _name, _command, _examples in (
    ("check", check, examples("headwater config check ./node.toml", "headwater config check --skip-files node.toml")),
    (
        "show",
        show,
        examples(
            "headwater config show ./node.toml",
            "headwater config show --changed --json",
            "headwater --profile production config show",
            "headwater --profile production config show --for 'backup create' --changed",
        ),
    ),
):
    group.command(_name, help=paragraphs(_command.__doc__), epilog=_examples)(_command)
