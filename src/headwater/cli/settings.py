"""Defaults of commands, from a file of settings and its profiles, in the form that the command-line library takes.

    [mirror]                     options of a command
    [profiles.production]        node and user, and options of commands (profiles.py)

Every command looks for it before it runs, so the reader of the file is imported only if there is one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Final, get_args

import typer

from headwater.cli.failures import plain_words
from headwater.cli.profiles import client_options, default_file, faults, profile, tables
from headwater.cli.renamed import names_of
from headwater.errors import OptionError
from headwater.options import PROFILES, SERVE, SIZE, TIME

__all__ = [
    "Settings",
    "child_of",
    "command_tables",
    "known_options",
    "plain_name",
    "profile_faults",
    "read_settings",
    "table_faults",
]

_KINDS: Final[Mapping[Any, tuple[tuple[type, ...], str]]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """A file, and a profile of it ("": none), named by the command line or the environment."""

    file: Path | None = None
    profile: str = ""

    @property
    def path(self) -> Path | None:
        """The file to use: with a profile, the default file of profiles if none is named."""
        if self.file is None and self.profile and not default_file().exists():
            ways = f"--config FILE or HEADWATER_CONFIG names another, and there is no {default_file()}"
            raise OptionError("profile", self.profile, f"in a file of settings: {ways}")
        return default_file() if self.file is None and self.profile else self.file

    def layers(self, group: Any, name: str) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
        """Yield defaults of commands and the table that they come from, the strongest last.

        Args:
            group: all commands.
            name: the command, or group, that gets a profile's node and user; to make every command and look at its
                options would take half a second.

        Raises:
            OptionError: the file can't be read, or has an unknown option; there is no such profile; or the file has a
                password and others may read it.
        """
        if (path := self.path) is None:
            return
        import tomllib

        try:
            content = tomllib.loads(read_settings(path))
        except tomllib.TOMLDecodeError as error:
            raise OptionError("config", str(path), f"TOML: {error}") from None
        for place, problem in (*table_faults(group, command_tables(content)), *profile_faults(content, path, group)):
            raise OptionError(".".join(place), str(path), f"right: {problem}; see headwater config check")
        if any(name.endswith("password") for name in _names({**command_tables(content), **content.get(PROFILES, {})})):
            from headwater.node.config import refuse_readable_by_others

            refuse_readable_by_others(path, "config")
        yield _of_tables(group, command_tables(content)), ()
        if self.profile:
            table, place = profile(content, self.profile, path), (PROFILES, self.profile)
            yield client_options(name, child_of(group, name), table), place
            yield _of_tables(group, tables(table)), place

    def table(self) -> dict[str, Any]:
        """Return the profile's table. Raises as `layers`, which reads it first."""
        import tomllib

        path = self.path
        return {} if path is None else profile(tomllib.loads(read_settings(path)), self.profile, path)

    def defaults(self, group: Any, name: str) -> dict[str, Any]:
        """Return the defaults of a command in the file and the profile, in the form of the command-line library. Raises
        as `layers`.
        """
        merged: dict[str, Any] = {}
        for layer, _ in self.layers(group, name):
            _lay_over(merged, layer)
        return merged


def _lay_over(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    for name, value in above.items():
        if isinstance(value, dict):
            _lay_over(below.setdefault(name, {}), value)
        else:
            below[name] = value


def read_settings(path: Path) -> str:
    """Return the text of a file. Raises OptionError."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise OptionError("config", str(path), f"a file that can be read ({reason})") from None


def command_tables(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of commands in a file; unknown names are refused later."""
    return {name: value for name, value in content.items() if name != PROFILES and isinstance(value, dict)}


def _names(table: Mapping[str, Any]) -> Iterator[str]:
    for name, value in table.items():
        yield name
        if isinstance(value, dict):
            yield from _names(value)


def _of_tables(group: Any, tables: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _defaults(group.commands[name], table) for name, table in tables.items()}


def _defaults(command: Any, table: Mapping[str, Any]) -> dict[str, Any]:
    if hasattr(command, "commands"):
        return {name: _defaults(command.commands[name], value) for name, value in table.items()}
    options = known_options(command)
    return {options[plain_name(name)].name: _value(value) for name, value in table.items()}


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return [str(item) for item in value]
    return value if isinstance(value, bool) else str(value)


def child_of(group: Any, name: str) -> Any:
    """Return a command of a group, which another package may have; None if there is none."""
    return group.get_command(None, name) if hasattr(group, "commands") else None


def known_options(command: Any) -> dict[str, Any]:
    """Return a command's parameters by their names in a file: options without dashes, arguments as in its help, in
    lower case.
    """
    defaults: dict[str, Any] = {}
    for param in command.params:
        names = [param.metavar or param.name] if param.param_type_name == "argument" else names_of(param)
        defaults |= {
            plain_name(name.removeprefix("--")): param for name in names if not name.startswith("-") or name[:2] == "--"
        }
    return defaults


def plain_name(name: str) -> str:
    """Return a name in the form for comparisons: files may write it with dashes or underscores, in upper or
    lower case.
    """
    return name.replace("_", "-").lower()


def profile_faults(
    content: Mapping[str, Any], path: Path, group: Any, *, with_files: bool = False
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (path, problem) for invalid entries in the profiles of a file."""
    yield from faults(content, path, with_files=with_files)
    profiles = content.get(PROFILES, {})
    for name, table in profiles.items() if isinstance(profiles, dict) else ():
        if isinstance(table, dict):
            yield from table_faults(group, tables(table), (PROFILES, name))


def table_faults(
    command: Any, table: Mapping[str, Any], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (path, problem) for invalid entries in the table of a command or a group."""
    options = {} if hasattr(command, "commands") else known_options(command)
    words = above[2:] if above[:1] == (PROFILES,) else above
    help_of = " ".join(["headwater", *words, "--help"])
    for name, value in table.items():
        path = (*above, name)
        if hasattr(command, "commands"):
            if name == SERVE or (subcommand := child_of(command, name)) is None or not isinstance(value, dict):
                yield path, f"no command; {help_of} lists them"
            else:
                yield from table_faults(subcommand, value, path)
        elif (parameter := options.get(plain_name(name))) is None:
            yield path, f"no option; {help_of} lists them"
        elif (problem := _wrong(command, parameter, value)) is not None:
            yield path, problem


def _wrong(command: Any, parameter: Any, value: Any) -> str | None:
    """Return the requirement that a value breaks; None if it breaks none."""
    if parameter.multiple or parameter.nargs == -1:
        good = isinstance(value, list) and all(isinstance(item, str) for item in value)
        return None if good else f"{value!r} is not a list of texts"
    types, expected = _KINDS.get(_kind(command, parameter), ((str,), "a text"))
    is_measure = parameter.metavar in (TIME, SIZE) and isinstance(value, str)  # "5m", which the option reads itself
    if type(value) not in types and not is_measure:
        return f"{value!r} is not {expected}"
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
    """Return the declared type of a parameter, without the None of an optional one."""
    hint = command.kinds[parameter.name]
    return next((argument for argument in get_args(hint) if argument is not NoneType), hint)
