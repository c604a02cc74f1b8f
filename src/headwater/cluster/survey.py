"""The nodes' states and maps at one moment, from which every decision starts. Objects only, no I/O.

The state of a cluster is in its nodes only: the last map that each got, and the state of each vbucket there. A
rebalance that was killed leaves a map and states that disagree; `settle` finds the cause and the repair:

| states                                       | what it was                               | what to do                |
|----------------------------------------------|-------------------------------------------|---------------------------|
| one active, where the map says               | nothing                                   | nothing                   |
| one active, elsewhere                        | handed over, and the map not sent yet     | the map follows           |
| one active, another pending                  | cut before the owner stopped              | the pending one: replica  |
| none active, one pending, dead at the map's  | cut in the middle of a takeover           | recover (failover.md 4)   |
| none active, other copies                    | promotion or takeover cut at its ends     | promote the best copy     |
| no copy                                      | lost, or not created yet                  | the operator must decide  |
| more than one active, one where the map says | a node that was away                      | the others are made dead  |
| more than one active, all elsewhere          | no run of ours leads here                 | the operator must decide  |
| active on a node that is no member           | it is new, or was taken out               | it is made dead           |
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from headwater.client.routing import Address
from headwater.cluster.answers import HAS_GAP, IS_DAMAGED
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.vbucket import State

STRANGER = "it has no map, and less than the others have of its vbuckets, as after the loss of its disk"

Log: TypeAlias = Sequence[tuple[int, int]]
"""A failover log, newest entry first: (vb uuid, seqno)."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One node's copy of a vbucket, as a candidate for promotion.

    Attributes:
        seqno: its high seqno. complete: the seqno up to which it lacks nothing; the same by default.
        has_gap: True if it refused changes. is_damaged: True if some were found damaged on its disk.
        acknowledged: for a damaged copy, the seqno up to which it may have acknowledged durable writes before the
            damage was found.
    """

    address: Address
    seqno: int
    log: Log
    complete: int = -1
    has_gap: bool = False
    is_damaged: bool = False
    acknowledged: int = 0

    @property
    def flaw(self) -> str:
        """The copy's flaw, for people: the changes that it lacks, and the cause; empty for a sound copy."""
        return IS_DAMAGED if self.is_damaged else HAS_GAP if self.has_gap else ""

    def __post_init__(self) -> None:
        if self.complete < 0:
            object.__setattr__(self, "complete", self.seqno)


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node, by its answers.

    Attributes:
        map: the map that it was sent; None for a node that was never in a cluster, and has only its own.
        version: (epoch, rev) of the map that it hands out, which may be its own.
        tls_port: its port for TLS; None without TLS.
        group: its failure domain, as it reports it; empty for none.
        this: the address under which its map names it; None for none.
        states, items: by vbucket.
        seqnos: durable high seqnos, by vbucket.
        complete: the seqno up to which a copy is complete, by vbucket; within a snapshot that is a seqno before it,
            since the copy lacks the rest of the snapshot.
        refused, damaged: the number of changes of a vbucket that it refused, or that its disk has lost; only for
            vbuckets that lack any.
        acknowledged: the seqno up to which damaged copies may have acknowledged durable writes before their damage was
            found.
        damaged_batches: the number of damaged batches of its log, also those that no vbucket needs any more.
        error: the reason why it did not answer; all else is empty then.
        is_refusal: True if it answered with this refusal.
        lives: True if it has the bucket although its state is unknown: it refused, or TLS failed.
        fenced: why it waits for its peers before it serves, in words; empty if it serves.
        in_doubt: True if its process stood still, and no majority has answered since that it has no newer map.
        is_copy: True if it waits because the member whose map it has answers elsewhere.
    """

    address: Address
    map: ClusterMap | None = None
    version: tuple[int, int] = (0, 0)
    vbuckets: int = 0
    uuid: str = ""
    tls_port: int | None = None
    group: str = ""
    this: Address | None = None
    states: Mapping[int, State] = field(default_factory=dict)
    seqnos: Mapping[int, int] = field(default_factory=dict)
    complete: Mapping[int, int] = field(default_factory=dict)
    items: Mapping[int, int] = field(default_factory=dict)
    refused: Mapping[int, int] = field(default_factory=dict)
    damaged: Mapping[int, int] = field(default_factory=dict)
    acknowledged: Mapping[int, int] = field(default_factory=dict)
    damaged_batches: int = 0
    error: str = ""
    fenced: str = ""
    in_doubt: bool = False
    is_copy: bool = False
    is_refusal: bool = False
    lives: bool = False

    @property
    def complaint(self) -> str:
        """The reason why the node's state is unknown, for people; empty if it answered."""
        verb = "refuses" if self.is_refusal else "does not answer"
        return f"{self.address} {verb} ({self.error})" if self.error else ""

    @property
    def advice(self) -> str:
        """The next step for a node with a complaint."""
        return "is the bucket's name right, and the login?" if self.is_refusal else "start it, then type this again"

    @property
    def answers(self) -> bool:
        """True if the node answered."""
        return not self.error

    def count(self, state: State) -> int:
        """Return the number of vbuckets in a state on this node."""
        return sum(other is state for other in self.states.values())

    def copy(self, vbucket: int, log: Log) -> Copy:
        """Return the node's copy of a vbucket with this failover log."""
        seqno = self.seqnos.get(vbucket, 0)
        complete = self.complete.get(vbucket, seqno)
        has_gap = vbucket in self.refused and complete < seqno
        acknowledged = self.acknowledged.get(vbucket, 0)
        return Copy(self.address, seqno, log, complete, has_gap, vbucket in self.damaged, acknowledged)

    def is_called_otherwise_in(self, cluster_map: ClusterMap) -> bool:
        """Return True if the node is a member of this map under another name.

        A copy of a member's folder, which serves nothing, is no member.
        """
        is_member = self.map is not None and self.map.uuid == cluster_map.uuid and self.this in cluster_map.servers
        return is_member and self.address not in cluster_map.servers and not self.is_copy

    @property
    def has_data(self) -> bool:
        """True if a vbucket on this node, in any state, has a history."""
        return any(self.seqnos.values())


