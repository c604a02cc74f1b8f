"""A cluster map as a node reads it: whom its chains name, and which of the servers is this node.

The text is the terse JSON of kv.md 1.4. An orchestrator sends each node its own copy, with `thisNode` at the node's
entry of `nodesExt`; a copy that was fetched from another node is turned into our own by `seen_from`. Everything is
checked here, once: a node that believes a broken map would give up vbuckets for nobody.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from headwater.errors import RemoteProtocolError
from headwater.protocol.address import Address

__all__ = ["NOBODY", "SERVERS_MAX", "Address", "NodeMap"]

SERVERS_MAX = 4096
NOBODY = -1


@dataclass(frozen=True, slots=True)
class NodeMap:
    """A checked map; made by `from_json`.

    Attributes:
        epoch, rev: of two maps the one with the greater pair is the newer.
        bucket, uuid: the bucket's name and uuid; maps of one cluster share them.
        servers: the nodes with vbuckets, in the order in which chains count them.
        chains: for each vbucket the index of its active node (or -1) and those of its replicas, without the filling.
        this: the index of this node; None when no entry, or one without vbuckets, says thisNode.
        config: the text.
    """

    epoch: int
    rev: int
    bucket: str
    uuid: str
    servers: tuple[Address, ...]
    chains: tuple[tuple[int, ...], ...]
    this: int | None
    config: bytes

    @property
    def version(self) -> tuple[int, int]:
        """(epoch, rev)."""
        return self.epoch, self.rev

    @property
    def here(self) -> Address | None:
        """This node, as the others know it."""
        return None if self.this is None else self.servers[self.this]

    @property
    def peers(self) -> tuple[Address, ...]:
        """The other nodes."""
        return tuple(server for index, server in enumerate(self.servers) if index != self.this)

    def owner(self, vb: int) -> Address | None:
        """The node that a vbucket belongs to; None if it belongs to nobody at present."""
        head = self.chains[vb][0]
        return None if head == NOBODY else self.servers[head]

    def chain(self, vb: int) -> tuple[Address | None, ...]:
        """The owner (None: nobody) and the replicas of a vbucket."""
        return tuple(None if index == NOBODY else self.servers[index] for index in self.chains[vb])

    def is_owner(self, vb: int) -> bool:
        """Whether a vbucket belongs to this node."""
        return self.this is not None and self.chains[vb][0] == self.this

    def is_replica(self, vb: int) -> bool:
        """Whether this node is to hold a replica of a vbucket."""
        return self.this in self.chains[vb][1:]

    def says_the_same(self, other: NodeMap) -> bool:
        """Whether both maps tell this node the same."""
        mine = (self.version, self.bucket, self.uuid, self.servers, self.chains, self.this)
        return mine == (other.version, other.bucket, other.uuid, other.servers, other.chains, other.this)

    def seen_from(self, here: Address) -> NodeMap:
        """The map as it would have been sent to another node; it may not be in it."""
        this = self.servers.index(here) if here in self.servers else None
        told = json.loads(self.config)
        for index, entry in enumerate(told.get("nodesExt", ())):
            entry.pop("thisNode", None)
            if index == this:
                entry["thisNode"] = True
        config = json.dumps(told, separators=(",", ":")).encode()
        return NodeMap(self.epoch, self.rev, self.bucket, self.uuid, self.servers, self.chains, this, config)

    @classmethod
    def from_json(cls, config: bytes, *, bucket: str, vbuckets: int) -> NodeMap:
        """Read and check a map.

        Args:
            bucket: the name of this node's bucket; vbuckets: how many it has.

        Raises:
            RemoteProtocolError: not JSON, not a map, or one of another bucket; the text says what is wrong.
        """
        try:
            return _read(json.loads(config), config, bucket, vbuckets)
        except KeyError as missing:
            raise RemoteProtocolError(f"the map has no {missing.args[0]}") from None
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise RemoteProtocolError(f"the map can not be read: {error}") from None


def _read(told: Any, config: bytes, bucket: str, vbuckets: int) -> NodeMap:
    table, name = told["vBucketServerMap"], str(told.get("name", bucket))
    servers = tuple(_address(each) for each in table["serverList"])
    if name != bucket:
        raise ValueError(f'it is of bucket "{name}", this node has "{bucket}"')
    if not 0 < len(servers) <= SERVERS_MAX or len(set(servers)) != len(servers):
        raise ValueError(f"{len(servers)} servers, {len(set(servers))} of them different")
    if len(table["vBucketMap"]) != vbuckets:
        raise ValueError(f"it has {len(table['vBucketMap'])} vbuckets, this node {vbuckets}")
    chains = tuple(_chain(vb, row, len(servers)) for vb, row in enumerate(table["vBucketMap"]))
    epoch, rev = _number(told.get("revEpoch", 1)), _number(told["rev"])
    return NodeMap(epoch, rev, name, str(told.get("uuid", "")), servers, chains, _this(told, len(servers)), config)


def _this(told: Any, servers: int) -> int | None:
    """ "nodesExt[i] corresponds to serverList[i]; nodes that are not yet KV members come last" (kv.md 1.4)."""
    marked = [index for index, entry in enumerate(told.get("nodesExt", ())) if entry.get("thisNode")]
    if len(marked) > 1:
        raise ValueError(f"{len(marked)} entries say thisNode")
    return marked[0] if marked and marked[0] < servers else None


def _chain(vb: int, row: Any, servers: int) -> tuple[int, ...]:
    head, *rest = [_number(index) for index in row]
    chain = (head, *(index for index in rest if index != NOBODY))
    named = [index for index in chain if index != NOBODY]
    if not all(0 <= index < servers for index in named) or len(set(named)) != len(named):
        raise ValueError(f"vbucket {vb} has the chain {row} with {servers} servers")
    return chain


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} where a whole number belongs")
    return value


def _address(text: Any) -> Address:
    host, _, port = str(text).rpartition(":")
    if not host or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f'"{text}" is no host:port')
    return Address(host.strip("[]"), int(port))
