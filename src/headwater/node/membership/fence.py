"""The fence: after a start a node does not serve its vbuckets until it is certain that no other node owns them by now.

    closed --an answer with a newer map--> closed; the newer map is now the one in question
           --answers of a majority of the map's nodes, this one included, and none newer--> open
           --an operator's map--> open
    open   --another node answers at this node's address--> closed, until an operator's map after that
           --this process stood still--> open, but in doubt, until a majority has answered as above

An operator who promotes a replica first sends the new map to a majority of the nodes. Any two majorities have a node in
common, so one of the nodes that answered would have the new map. With two nodes, both are needed for a majority: if the
other one is lost, an operator must send a map. The fence does not depend on time.

A process that stood still (SIGSTOP, a machine that was suspended) may have been taken for dead, and another node may
own its vbuckets. It goes on serving, since it can't know that, but half of a cluster that is in doubt is no one to fail
the other half over to (cluster/failover.py).
"""

from __future__ import annotations

from headwater.invariants import node_invariant
from headwater.wire.address import Address
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.durability import majority_of


class Fence:
    """The fence for one map, and the peers that have answered.

    Attributes:
        is_open: True if the node may serve the vbuckets that it has by the map.
        heard: the peers that have answered, and have no newer map.
        in_doubt: True if others may have gone on without this node while it stood still.
        alone: True if no other node answers at this node's address, False if one does (own_address.py), None while this
            is unknown.
    """

    def __init__(
        self, cluster_map: ClusterMap, *, is_open: bool = False, alone: bool | None = True, in_doubt: bool = False
    ) -> None:
        self.heard: set[Address] = set()
        self.alone = alone
        self._peers = frozenset(cluster_map.peers)
        # A majority that includes this node: it has a node in common with any majority that has a newer map.
        self._needed, members = majority_of(len(cluster_map.servers)), len(cluster_map.servers)
        node_invariant(2 * self._needed > members, "{} of {} nodes are to be a majority", self._needed, members)
        # Without other members there are no answers to wait for.
        is_alone = self._needed <= 1 or cluster_map.this is None
        self.is_open: bool = is_open or is_alone
        self.in_doubt: bool = in_doubt and not is_alone

    @property
    def missing(self) -> int:
        """The number of answers still needed."""
        return 0 if self.is_open and not self.in_doubt else max(0, self._needed - 1 - len(self.heard))

    def doubt(self) -> None:
        """Note that this process stood still: earlier answers count no more. Without other members nothing changes."""
        if self._needed > 1:
            self.heard.clear()
            self.in_doubt = True

    def hear(self, peer: Address) -> bool:
        """Note that a peer has no newer map; return True if that opens the fence."""
        # An answer to an earlier request may come from a node that is not in the present map.
        if peer not in self._peers:
            return False
        # A set, so that each peer counts once.
        self.heard.add(peer)
        self.in_doubt = self.in_doubt and self.missing > 0
        return self._try()

    def hear_own(self, *, alone: bool) -> bool:
        """Note whether this node is alone at its address. If another node answers there (`alone` is False), the fence
        closes; return True if the call opens the fence.
        """
        # Once another node has answered, the fence stays closed, even if that node does not answer any more: only an
        # operator can say which of the two is the member.
        if self.alone is not False:
            self.alone = alone
        if not alone:
            self.is_open = False
        return self._try()

    def _try(self) -> bool:
        if self.is_open or self.missing > 0 or not self.alone:
            return False
        self.is_open = True
        return True