@dataclass(frozen=True, slots=True)
class Survey:
    """All nodes of a cluster.

    Attributes:
        map: the newest map of them all.
        nodes: the members, then other nodes that were surveyed.
        aliases: members that were surveyed under another name than the map's, by that name: a host has several names,
            and workers share an address.
    """

    map: ClusterMap
    nodes: Mapping[Address, NodeView]
    aliases: Mapping[Address, Address] = field(default_factory=dict)

    @classmethod
    def of(cls, newest: ClusterMap, views: Mapping[Address, NodeView]) -> Survey:
        """Return the survey, in which each member appears once.

        As two nodes, a member's vbuckets would have two owners, and be made dead at one.
        """
        aliases = {name: node.this for name, node in views.items() if node.this and node.is_called_otherwise_in(newest)}
        return cls(newest, {name: node for name, node in views.items() if name not in aliases}, aliases)

    @property
    def silent(self) -> list[NodeView]:
        """Members that did not answer."""
        return [node for address, node in self.nodes.items() if not node.answers and address in self.map.servers]

    @property
    def strangers(self) -> list[Address]:
        """The nodes at a member's address that have no map of the cluster, and own vbuckets of which another member has
        more.

        They came back without their disk, or are other nodes.
        """
        return [server for server in self.map.servers if server in self.nodes and self._is_stranger(self.nodes[server])]

    def _is_stranger(self, node: NodeView) -> bool:
        if not node.answers or node.map is not None:
            return False
        owned_vbuckets = [vb for vb in self.map.held_by(node.address)[0] if node.states.get(vb) is State.ACTIVE]
        other_members = [
            self.nodes[server] for server in self.map.servers if server in self.nodes and server != node.address
        ]
        return any(other.seqnos.get(vb, 0) > node.seqnos.get(vb, 0) for vb in owned_vbuckets for other in other_members)

    def in_state(self, vbucket: int, *states: State) -> list[Address]:
        """Return the members where a vbucket is in one of these states, in the order of the map."""
        members = (self.nodes[server] for server in self.map.servers if server in self.nodes)
        return [node.address for node in members if node.states.get(vbucket) in states]

    def old_copies(self, vbuckets: Iterable[int]) -> dict[Address, list[int]]:
        """Return the nodes that answer and left the cluster, each with those of the vbuckets of which it has changes.

        No failover promotes such a copy: the members went on without it.
        """
        outsiders = (
            node for address, node in self.nodes.items() if address not in self.map.servers and not node.is_copy
        )
        former = [node for node in outsiders if node.map is not None and node.map.uuid == self.map.uuid]
        vbuckets_by_node = {node.address: [vb for vb in vbuckets if node.seqnos.get(vb)] for node in former}
        return {address: numbers for address, numbers in vbuckets_by_node.items() if numbers}

    def loses_whole_copy(self, vbucket: int, owner: Address, gone: Container[Address]) -> bool:
        """Return True if a vbucket's owner has damaged changes, and the nodes in `gone` take away the last whole copy.

        That is: some of them have other copies by the map, and no staying copy is sound and complete as far as the
        owner's.
        """
        node, replicas = self.nodes[owner], [copy for copy in self.map.copies(vbucket) if copy != owner]
        is_damaged = vbucket in node.damaged and node.states.get(vbucket) is State.ACTIVE
        if not is_damaged or not any(replica in gone for replica in replicas):
            return False
        staying = (node for node in self.in_state(vbucket, *State) if node != owner and node not in gone)
        copies = (self.nodes[copy].copy(vbucket, ()) for copy in staying)
        needed = node.seqnos.get(vbucket, 0)
        return not any(not copy.flaw and copy.complete >= needed for copy in copies)

    def has_lost_changes(self, vbucket: int, address: Address, staying: Iterable[Address]) -> bool:
        """Return True if a node has changes of a vbucket that its damaged owner lost, and that no sound copy of
        `staying` has.

        The owner's copy is complete only up to the damage.
        """
        owners = [node for node in self.in_state(vbucket, State.ACTIVE) if vbucket in self.nodes[node].damaged]
        if not owners:
            return False
        copy, *other_copies = (self.nodes[node].copy(vbucket, ()) for node in (address, *staying) if node in self.nodes)
        owner_seqnos = [self.nodes[owner].copy(vbucket, ()).complete for owner in owners]
        return not copy.flaw and copy.complete > max(
            [*owner_seqnos, *(copy_.complete for copy_ in other_copies if not copy_.flaw)]
        )

    def outsiders_owning(self, vbucket: int) -> list[Address]:
        """Return the nodes that are no members and claim a vbucket: new ones, and those that were taken out."""
        outsiders = (node for address, node in self.nodes.items() if address not in self.map.servers)
        return [node.address for node in outsiders if node.states.get(vbucket) is State.ACTIVE]

    @property
    def tls_ports(self) -> dict[Address, int]:
        """The TLS ports of the nodes: as they report them, and from the map for those that do not answer."""
        ports = {address: node.tls_port for address, node in self.nodes.items()}
        from_map = {address: port for address, port in self.map.tls_ports.items() if not self._answers(address)}
        return from_map | {address: port for address, port in ports.items() if port is not None}

    @property
    def groups(self) -> dict[Address, str]:
        """The failure domains of the nodes: as they report them, and from the map for those that do not answer."""
        from_map = {address: group for address, group in self.map.groups.items() if not self._answers(address)}
        return from_map | {address: node.group for address, node in self.nodes.items() if node.group}

    def _answers(self, address: Address) -> bool:
        return address in self.nodes and self.nodes[address].answers

    def latest_rev(self) -> int:
        """Return the highest revision that any node hands out; the next map must have a higher one."""
        return max(self.map.rev, *(node.version[1] for node in self.nodes.values()))


