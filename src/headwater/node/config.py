"""The settings of a node: one table, read by the command line, the tests and the documentation."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from headwater.accounts.roles import ADMINISTRATOR, CLUSTER_USER, NODE, ORDINARY, Grant
from headwater.errors import OptionError
from headwater.node.reporting.log_lines import FORMATS, parse_levels
from headwater.node.users.file import NAME as USERS_NAME
from headwater.options import MIB, MILLISECONDS, SECONDS, SERVE, Option, check, nearest, option, options_of
from headwater.wire.vbucket import VBUCKETS_MAX

PORT: Mapping[str, Any] = {"least": 0, "most": 65535}
GROUP_LENGTH_MAX = 100  # characters
CONNECTION_MIB_MIN = 64  # a request of 30 MiB, an answer of 20, and what may wait behind it
_URL = re.compile(r"[a-z][a-z0-9+.-]+:(?=/)", re.IGNORECASE)
SECRET_ITERATIONS = 60_000
"""The iterations of the key derivation: some 30 ms, once, at a start with --user or --users-file."""


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """A node's settings. The fields are the table that the command line, the environment, the file and the docs read.

    Attributes:
        users: maps names to passwords; if empty, no login is needed.
        group_secret: the secret with which the workers of a node log in to each other if there are users and no other
            secret.
    """

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(11210, "port to listen on; 0 takes a free one, the ready line names it", **PORT)
    data: Path = option(Path("headwater-data"), "directory of the store; made if missing")
    http_port: int = option(
        -1, "port for the HTTP pages alone, which the others have, too (0: a free one; -1: none)", least=-1, most=65535
    )
    workers: int = option(
        1, "experimental: processes that serve together, each a member of a cluster (0: one a core)", least=0
    )
    worker_port: int = option(
        0, "port of the first of several workers, the others have the next ones; 0: 10 above --port", **PORT
    )
    bucket: str = option("default", "name of the bucket")
    vbuckets: int = option(
        0, "number of vbuckets of a new store: a power of two, 1 to 1024 (0: 128); another store keeps its own"
    )
    vbucket_state: str = option(
        "active", "state of the vbuckets of a new store: active, or none to create none", choices=("active", "none")
    )
    connections_max: int = option(
        10_000, "connections at a time; one more is closed, but for members and administrators", least=1
    )
    idle_seconds: int = option(
        360, "close a connection over which nothing came or went for so long (0: never)", unit=SECONDS, least=0
    )
    login_seconds: int = option(
        30, "close a connection that has not logged in for so long (0: never)", unit=SECONDS, least=0
    )
    group: str = option(
        "", "failure domain of this node, a rack or a machine: a cluster spreads the copies of a vbucket over them"
    )
    memory_mib: int = option(
        1024, "what all connections may hold: requests, answers, sessions, system buffers; MiB", unit=MIB
    )
    connection_memory_mib: int = option(
        64, "what one of them may hold, MiB; at least 64", unit=MIB, least=CONNECTION_MIB_MIN
    )
    segment_mib: int = option(
        256, "size of one file of the log, MiB; at least 48, less on a small disk", unit=MIB, least=1, most=1 << 20
    )
    compact_dead_percent: int = option(
        50, "compaction begins when more of the log than this is dead (100: never)", least=1, most=100
    )
    purge_age_seconds: int = option(3 * 86400, "compaction drops tombstones older than this", unit=SECONDS)
    scrub_interval_seconds: int = option(
        86_400, "time from one verification of the log to the next (0: never)", unit=SECONDS
    )
    scrub_mib_per_second: int = option(32, "how much of the log a verification reads a second, MiB", unit=MIB, least=1)
    expiry_pager_seconds: int = option(
        60, "how often expired documents are looked for (0: only when touched)", unit=SECONDS
    )
    loop_watch_ms: int = option(
        100, "how often the node looks how late its event loop is, for STAT loop (0: never)", unit=MILLISECONDS, least=0
    )
    no_request_rounds: bool = option(
        False, "answer each small request in Python, not by rounds of a kernel over all ready connections (Linux)"
    )
    no_metrics: bool = option(False, "count no requests and not how long they take; /metrics is not served then")
    takeover_seconds: int = option(
        60, "a vbucket whose hand-over takes longer refuses writes until it is done", unit=SECONDS
    )
    slow_stream_seconds: int = option(
        300, "a stream that keeps files which compaction replaced for longer is ended", unit=SECONDS, least=1
    )
    tap_keep_alive_seconds: int = option(
        0, "how long a named TAP session waits for its client (0: not at all)", unit=SECONDS
    )
    upr_states: str = option(
        "dcp",
        "numbers of pending and replica to UPR peers: dcp (3, 2) or text (2, 3, as in print)",
        choices=("dcp", "text"),
    )
    administrators: str = option("", "users that set maps and whom this node follows, by commas; empty: the first")
    plain: str = option(
        "loopback",
        "from where PLAIN and HTTP may bring passwords as they are: loopback or anywhere",
        choices=("loopback", "anywhere"),
    )
    tls_certificate: str = option("", "PEM file of the node's certificate and its chain; with it the node speaks TLS")
    tls_key: str = option(
        "", "PEM file of its key, which nobody else may read; left out where the certificate's has it"
    )
    tls_port: int = option(11207, "port to speak TLS on, where there is a certificate; 0 takes a free one", **PORT)
    tls_ca: str = option("", "PEM file of the CAs that sign clients and other nodes; nodes: the system's, if left out")
    tls_clients: str = option(
        "off",
        "certificates of clients as logins: off, optional or required; needs --tls-ca",
        choices=("off", "optional", "required"),
    )
    tls_user: str = option(
        "subject.cn", "where a client's certificate has its user: subject.cn, san.dns, san.email or san.uri"
    )
    tls_minimum: str = option("1.2", "oldest version of TLS that is spoken: 1.2 or 1.3", choices=("1.2", "1.3"))
    without_tls: str = option(
        "anywhere",
        "who may connect without TLS: anywhere, loopback (this machine) or nobody",
        choices=("anywhere", "loopback", "nobody"),
    )
    insecure: bool = option(False, "listen on a network though there are no users: whoever reaches the port may do all")
    log_level: str = option("warning", "debug, info, warning or error; of its parts as well: warning,replication=info")
    log_format: str = option("text", "how a line of the log looks: text or json", choices=FORMATS)
    users: Mapping[str, str] = field(default_factory=dict)
    group_secret: str = field(default="", repr=False)

    @property
    def administering(self) -> frozenset[str]:
        """The users who may administer the node."""
        names = [name.strip() for name in self.administrators.split(",") if name.strip()]
        first = [name for name in self.users if name != CLUSTER_USER][:1]
        return frozenset(names or first)

    @property
    def roles(self) -> dict[str, tuple[Grant, ...]]:
        """The roles of each user: those of administrators, of ordinary users, and of other nodes."""
        roles_by_user = {name: ADMINISTRATOR if name in self.administering else ORDINARY for name in self.users}
        return {**roles_by_user, CLUSTER_USER: NODE}

    @property
    def account(self) -> tuple[str | None, str | None]:
        """The name and the secret with which this node logs in to other nodes; (None, None) if it has none.

        This is never a user's account: a cluster map determines which nodes are called, and they must not get the
        password of the first user, who administers this node. If the settings have no secret, it is derived from the
        first user's password, so it is the same on all members with this user.
        """
        if (secret := self.users.get(CLUSTER_USER)) is not None:
            return CLUSTER_USER, secret
        no_users = (CLUSTER_USER, self.group_secret) if self.group_secret else (None, None)
        return next(((CLUSTER_USER, _made_secret(*item)) for item in self.users.items()), no_users)

    @property
    def logins(self) -> dict[str, str]:
        """The passwords of all logins: those of the users, and the members' secret."""
        member, secret = self.account
        return dict(self.users) if member is None or secret is None else {**self.users, member: secret}

    @property
    def has_secret(self) -> bool:
        """True if the members' secret is in the settings, not derived from a user's password."""
        return CLUSTER_USER in self.users

    def __post_init__(self) -> None:
        count = self.vbuckets
        if not (0 <= count <= VBUCKETS_MAX and count & (count - 1) == 0):
            raise OptionError("vbuckets", count, f"a power of two from 1 to {VBUCKETS_MAX}, or 0")
        check(self)
        if self.http_port >= 0 and self.without_tls == "nobody":
            raise OptionError("http-port", self.http_port, "possible with --without-tls nobody: it speaks no TLS")
        self._check_tls()
        if self.workers != 1:
            self._check_workers()
        if not self.bucket or len(self.bucket) > 100 or not all(c.isalnum() or c in "_-.%" for c in self.bucket):
            raise OptionError("bucket", self.bucket, "a name of 1 to 100 letters, digits, _ - . or %")
        if len(self.group) > GROUP_LENGTH_MAX or not self.group.isprintable():
            raise OptionError("group", self.group, f"a name of up to {GROUP_LENGTH_MAX} printable characters")
        parse_levels(self.log_level)
        if self.memory_mib < self.connection_memory_mib:
            raise OptionError("memory-mib", self.memory_mib, f"{self.connection_memory_mib} or more")

    def _check_workers(self) -> None:
        if self.workers > (most := self.vbuckets or VBUCKETS_MAX):
            raise OptionError("workers", self.workers, f"{most} or fewer: each serves a vbucket at least")
        if self.host in ("", "0.0.0.0", "::"):  # noqa: S104 - which is refused
            allowed = "an address of this machine alone: the cluster map of its workers has it, and clients call it"
            raise OptionError("host", self.host, allowed)
        if self.without_tls != "anywhere":
            raise OptionError(
                "without-tls", self.without_tls, "possible with --workers yet: each has a port of its own"
            )

    def _check_tls(self) -> None:
        if self.tls_clients != "off" and not self.tls_ca:
            raise OptionError(
                "tls-clients", self.tls_clients, "possible without --tls-ca, which says who signs clients"
            )
        if self.tls_certificate:
            return
        for name, default in (("tls_key", ""), ("tls_clients", "off"), ("without_tls", "anywhere")):
            if (value := getattr(self, name)) != default:
                raise OptionError(name.replace("_", "-"), value, "possible without --tls-certificate")


