"""Check a file of settings without starting a node, and report every fault with its line, and every value with its
origin.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from headwater.errors import OptionError
from headwater.node.config import CONFIG, OPTIONS, config_from, is_of_clients, wrong
from headwater.options import Option

__all__ = ["Fault", "Setting", "faults_of", "key_lines", "settings"]

FILES = ("users_file", "password_file", "cluster_secret_file")
"""The options that name files with secrets, which are left out when settings are checked on another machine."""
_PLACE = re.compile(r" \(at line (\d+), column \d+\)")
_BY_FIELD = {option.field: option for option in OPTIONS}
_SECRET = {"HEADWATER_PASSWORD": "given where the node runs"}


class Fault(NamedTuple):
    """A fault in a file of settings.

    Attributes:
        line: its line, from 1 on; 0 for the file as a whole.
        key: the faulty key; empty for the file as a whole.
        message: what is wrong.
    """

    line: int
    key: str
    message: str


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting with its value, and the origin of the value: a file and line, a variable, or "default"."""

    option: Option
    value: Any
    origin: str


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """Return the line, from 1 on, on which each key of a TOML document begins; tables are keys, too.

    The standard library's reader does not report line numbers, so this function passes it one statement at a time.

    Raises:
        tomllib.TOMLDecodeError: the text is not TOML.
    """
    lines_by_key: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    piece: list[str] = []
    lines = text.splitlines()
    for at, line in enumerate(lines, 1):
        piece.append(line)
        try:
            parsed = tomllib.loads("\n".join(piece))
        except tomllib.TOMLDecodeError:
            if at == len(lines):
                raise
            continue
        paths = list(_paths(parsed))
        if line.lstrip().startswith("[") and len(piece) == 1:
            table, names = paths[-1], paths
        else:
            names = [(*table, *path) for path in paths]
        for path in names:
            lines_by_key.setdefault(path, at - len(piece) + 1)
        piece = []
    return lines_by_key


def _paths(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in table.items():
        yield (*above, name)
        inner = value[0] if isinstance(value, list) and value else value
        if isinstance(inner, dict):
            yield from _paths(inner, (*above, name))


def faults_of(text: str, *, with_files: bool = True) -> list[Fault]:
    """Return all faults of a node's settings, in the order of their lines: unknown keys, wrong types, invalid values
    and combinations. Tables belong to other commands, and are not checked.

    Args:
        text: the content of the file.
        with_files: True to check also the files that the settings name.
    """
    try:
        table, lines = tomllib.loads(text), key_lines(text)
    except tomllib.TOMLDecodeError as error:
        return [_unreadable(str(error))]
    faults, values = [], {}
    for key, value in table.items():
        if is_of_clients(key, value):
            continue
        if (problem := wrong(key, value)) is not None:
            value_text = f"{value!r} is " if key.replace("-", "_") in _BY_FIELD else ""
            faults.append(Fault(lines[key,], key, f"{value_text}not {problem}"))
        else:
            values[key.replace("-", "_")] = _BY_FIELD[key.replace("-", "_")].of_file(value)
    by_field = {key.replace("-", "_"): (key, lines[key,]) for key in table}
    for field, problem in _impossible(values, with_files=with_files):
        key, line = by_field.get(field, ("", 0))
        faults.append(Fault(line, key, problem))
    return sorted(faults)


def _unreadable(message: str) -> Fault:
    place = _PLACE.search(message)
    return Fault(int(place[1]) if place else 0, "", f"not TOML: {_PLACE.sub('', message)}")


def _impossible(values: dict[str, Any], *, with_files: bool) -> Iterator[tuple[str, str]]:
    """Yield (field, problem) for each problem. After each one its field is removed, so that the next problem
    appears.
    """
    remaining = {name: value for name, value in values.items() if with_files or name not in FILES}
    while (error := _problem(remaining, with_files=with_files)) is not None:
        field = _culprit(error, remaining, with_files=with_files)
        yield field, str(error)
        if remaining.pop(field, None) is None:
            return


def _culprit(error: OptionError, values: dict[str, Any], *, with_files: bool) -> str:
    """Return the field to change: the one that the error names, or otherwise a field whose removal solves the problem;
    empty if there is none.
    """
    field = error.name.replace("-", "_")
    if field in values:
        return field
    for name in values:
        rest = {other: value for other, value in values.items() if other != name}
        if str(_problem(rest, with_files=with_files)) != str(error):
            return name
    return ""


def _problem(values: dict[str, Any], *, with_files: bool) -> OptionError | None:
    from headwater.node.connections.tls import NodeTls, name_rules  # noqa: PLC0415 - imports cryptography

    try:
        config = config_from(values, _SECRET if "user" in values and "password_file" not in values else {})
        name_rules(config.tls_user)
        if config.tls_certificate and with_files:
            NodeTls(config)
    except OptionError as error:
        return error
    except (OSError, UnicodeDecodeError) as error:
        path = getattr(error, "filename", None)
        field = next((name for name in FILES if str(values.get(name)) == str(path)), "")
        return OptionError(field, str(path), f"a file that can be read ({error})")
    return None


def settings(file: Path | None, environment: Mapping[str, str] = os.environ) -> list[Setting]:
    """Return every setting, with the value that a node would use now, from the environment, otherwise the file,
    otherwise the default.

    Raises:
        OptionError: as `config_from`, whose result this explains.
    """
    config = config_from({CONFIG.field: str(file)} if file else {}, environment)
    file_named = file or Path(environment.get(CONFIG.variable, ""))
    values = _of_file(file_named) if file_named != Path() else {}
    from_environment = [option for option in OPTIONS if option.variable in environment]
    values |= {option.field: (environment[option.variable], option.variable) for option in from_environment}
    rows = []
    for option in OPTIONS:
        value, origin = values.get(option.field, (option.default, "default"))
        value = getattr(config, option.field, value)
        rows.append(Setting(option, str(value) if isinstance(value, Path) else value, origin))
    return [row for row in rows if row.option is not CONFIG]


def _of_file(path: Path) -> dict[str, tuple[Any, str]]:
    text = path.read_text("utf-8")
    lines = key_lines(text)
    return {key.replace("-", "_"): (value, f"{path}:{lines[key,]}") for key, value in tomllib.loads(text).items()}
