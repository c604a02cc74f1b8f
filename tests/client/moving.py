"""A cluster made by hand: real nodes, maps that are set, vbuckets that are taken over or failed over one by one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from headwater.testing.node import Node, node
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import State
from tests.node.replication.support import call, high_seqno, leave, replicate, set_state, state, until


class HandMade:
    """Nodes and the map that they should have; `publish` gives it to some of them, or to all.

    Attributes:
        nodes: the first owns all vbuckets at the beginning.
        owners: of each vbucket, as the next map will tell.
    """

    def __init__(self, nodes: Sequence[Node], vbuckets: int) -> None:
        self.nodes, self.owners = list(nodes), [0] * vbuckets
        # Newer than the maps that the nodes made for themselves when they were started.
        self._rev = time.time_ns() // 1_000_000 + 1_000_000_000

    @property
    def url(self) -> str:
        """For clients that start from the first node."""
        return self.nodes[0].url

    def map(self, this: int) -> bytes:
        """The map as one of the nodes gets it."""
        hosts = [{"hostname": each.host, "services": {"kv": each.port, "mgmt": 8091}} for each in self.nodes]
        hosts[this]["thisNode"] = True
        told = {
            "rev": self._rev,
            "revEpoch": 1,
            "name": "default",
            "nodeLocator": "vbucket",
            "nodesExt": hosts,
            "vBucketServerMap": {
                "hashAlgorithm": "CRC",
                "numReplicas": 0,
                "serverList": [each.address for each in self.nodes],
                "vBucketMap": [[owner] for owner in self.owners],
            },
        }
        return json.dumps(told).encode()

    def publish(self, *to: int) -> None:
        """Give a new map to these nodes, in this order; to all that run if none is named."""
        self._rev += 1
        for index in to or [place for place, each in enumerate(self.nodes) if each.is_running]:
            version = (1).to_bytes(8) + self._rev.to_bytes(8)
            told = call(self.nodes[index], Opcode.SET_CLUSTER_CONFIG, b"", self.map(index), version)
            assert told.status == 0, told

    def take_over(self, vb: int, to: int) -> None:
        """Move a vbucket; the map still names the old owner."""
        source, target = self.nodes[self.owners[vb]], self.nodes[to]
        if state(target, vb) is State.DEAD:
            set_state(target, vb, State.REPLICA)
        replicate(target, source.address, str(vb), takeover=True)
        until(lambda: state(target, vb) is State.ACTIVE, f"vbucket {vb} is taken over")
        leave(target, source.address)
        self.owners[vb] = to

    def follow(self, vb: int, to: int) -> None:
        """Make another node a replica of a vbucket, and wait until it is level."""
        owner = self.nodes[self.owners[vb]]
        replicate(self.nodes[to], owner.address, str(vb))
        until(lambda: high_seqno(self.nodes[to], vb) == high_seqno(owner, vb), f"the replica of vbucket {vb} is level")

    def fail_over(self, vb: int, to: int) -> None:
        """Make a replica the owner, whatever the old one thinks; the map still names the old one."""
        leave(self.nodes[to], self.nodes[self.owners[vb]].address)
        set_state(self.nodes[to], vb, State.ACTIVE)
        self.owners[vb] = to

    def client(self, **options: object):
        """A client that starts from the first node."""
        return self.nodes[0].client(**options)


@contextmanager
def cluster(count: int = 2, vbuckets: int = 8) -> Iterator[HandMade]:
    """Some nodes with one map, all vbuckets on the first."""
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(node(vbuckets=vbuckets, vbucket_state="none" if place else "active"))
            for place in range(count)
        ]
        made = HandMade(nodes, vbuckets)
        made.publish()
        yield made
