"""The cluster map: the nodes of each vbucket of a bucket. Source: specification, kv.md 1.4.

Nodes, clients and an orchestrator send it to each other as JSON. Only this module reads and writes it.

    vBucketServerMap.serverList    the nodes with vbuckets, host:port; "$HOST" is the host the map was fetched from
    vBucketServerMap.vBucketMap    for each vbucket a row of positions in serverList: active node, then replicas;
                                   -1 in front if no node is active, and at the end to fill short rows
    nodes, nodesExt                the same nodes for clients of the second and third generation

A change creates a new map with the next revision; (epoch, rev) never decreases. A chain may be longer than 1 +
numReplicas for a while: a rebalance adds new copies before it removes old ones.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from headwater.errors import RemoteProtocolError
from headwater.wire.address import Address
from headwater.wire.json_text import read_json
from headwater.wire.vbucket import vbucket_of

__all__ = ["CAPABILITIES", "HOST", "MAP_VBUCKETS_MAX", "NOBODY", "OWN_EPOCH", "PORT", "SERVERS_MAX", "UNKNOWN"]
__all__ += ["Chain", "ClusterMap", "newest_addresses", "server_list", "tls_addresses"]

CAPABILITIES = (
    "collections",
    "dcp",
    "cccp",
    "cbhello",
    "xattr",
    "tombstonedUserXAttrs",
    "subdoc.ReplaceBodyWithXattr",
    "subdoc.DocumentMacroSupport",
    "subdoc.ReviveDocument",
    "nodesExt",
    "couchapi",
    "touch",
    "durableWrite",
    "rangeScan",
    "dcp.IgnorePurgedTombstones",
)
"""The capabilities of a headwater node (only implemented ones); without `collections` keys are sent bare."""

HOST = "$HOST"
NOBODY = -1
OWN_EPOCH = 1
"""The epoch of the maps that single nodes make for themselves; a cluster's epoch is higher."""
UNKNOWN: Final = (1 << 64) - 1
"""Stands for a needed seqno that is unknown: a failover that takes a copy out has not asked yet how far the others must
be. The seqno that was needed before, a lower bound, is subtracted from it. No copy is complete up to such a number, so
a reader that does not know this rule promotes none.
"""
_UNKNOWN_LEAST: Final = 1 << 63
PORT = 11210
SERVERS_MAX = 4096
MAP_VBUCKETS_MAX = 65536

Chain: TypeAlias = tuple[int, ...]
"""The active node of a vbucket (or NOBODY) and its replicas as positions in the list of servers; no filling."""

