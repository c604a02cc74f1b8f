"""The plan of a rebalance, made from a survey before anything is changed. No I/O.

A plan is refused when a member does not answer: it may hold the only copy of a vbucket, and could not get the new map.
A joining node must be empty, or a member of this very cluster that was away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from headwater.client.routing import Address
from headwater.cluster.admin import vbucket_list
from headwater.cluster.balance import Move, balance, moves
from headwater.cluster.survey import STRANGER, NodeView, Settlement, Survey, chain_with_owner, settle
from headwater.errors import ClusterError, OptionError
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.vbucket import State


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a rebalance.

    Attributes:
        before: the present map, after the repairs of `settlement`.
        after: the map to reach.
        moves: the moves, one for each vbucket.
        settlement: the repairs that an earlier run left.
        strays: copies that belong to no chain, by node; they are deleted in the end.
        behind: members that have an older map.
    """

    before: ClusterMap
    after: ClusterMap
    moves: Sequence[Move]
    settlement: Settlement
    strays: dict[Address, list[int]]
    behind: Sequence[Address] = ()

    @property
    def joining(self) -> list[Address]:
        """Nodes that become members."""
        return [node for node in self.after.servers if node not in self.before.servers]

    @property
    def leaving(self) -> list[Address]:
        """Nodes that cease to be members."""
        return [node for node in self.before.servers if node not in self.after.servers]

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to do."""
        changed = self.moves or self.strays or self.joining or self.leaving or self.behind
        same = self.before.replica_count == self.after.replica_count and self.before.groups == self.after.groups
        return not changed and self.settlement.is_settled and same

    def handovers(self) -> Counter[tuple[Address, Address]]:
        """Return the number of vbuckets that each pair of nodes hands over, by (source, target)."""
        pairs = ((move.source, move.target) for move in self.moves if move.changes_owner)
        return Counter((source, target) for source, target in pairs if source is not None and target is not None)

    def copies(self) -> Counter[Address]:
        """Return the number of replicas that each node receives."""
        return Counter(node for move in self.moves for node in move.copied_to if node != move.target)


def make_plan(
    survey: Survey,
    *,
    add: Sequence[Address] = (),
    remove: Sequence[Address] = (),
    replicas: int | None = None,
    strangers: Mapping[Address, NodeView] = MappingProxyType({}),
) -> Plan:
    """Return the plan of a rebalance.

    Args:
        survey: the survey of all members and of the nodes in `add`.
        add, remove: the nodes that join and leave; a joining node may be a member already, and a leaving one may have
            left before.
        replicas: the replicas of each vbucket; None keeps the number.
        strangers: the views of the nodes in `remove` that are no members.

    Raises:
        ClusterError: a member does not answer, or is no member any more; the nodes are not of one cluster; a vbucket is
            lost or has two owners; a joining node has data; a leaving node was never a member; or a copy that stays is
            damaged.
        OptionError: a node is to join and to leave, or no node would be left.
    """
    both = set(add) & set(remove)
    if both:
        raise OptionError("remove", str(min(both)), "another node than one that is added")
    for node in remove:
        if node not in survey.map.servers:
            _check_left(survey, node, strangers[node])
    servers = [node for node in (*survey.map.servers, *add) if node not in remove]
    if not (servers := list(dict.fromkeys(servers))):
        raise OptionError("remove", ", ".join(map(str, remove)), "such that a node is left")
    _check_answers(survey)
    _check_cluster(survey, add)
    _check_members(survey)
    for node in add:
        if node in survey.aliases:
            raise ClusterError(f"{node} is the member {survey.aliases[node]}", "use that address")
        _check_joins(survey, survey.nodes[node])
    settlement = settle(survey)
    _check_settles(settlement)
    before = settled(survey.map, settlement)
    after = balance(before, servers, replicas, groups=survey.groups)
    late_nodes = [node for node in survey.map.servers if survey.nodes[node].version != survey.map.version]
    if not settlement.cut:  # first such a vbucket gets an owner, whose copy is sound; the plan behind that is checked
        _check_sound(survey, before, after)
    return Plan(before, after, moves(before, after), settlement, strays(survey, after), late_nodes)


def settled(cluster_map: ClusterMap, settlement: Settlement) -> ClusterMap:
    """Return the map after the settlement; a takeover that broke off counts as not begun."""
    owners = {**settlement.handed_over, **{vb: copies[0] for vb, copies in settlement.unowned.items()}}
    changed = {vb: chain_with_owner(cluster_map.copies(vb), owner) for vb, owner in owners.items()}
    return cluster_map.with_chains(changed) if changed else cluster_map


def _check_left(survey: Survey, address: Address, node: NodeView) -> None:
    """Check that a leaving node that is no member has left the cluster before, and may be stopped.

    Raises:
        ClusterError: its name is wrong: it is of no cluster, of another one, or another name of a member.
    """
    if node.this in survey.map.servers and node.map is not None and node.map.uuid == survey.map.uuid:
        raise ClusterError(f"{address} is the member {node.this}", "use that address")
    if node.map is None or node.map.uuid != survey.map.uuid:
        silence = f" and does not answer ({node.error})" if not node.answers else ""
        members = ", ".join(map(str, survey.map.servers))
        raise ClusterError(f"{address} is no member{silence}", f"the members are {members}")


def _check_cluster(survey: Survey, add: Sequence[Address]) -> None:
    """Check that the nodes lead to one cluster.

    By the newest map the nodes of another cluster would own vbuckets that are not theirs, as if they had been taken
    out, and these would be made dead there.

    Raises:
        ClusterError: a node is of another cluster, or of none and has data.
    """
    members = " and ".join(map(str, survey.map.servers))
    for node in survey.nodes.values():
        is_named = node.address not in survey.map.servers and node.address not in add
        if is_named and node.map is not None and node.map.uuid != survey.map.uuid:
            raise ClusterError(
                f"{node.address} is of another cluster than {members}, whose map is newer",
                "name nodes of one cluster; what joins it is empty: serve it from an empty folder with --vbucket-state"
                " none",
            )
        if is_named and node.map is None and node.has_data:
            raise ClusterError(
                f"{node.address} is no member of the cluster of {members}, and has documents of its own",
                f"name a member; what joins it is empty, and named by --add {node.address}",
            )


def _check_members(survey: Survey) -> None:
    for address in survey.strangers:
        raise ClusterError(
            f"{address} is not the member that the map means: {STRANGER}",
            f"headwater cluster failover --dead {address} --force promotes what the others have; then --add it",
        )


def _check_answers(survey: Survey) -> None:
    silent_nodes = [node for node in survey.nodes.values() if not node.answers]
    if silent_nodes:
        complaints = "; ".join(node.complaint for node in silent_nodes)
        raise ClusterError(
            complaints, "start it and type this again, or, if it is gone for good, headwater cluster failover"
        )


def _check_joins(survey: Survey, node: NodeView) -> None:
    if node.vbuckets != survey.map.vbuckets:
        raise ClusterError(
            f"{node.address} has {node.vbuckets} vbuckets, the cluster {survey.map.vbuckets}",
            f"serve it from an empty folder with --vbuckets {survey.map.vbuckets}",
        )
    if node.address in survey.map.servers or (node.map is not None and node.map.uuid == survey.map.uuid):
        if node.this in survey.map.servers and node.this != node.address:
            raise ClusterError(f"{node.address} is the member {node.this}", "use that address")
        return
    if node.map is not None and set(node.map.servers) != {node.address}:
        raise ClusterError(f"{node.address} belongs to another cluster", "take it out there first, or serve it anew")
    if node.has_data:
        raise ClusterError(
            f"{node.address} has {sum(node.items.values()):,} documents of its own",
            "a node that joins is empty: serve it from an empty folder with --vbucket-state none",
        )


def _check_settles(settlement: Settlement) -> None:
    if settlement.contested:
        vb, owners = next(iter(settlement.contested.items()))
        raise ClusterError(
            f"vbucket {vb} is owned by {' and '.join(map(str, owners))}, and the map names neither",
            "make all but one of them dead (SET_VBUCKET), then type this again",
        )
    if settlement.lost:
        raise ClusterError(
            f"no node has a copy of the vbuckets {vbucket_list(settlement.lost)}",
            "start the node that has them, or begin them anew: headwater cluster failover --lose-data",
        )


def _check_sound(survey: Survey, before: ClusterMap, after: ClusterMap) -> None:
    """Check that a map neither makes a damaged copy the owner, nor keeps it as a replica, nor takes the whole copies of
    a damaged owner away.

    A damaged owner could not send the changes that it lost. A damaged replica is never level, and the copies that leave
    are deleted only when all that stay are level.

    Raises:
        ClusterError: it does.
    """
    for address, node in survey.nodes.items():
        spoiled = [
            vb
            for vb in sorted(node.damaged)
            if address in after.copies(vb) and not address == before.owner(vb) == after.owner(vb)
        ]
        if spoiled:
            raise ClusterError(
                f"{address} has damaged changes of the vbuckets {vbucket_list(spoiled)}, and would keep or own them",
                f"let it join anew from an empty folder, after headwater cluster failover --dead {address} --force",
            )
        _check_only_copies(survey, address, after)
    _check_strays(survey, after)


def _check_strays(survey: Survey, after: ClusterMap) -> None:
    """Check that no copy outside of the map, which would be deleted, has changes that the owner's disk has lost.

    Raises:
        ClusterError: one has.
    """
    for address, vbuckets in strays(survey, after).items():
        if damaged := [vb for vb in vbuckets if survey.has_lost_changes(vb, address, after.copies(vb))]:
            owner = survey.in_state(damaged[0], State.ACTIVE)[0]
            sound_copy, damaged_copy = (survey.nodes[node].copy(damaged[0], ()) for node in (address, owner))
            raise ClusterError(
                f"{address} has copies of the vbuckets {vbucket_list(damaged)} that the map does not give it, with"
                f" changes that are damaged at {owner}: vbucket {damaged[0]} is complete there up to seqno"
                f" {sound_copy.complete}, here up to {damaged_copy.complete} of {damaged_copy.seqno}; they would be"
                " deleted",
                f"promote them: headwater cluster failover --dead {owner} --force; or, to lose what is damaged, delete"
                f" them at {address} (DEL_VBUCKET), then type this again",
            )


def _check_only_copies(survey: Survey, owner: Address, after: ClusterMap) -> None:
    """Check that the whole copies of a damaged owner's vbuckets stay, if the owner does.

    Raises:
        ClusterError: they would be deleted.
    """
    only = [
        vb
        for vb in sorted(survey.nodes[owner].damaged)
        if owner == after.owner(vb) and survey.loses_whole_copy(vb, owner, survey.nodes.keys() - set(after.copies(vb)))
    ]
    if only:
        raise ClusterError(
            f"{owner} owns the vbuckets {vbucket_list(only)} and has damaged changes of them; whole copies would go",
            f"replace that node first: headwater cluster rebalance --add NODE --remove {owner}",
        )


def strays(survey: Survey, after: ClusterMap) -> dict[Address, list[int]]:
    """Return the copies on nodes to which neither the present map nor the new one assigns them."""
    copies = {
        node.address: [
            vb
            for vb in sorted(node.states)
            if vb < after.vbuckets
            and node.address not in after.copies(vb)
            and node.address not in survey.map.copies(vb)
        ]
        for node in survey.nodes.values()
    }
    return {address: vbuckets for address, vbuckets in copies.items() if vbuckets}