@functools.cache
def _made_secret(user: str, password: str) -> str:
    """Return the members' secret, derived from a user's password; slowly, so that guessing the password from the secret
    takes too long.
    """
    salt = f"{CLUSTER_USER} {user}".encode()
    return hashlib.pbkdf2_hmac("sha256", password.encode(), salt, SECRET_ITERATIONS).hex()


_WHO: tuple[Option, ...] = (
    Option("user", "", "let only this user in (needs a password)"),
    Option("password_file", "", "file whose first line is the user's password; HEADWATER_PASSWORD works as well"),
    Option("users_file", "", "file of users, one name:password a line; readable by its owner only"),
    Option(
        "cluster_secret_file",
        "",
        "file whose first line is what nodes prove to each other, in place of a user",
    ),
)
CONFIG = Option("config", "", "TOML file of these options by name; the command line and the environment come first")


OPTIONS: tuple[Option, ...] = (CONFIG, *options_of(NodeConfig), *_WHO)
_BY_FIELD = {option.field: option for option in OPTIONS}


def one_thread_for(config: NodeConfig) -> None:
    """Keep libraries from starting threads on import in a process that will fork; call it before numpy is imported."""
    if config.workers != 1:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def config_from(options: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> NodeConfig:
    """Return the settings of a node. Each comes from the options, otherwise from HEADWATER_<NAME> in the environment,
    otherwise from the file, otherwise it has its default.

    Args:
        options: values by command-line name or field name; None for an option that was not passed.
        environment: the environment variables, e.g. HEADWATER_VBUCKETS=64; HEADWATER_CONFIG names the file.

    Raises:
        OptionError: an invalid value, an unknown name, a password file that others may read, or a password without a
            user (a node with a password in its settings never runs without logins).
    """
    set_options = {name.replace("-", "_"): value for name, value in options.items() if value is not None}
    variables = {option.field: environment[option.variable] for option in OPTIONS if option.variable in environment}
    settings = {name: _BY_FIELD[name].parse(text) for name, text in variables.items()}
    settings |= {name: _measured(name, value) for name, value in set_options.items()}
    file = settings.get(CONFIG.field)
    values = {**(read_file(Path(file)) if file else {}), **settings}
    users = _users(values, environment)
    field_names = {field.name for field in fields(NodeConfig)} - {"users"}
    settings = {name: value for name, value in values.items() if name in field_names}
    if "data" in settings:
        settings["data"] = store_folder(str(settings["data"]))
    return NodeConfig(users=users, **settings)


def _measured(name: str, value: Any) -> Any:
    """Return the value of an option, after parsing it if it is a duration or a size as text."""
    declared = _BY_FIELD.get(name)
    return value if declared is None or declared.unit is None else declared.of_file(value)


def store_folder(text: str) -> Path:
    """Return the path of a store's folder, which must be on this machine.

    Raises:
        OptionError: the text is a URL, or a URL that became a path and lost a slash.
    """
    message = "a folder on a disk of this machine: a node's log is synced there"
    return local_folder("data", text, message + "; to keep copies there: headwater backup create {url}")


def local_folder(option: str, text: str, allowed: str) -> Path:
    """Return the path of the folder that an option names, which must be on this machine; `allowed` is the text of the
    error.

    Raises:
        OptionError: the text is a URL, or a URL that became a path and lost a slash.
    """
    if (scheme := _URL.match(text)) is not None:
        url = f"{scheme[0]}//{text[scheme.end() :].lstrip('/')}"
        raise OptionError(option, url, allowed.format(url=url))
    return Path(text)


def is_of_clients(name: str, value: Any) -> bool:
    """Return True if a key of a settings file is not for the node: a table that is no option of the node belongs to
    another command, or is a profile.
    """
    return isinstance(value, dict) and name != SERVE and name.replace("-", "_") not in _BY_FIELD


def read_file(path: Path) -> dict[str, Any]:
    """Return the options in a TOML file, by field name; names in the file have dashes or underscores.

    Raises:
        OptionError: the file can't be read, is no TOML, or has an unknown name or a value of the wrong type.
    """
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise OptionError("config", str(path), f"a file that can be read ({error.strerror})") from None
    except ValueError as error:
        raise OptionError("config", str(path), f"TOML: {error}") from None
    values = {name.replace("-", "_"): value for name, value in table.items() if not is_of_clients(name, value)}
    for name, value in values.items():
        if (problem := wrong(name, value)) is not None:
            raise OptionError(name.replace("_", "-"), value, f"{problem} ({path})")
    return {name: _BY_FIELD[name].of_file(value) for name, value in values.items()}


def wrong(name: str, value: Any) -> str | None:
    """Return a phrase that says what a key of a settings file, or its value, must be; None if both are valid."""
    option = _BY_FIELD.get(name.replace("-", "_"))
    if option is None or option is CONFIG:
        near = nearest(name.replace("_", "-"), [each.name for each in OPTIONS if each is not CONFIG])
        return "an option of serve" + (f"; {near} is one" if near else "; headwater serve --help lists them")
    try:
        option.of_file(value)
    except OptionError as error:
        return error.allowed
    return None


def parse_arguments(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the values of `--name value` and `--name=value` pairs, by field name. This avoids the command-line
    library, which starts slowly.

    Raises:
        OptionError: an unknown name, or a missing or invalid value.
    """
    by_name = {f"--{option.name}": option for option in OPTIONS}
    values: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        option = by_name.get(name)
        if option is None:
            raise OptionError(name, value, "an option of serve; see headwater serve --help")
        if option.kind is bool and not equals:
            value = "true"
        elif not equals:
            if not rest:
                raise OptionError(option.name, "", "complete: a value must follow")
            value = rest.pop(0)
        values[option.field] = option.parse(value)
    return values


def _users(values: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the passwords by user; never empty if the settings contain a user, a password or a file of users.

    Raises:
        OptionError: a part of the settings about users is missing, invalid or can't be read.
    """
    users: dict[str, str] = {}
    if file := values.get("users_file"):
        users = read_users(Path(file))
        if not users:
            raise OptionError("users-file", str(file), "a file of name:password lines: it names nobody")
    user, password_file = values.get("user"), values.get("password_file")
    if user:
        if str(user).startswith("@"):
            raise OptionError("user", user, "a name that does not begin with @")
        users[user] = _password(password_file or "", environment)
        if not users[user]:
            raise OptionError("user", user, "complete: the password is empty")
    elif password_file:
        raise OptionError("password-file", str(password_file), "complete: give --user, whose password it is")
    elif "HEADWATER_PASSWORD" in environment and not users:
        raise OptionError("HEADWATER_PASSWORD", "...", "complete: give --user, whose password it is, or unset it")
    if file := values.get("cluster_secret_file"):
        folder = Path(values.get("data", NodeConfig().data))
        users[CLUSTER_USER] = _cluster_secret(str(file), has_users=bool(users) or (folder / USERS_NAME).exists())
    return users


def _cluster_secret(file: str, *, has_users: bool) -> str:
    """Return the secret with which nodes log in to each other, from the first line of a file.

    Raises:
        OptionError: the node has no users (with the secret as its only login, nobody else could log in), or the file is
            empty or can't be read.
    """
    if not has_users:
        raise OptionError("cluster-secret-file", file, "for nodes with users: add one (headwater user)")
    secret = _secret(Path(file), "cluster-secret-file").split("\n", 1)[0].rstrip("\r")
    if not secret:
        raise OptionError("cluster-secret-file", file, "a file with a secret: its first line is empty")
    return secret


def read_users(path: Path) -> dict[str, str]:
    """Return the passwords by user from the `name:password` lines of a file; blank lines and lines that start with #
    are skipped.

    Raises:
        OptionError: a line is invalid, or the file can't be read, or others may read it.
    """
    users: dict[str, str] = {}
    for line in _secret(path, "users-file").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, password = line.partition(":")
        if not colon or not name or name.startswith("@"):
            raise OptionError("users-file", str(path), "a file of name:password lines, no name of which begins with @")
        users[name] = password
    return users


def _password(file: str, environment: Mapping[str, str]) -> str:
    if file:
        return _secret(Path(file), "password-file").split("\n", 1)[0].rstrip("\r")
    if (password := environment.get("HEADWATER_PASSWORD")) is not None:
        return password
    raise OptionError("user", "", "complete: give --password-file, or HEADWATER_PASSWORD in the environment")


def _secret(path: Path, option: str) -> str:
    refuse_readable_by_others(path, option)
    try:
        return path.read_text("utf-8")
    except PermissionError:
        raise OptionError(option, str(path), f"a file that this user ({os.geteuid()}) may read; chown it") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise OptionError(option, str(path), f"a file that can be read ({reason})") from None


def refuse_readable_by_others(path: Path, option: str) -> None:
    """Raise OptionError for a file with secrets that others may read, or that is missing.

    Credentials of systemd are accepted: they belong to root, and the access list that lets the service's user read them
    looks like a permission for a group.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise OptionError(option, str(path), f"a file that can be read ({error.strerror})") from None
    credentials = os.environ.get("CREDENTIALS_DIRECTORY")
    others = stat.S_IRWXO if credentials and path.parent == Path(credentials) else stat.S_IRWXG | stat.S_IRWXO
    if mode & others:
        raise OptionError(option, str(path), "private: others may read it; chmod 600 it")
