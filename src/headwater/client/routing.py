"""Which node owns which vbucket: the address to start from, and the cluster map that nodes hand out.

The map is JSON (kv.md 1.4). Three generations of it are in use: `serverList` alone, `nodes` with `ports`, and
`nodesExt` with `services`. Here the newest that is present wins, position by position, as in the SDKs. "$HOST" and a
missing host name mean: the host this map was fetched from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headwater.errors import OptionError, RemoteProtocolError
from headwater.protocol.address import Address
from headwater.wire.vbucket import vbucket_of

__all__ = ["NODES_MAX", "PORT", "VBUCKETS_MAX", "Address", "ClusterMap", "Target", "parse"]

PORT = 11210
VBUCKETS_MAX = 65536
NODES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Target:
    """What a connection string names: some nodes to start from, and a bucket."""

    seeds: tuple[Address, ...]
    bucket: str


def parse(connection: str) -> Target:
    """Read "couchbase://host[:port][,host...]/bucket"; the scheme may be left out, the bucket is "default" then.

    Raises:
        OptionError: no host, a port that is none, or a scheme we do not speak.
    """
    allowed = 'a connection string such as "couchbase://127.0.0.1:11210/default"'
    scheme, _, rest = connection.rpartition("://")
    if scheme not in ("", "couchbase", "memcached"):
        raise OptionError("connection", connection, f"{allowed}; TLS (couchbases://) is not spoken")
    hosts, _, bucket = rest.partition("?")[0].partition("/")
    seeds = tuple(_address(part, connection, allowed) for part in hosts.split(",") if part)
    if not seeds:
        raise OptionError("connection", connection, allowed)
    return Target(seeds, bucket.strip("/") or "default")


def _address(text: str, connection: str, allowed: str) -> Address:
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if not host or not (port == "" or (port.isascii() and port.isdecimal() and 0 < int(port) < 65536)):
        raise OptionError("connection", connection, allowed)
    return Address(host, int(port or PORT))


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """Who owns what.

    Attributes:
        rev: (epoch, revision); of two maps the greater is the newer.
        nodes: the key-value nodes.
        owners: for each vbucket the index of its active node in `nodes`, or -1 for none at present.
    """

    rev: tuple[int, int]
    nodes: tuple[Address, ...]
    owners: tuple[int, ...]

    @property
    def vbuckets(self) -> int:
        """How many vbuckets the bucket has."""
        return len(self.owners)

    def owner(self, vbucket: int) -> Address | None:
        """The node with the active copy, None when there is none at present or no such vbucket."""
        if not 0 <= vbucket < len(self.owners) or self.owners[vbucket] < 0:
            return None
        return self.nodes[self.owners[vbucket]]

    @property
    def version(self) -> str:
        """The revision for messages: "epoch.revision"."""
        return f"{self.rev[0]}.{self.rev[1]}"

    @property
    def owning(self) -> tuple[Address, ...]:
        """The nodes that own a vbucket, in the order of `nodes`."""
        return tuple(self.nodes[index] for index in sorted(set(self.owners)) if index >= 0)

    def vbucket_of(self, key: bytes) -> int:
        """The vbucket a key belongs to."""
        return vbucket_of(key, len(self.owners))

    @classmethod
    def single(cls, node: Address, vbuckets: int) -> ClusterMap:
        """The map of a server that has none: one node owns all."""
        return cls((0, 0), (node,), (0,) * vbuckets)

    @classmethod
    def from_json(cls, text: bytes, source: Address) -> ClusterMap:
        """Read a map that was fetched from `source`.

        Raises:
            RemoteProtocolError: not JSON, or no map: fields missing, of the wrong type, or pointing nowhere.
        """
        try:
            told = json.loads(text)
            servers = told["vBucketServerMap"]
            nodes = _nodes(told, servers, source)
            owners = tuple(_owner(chain, len(nodes)) for chain in servers["vBucketMap"])
            rev = (int(told.get("revEpoch", 0)), int(told.get("rev", 0)))
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
            raise RemoteProtocolError(f"cluster map of {source}: {type(error).__name__} {error}") from None
        if not 0 < len(owners) <= VBUCKETS_MAX:
            raise RemoteProtocolError(f"cluster map of {source}: {len(owners)} vbuckets, 1 to {VBUCKETS_MAX} expected")
        return cls(rev, nodes, owners)


def _owner(chain: Sequence[int], nodes: int) -> int:
    active = int(chain[0])
    if not -1 <= active < nodes:
        raise ValueError(f"a vbucket on node {active} of {nodes}")
    return active


def _nodes(told: Mapping[str, Any], servers: Mapping[str, Any], source: Address) -> tuple[Address, ...]:
    """Addresses of the key-value nodes, in the order the vbucket map counts them."""
    listed, extended = told.get("nodes", ()), told.get("nodesExt", ())
    names = servers.get("serverList", ())
    # Nodes that are no members of the bucket yet come last in nodesExt (kv.md 1.4): the map counts the others.
    count = len(listed) or len(names) or len(extended)
    if count > NODES_MAX:
        raise ValueError(f"{count} nodes")
    if count == 1 and _is_source(extended):
        return (source,)
    found = []
    for index in range(count):
        host, port = _listed(names[index], source) if index < len(names) else (source.host, PORT)
        if index < len(extended):
            services = extended[index].get("services", {})
            host = extended[index].get("hostname", host if index < len(names) else source.host)
            port = int(services.get("kv", port))
        found.append(Address(source.host if host == "$HOST" else host, port))
    return tuple(found)


def _is_source(extended: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the only node of a map is the one that we are talking to.

    Then the address that worked is better than the one it believes to have (behind a proxy, or a container's port
    mapping, that one leads nowhere). But a node that has left the cluster may name the one that is left.
    """
    return not extended or "hostname" not in extended[0] or bool(extended[0].get("thisNode"))


def _listed(name: str, source: Address) -> tuple[str, int]:
    host, _, port = name.replace("$HOST", source.host).rpartition(":")
    return host.strip("[]"), int(port)
