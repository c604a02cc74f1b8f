"""`headwater config`: what a file of settings says, before anything is started with it; and the options of all other
commands that such a file can have."""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, get_args

import typer

from headwater.cli.failures import CommandError, plain_words
from headwater.cli.forms import FORMS, answer, forms
from headwater.cli.options import examples, paragraphs
from headwater.cli.profiles import VARIABLES, client_options, default_file, faults, profile, tables
from headwater.cli.renamed import names_of
from headwater.cli.screen import several
from headwater.errors import OptionError
from headwater.node.config import PROFILES, SERVE, refuse_readable_by_others
from headwater.options import SIZE, TIME

HELP = """Look at a file of settings: what is wrong in it, and what counts in the end.

One TOML file serves a node and all commands: what stands at its top are options of `headwater serve`, the table of a
command, [mirror] or [backup.create], holds that command's. The command line comes first, then the environment, then the
file, then what is built in. A node is given it by `serve --config FILE`, a command by `headwater --config FILE
COMMAND`, both by HEADWATER_CONFIG."""
EXAMPLES = examples("headwater config check ./node.toml", "headwater config show ./node.toml")

File = Annotated[Path, typer.Argument(metavar="FILE", help="A TOML file of settings.")]
DEFAULT = "default"
_FORM_OPTIONS = tuple(option.removeprefix("--") for option, _, _ in FORMS.values())
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
        lines, found = key_lines(text), tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        lines, found = {}, {}
    group = context.find_root().command
    of_profiles = profile_faults(found, file, group, with_files=not skip_files)
    for path, problem in (*_table_faults(group, _tables(found)), *of_profiles):
        faults.append(Fault(_line_of(lines, path), ".".join(path), problem))
    faults.sort()
    told = [{"line": fault.line or None, "key": fault.key or None, "problem": fault.message} for fault in faults]
    shown = [f"{file}:{fault.line or ''}: {fault.key + ': ' if fault.key else ''}{fault.message}" for fault in faults]
    answer("\n".join(shown) or f"{file}: all is well", file=str(file), faults=told)
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
    asked = context.find_object(Settings) or Settings()
    asked = replace(asked, file=file or asked.file)
    if asked.profile or command is not None:
        found = list(_of_command(context.find_root().command, command, asked))
    else:
        from headwater.node.config_check import settings

        found = [(each.option.name, each.value, each.origin) for each in settings(asked.file)]
    told = [each for each in found if not changed or each[2] != DEFAULT]
    if forms().json:
        typer.echo(json.dumps({name: {"value": value, "from": origin} for name, value, origin in told}, default=str))
        return
    for name, value, origin in told:
        typer.echo(f"{name:<24} {json.dumps(value, ensure_ascii=False, default=str):<24} {origin}")


def _of_command(group: Any, name: str | None, asked: "Settings") -> Iterator[tuple[str, Any, str]]:
    """Yield (option, value, origin) of a command; without a name, of what profiles say to all of them."""
    words = (name or "get").split()
    options: dict[str, tuple[Any, tuple[str, ...]]] = {}
    command = group
    for word in words:
        command = _child(command, word)
        if command is None:
            raise OptionError("for", " ".join(words), "a command; headwater --help lists them")
    for layer, place in asked.layers(group):
        mine = reduce(lambda below, word: below.get(word, {}), words, layer)
        options |= {each: (value, place) for each, value in mine.items()}
    lines = {} if asked.path is None else _lines(asked.path)
    for option, parameter in sorted(_known(command).items()):
        if (name is None and parameter.envvar not in VARIABLES) or option in ("help", *_FORM_OPTIONS):
            continue
        if parameter.hidden or f"--{option}" in getattr(parameter, "old_names", ()):
            continue
        value, origin = None if parameter.required else parameter.default, DEFAULT
        if parameter.envvar is not None and parameter.envvar in os.environ:
            value, origin = os.environ[parameter.envvar], parameter.envvar
        elif parameter.name in options:
            value, place = options[parameter.name]
            origin = _origin(lines, asked, place, ((*words, option), (_key(parameter, words),)))
        yield option, "..." if option.endswith("password") and value else value, origin


def _child(group: Any, name: str) -> Any:
    """A command of a group, which another package may bring; None if there is none."""
    return group.get_command(None, name) if hasattr(group, "commands") else None


def _key(parameter: Any, words: list[str]) -> str:
    """The key by which a profile knows a parameter that all commands have."""
    return VARIABLES.get(str(parameter.envvar), parameter.name if words[0] == "user" else "")


def _origin(
    lines: Mapping[tuple[str, ...], int], asked: "Settings", place: tuple[str, ...], wanted: Sequence[tuple[str, ...]]
) -> str:
    """The place of a default: the table of its command or, of a profile, its own."""
    mine = [path for path in lines if path[: len(place)] == place]
    found = [path for each in wanted for path in mine if _same(path[len(place) :], each)]
    return f"{f'profile {asked.profile}, ' if place else ''}{asked.path}:{lines.get([*found, place][0], 0)}"


def _same(path: tuple[str, ...], other: tuple[str, ...]) -> bool:
    return tuple(map(_plain, path)) == tuple(map(_plain, other))


def _lines(path: Path) -> Mapping[tuple[str, ...], int]:
    from headwater.node.config_check import key_lines

    return key_lines(_read(path))


