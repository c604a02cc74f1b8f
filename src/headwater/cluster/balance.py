"""The plan of the owners and replicas: a balanced map with as few moves as possible, and the moves that lead there.

Four rules hold in the result: nodes own the same number of vbuckets within one; no node is twice in a chain; no group
of nodes (a failure domain: a rack, a machine) has more copies of a vbucket than the number of groups makes necessary;
and nodes hold the same number of replicas within one, as far as the rule of groups allows. Copies that exist are worth
keeping, so the plan is made in this order:

1. Owners. Each node keeps its vbuckets up to its share; the larger shares go to the nodes that own most now. Only the
   surplus moves, first to nodes that have a replica already: they only change their role.
2. Replicas. Copies that exist stay if no other copy is in their group. A missing copy goes to a group with few copies
   of the vbucket, there to the node with the fewest replicas, and among equals to the one that shares the fewest
   vbuckets with the same owner: so the work of a failed node falls on all others.
3. Levelling. While one node has two replicas more than another, one replica moves: directly if some vbucket allows it,
   else along a chain of nodes. Of the vbuckets that could move, one that is not copied yet is preferred.

The same map gives the same plan, so after an interruption a new plan has only the rest of the old one.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from headwater.client.routing import Address
from headwater.wire.cluster_map import NOBODY, Chain, ClusterMap

REPLICAS_MAX = 3


@dataclass(frozen=True, slots=True)
class Move:
    """The change of one vbucket's nodes.

    Attributes:
        before, after: its nodes, the owner first; None in front for a vbucket without an owner.
    """

    vbucket: int
    before: tuple[Address | None, ...]
    after: tuple[Address | None, ...]

    @property
    def source(self) -> Address | None:
        """The owner before; None if there was none."""
        return self.before[0]

    @property
    def target(self) -> Address | None:
        """The owner after; None if there is none."""
        return self.after[0]

    @property
    def changes_owner(self) -> bool:
        """True if the vbucket is handed over."""
        return self.source != self.target

    @property
    def copied_to(self) -> tuple[Address, ...]:
        """The nodes that have no copy yet."""
        return tuple(node for node in self.after if node is not None and node not in self.before)

    @property
    def dropped_from(self) -> tuple[Address, ...]:
        """The nodes whose copy is deleted in the end."""
        return tuple(node for node in self.before if node is not None and node not in self.after)


def moves(before: ClusterMap, after: ClusterMap) -> list[Move]:
    """Return the moves that lead from one map to another, in the order of vbuckets."""
    pairs = ((vb, _nodes(before, vb), _nodes(after, vb)) for vb in range(before.vbuckets))
    return [Move(vb, old, new) for vb, old, new in pairs if old != new]


def _nodes(map_: ClusterMap, vb: int) -> tuple[Address | None, ...]:
    return (map_.owner(vb), *map_.replicas(vb))


def checked_replicas(count: int) -> int:
    """Return a number of replicas; ValueError if it is invalid."""
    if not 0 <= count <= REPLICAS_MAX:
        raise ValueError(f"{count} replicas, 0 to {REPLICAS_MAX} are possible")
    return count


def balance(
    before: ClusterMap,
    servers: Sequence[Address],
    replicas: int | None = None,
    *,
    groups: Mapping[Address, str] | None = None,
) -> ClusterMap:
    """Return the balanced map.

    Args:
        before: the present map.
        servers: the nodes that shall be members; at least one.
        replicas: the replicas of each vbucket; None keeps the number. Fewer are planned if there are too few nodes.
        groups: the failure domains of the nodes; None keeps those of the map. A node without one is a domain of its
            own.

    Returns: a map with the next revision. A vbucket without an owner counts as owned by its first replica, which would
    have to be promoted before any move; without any copy it begins anew.

    Raises:
        ValueError: no servers, or one twice, or an invalid number of replicas.
    """
    count = checked_replicas(before.replica_count if replicas is None else replicas)
    empty = replace(
        before.after(before.rev),
        servers=tuple(servers),
        replica_count=count,
        chains=((NOBODY,),) * before.vbuckets,
    ).with_groups(before.groups if groups is None else groups)
    chains = _chains_in_new_map(before, empty.servers)
    owners = _owners([chain[0] for chain in chains], chains, len(empty.servers))
    # A former owner has a copy as good as a replica's: it is the last in the chain to be kept.
    replica_chains = [[index for index in (*chain[1:], chain[0]) if index != NOBODY] for chain in chains]
    table = _Replicas(owners, replica_chains, _group_numbers(empty), min(count, len(empty.servers) - 1))
    table.keep()
    table.fill()
    table.level()
    return replace(empty, rev=before.after(before.rev).rev, chains=tuple(table.chains()))


def _chains_in_new_map(before: ClusterMap, servers: tuple[Address, ...]) -> list[Chain]:
    """Return the chains as positions of the new members; leaving nodes are left out, a leaving owner is -1."""
    place = {old: servers.index(address) for old, address in enumerate(before.servers) if address in servers}
    chains = []
    for chain in before.chains:
        replicas = [place[index] for index in chain[1:] if index in place]
        if chain[0] == NOBODY and replicas:
            chains.append(tuple(replicas))
        else:
            chains.append((place.get(chain[0], NOBODY), *replicas))
    return chains


def _group_numbers(map_: ClusterMap) -> list[int]:
    """Return the group of each node, as a number; a node without a group has one of its own."""
    names = [map_.groups.get(server) or server for server in map_.servers]
    return list(map(list(dict.fromkeys(names)).index, names))


def crowded(map_: ClusterMap) -> list[int]:
    """Return the vbuckets of which one group has more copies than the number of groups makes necessary."""
    groups = _group_numbers(map_)
    limits: dict[int, int] = {}
    crowds = []
    for vb, chain in enumerate(map_.chains):
        copies = Counter(groups[index] for index in chain if index != NOBODY)
        number = copies.total()
        if number not in limits:
            limits[number] = _copies_of_group_max(groups, number)
        if copies and max(copies.values()) > limits[number]:
            crowds.append(vb)
    return crowds


def _copies_of_group_max(groups: Sequence[int], copies: int) -> int:
    """Return the least number of copies of one vbucket that some group must have, of `copies` in all."""
    sizes = Counter(groups).values()
    return next(
        copies_max for copies_max in itertools.count(1) if sum(min(size, copies_max) for size in sizes) >= copies
    )


# ---------------------------------------------------------------------- owners


def _owners(now: Sequence[int], chains: Sequence[Chain], nodes: int) -> list[int]:
    """Return the owner of each vbucket: nodes own the same number within one, with as few changes as possible."""
    owned_counts = Counter(index for index in now if index != NOBODY)
    share, larger = divmod(len(now), nodes)
    by_count = sorted(range(nodes), key=lambda index: -owned_counts[index])
    room = {index: share + (rank < larger) for rank, index in enumerate(by_count)}
    owners = list(now)
    unowned = []
    for vb in sorted(range(len(now)), key=lambda vb: _can_change_role(chains[vb], owned_counts, room)):
        if now[vb] == NOBODY or room[now[vb]] == 0:
            owners[vb] = NOBODY
            unowned.append(vb)
        else:
            room[now[vb]] -= 1
    for vb in sorted(unowned, key=lambda vb: (len(chains[vb]), vb)):  # those with few copies have least choice
        willing = [index for index in chains[vb][1:] if room[index] > 0]
        if willing:
            _give(vb, max(willing, key=lambda index: room[index]), owners, room)
    for vb in sorted(unowned):
        if owners[vb] == NOBODY:
            _give(vb, max(room, key=lambda index: room[index]), owners, room)
    return owners


def _can_change_role(chain: Chain, owned_counts: Counter[int], room: dict[int, int]) -> bool:
    """Return True if a vbucket has a replica on a node that owns too few.

    Such a vbucket only changes its role there, so its owner gives it away before others.
    """
    return any(owned_counts[index] < room[index] for index in chain[1:])


def _give(vb: int, node: int, owners: list[int], room: dict[int, int]) -> None:
    owners[vb] = node
    room[node] -= 1


# ---------------------------------------------------------------------- replicas


class _Replicas:
    """The replicas of all vbuckets while they are assigned; nodes are positions, `groups` has the group of each."""

    def __init__(
        self, owners: Sequence[int], chains: Sequence[Sequence[int]], groups: Sequence[int], replica_count: int
    ) -> None:
        self.owners, self.nodes, self.wanted, self.groups = owners, len(groups), replica_count, groups
        self._limit = _copies_of_group_max(groups, 1 + replica_count)
        self._has_groups = len(set(groups)) < len(groups)
        self.held = [
            [index for index in copies if index != owner] for owner, copies in zip(owners, chains, strict=True)
        ]
        self.chosen: list[list[int]] = [[] for _ in owners]
        self.on: list[set[int]] = [set() for _ in groups]
        self.shared: Counter[tuple[int, int]] = Counter()  # (owner, replica): vbuckets

    def chains(self) -> Iterator[Chain]:
        """Yield the resulting chains."""
        for owner, replicas in zip(self.owners, self.chosen, strict=True):
            yield (owner, *replicas)

    def keep(self) -> None:
        """Keep copies where they are; if there are too many, keep those on the emptier nodes."""
        # Vbuckets without a choice come first; those with copies to spare then choose by the loads that result.
        for vb in sorted(range(len(self.owners)), key=lambda vb: max(0, len(self.held[vb]) - self.wanted)):
            spare = len(self.held[vb]) > self.wanted
            order = sorted(self.held[vb], key=self._load) if spare else self.held[vb]
            for node in order:
                if len(self.chosen[vb]) < self.wanted and self._may(vb, node):
                    self._put(vb, node)

    def fill(self) -> None:
        """Give each missing copy to the emptiest node that may have it."""
        for vb, owner in enumerate(self.owners):
            while len(self.chosen[vb]) < self.wanted:
                # Never empty: while a copy is missing, some group has fewer than the limit allows it.
                free = [node for node in range(self.nodes) if self._may(vb, node)]
                self._put(vb, min(free, key=lambda node: self._worth(vb, owner, node)))

    def level(self) -> None:
        """Move copies until no node has two more than another, as far as the rules of chains allow."""
        # Each round makes the sum of the squares of all loads smaller, so there is an end.
        while (path := self._path()) is not None:
            for giver, taker in itertools.pairwise(path):
                # The step before changed another vbucket than those that this giver could give: so there still is one.
                vb = self._cheapest(giver, taker)
                if vb is not None:
                    self._move(vb, giver, taker)

    def _load(self, node: int) -> int:
        return len(self.on[node])

    def _worth(self, vb: int, owner: int, node: int) -> tuple[int, int, int, int]:
        """Return the rank of a node for a copy; the node with the lowest rank gets it.

        Ranks prefer a node whose group has few copies of this vbucket, then one with few replicas, then one with few of
        this owner.
        """
        neighbours = self._copies(vb).count(self.groups[node]) if self._has_groups else 0
        return neighbours, self._load(node), self.shared[owner, node], node

    def _copies(self, vb: int) -> list[int]:
        """Return the groups of the owner and of the replicas that are assigned so far."""
        return [self.groups[node] for node in (self.owners[vb], *self.chosen[vb])]

    def _may(self, vb: int, node: int, giver: int | None = None) -> bool:
        """Return True if a node may have a copy without a group getting more copies than necessary.

        Args:
            giver: the node whose copy it replaces; None for an additional copy.
        """
        if node == self.owners[vb] or vb in self.on[node]:
            return False
        if not self._has_groups or (giver is not None and self.groups[giver] == self.groups[node]):
            return True
        copies = self._copies(vb)
        if giver is None:
            return copies.count(self.groups[node]) < self._limit
        # A group that gives its only copy away to one that has another leaves fewer groups with a copy.
        return copies.count(self.groups[node]) < min(self._limit, copies.count(self.groups[giver]))

    def _put(self, vb: int, node: int) -> None:
        self.chosen[vb].append(node)
        self.on[node].add(vb)
        self.shared[self.owners[vb], node] += 1

    def _move(self, vb: int, giver: int, taker: int) -> None:
        self.chosen[vb][self.chosen[vb].index(giver)] = taker
        self.on[giver].remove(vb)
        self.on[taker].add(vb)
        self.shared[self.owners[vb], giver] -= 1
        self.shared[self.owners[vb], taker] += 1

    def _path(self) -> list[int] | None:
        """Return the shortest path from a node with too many copies to one with at least two fewer, in which each node
        can give a copy to the next; None if there is none.
        """
        by_load = sorted(range(self.nodes), key=lambda node: (-self._load(node), node))
        for start in by_load:
            # Later starts are no fuller than this one: none of them is two above the emptiest node either.
            if self._load(start) - self._load(by_load[-1]) < 2:
                return None
            predecessors = {start: start}
            queue = deque([start])
            while queue:
                node = queue.popleft()
                if self._load(start) - self._load(node) >= 2:
                    return _walk(predecessors, node)
                for next_node in reversed(by_load):
                    if next_node not in predecessors and any(self._may(vb, next_node, node) for vb in self.on[node]):
                        predecessors[next_node] = node
                        queue.append(next_node)
        return None

    def _cheapest(self, giver: int, taker: int) -> int | None:
        """Return the vbucket whose move from giver to taker costs least (`_cost`); None if none may move."""
        able = [vb for vb in self.on[giver] if self._may(vb, taker, giver)]
        return min(able, key=lambda vb: (*self._cost(vb, giver, taker), vb)) if able else None

    def _cost(self, vb: int, giver: int, taker: int) -> tuple[int, int]:
        """Return the cost of moving a copy: the number of copies to make, then how many more vbuckets of the same owner
        the taker has than the giver.
        """
        owner = self.owners[vb]
        copies = (giver in self.held[vb]) - (taker in self.held[vb])
        return copies, self.shared[owner, taker] - self.shared[owner, giver]


def _walk(predecessors: dict[int, int], node: int) -> list[int]:
    path = [node]
    while predecessors[node] != node:
        node = predecessors[node]
        path.append(node)
    return path[::-1]
