"""The cluster map as its keeper sees it: every copy of every vbucket, written and read as the JSON of kv.md 1.4.

`headwater.client.routing.ClusterMap` is what a client needs of the same text: the owners. Here it is a value that an
orchestrator changes and sends out. A change makes a new map with the next revision; (epoch, rev) never goes back.

    chain of a vbucket    (active, replica, replica ...) as positions in `servers`; -1 in front: nobody owns it now
    row in vBucketMap     the chain, filled up with -1 to the length of the longest

A chain may be longer than 1 + numReplicas for a while: a rebalance lets new copies join before old ones leave.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headwater.client.routing import NODES_MAX, VBUCKETS_MAX, Address
from headwater.errors import RemoteProtocolError

CAPABILITIES = ("dcp", "cccp", "cbhello", "xattr", "nodesExt", "couchapi", "touch", "dcp.IgnorePurgedTombstones")
"""What a headwater node can; a map that was fetched keeps the capabilities it came with."""

NOBODY = -1
REPLICAS_MAX = 3

Chain = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BucketMap:
    """Who holds what of one bucket.

    Attributes:
        bucket, uuid: the bucket's name, and its uuid as 32 hexadecimal digits.
        epoch, rev: of two maps the one with the greater pair is the newer.
        servers: the members, in the order that chains count them.
        chains: for each vbucket the positions of its active node (or -1) and its replicas; no node twice.
        replica_count: how many replicas each vbucket is to have, 0 to 3; fewer where there are too few nodes.
        capabilities: what clients are told the nodes can.

    Raises:
        ValueError: a chain that names a node twice or points nowhere; text in it says which vbucket.
    """

    bucket: str
    uuid: str
    epoch: int
    rev: int
    servers: tuple[Address, ...]
    chains: tuple[Chain, ...]
    replica_count: int = 0
    capabilities: tuple[str, ...] = CAPABILITIES

    def __post_init__(self) -> None:
        if not 0 < len(self.chains) <= VBUCKETS_MAX:
            raise ValueError(f"{len(self.chains)} vbuckets, 1 to {VBUCKETS_MAX} are possible")
        if not 0 < len(self.servers) <= NODES_MAX or len(set(self.servers)) != len(self.servers):
            raise ValueError(f"{len(self.servers)} nodes, {len(set(self.servers))} of them different")
        if not 0 <= self.replica_count <= REPLICAS_MAX:
            raise ValueError(f"{self.replica_count} replicas, 0 to {REPLICAS_MAX} are possible")
        for vb, chain in enumerate(self.chains):
            _check_chain(vb, chain, len(self.servers))

    # ------------------------------------------------------------------ what it says

    @property
    def version(self) -> tuple[int, int]:
        """(epoch, rev)."""
        return self.epoch, self.rev

    @property
    def vbuckets(self) -> int:
        """How many vbuckets the bucket has."""
        return len(self.chains)

    def active(self, vbucket: int) -> Address | None:
        """The node that owns a vbucket; None when nobody does."""
        head = self.chains[vbucket][0]
        return None if head == NOBODY else self.servers[head]

    def replicas(self, vbucket: int) -> tuple[Address, ...]:
        """The nodes with a replica of a vbucket."""
        return tuple(self.servers[index] for index in self.chains[vbucket][1:])

    def copies(self, vbucket: int) -> tuple[Address, ...]:
        """All nodes with a copy: the owner first, if there is one."""
        return tuple(self.servers[index] for index in self.chains[vbucket] if index != NOBODY)

    def held_by(self, address: Address) -> tuple[list[int], list[int]]:
        """The vbuckets a node owns, and those it has a replica of."""
        if address not in self.servers:
            return [], []
        index = self.servers.index(address)
        owned = [vb for vb, chain in enumerate(self.chains) if chain[0] == index]
        return owned, [vb for vb, chain in enumerate(self.chains) if index in chain[1:]]

    # ------------------------------------------------------------------ its successors

    def with_chains(self, changed: Mapping[int, Sequence[Address | None]]) -> BucketMap:
        """The next map: some vbuckets held by other nodes, each owner first (None: nobody owns it).

        Raises:
            ValueError: a node that is no member, or twice in a chain.
        """
        chains = list(self.chains)
        for vb, nodes in changed.items():
            chains[vb] = self._chain(nodes)
        return replace(self, rev=self.rev + 1, chains=tuple(chains))

    def with_servers(self, servers: Iterable[Address]) -> BucketMap:
        """The next map: other members. Who is no member any more leaves its chains; what it owned, nobody owns."""
        kept = tuple(servers)
        place = {old: kept.index(address) for old, address in enumerate(self.servers) if address in kept}
        chains = tuple(
            (place.get(chain[0], NOBODY), *(place[index] for index in chain[1:] if index in place))
            for chain in self.chains
        )
        return replace(self, rev=self.rev + 1, servers=kept, chains=chains)

    def with_replica_count(self, count: int) -> BucketMap:
        """The next map: another number of replicas to strive for."""
        return replace(self, rev=self.rev + 1, replica_count=count)

    def after(self, rev: int) -> BucketMap:
        """The same with a revision above `rev`."""
        return replace(self, rev=max(self.rev, rev) + 1)

    def _chain(self, nodes: Sequence[Address | None]) -> Chain:
        return tuple(NOBODY if node is None else self.servers.index(node) for node in nodes) or (NOBODY,)

    # ------------------------------------------------------------------ JSON

    def to_json(self, this: Address | None) -> bytes:
        """The map as it is sent to the node `this`, whose own entry says `thisNode`; None marks no entry."""
        path = f"/pools/default/{{}}/{self.bucket}?bucket_uuid={self.uuid}"
        width = max(1 + self.replica_count, *map(len, self.chains))
        told = {
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
            "nodes": [_node(each) for each in self.servers],
            "nodesExt": [_extended(each, this) for each in self.servers],
            "vBucketServerMap": {
                "hashAlgorithm": "CRC",
                "numReplicas": self.replica_count,
                "serverList": [str(each) for each in self.servers],
                "vBucketMap": [[*chain, *[NOBODY] * (width - len(chain))] for chain in self.chains],
            },
        }
        return json.dumps(told, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: bytes, source: Address | None = None) -> BucketMap:
        """Read a map that was fetched from `source`, which is what "$HOST" stands for.

        Raises:
            RemoteProtocolError: not JSON, or no map: fields missing, of the wrong type, or pointing nowhere.
        """
        try:
            told = json.loads(text)
            return cls._read(told, told["vBucketServerMap"], source)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
            raise RemoteProtocolError(f"cluster map of {source}: {type(error).__name__} {error}") from None

    @classmethod
    def _read(cls, told: Mapping[str, Any], table: Mapping[str, Any], source: Address | None) -> BucketMap:
        return cls(
            bucket=str(told["name"]),
            uuid=str(told.get("uuid", "")),
            epoch=int(told.get("revEpoch", 0)),
            rev=int(told["rev"]),
            servers=tuple(_address(name, source) for name in table["serverList"]),
            chains=tuple(_row(row) for row in table["vBucketMap"]),
            replica_count=int(table.get("numReplicas", 0)),
            capabilities=tuple(map(str, told.get("bucketCapabilities", ()))),
        )


def _check_chain(vb: int, chain: Chain, servers: int) -> None:
    named = [index for index in chain if index != NOBODY]
    if not chain or NOBODY in chain[1:] or len(set(named)) != len(named):
        raise ValueError(f"vbucket {vb} has the chain {list(chain)}: a node twice, or a hole")
    if not all(0 <= index < servers for index in named):
        raise ValueError(f"vbucket {vb} has the chain {list(chain)} with {servers} nodes")


def _row(row: Sequence[int]) -> Chain:
    head, *rest = map(int, row)
    return (head, *(index for index in rest if index != NOBODY))


def _node(address: Address) -> dict[str, Any]:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return {"hostname": f"{host}:{address.port}", "ports": {"direct": address.port}}


def _extended(address: Address, this: Address | None) -> dict[str, Any]:
    entry = {"services": {"kv": address.port, "mgmt": address.port}, "hostname": address.host}
    return {**entry, "thisNode": True} if address == this else entry


def _address(name: str, source: Address | None) -> Address:
    host, _, port = name.rpartition(":")
    host = host.strip("[]")
    if host == "$HOST":
        if source is None:
            raise ValueError(f"{name} in a map that nobody sent")
        return source if source.port == int(port) else Address(source.host, int(port))
    return Address(host, int(port))
