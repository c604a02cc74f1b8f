"""Connection strings, and the cluster maps that nodes give to clients.

Three generations of the map are in use (kv.md 1.4): `serverList` alone, `nodes` with `ports`, and `nodesExt` with
`services`. A client takes the newest that is present. "$HOST" and a missing host name mean: the host this map was
fetched from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from headwater.errors import OptionError
from headwater.tls.settings import QUERY, TLS_PORT, TlsSettings
from headwater.wire.address import Address
from headwater.wire.cluster_map import PORT, ClusterMap, newest_addresses, tls_addresses
from headwater.wire.network import AUTO, as_seen_from

__all__ = ["PORT", "Address", "ClusterMap", "Target", "map_of_one", "parse", "read_map"]


SCHEMES = {"": False, "couchbase": False, "memcached": False, "couchbases": True}
"""Scheme of a connection string -> whether it means TLS."""


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed connection string: nodes to start from, a bucket, a login if it has one, TLS or None, and the network
    whose addresses count (wire/network.py)."""

    seeds: tuple[Address, ...]
    bucket: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: TlsSettings | None = None
    network: str = AUTO

    @property
    def url(self) -> str:
        """The connection string without name and password."""
        scheme, parameters = ("couchbase", "") if self.tls is None else ("couchbases", self.tls.query)
        network = "" if self.network == AUTO else f"network={quote(self.network)}"
        query = "&".join(filter(None, (parameters, network)))
        return f"{scheme}://{','.join(map(str, self.seeds))}/{self.bucket}" + f"?{query}" * bool(query)

    def read_map(self, text: bytes, source: Address) -> ClusterMap:
        """Read a map as this connection string needs it; see the function of the same name."""
        return read_map(text, source, speaks_tls=self.tls is not None, network=self.network)

    def login(self, user: str | None, password: str | None) -> tuple[str | None, str | None]:
        """Return the login, from the string or the arguments; OptionError if both have one."""
        if self.user is None:
            return user, password
        if user is not None or password is not None:
            raise OptionError("connection", self.url, "given a name and a password only once: in it, or beside it")
        return self.user, self.password


def parse(connection: str) -> Target:
    """Read "couchbase://[user:password@]host[:port][,host...]/bucket", or couchbases:// for TLS.

    The scheme may be left out, and the bucket, which is "default" then. Name and password are escaped as in any URL.
    With TLS the parameters ?trust_store=...&client_certificate=...&client_key=...&tls_verify=... name the trusted CAs
    and the client's certificate (tls/settings.py). ?network=external is for clusters that have other addresses outside
    of their own network; without it the client picks the network whose map has the address that it connected to.
    Parameters of other clients are ignored.

    Raises:
        OptionError: no host, an invalid port, or an unknown scheme. The message repeats no password.
    """
    if not isinstance(connection, str):
        raise TypeError(f"a connection is text such as couchbase://127.0.0.1:11210/default, not {connection!r:.40}")
    allowed = 'a connection string such as "couchbase://127.0.0.1:11210/default" or "couchbases://node.example/default"'
    scheme, _, remainder = connection.partition("://") if "://" in connection else ("", "", connection)
    login, at, remainder = remainder.rpartition("@")
    text_shown = f"...@{remainder}" if at else connection  # what is shown ends up in logs, plans and tracebacks
    remainder, _, query = remainder.partition("?")
    if scheme not in SCHEMES:
        raise OptionError("connection", text_shown, allowed)
    tls = _tls(query, text_shown, speaks=SCHEMES[scheme])
    hosts, _, bucket = remainder.partition("/")
    port = PORT if tls is None else TLS_PORT
    seeds = tuple(_address(part, port, text_shown, allowed) for part in hosts.split(",") if part)
    if not seeds:
        raise OptionError("connection", text_shown, allowed)
    name, colon, password = login.partition(":")
    if at and not (name and colon):
        raise OptionError(
            "connection", text_shown, "with a name and a password as couchbase://NAME:PASSWORD@HOST/BUCKET"
        )
    user, secret = (unquote(name), unquote(password)) if at else (None, None)
    network = dict(parse_qsl(query)).get("network", AUTO)
    return Target(seeds, bucket.strip("/") or "default", user, secret, tls, network)


def _tls(query: str, text_shown: str, *, speaks: bool) -> TlsSettings | None:
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    if speaks:
        return TlsSettings.from_query(parameters)
    if wrong := sorted(parameters.keys() & QUERY.keys()):
        raise OptionError(
            "connection", text_shown, f"one for TLS, which is couchbases://; {wrong[0]} does nothing without"
        )
    return None


def _address(text: str, port_otherwise: int, connection: str, allowed: str) -> Address:
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if not host or not (port == "" or (port.isascii() and port.isdecimal() and 0 < int(port) < 65536)):
        raise OptionError("connection", connection, allowed)
    return Address(host, int(port or port_otherwise))


def read_map(text: bytes, source: Address, *, speaks_tls: bool = False, network: str = AUTO) -> ClusterMap:
    """Read a map that was fetched from `source`; with `speaks_tls` its nodes are known by their ports for TLS, and in
    a network by their addresses there.

    Raises:
        RemoteProtocolError: not JSON, or no map: fields missing, of the wrong type, or pointing nowhere.
    """
    reader = tls_addresses if speaks_tls else newest_addresses

    def addresses(content: Mapping[str, Any], source: Address | None) -> tuple[Address, ...]:
        return reader(content if source is None else as_seen_from(content, source, network), source)

    return ClusterMap.from_json(text, source, addresses=addresses)


def map_of_one(node: Address, vbuckets: int) -> ClusterMap:
    """Return the map of a server that has none: one node owns all."""
    return ClusterMap("", "", 0, 0, (node,), ((0,),) * vbuckets)