def _line_of(lines: Mapping[tuple[str, ...], int], path: tuple[str, ...]) -> int:
    """The line of a key; that of its table where it has none itself."""
    return next((lines[path[:length]] for length in range(len(path), 0, -1) if path[:length] in lines), 0)


@dataclass(frozen=True, slots=True)
class Settings:
    """A file, and a profile of it ("": none), as the command line or the environment name them."""

    file: Path | None = None
    profile: str = ""

    @property
    def path(self) -> Path | None:
        """The file that counts: a profile has a place where it is looked for if none is named."""
        if self.file is None and self.profile and not default_file().exists():
            ways = f"--config FILE or HEADWATER_CONFIG names another, and there is no {default_file()}"
            raise OptionError("profile", self.profile, f"in a file of settings: {ways}")
        return default_file() if self.file is None and self.profile else self.file

    def layers(self, group: Any) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
        """Yield defaults of commands and the table they are from, the one that comes first in the end.

        Raises:
            OptionError: the file can't be read, or has something that is no option; there is no such profile; a
                password in the file and others may read it.
        """
        if (path := self.path) is None:
            return
        try:
            found = tomllib.loads(_read(path))
        except tomllib.TOMLDecodeError as error:
            raise OptionError("config", str(path), f"TOML: {error}") from None
        for place, problem in (*_table_faults(group, _tables(found)), *profile_faults(found, path, group)):
            raise OptionError(".".join(place), str(path), f"right: {problem}; see headwater config check")
        if any(name.endswith("password") for name in _names({**_tables(found), **found.get(PROFILES, {})})):
            refuse_readable_by_others(path, "config")
        yield _of_tables(group, _tables(found)), ()
        if self.profile:
            table, place = profile(found, self.profile, path), (PROFILES, self.profile)
            yield client_options(group, table), place
            yield _of_tables(group, tables(table)), place

    def table(self) -> dict[str, Any]:
        """Return the profile's table. Raises as `layers`, which has looked at it."""
        path = self.path
        return {} if path is None else profile(tomllib.loads(_read(path)), self.profile, path)

    def defaults(self, group: Any) -> dict[str, Any]:
        """Return what the file and the profile say about commands, in the form in which the command-line library takes
        defaults. Raises as `layers`."""
        made: dict[str, Any] = {}
        for layer, _ in self.layers(group):
            _lay_over(made, layer)
        return made


def _lay_over(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    for name, value in above.items():
        if isinstance(value, dict):
            _lay_over(below.setdefault(name, {}), value)
        else:
            below[name] = value


def profile_faults(
    found: Mapping[str, Any], path: Path, group: Any, *, with_files: bool = False
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (path, problem) for what can't stand in the profiles of a file."""
    yield from faults(found, path, with_files=with_files)
    known = found.get(PROFILES, {})
    for name, table in known.items() if isinstance(known, dict) else ():
        if isinstance(table, dict):
            yield from _table_faults(group, tables(table), (PROFILES, name))


def _of_tables(group: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _defaults(group.commands[name], table) for name, table in found.items()}


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise OptionError("config", str(path), f"a file that can be read ({reason})") from None


def _tables(found: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of commands in a file; what is no command is found out later."""
    return {name: value for name, value in found.items() if name != PROFILES and isinstance(value, dict)}


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
        names = [each.metavar or each.name] if each.param_type_name == "argument" else names_of(each)
        found |= {
            _plain(name.removeprefix("--")): each for name in names if not name.startswith("-") or name[:2] == "--"
        }
    return found


def _table_faults(
    command: Any, table: Mapping[str, Any], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (path, problem) for what can't stand in the table of a command or a group of them."""
    known = {} if hasattr(command, "commands") else _known(command)
    words = above[2:] if above[:1] == (PROFILES,) else above
    help_of = " ".join(["headwater", *words, "--help"])
    for name, value in table.items():
        path = (*above, name)
        if hasattr(command, "commands"):
            if (own := _child(command, name)) is None or name == SERVE or not isinstance(value, dict):
                yield path, f"no command; {help_of} lists them"
            else:
                yield from _table_faults(own, value, path)
        elif (parameter := known.get(_plain(name))) is None:
            yield path, f"no option; {help_of} lists them"
        elif (problem := _wrong(command, parameter, value)) is not None:
            yield path, problem


def _wrong(command: Any, parameter: Any, value: Any) -> str | None:
    """Say what a value had to be; None if it is."""
    if parameter.multiple or parameter.nargs == -1:
        good = isinstance(value, list) and all(isinstance(each, str) for each in value)
        return None if good else f"{value!r} is not a list of texts"
    types, told = KINDS.get(_kind(command, parameter), ((str,), "a text"))
    is_measure = parameter.metavar in (TIME, SIZE) and isinstance(value, str)  # "5m", which the option reads itself
    if type(value) not in types and not is_measure:
        return f"{value!r} is not {told}"
    if parameter.param_type_name == "argument" or value is False:
        return None
    typed = [parameter.opts[0]] if value is True else [parameter.opts[0], str(value)]
    try:
        command.make_context("", typed)
    except typer.BadParameter as error:
        # A parameter that is missing is one, too; it comes after those that were given.
        is_missing = type(error).__name__ == "MissingParameter"
        return None if is_missing else " ".join(plain_words(error).split()).rstrip(".")
    return None


def _kind(command: Any, parameter: Any) -> Any:
    """The type of a parameter as its command declares it, without the None that leaves it out."""
    hint = command.kinds[parameter.name]
    return next((each for each in get_args(hint) if each is not NoneType), hint)


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