@dataclass(slots=True)
class Settlement:
    """The repairs after which map and states agree; vbuckets in ascending order.

    Attributes:
        handed_over: vbuckets with their new owners, which the map does not name yet.
        cut: takeovers that broke off and must be recovered, (from, to).
        unowned: vbuckets without an owner, with the nodes that have a copy.
        fenced: nodes that claim a vbucket of another owner, by vbucket; it is made dead there.
        waiting: nodes that were to take a vbucket over from an owner that never stopped, by vbucket.
        lost: vbuckets of which no node has a copy.
        contested: vbuckets with several owners, none of them the map's.
        unknown: vbuckets whose copies must reach an unknown seqno to be promoted, since a failover broke off before all
            copies had reported theirs.
    """

    handed_over: dict[int, Address] = field(default_factory=dict)
    cut: dict[int, tuple[Address, Address]] = field(default_factory=dict)
    unowned: dict[int, list[Address]] = field(default_factory=dict)
    fenced: dict[int, list[Address]] = field(default_factory=dict)
    waiting: dict[int, list[Address]] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    contested: dict[int, list[Address]] = field(default_factory=dict)
    unknown: list[int] = field(default_factory=list)

    @property
    def is_settled(self) -> bool:
        """True if map and states agree."""
        owners = (self.handed_over, self.cut, self.unowned, self.fenced, self.waiting, self.lost, self.contested)
        return not any(owners) and not self.unknown