Addresses: TypeAlias = Callable[[Mapping[str, Any], Address | None], tuple[Address, ...]]
"""A function that reads the nodes of a map: from its JSON, and the address that it was fetched from."""


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """A checked map.

    Attributes:
        bucket, uuid: the bucket's name, and its uuid as 32 hexadecimal digits; empty if the text has none.
        epoch, rev: of two maps the newer one has the greater pair.
        servers: the nodes; chains contain positions in this tuple.
        chains: for each vbucket the positions of its active node (or -1) and its replicas; no node twice.
        replica_count: number of replicas that each vbucket should have; fewer if there are too few nodes.
        capabilities: the abilities of the nodes, for clients.
        tls_ports: ports with TLS, by the node's address; nodes without TLS are missing.
        groups: the failure domain (a rack, a machine) of a node, by its address; a missing node is a failure domain of
            its own.
        encrypted: True if nodes use TLS with each other.
        needed: by vbucket, the seqno up to which a replica must be complete to be promoted; UNKNOWN, or a little less,
            if that is not known (`is_unknown`).
        this: position of the node that the text was encoded for (`thisNode`); None if no entry, or one without
            vbuckets, is marked.
        text: the JSON that the map was read from; empty for a map that was not read.

    Raises:
        ValueError: no vbuckets or nodes, or too many; a node twice; a chain with an unknown node or a node twice. The
            message names the vbucket.
    """

    bucket: str
    uuid: str
    epoch: int
    rev: int
    servers: tuple[Address, ...]
    chains: tuple[Chain, ...] = field(repr=False)  # a thousand of them
    replica_count: int = 0
    capabilities: tuple[str, ...] = CAPABILITIES
    tls_ports: Mapping[Address, int] = field(default_factory=dict, hash=False)
    groups: Mapping[Address, str] = field(default_factory=dict, hash=False)
    encrypted: bool = False
    needed: Mapping[int, int] = field(default_factory=dict, hash=False)
    this: int | None = field(default=None, compare=False)
    text: bytes = field(default=b"", repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 < len(self.servers) <= SERVERS_MAX or len(set(self.servers)) != len(self.servers):
            raise ValueError(f"{len(self.servers)} servers, {len(set(self.servers))} of them different")
        if not 0 < len(self.chains) <= MAP_VBUCKETS_MAX:
            raise ValueError(f"{len(self.chains)} vbuckets, 1 to {MAP_VBUCKETS_MAX} are possible")
        for chain in set(self.chains):  # a few different ones, each of many vbuckets
            if (problem := _problem(chain, len(self.servers))) is not None:
                raise ValueError(f"vbucket {self.chains.index(chain)} has the chain {list(chain)}{problem}")

    # ------------------------------------------------------------------ what it says

    @property
    def version(self) -> tuple[int, int]:
        """(epoch, rev)."""
        return self.epoch, self.rev

    @property
    def label(self) -> str:
        """The version for messages: "epoch.rev"."""
        return f"{self.epoch}.{self.rev}"

    @property
    def vbuckets(self) -> int:
        """The number of vbuckets of the bucket."""
        return len(self.chains)

    def vbucket_of(self, key: bytes) -> int:
        """Return the vbucket of a key."""
        return vbucket_of(key, len(self.chains))

    def is_same_bucket(self, other: ClusterMap) -> bool:
        """Return False if the two maps belong to different buckets of one name: the bucket was dropped and created
        again.

        Vbucket numbers and collection ids of the two then mean different things. If a map has no uuid, only the number
        of vbuckets is compared.
        """
        return self.vbuckets == other.vbuckets and (self.uuid == other.uuid or not self.uuid or not other.uuid)

    def owner(self, vbucket: int) -> Address | None:
        """Return the node with the active copy; None if there is none at present, or no such vbucket."""
        if not 0 <= vbucket < len(self.chains):
            return None
        head = self.chains[vbucket][0]
        return self.servers[head] if head >= 0 else None

    @property
    def owning(self) -> tuple[Address, ...]:
        """The nodes that own a vbucket, in the order of `servers`."""
        return tuple(self.servers[index] for index in sorted({chain[0] for chain in self.chains}) if index != NOBODY)

    def chain(self, vbucket: int) -> tuple[Address | None, ...]:
        """Return the owner (None if there is none) and the replicas of a vbucket."""
        return tuple(None if index == NOBODY else self.servers[index] for index in self.chains[vbucket])

    def replicas(self, vbucket: int) -> tuple[Address, ...]:
        """Return the nodes with a replica of a vbucket."""
        return tuple(self.servers[index] for index in self.chains[vbucket][1:])

    def copies(self, vbucket: int) -> tuple[Address, ...]:
        """Return all nodes with a copy of a vbucket: the owner first, if there is one."""
        return tuple(self.servers[index] for index in self.chains[vbucket] if index != NOBODY)

    def held_by(self, address: Address) -> tuple[list[int], list[int]]:
        """Return the vbuckets that a node owns, and the vbuckets of which it has a replica."""
        if address not in self.servers:
            return [], []
        index = self.servers.index(address)
        owned_vbuckets = [vb for vb, chain in enumerate(self.chains) if chain[0] == index]
        return owned_vbuckets, [vb for vb, chain in enumerate(self.chains) if index in chain[1:]]

    @property
    def unknown(self) -> list[int]:
        """The vbuckets for which the seqno that a copy needs to be promoted is not known."""
        return [vbucket for vbucket in self.needed if self.is_unknown(vbucket)]

    def is_unknown(self, vbucket: int) -> bool:
        """Return True if the seqno that a copy of a vbucket needs to be promoted is not known."""
        return self.needed.get(vbucket, 0) >= _UNKNOWN_LEAST

    def needed_at_least(self, vbucket: int) -> int:
        """Return the seqno up to which a copy must be complete to be promoted, 0 for any; a lower bound if
        `is_unknown`.
        """
        seqno = self.needed.get(vbucket, 0)
        return UNKNOWN - seqno if self.is_unknown(vbucket) else seqno

    # ------------------------------------------------------------------ as the node sees it that it was made for

    @property
    def here(self) -> Address | None:
        """The node that the map was encoded for (`thisNode`); None if no node is marked."""
        return None if self.this is None else self.servers[self.this]

    @property
    def peers(self) -> tuple[Address, ...]:
        """All nodes but `here`."""
        return tuple(server for index, server in enumerate(self.servers) if index != self.this)

    def is_owner(self, vbucket: int) -> bool:
        """Return True if the node `here` owns a vbucket."""
        return self.this is not None and self.chains[vbucket][0] == self.this

    def is_replica(self, vbucket: int) -> bool:
        """Return True if the chain of a vbucket has the node `here` as a replica."""
        return self.this in self.chains[vbucket][1:]

    # ------------------------------------------------------------------ its successors

    def with_chains(self, changed: Mapping[int, Sequence[Address | None]]) -> ClusterMap:
        """Return the next map, with other chains for some vbuckets; each chain begins with its owner (None for none).

        Raises:
            ValueError: a node is no member, or occurs twice in a chain.
        """
        chains = list(self.chains)
        for vbucket, nodes in changed.items():
            chains[vbucket] = tuple(NOBODY if node is None else self.servers.index(node) for node in nodes) or (NOBODY,)
        return self._next(chains=tuple(chains))

    def with_servers(self, servers: Iterable[Address]) -> ClusterMap:
        """Return the next map, with these members. Removed nodes leave their chains; vbuckets of theirs have no
        owner.
        """
        members = tuple(servers)
        place = {old: members.index(address) for old, address in enumerate(self.servers) if address in members}
        chains = tuple(
            (place.get(chain[0], NOBODY), *(place[index] for index in chain[1:] if index in place))
            for chain in self.chains
        )
        return self._next(servers=members, chains=chains)

    def with_tls(self, ports: Mapping[Address, int], *, encrypted: bool | None = None) -> ClusterMap:
        """Return the next map, with these TLS ports; `encrypted` True if nodes use TLS with each other, None for no
        change.
        """
        tls_ports = {server: ports[server] for server in self.servers if server in ports}
        return self._next(tls_ports=tls_ports, encrypted=self.encrypted if encrypted is None else encrypted)

    def with_groups(self, groups: Mapping[Address, str]) -> ClusterMap:
        """Return the next map, with these failure domains; nodes missing in `groups` have none."""
        return self._next(groups={server: groups[server] for server in self.servers if groups.get(server)})

    def with_needed(self, seqnos: Mapping[int, int]) -> ClusterMap:
        """Return the next map, with the seqnos up to which replicas of these vbuckets must be complete to be promoted.

        All other vbuckets then need none. A failover sets a seqno if the remaining copies are behind the owner: durable
        writes that were acknowledged by the removed copy may now exist at the owner alone.
        """
        return self._next(needed=dict(seqnos))

    def with_unknown(self, vbuckets: Iterable[int]) -> ClusterMap:
        """Return the next map, which marks the needed seqnos of these vbuckets as unknown; the present ones become
        lower bounds.
        """
        return self.with_needed({**self.needed, **{vb: UNKNOWN - self.needed_at_least(vb) for vb in vbuckets}})

    def with_replica_count(self, count: int) -> ClusterMap:
        """Return the next map, with another number of replicas."""
        return self._next(replica_count=count)

    def after(self, rev: int) -> ClusterMap:
        """Return this map with a revision above `rev`.

        A map with the epoch of single nodes, which founded clusters in earlier releases, gets the next epoch: a member
        that returns without its disk numbers its own maps by its start time, and these would count as newer.
        """
        return self._next(rev=max(self.rev, rev) + 1, epoch=max(self.epoch, OWN_EPOCH + 1))

    def _next(self, **changed: Any) -> ClusterMap:
        return replace(self, **{"rev": self.rev + 1, "this": None, "text": b""} | changed)

    # ------------------------------------------------------------------ JSON

    def to_json(self, this: Address | None) -> bytes:
        """Return the map as JSON for the node `this`, whose entry is marked by `thisNode`; None marks no entry."""
        path = f"/pools/default/{{}}/{self.bucket}?bucket_uuid={self.uuid}"
        # Rows are filled up to the longest: SDKs read a row by the positions 0 to numReplicas (kv.md 1.4).
        width = max(1 + self.replica_count, *map(len, self.chains))
        names = [str(server) for server in self.servers]
        content = {
            "rev": self.rev,
            "revEpoch": self.epoch,
            "name": self.bucket,
            "uuid": self.uuid,
            "nodeLocator": "vbucket",
            "uri": path.format("buckets"),
            "streamingUri": path.format("bucketsStreaming"),
            "bucketCapabilitiesVer": "",
            "bucketCapabilities": list(self.capabilities),
            "clusterCapabilitiesVer": [1, 0],
            "clusterCapabilities": {},
            "nodes": [{"hostname": str(server), "ports": {"direct": server.port}} for server in self.servers],
            "nodesExt": [
                _extended_entry(server, self.tls_ports.get(server), self.groups.get(server), is_this=server == this)
                for server in self.servers
            ],
            "vBucketServerMap": {
                "hashAlgorithm": "CRC",
                "numReplicas": self.replica_count,
                "serverList": names,
                "vBucketMap": None,
            },
        }
        if self.encrypted:
            content["clusterEncryption"] = True
        if self.needed:
            content["neededSeqnos"] = {str(vbucket): seqno for vbucket, seqno in self.needed.items()}
        before, after = json.dumps(content, separators=(",", ":")).split(_ROWS_TO_COME)
        return f'{before}"vBucketMap":{_rows_text(self.chains, width)}{after}'.encode()

    @classmethod
    def from_json(
        cls,
        text: bytes,
        source: Address | None = None,
        *,
        addresses: Addresses | None = None,
        epoch: int = 0,
        content: Any = None,
    ) -> ClusterMap:
        """Read and check a map.

        Args:
            source: address that the map was fetched from, which replaces "$HOST"; None leaves "$HOST" unchanged.
            addresses: function that reads the nodes; `server_list` unless given.
            epoch: epoch of a map that has none.
            content: the parsed `text`, if `read_json` has parsed it already.

        Raises:
            RemoteProtocolError: not JSON, or not a map: fields missing, of the wrong type, or with unknown nodes.
        """
        try:
            content = read_json(text) if content is None else content
            table = content["vBucketServerMap"]
            servers = (addresses or server_list)(content, source)
            return cls(
                bucket=str(content.get("name", "")),
                uuid=str(content.get("uuid", "")),
                epoch=_number(content.get("revEpoch", epoch)),
                rev=_number(content.get("rev", 0)),
                servers=servers,
                chains=_chains(_rows(table)),
                replica_count=_number(table.get("numReplicas", 0)),
                capabilities=tuple(map(str, content.get("bucketCapabilities", ()))),
                tls_ports=_tls_ports(content, servers),
                groups=_groups(content, servers),
                encrypted=content.get("clusterEncryption", False) is True,
                needed=_needed_seqnos(content.get("neededSeqnos", {}), len(_rows(table))),
                this=_own_index(content, len(servers)),
                text=bytes(text),
            )
        except KeyError as key_error:
            problem = f"it has no {key_error.args[0]}"
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            problem = f"it can not be read: {error}"
        raise RemoteProtocolError(f"cluster map{f' of {source}' if source else ''}: {problem}")


# ---------------------------------------------------------------------- the nodes


def server_list(content: Mapping[str, Any], source: Address | None) -> tuple[Address, ...]:
    """Return the nodes of `serverList`, which every map of this family's nodes has."""
    return tuple(_address(name, source) for name in _bounded(content["vBucketServerMap"]["serverList"]))


def newest_addresses(content: Mapping[str, Any], source: Address | None) -> tuple[Address, ...]:
    """Return the key-value nodes in the way of the SDKs: of a map's three generations of node lists the newest counts,
    position by position. A missing host name means the host that the map was fetched from.

    Raises:
        ValueError: `source` is None, or an entry is invalid.
    """
    if source is None:
        raise ValueError("nobody knows where it came from")
    names = _bounded(content["vBucketServerMap"].get("serverList", ()))
    node_entries, extended = _bounded(content.get("nodes", ())), _bounded(content.get("nodesExt", ()))
    # Nodes that are no members of the bucket yet come last in nodesExt (kv.md 1.4): the map counts the others.
    count = max(len(node_entries), len(names)) or len(extended)
    if count == 1 and _is_source(extended):
        return (source,)
    addresses = []
    for index in range(count):
        host, port = _address(names[index], source) if index < len(names) else (source.host, PORT)
        if index < len(extended):
            services = extended[index].get("services", {})
            host = _host(extended[index].get("hostname", host))
            port = int(services.get("kv", services.get("kvSSL", port)))
        addresses.append(Address(source.host if host == HOST else host, port))
    return tuple(addresses)


def tls_addresses(content: Mapping[str, Any], source: Address | None) -> tuple[Address, ...]:
    """Return the nodes with their TLS ports.

    Raises:
        ValueError: a node has no TLS port.
    """
    addresses, extended = newest_addresses(content, source), _bounded(content.get("nodesExt", ()))
    if addresses == (source,) and _is_source(extended):
        return addresses
    ports = [_tls_port(entry) for entry in extended[: len(addresses)]] + [None] * (len(addresses) - len(extended))
    without_port = [address for address, port in zip(addresses, ports, strict=True) if port is None]
    if without_port:
        raise ValueError(f"it names no port of {without_port[0].host} for TLS")
    return tuple(Address(address.host, port or 0) for address, port in zip(addresses, ports, strict=True))


def _tls_ports(content: Mapping[str, Any], servers: tuple[Address, ...]) -> dict[Address, int]:
    """Return the TLS ports in a map, by node address; entry i of nodesExt belongs to server i, as in `_own_index`."""
    entries = zip(servers, _bounded(content.get("nodesExt", ())), strict=False)
    return {server: port for server, entry in entries if (port := _tls_port(entry)) is not None}


def _groups(content: Mapping[str, Any], servers: tuple[Address, ...]) -> dict[Address, str]:
    """Return the failure domains in a map, by node address; `serverGroup` is the SDKs' name of them.

    A value that is no text is ignored, so that the rest of the map stays readable.
    """
    entries = zip(servers, _bounded(content.get("nodesExt", ())), strict=False)
    groups = ((server, entry.get("serverGroup")) for server, entry in entries)
    return {server: group for server, group in groups if isinstance(group, str) and group}


def _tls_port(entry: Mapping[str, Any]) -> int | None:
    port = entry.get("services", {}).get("kvSSL")
    if port is None:
        return None
    if not 0 < _number(port) < 65536:
        raise ValueError(f"kvSSL is {port}, which is no port")
    return _number(port)


def _is_source(extended: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if the only node of a map is the node that the map was fetched from.

    Then the address of the connection is better than the map's, which leads nowhere behind a proxy or a container's
    port mapping. It returns False if the entry names another host without `thisNode`: a node that left the cluster may
    return a map of the remaining node.
    """
    return not extended or "hostname" not in extended[0] or bool(extended[0].get("thisNode"))


def _address(text: Any, source: Address | None) -> Address:
    host, _, port = str(text).rpartition(":")
    if not host or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f'"{text}" is no host:port')
    return Address(source.host if source is not None and host == HOST else host.strip("[]"), int(port))


def _host(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(f"{name!r:.40} is no host name")
    return name


def _bounded(entries: Any) -> Sequence[Any]:
    if not isinstance(entries, list | tuple):
        raise TypeError(f"{type(entries).__name__} where a list of nodes belongs")
    if len(entries) > SERVERS_MAX:
        raise ValueError(f"{len(entries)} nodes, at most {SERVERS_MAX} are possible")
    return entries


def _extended_entry(server: Address, tls_port: int | None, group: str | None, *, is_this: bool) -> dict[str, Any]:
    """Return a node's entry of nodesExt. An entry without host name means the host that the map is fetched from.

    A server whose port is its TLS port gets no unencrypted ports.
    """
    services = {} if server.port == tls_port else {"kv": server.port, "mgmt": server.port}
    if tls_port is not None:
        services |= {"kvSSL": tls_port, "mgmtSSL": tls_port}
    entry: dict[str, Any] = {"services": services}
    if server.host != HOST:
        entry["hostname"] = server.host
    if group:
        entry["serverGroup"] = group
    return {**entry, "thisNode": True} if is_this else entry


def _own_index(content: Mapping[str, Any], servers: int) -> int | None:
    """Return the position of the entry with `thisNode`; None if there is none, or its node has no vbuckets.

    "nodesExt[i] corresponds to serverList[i]" and is longer (kv.md 1.4).
    """
    marked = [index for index, entry in enumerate(_bounded(content.get("nodesExt", ()))) if entry.get("thisNode")]
    if len(marked) > 1:
        raise ValueError(f"{len(marked)} entries say thisNode")
    return marked[0] if marked and marked[0] < servers else None


# ---------------------------------------------------------------------- the chains


def _rows(table: Mapping[str, Any]) -> Sequence[Any]:
    rows = table["vBucketMap"]
    if not isinstance(rows, list) or len(rows) > MAP_VBUCKETS_MAX:
        size = len(rows) if isinstance(rows, list) else type(rows).__name__
        raise ValueError(f"{size} vbuckets, 1 to {MAP_VBUCKETS_MAX} are possible")
    return rows


def _rows_text(chains: Sequence[Chain], width: int) -> str:
    """Return the rows as JSON, all of length `width`.

    Each distinct chain is encoded once: a thousand vbuckets have few distinct chains, and every move of a vbucket
    encodes a map for each node.
    """
    rows = {chain: str([*chain, *[NOBODY] * (width - len(chain))]).replace(" ", "") for chain in set(chains)}
    return f"[{','.join(map(rows.__getitem__, chains))}]"


def _chains(rows: Sequence[Any]) -> tuple[Chain, ...]:
    """Return the chains of all rows.

    If all rows are lists of integers, each distinct chain is converted once: a thousand vbuckets have few distinct
    chains, and a map arrives with every vbucket that moves.
    """
    are_lists = set(map(type, rows)) == {list} and all(rows)
    if are_lists and _WHOLE.issuperset(map(type, itertools.chain.from_iterable(rows))):
        plain = tuple(map(tuple, rows))
        chains = {row: _chain(0, list(row)) for row in set(plain)}
        return tuple(map(chains.__getitem__, plain))
    return tuple(_chain(vbucket, row) for vbucket, row in enumerate(rows))


def _chain(vbucket: int, row: Any) -> Chain:
    """Return the chain of a row, without the -1 that fill the end."""
    if not isinstance(row, list) or not row:
        raise ValueError(f"vbucket {vbucket} has the chain {row}, a list of nodes belongs there")
    if not _WHOLE.issuperset(map(type, row)):
        row = [_number(index) for index in row]  # which tells what else is there
    head, *replicas = row
    return (head, *(index for index in replicas if index != NOBODY)) if NOBODY in replicas else tuple(row)


def _needed_seqnos(content: Any, vbuckets: int) -> dict[int, int]:
    """Return the seqnos that copies need to be promoted, by vbucket."""
    if not isinstance(content, dict) or len(content) > vbuckets:
        raise ValueError("neededSeqnos has no seqno for each of some vbuckets")
    seqnos = {int(vbucket): _number(seqno) for vbucket, seqno in content.items()}
    for vbucket, seqno in seqnos.items():
        if not 0 <= vbucket < vbuckets or not 0 <= seqno < 1 << 64:
            raise ValueError(f"neededSeqnos has seqno {seqno} for vbucket {vbucket}, of {vbuckets}")
    return seqnos


_WHOLE: Final = frozenset({int})
_ROWS_TO_COME: Final = '"vBucketMap":null'
"""The place of the rows in a map's JSON; in a string its quotes would have a backslash before them."""


def _problem(chain: Chain, servers: int) -> str | None:
    """Return the problem of a chain, for people; None if it is valid."""
    indexes = [index for index in chain if index != NOBODY]
    if not chain or NOBODY in chain[1:] or len(set(indexes)) != len(indexes):
        return ": a node twice, or a hole"
    if not all(0 <= index < servers for index in indexes):
        return f" with {servers} nodes"
    return None


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} where a whole number belongs")
    return value
