"""The settings of a node: one table, read by the command line, the tests and the documentation."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from headwater.errors import OptionError

VBUCKETS_MAX = 1024  # at most 1024 for the Java client (interop.md 4, rule 10)


@dataclass(frozen=True, slots=True)
class Option:
    """One setting: its name on the command line (dashes), default and meaning."""

    name: str
    default: Any
    about: str
    kind: type = str

    @property
    def field(self) -> str:
        """Its name in NodeConfig."""
        return self.name.replace("-", "_")


OPTIONS: tuple[Option, ...] = (
    Option("host", "127.0.0.1", "address to listen on"),
    Option("port", 11210, "port to listen on; 0 takes a free one, the ready line names it", int),
    Option("data", "headwater-data", "directory of the store; made if missing"),
    Option("bucket", "default", "name of the bucket"),
    Option("vbuckets", 1024, "number of vbuckets of a new store: a power of two, 1 to 1024", int),
    Option("vbucket-state", "active", "state of the vbuckets of a new store: active, or none to create none"),
    Option("user", "", "let only this user in (needs a password)"),
    Option("password-file", "", "file whose first line is the user's password; HEADWATER_PASSWORD works as well"),
    Option("users-file", "", "file of users, one name:password a line; readable by its owner only"),
    Option("connections-max", 10_000, "connections at a time; one more is closed at once", int),
    Option("idle-seconds", 0, "close a connection that said nothing for so long (0: never)", int),
    Option("segment-mib", 256, "size of one file of the log, MiB; at least 48, two commits of the largest size", int),
    Option("compact-dead-percent", 50, "compaction begins when more of the log than this is dead (100: never)", int),
    Option("purge-age-seconds", 3 * 86400, "compaction drops tombstones older than this", int),
    Option("scrub-interval-seconds", 86_400, "time from one verification of the log to the next (0: never)", int),
    Option("scrub-mib-per-second", 32, "how much of the log a verification reads a second, MiB", int),
    Option("expiry-pager-seconds", 60, "how often expired documents are looked for (0: only when touched)", int),
    Option("takeover-seconds", 60, "a vbucket whose hand-over takes longer refuses writes until it is done", int),
    Option("tap-keep-alive-seconds", 0, "how long a named TAP session waits for its client (0: not at all)", int),
    Option("upr-states", "dcp", "numbers of pending and replica to UPR peers: dcp (3, 2) or text (2, 3, as printed)"),
    Option("log-level", "warning", "debug, info, warning or error"),
)


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """A node's settings; see OPTIONS for their meaning. `users` maps names to passwords; empty lets everybody in."""

    host: str = "127.0.0.1"
    port: int = 11210
    data: Path = Path("headwater-data")
    bucket: str = "default"
    vbuckets: int = 1024
    vbucket_state: str = "active"
    users: Mapping[str, str] = field(default_factory=dict)
    connections_max: int = 10_000
    idle_seconds: int = 0
    segment_mib: int = 256
    compact_dead_percent: int = 50
    purge_age_seconds: int = 3 * 86400
    scrub_interval_seconds: int = 86_400
    scrub_mib_per_second: int = 32
    expiry_pager_seconds: int = 60
    takeover_seconds: int = 60
    tap_keep_alive_seconds: int = 0
    upr_states: str = "dcp"
    log_level: str = "warning"

    def __post_init__(self) -> None:
        count = self.vbuckets
        if not (1 <= count <= VBUCKETS_MAX and count & (count - 1) == 0):
            raise OptionError("vbuckets", count, f"a power of two from 1 to {VBUCKETS_MAX}")
        if self.vbucket_state not in ("active", "none"):
            raise OptionError("vbucket-state", self.vbucket_state, "active or none")
        if self.upr_states not in ("dcp", "text"):
            raise OptionError("upr-states", self.upr_states, "dcp or text")
        if not 0 <= self.port <= 65535:
            raise OptionError("port", self.port, "a port number, 0 to 65535")
        if not self.bucket or len(self.bucket) > 100 or not all(c.isalnum() or c in "_-.%" for c in self.bucket):
            raise OptionError("bucket", self.bucket, "a name of 1 to 100 letters, digits, _ - . or %")
        if not 1 <= self.segment_mib <= 1 << 20:
            raise OptionError("segment-mib", self.segment_mib, "a number of MiB, 1 or more")
        if not 1 <= self.compact_dead_percent <= 100:
            raise OptionError("compact-dead-percent", self.compact_dead_percent, "1 to 100")
        if self.scrub_mib_per_second < 1:
            raise OptionError("scrub-mib-per-second", self.scrub_mib_per_second, "1 or more")
        if self.connections_max < 1:
            raise OptionError("connections-max", self.connections_max, "1 or more")


def config_from(options: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> NodeConfig:
    """Make a NodeConfig of option values (by command-line name or field name; missing ones take their default).

    Raises OptionError for a value that can't be, and for a password file that others may read.
    """
    given = {name.replace("-", "_"): value for name, value in options.items() if value is not None}
    users = read_users(Path(given["users_file"])) if given.get("users_file") else {}
    if user := given.get("user"):
        users[user] = _password(given.get("password_file", ""), environment)
    known = {each.name for each in fields(NodeConfig)} - {"users"}
    values = {name: value for name, value in given.items() if name in known}
    if "data" in values:
        values["data"] = Path(values["data"])
    return NodeConfig(users=users, **values)


def parse_arguments(arguments: Sequence[str]) -> dict[str, Any]:
    """Read `--name value` and `--name=value` pairs by OPTIONS, without the command-line library (start-up time)."""
    by_name = {f"--{option.name}": option for option in OPTIONS}
    values: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        option = by_name.get(name)
        if option is None:
            raise OptionError(name, value, "an option of serve; see headwater serve --help")
        if not equals:
            if not rest:
                raise OptionError(option.name, "", "complete: a value must follow")
            value = rest.pop(0)
        values[option.field] = _convert(option, value)
    return values


def read_users(path: Path) -> dict[str, str]:
    """Read `name:password` lines; blank lines and lines that start with # are skipped."""
    _refuse_readable_by_others(path, "users-file")
    users: dict[str, str] = {}
    for line in path.read_text("utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, password = line.partition(":")
        if not colon or not name:
            raise OptionError("users-file", str(path), "a file of name:password lines")
        users[name] = password
    return users


def _convert(option: Option, value: str) -> Any:
    try:
        return option.kind(value)
    except ValueError:
        raise OptionError(option.name, value, "a whole number") from None


def _password(file: str, environment: Mapping[str, str]) -> str:
    if file:
        _refuse_readable_by_others(Path(file), "password-file")
        return Path(file).read_text("utf-8").split("\n", 1)[0].rstrip("\r")
    if (password := environment.get("HEADWATER_PASSWORD")) is not None:
        return password
    raise OptionError("user", "", "complete: give --password-file, or HEADWATER_PASSWORD in the environment")


def _refuse_readable_by_others(path: Path, option: str) -> None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise OptionError(option, str(path), f"a file that can be read ({error.strerror})") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise OptionError(option, str(path), "private: others may read it; chmod 600 it")