def settle(survey: Survey) -> Settlement:
    """Compare the map with the states of all nodes that answered.

    Only a member can have become an owner: a node is in the map before it gets a vbucket. The claims of other nodes do
    not count.
    """
    settlement = Settlement(unknown=survey.map.unknown)
    for vb in range(survey.map.vbuckets):
        _settle_one(survey, vb, settlement)
    return settlement


def _settle_one(survey: Survey, vb: int, settlement: Settlement) -> None:
    meant, owners = survey.map.owner(vb), survey.in_state(vb, State.ACTIVE)
    pending = survey.in_state(vb, State.PENDING)
    if owners and pending:
        settlement.waiting[vb] = pending
    if outsiders := survey.outsiders_owning(vb):
        settlement.fenced[vb] = outsiders
    if len(owners) > 1 and meant in owners:
        settlement.fenced.setdefault(vb, []).extend(owner for owner in owners if owner != meant)
    elif len(owners) > 1:
        settlement.contested[vb] = owners
    elif owners and owners[0] != meant:
        settlement.handed_over[vb] = owners[0]
    elif not owners and meant in survey.in_state(vb, State.DEAD) and len(pending) == 1:
        settlement.cut[vb] = (meant, pending[0])
    elif not owners:
        copies = survey.in_state(vb, State.REPLICA, State.PENDING, State.DEAD)
        if copies:
            settlement.unowned[vb] = copies
        else:
            settlement.lost.append(vb)


def chain_with_owner(chain: Iterable[Address], owner: Address) -> tuple[Address, ...]:
    """Return a chain with `owner` in front, which may be in the chain already or new."""
    return (owner, *(node for node in chain if node != owner))


def best(copies: Sequence[Copy]) -> Copy:
    """Return the copy to promote: of the newest history, and there the one that is complete up to the highest seqno; of
    equals one without a flaw, then the longest, then the first.

    A longer copy that was filling up may lack keys that were written more than once, in their new and their old version
    (decision 0086): acknowledged changes are in complete copies.
    """
    return max(current(copies), key=lambda copy: (copy.complete, not copy.flaw, copy.seqno))


def current(copies: Sequence[Copy]) -> Sequence[Copy]:
    """Return the copies whose history is not superseded.

    A history is superseded if another copy's failover log has its newest vb uuid further back: that copy continued from
    it (failover.md 1). Changes of the superseded copy beyond that point were given up when the other was promoted.
    """
    newest = [copy for copy in copies if not any(_supersedes(other.log, copy.log) for other in copies)]
    return newest or copies


def rival(copies: Sequence[Copy]) -> Copy | None:
    """Return a copy with changes that the best one lacks, in a history that neither of the two continued from; None
    without one.

    Such copies exist when each was promoted while the other was away. Their seqnos count different changes, and no rule
    can decide whose changes are to be given up: the operator must.
    """
    best_copy = best(copies)
    return next((copy for copy in current(copies) if _are_apart(best_copy, copy)), None)


def _are_apart(first: Copy, second: Copy) -> bool:
    """Return True if both have changes behind the point where their histories parted; False if a log is unknown."""
    if not first.log or not second.log or first.log[0][0] == second.log[0][0]:
        return False
    first_ends, second_ends = _branch_ends(first), _branch_ends(second)
    # In their last common branch they agree up to where the first of the two left it.
    common_end = max(
        (min(end, second_ends[uuid]) for uuid, end in first_ends.items() if uuid in second_ends), default=0
    )
    return min(first.seqno, second.seqno) > common_end


def _branch_ends(copy: Copy) -> dict[int, int]:
    """Return the seqno of the last change of each branch, by vb uuid: the start of the next branch, or the copy's high
    seqno.
    """
    # A branch ends where the next newer one begins: so the seqnos of the log, shifted by one place.
    ends = (copy.seqno, *(seqno for _, seqno in copy.log))
    return {uuid: end for (uuid, _), end in zip(copy.log, ends, strict=False)}


def _supersedes(newer: Log, older: Log) -> bool:
    if not newer or not older or newer[0][0] == older[0][0]:
        return False
    return older[0][0] in [uuid for uuid, _ in newer[1:]]
