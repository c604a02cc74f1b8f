"""Where a client begins, and the cluster map that nodes hand out.

Three generations of the map are in use (kv.md 1.4): `serverList` alone, `nodes` with `ports`, and `nodesExt` with
`services`. A client takes the newest that is present. "$HOST" and a missing host name mean: the host this map was
fetched from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote

from headwater.errors import OptionError
from headwater.wire.address import Address
from headwater.wire.cluster_map import PORT, ClusterMap, newest_addresses

__all__ = ["PORT", "Address", "ClusterMap", "Target", "map_of_one", "parse", "read_map"]


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed connection string: some nodes to start from, a bucket, and who asks if it says so."""

    seeds: tuple[Address, ...]
    bucket: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """The connection string without name and password."""
        return f"couchbase://{','.join(map(str, self.seeds))}/{self.bucket}"

    def login(self, user: str | None, password: str | None) -> tuple[str | None, str | None]:
        """Return who asks: as the string says, or as was given beside it; OptionError where both say it."""
        if self.user is None:
            return user, password
        if user is not None or password is not None:
            raise OptionError("connection", self.url, "given a name and a password only once: in it, or beside it")
        return self.user, self.password


def parse(connection: str) -> Target:
    """Read "couchbase://[user:password@]host[:port][,host...]/bucket".

    The scheme may be left out, and the bucket, which is "default" then. Name and password are escaped as in any URL.

    Raises:
        OptionError: no host, a port that is none, or a scheme we do not speak. The message repeats no password.
    """
    allowed = 'a connection string such as "couchbase://127.0.0.1:11210/default"'
    scheme, _, rest = connection.rpartition("://")
    login, at, rest = rest.rpartition("@")
    shown = f"...@{rest}" if at else connection  # what is shown ends up in logs, plans and tracebacks
    if scheme not in ("", "couchbase", "memcached"):
        raise OptionError("connection", shown, f"{allowed}; TLS (couchbases://) is not spoken")
    hosts, _, bucket = rest.partition("?")[0].partition("/")
    seeds = tuple(_address(part, shown, allowed) for part in hosts.split(",") if part)
    if not seeds:
        raise OptionError("connection", shown, allowed)
    name, colon, password = login.partition(":")
    if at and not (name and colon):
        raise OptionError("connection", shown, "with a name and a password as couchbase://NAME:PASSWORD@HOST/BUCKET")
    return Target(seeds, bucket.strip("/") or "default", *((unquote(name), unquote(password)) if at else ()))


def _address(text: str, connection: str, allowed: str) -> Address:
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if not host or not (port == "" or (port.isascii() and port.isdecimal() and 0 < int(port) < 65536)):
        raise OptionError("connection", connection, allowed)
    return Address(host, int(port or PORT))


def read_map(text: bytes, source: Address) -> ClusterMap:
    """Read a map that was fetched from `source`.

    Raises:
        RemoteProtocolError: not JSON, or no map: fields missing, of the wrong type, or pointing nowhere.
    """
    return ClusterMap.from_json(text, source, addresses=newest_addresses)


def map_of_one(node: Address, vbuckets: int) -> ClusterMap:
    """Return the map of a server that has none: one node owns all."""
    return ClusterMap("", "", 0, 0, (node,), ((0,),) * vbuckets)
