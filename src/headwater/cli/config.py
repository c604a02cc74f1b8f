"""`headwater config`: what a file of settings says, before anything is started with it; and the options of all other
commands that such a file can have."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import typer

from headwater.cli.failures import CommandError, plain_words
from headwater.cli.forms import answer, forms
from headwater.cli.options import examples, paragraphs
from headwater.cli.screen import several
from headwater.errors import OptionError
from headwater.node.config import COMMAND_TABLES, refuse_readable_by_others

HELP = """Look at a file of settings: what is wrong in it, and what counts in the end.

One TOML file serves a node and all commands: what stands at its top are options of `headwater serve`, the table of a
command, [mirror] or [backup.create], holds that command's. The command line comes first, then the environment, then the
file, then what is built in. A node is given it by `serve --config FILE`, a command by `headwater --config FILE
COMMAND`, both by HEADWATER_CONFIG."""
EXAMPLES = examples("headwater config check ./node.toml", "headwater config show ./node.toml")

File = Annotated[Path, typer.Argument(metavar="FILE", help="A TOML file of settings.")]
KINDS: Mapping[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
}


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

    text = _read(file)
    faults = faults_of(text, with_files=not skip_files)
    try:
        lines, tables = key_lines(text), _tables(tomllib.loads(text))
    except tomllib.TOMLDecodeError:
        lines, tables = {}, {}
    for path, problem in _table_faults(context.find_root().command, tables):
        faults.append(Fault(lines.get(path, 0), ".".join(path), problem))
    faults.sort()
    told = [{"line": fault.line or None, "key": fault.key or None, "problem": fault.message} for fault in faults]
    shown = [f"{file}:{fault.line or ''}: {fault.key + ': ' if fault.key else ''}{fault.message}" for fault in faults]
    answer("\n".join(shown) or f"{file}: all is well", file=str(file), faults=told)
    if faults:
        raise CommandError(f"{file}: {several(len(faults), 'fault')}")


def show(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A TOML file; HEADWATER_CONFIG if left out.")
    ] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Leave out what is as it is built in.")] = False,
) -> None:
    """Print each setting of a node, its value, and where that comes from: a variable, the file and line, the default.

    A password is never among them: they are in files, whose names are.
    """
    from headwater.node.config_check import settings

    found = [each for each in settings(file) if not changed or each.origin != "default"]
    if forms().json:
        told = {each.option.name: {"value": each.value, "from": each.origin} for each in found}
        typer.echo(json.dumps(told))
        return
    for each in found:
        value = json.dumps(each.value, ensure_ascii=False)
        typer.echo(f"{each.option.name:<24} {value:<24} {each.origin}")


def defaults_of(path: Path, group: Any) -> dict[str, Any]:
    """Return what a file says about commands, in the form in which the command-line library takes defaults.

    Raises:
        OptionError: it can't be read, or has something that is no option; a password in it and others may read it.
    """
    try:
        tables = _tables(tomllib.loads(_read(path)))
    except tomllib.TOMLDecodeError as error:
        raise OptionError("config", str(path), f"TOML: {error}") from None
    for place, problem in _table_faults(group, tables):
        raise OptionError(".".join(place), str(path), f"right: {problem}; see headwater config check")
    if any(name.endswith("password") for name in _names(tables)):
        refuse_readable_by_others(path, "config")
    return {name: _defaults(group.commands[name], table) for name, table in tables.items()}


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise OptionError("config", str(path), f"a file that can be read ({reason})") from None


def _tables(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name in COMMAND_TABLES and isinstance(value, dict)}


def _names(table: Mapping[str, Any]) -> Iterator[str]:
    for name, value in table.items():
        yield name
        if isinstance(value, dict):
            yield from _names(value)


def _defaults(command: Any, table: Mapping[str, Any]) -> dict[str, Any]:
    if hasattr(command, "commands"):
        return {name: _defaults(command.commands[name], value) for name, value in table.items()}
    known = _known(command)
    return {known[_plain(name)].name: _value(value) for name, value in table.items()}


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return [str(each) for each in value]
    return value if isinstance(value, bool) else str(value)


def _plain(name: str) -> str:
    return name.replace("_", "-").lower()


def _known(command: Any) -> dict[str, Any]:
    """A command's parameters by the names that a file has for them: of options without dashes, of arguments as in its
    help, in small letters."""
    found: dict[str, Any] = {}
    for each in command.params:
        names = [each.metavar or each.name] if each.param_type_name == "argument" else each.opts
        found |= {
            _plain(name.removeprefix("--")): each for name in names if not name.startswith("-") or name[:2] == "--"
        }
    return found


def _table_faults(
    command: Any, table: Mapping[str, Any], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (path, problem) for what can't stand in the table of a command or a group of them."""
    known = command.commands if hasattr(command, "commands") else _known(command)
    for name, value in table.items():
        path = (*above, name)
        if hasattr(command, "commands"):
            if name not in known or not isinstance(value, dict):
                yield path, f"no command; headwater {' '.join(above)} --help lists them".replace("  ", " ")
            else:
                yield from _table_faults(known[name], value, path)
        elif (parameter := known.get(_plain(name))) is None:
            yield path, f"no option; headwater {' '.join(above)} --help lists them"
        elif (problem := _wrong(command, parameter, value)) is not None:
            yield path, problem


def _wrong(command: Any, parameter: Any, value: Any) -> str | None:
    """Say what a value had to be; None if it is."""
    if parameter.multiple or parameter.nargs == -1:
        good = isinstance(value, list) and all(isinstance(each, str) for each in value)
        return None if good else f"{value!r} is not a list of texts"
    types, told = KINDS.get(_kind(command, parameter), ((str,), "a text"))
    if type(value) not in types:
        return f"{value!r} is not {told}"
    if parameter.param_type_name == "argument" or value is False:
        return None
    typed = [parameter.opts[0]] if value is True else [parameter.opts[0], str(value)]
    try:
        command.make_context("", typed)
    except typer.BadParameter as error:
        # A parameter that is missing is one, too; it comes after those that were given.
        return None if type(error).__name__ == "MissingParameter" else " ".join(plain_words(error).split())
    return None


def _kind(command: Any, parameter: Any) -> Any:
    """The type of a parameter as its command declares it, without the None that leaves it out."""
    hint = get_type_hints(command.callback)[parameter.name]
    return next((each for each in get_args(hint) if each is not NoneType), hint)


group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
for _name, _command, _examples in (
    ("check", check, examples("headwater config check ./node.toml", "headwater config check --skip-files node.toml")),
    ("show", show, examples("headwater config show ./node.toml", "headwater config show --changed --json")),
):
    group.command(_name, help=paragraphs(_command.__doc__), epilog=_examples)(_command)
