"""Named profiles: the bucket, user and TLS of commands, under one name in a file of settings.

    [profiles.production]
    node = "db1.example,db2.example"
    bucket = "orders"
    user = "ann"
    password-file = "ann.password"
    trust-store = "ca.pem"

    [profiles.production.mirror]
    to = "s3://lake/orders"

`headwater --profile production COMMAND`, or HEADWATER_PROFILE, uses these for options that the command line and the
environment leave out: the node, the user and the password's file of any command, and options of single commands. Paths
are relative to the folder of the file, and may begin with ~.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from headwater.errors import OptionError
from headwater.options import PROFILES

__all__ = ["KEYS", "VARIABLES", "client_options", "completed", "default_file", "faults", "profile", "tables", "url_of"]

KEYS: Final[Mapping[str, type]] = {
    "node": str,
    "bucket": str,
    "user": str,
    "password-file": str,
    "tls": bool,
    "trust-store": str,
    "client-certificate": str,
    "client-key": str,
    "tls-verify": str,
}
"""The keys of a profile, besides tables of commands; from `tls` on as the connection string has it, with dashes."""
PATHS: Final = ("password-file", "trust-store", "client-certificate", "client-key")
_OF_URL: Final = ("trust-store", "client-certificate", "client-key", "tls-verify")
VARIABLES: Final = {"HEADWATER_NODE": "node", "HEADWATER_USER": "user", "HEADWATER_PASSWORD_FILE": "password-file"}
"""The variables that override a profile, each with the key that it overrides; an option with such a variable gets its
default from that key.
"""
_USERS: Final = "user"
"""The commands whose --node is in place of a folder, and has no variable for that reason."""


def default_file() -> Path:
    """Return the file of profiles to use if none is named."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base, "headwater", "config.toml")


def profile(tables: Mapping[str, Any], name: str, file: Path) -> dict[str, Any]:
    """Return the table of a profile, with absolute paths.

    Raises:
        OptionError: there is none of that name; the message has the names that exist.
    """
    profiles = tables.get(PROFILES)
    table = profiles.get(name) if isinstance(profiles, dict) else None
    if not isinstance(table, dict):
        choices = ", ".join(_names(tables)) or "none at all"
        raise OptionError("profile", name, f"a profile of {file}, which has {choices}")
    values = {_plain(key): value for key, value in table.items()}
    folder = file.absolute().parent
    return values | {
        key: str(folder / Path(values[key]).expanduser()) for key in PATHS if isinstance(values.get(key), str)
    }


def tables(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of commands in a profile."""
    return {name: value for name, value in table.items() if _plain(name) not in KEYS and isinstance(value, dict)}


def url_of(table: Mapping[str, Any]) -> str | None:
    """Return the connection string of a profile, None if it names no node.

    Raises:
        OptionError: it is invalid.
    """
    from headwater.client.routing import parse

    node, parts = table.get("node"), [key for key in _OF_URL if key in table]
    if node is None:
        if parts or table.get("tls") or "bucket" in table:
            raise OptionError("node", "", "given: the profile has a bucket or TLS, and no node")
        return None
    speaks = bool(table.get("tls", bool(parts) or node.startswith("couchbases://")))
    scheme, _, remainder = node.rpartition("://")
    if scheme and (scheme == "couchbases") != speaks:
        raise OptionError("tls", speaks, f"what the node says as well: {scheme}://")
    remainder, _, query = remainder.partition("?")
    hosts, _, bucket = remainder.partition("/")
    if bucket and table.get("bucket", bucket) != bucket:
        raise OptionError("bucket", table["bucket"], f"the one that the node names as well: {bucket}")
    query_text = "&".join([*filter(None, [query]), *(f"{_escaped(key)}={quote(table[key])}" for key in parts)])
    url = f"{scheme or ('couchbases' if speaks else 'couchbase')}://{hosts}/{bucket or table.get('bucket', 'default')}"
    return parse(url + f"?{query_text}" * bool(query_text)).url


def client_options(name: str, command: Any, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a profile's node, user and password file as defaults of a command, or of a group that has such
    options.
    """
    values = {"node": url_of(table), "user": table.get("user"), "password-file": table.get("password-file")}
    environment = {variable: str(values[key]) for variable, key in VARIABLES.items() if values[key] is not None}
    return {name: defaults} if (defaults := _defaults(command, environment, name)) else {}


def _defaults(command: Any, values: Mapping[str, str], above: str) -> dict[str, Any]:
    if hasattr(command, "commands"):
        by_command = {name: _defaults(each, values, above) for name, each in command.commands.items()}
        return {name: defaults for name, defaults in by_command.items() if defaults}
    defaults = {param.name: values[param.envvar] for param in command.params if str(param.envvar) in values}
    if above == _USERS and "HEADWATER_NODE" in values:
        defaults["node"] = values["HEADWATER_NODE"]
    return defaults


def faults(tables: Mapping[str, Any], file: Path, *, with_files: bool) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (path, problem) for invalid entries of a profile, except in its tables of commands."""
    profiles = tables.get(PROFILES, {})
    if not isinstance(profiles, dict):
        yield (PROFILES,), "not a table: [profiles.NAME]"
        return
    for name, table in profiles.items():
        if not isinstance(table, dict):
            yield (PROFILES, name), "not a table: [profiles.NAME]"
            continue
        wrong = list(_wrong(table))
        yield from (((PROFILES, name, key), problem) for key, problem in wrong)
        if not wrong:
            yield from _impossible((PROFILES, name), profile(tables, name, file), with_files=with_files)


def _wrong(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        kind = KEYS.get(_plain(key))
        if kind is None and isinstance(value, dict):
            continue
        if kind is None:
            yield key, f"nothing of a profile, which has {', '.join(KEYS)}, and tables of commands"
        elif type(value) is not kind:
            yield key, f"{value!r} is not {'true or false' if kind is bool else 'a text'}"


def _impossible(
    path: tuple[str, ...], table: Mapping[str, Any], *, with_files: bool
) -> Iterator[tuple[tuple[str, ...], str]]:
    from headwater.cli.passwords import password_of

    try:
        url_of(table)
        if with_files and "password-file" in table:
            password_of(table["password-file"])
    except OptionError as error:
        yield (*path, error.name) if error.name in table else path, str(error)


def completed(incomplete: str, file: Path | None) -> list[str]:
    """Return the names of profiles that begin with a text, for the shell; none if the file can't be read."""
    import tomllib

    try:
        tables = tomllib.loads((file or default_file()).read_text("utf-8"))
    except (OSError, ValueError):
        return []
    return [name for name in _names(tables) if name.startswith(incomplete)]


def _names(tables: Mapping[str, Any]) -> list[str]:
    profiles = tables.get(PROFILES)
    return sorted(profiles) if isinstance(profiles, dict) else []


def _plain(name: str) -> str:
    return name.replace("_", "-").lower()


def _escaped(key: str) -> str:
    return key.replace("-", "_")
