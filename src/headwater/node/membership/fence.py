"""The fence: after an absence a node does not serve its vbuckets until it is certain that no other node owns them by
now.

    closed --an answer with a newer map--> closed; the newer map is now the one in question
           --answers of a majority of the map's nodes, this one included, and none newer--> open
           --an operator's map--> open
    open   --another node answers at this node's address--> closed, until an operator's map after that

An operator who promotes a replica first sends the new map to a majority of the nodes. Two majorities share a node, so
one of the nodes that answered would have had the new map. With two nodes the majority is both: if the other one is
lost, an operator must send a map. The fence does not depend on time.
"""

from __future__ import annotations

from headwater.invariants import node_invariant
from headwater.wire.address import Address
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.durability import majority_of


class Fence:
    """The fence for one map, and the peers that answered.

    Attributes:
        is_open: True if the node may serve the vbuckets that it has by the map. heard: the peers that have no newer
            map.
        alone: True if no other node answers at this node's address, False if one does (own_address.py); None while
            unknown.
    """

    def __init__(self, known: ClusterMap, *, is_open: bool = False, alone: bool | None = True) -> None:
        self.heard: set[Address] = set()
        self.alone = alone
        self._peers = frozenset(known.peers)
        # A majority, this node counted: it shares a node with every other majority, and so with one that has a newer
        # map.
        self._needed, members = majority_of(len(known.servers)), len(known.servers)
        node_invariant(2 * self._needed > members, "{} of {} nodes are to be a majority", self._needed, members)
        self.is_open: bool = (
            is_open or self._needed <= 1 or known.this is None
        )  # one that is no member has nobody to ask

    @property
    def missing(self) -> int:
        """The number of answers still needed."""
        return 0 if self.is_open else max(0, self._needed - 1 - len(self.heard))

    def hear(self, peer: Address) -> bool:
        """Note that a peer has no newer map; return True if that opens the fence."""
        # An answer that was under way when the map changed may come from a node that is no member any more.
        if peer not in self._peers:
            return False
        # A set, for the same peer asked twice is one voice.
        self.heard.add(peer)
        return self._try()

    def hear_own(self, *, alone: bool) -> bool:
        """Note whether another node answers at this node's address, which closes the fence; return True if the call
        opens it.
        """
        # A copy that once answered keeps the fence closed: it may be down for a moment, and only an operator can say
        # which of the two is the member.
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
