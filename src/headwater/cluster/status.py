"""The state of a cluster: a survey as numbers for each node, problems, and remarks. No I/O.

A problem needs the operator: a node that does not answer, a vbucket without exactly one owner, a node with another map
or damage on its disk, a seed that is no member, a replica that is missing or that the map does not even plan. A remark
does not need the operator: unevenly spread vbuckets, replicas that are behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headwater.client.routing import Address
from headwater.cluster.admin import vbucket_list
from headwater.cluster.balance import balance, crowded, moves
from headwater.cluster.survey import STRANGER, NodeView, Survey, settle
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.vbucket import State


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One member.

    Attributes:
        answers: True if it answers. error: the reason if it does not.
        active, replica, pending, dead: the number of its vbuckets in each state.
        items: documents in its active vbuckets. behind: the sum of the changes that its replicas still lack.
        version: (epoch, rev) of its map.
        group: its failure domain; empty for none.
    """

    address: Address
    answers: bool
    error: str
    active: int
    replica: int
    pending: int
    dead: int
    items: int
    behind: int
    version: tuple[int, int]
    group: str = ""


@dataclass(frozen=True, slots=True)
class LaggingCopy:
    """A replica that is complete up to one seqno, and must reach a higher one (`needed`) to be promoted (decision
    0133).
    """

    vbucket: int
    address: Address
    complete: int
    needed: int

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON types."""
        seqnos = {"complete_seqno": self.complete, "needed_seqno": self.needed}
        return {"vbucket": self.vbucket, "address": str(self.address), **seqnos}


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The state of a cluster.

    Attributes:
        problems, remarks: sentences.
        lagging: copies that only a forced failover promotes.
    """

    map: ClusterMap
    nodes: tuple[NodeStatus, ...]
    problems: tuple[str, ...]
    remarks: tuple[str, ...]
    lagging: tuple[LaggingCopy, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """True if there is no problem."""
        return not self.problems

    def to_json(self) -> dict[str, object]:
        """Return the state as JSON types."""
        return {
            "bucket": self.map.bucket,
            "revision": {"epoch": self.map.epoch, "rev": self.map.rev},
            "vbuckets": self.map.vbuckets,
            "replicas": self.map.replica_count,
            "healthy": self.is_healthy,
            "problems": list(self.problems),
            "remarks": list(self.remarks),
            "lagging": [copy.to_json() for copy in self.lagging],
            "nodes": [_node_json(node) for node in self.nodes],
        }


def _node_json(node: NodeStatus) -> Mapping[str, object]:
    numbers = ("active", "replica", "pending", "dead", "items", "behind")
    return {
        "address": str(node.address),
        "answers": node.answers,
        "error": node.error,
        "group": node.group,
        **{name: getattr(node, name) for name in numbers},
        "revision": {"epoch": node.version[0], "rev": node.version[1]},
    }


def status(survey: Survey) -> ClusterStatus:
    """Return the state of the cluster by a survey."""
    members = [survey.nodes[address] for address in survey.map.servers]
    nodes = tuple(_node(survey, node) for node in members)
    lagging = tuple(_lagging(survey))
    remarks = (*_remarks(survey, nodes), *_promoted_by_force(lagging))
    return ClusterStatus(survey.map, nodes, tuple(_problems(survey, members)), remarks, lagging)


def _lagging(survey: Survey) -> Iterator[LaggingCopy]:
    for vb, needed in sorted(survey.map.needed.items()):
        for replica in () if survey.map.is_unknown(vb) else survey.map.replicas(vb):
            node = survey.nodes[replica]
            complete = node.copy(vb, ()).complete
            if node.answers and complete < needed:
                yield LaggingCopy(vb, replica, complete, needed)


def _promoted_by_force(lagging: Sequence[LaggingCopy]) -> Iterator[str]:
    if lagging:
        count, worst = (
            len({copy.vbucket for copy in lagging}),
            max(lagging, key=lambda each: each.needed - each.complete),
        )
        are = "copies of 1 vbucket are" if count == 1 else f"copies of {count:,} vbuckets are"
        yield (
            f"{are} too far behind to be promoted but by force, vbucket {worst.vbucket} on {worst.address} the most:"
            f" complete up to seqno {worst.complete:,} of {worst.needed:,}; let them catch up before a node is taken"
            " out"
        )


def _node(survey: Survey, node: NodeView) -> NodeStatus:
    owned_vbuckets = [vb for vb, state in node.states.items() if state is State.ACTIVE]
    return NodeStatus(
        address=node.address,
        answers=node.answers,
        error=node.error,
        active=len(owned_vbuckets),
        replica=node.count(State.REPLICA),
        pending=node.count(State.PENDING),
        dead=node.count(State.DEAD),
        items=sum(node.items.get(vb, 0) for vb in owned_vbuckets),
        behind=sum(_changes_behind(survey, node, vb) for vb, state in node.states.items() if state is State.REPLICA),
        version=node.version,
        group=survey.groups.get(node.address, ""),
    )


def _changes_behind(survey: Survey, node: NodeView, vb: int) -> int:
    owner = survey.map.owner(vb) if vb < survey.map.vbuckets else None
    if owner is None or owner not in survey.nodes:
        return 0
    return max(0, survey.nodes[owner].seqnos.get(vb, 0) - node.seqnos.get(vb, 0))


def _problems(survey: Survey, members: list[NodeView]) -> Iterator[str]:
    for node in members:
        if not node.answers:
            yield f"{node.address} {'refuses' if node.is_refusal else 'does not answer'}: {node.error}"
        elif node.version != survey.map.version:
            yield f"{node.address} has map {_version(node.version)}, the newest is {_version(survey.map.version)}"
        if node.address in survey.strangers:
            yield f"{node.address} is not the member that the map means: {STRANGER}"
        if node.damaged:
            yield (
                f"{_damage(node)}; a replica there counts for no durable write: headwater cluster rebalance"
                f" --add NODE --remove {node.address}"
            )
        elif node.damaged_batches:
            yield f"{_unused_damage(node)}: headwater cluster rebalance --add NODE --remove {node.address}"
    yield from _waiting(members)
    yield from _no_members(survey)
    yield from _without_owner(survey)
    vbuckets_by_replica: dict[Address, list[int]] = {}
    for vb in range(survey.map.vbuckets):
        for replica in survey.map.replicas(vb):
            if survey.nodes[replica].answers and survey.nodes[replica].states.get(vb) in (None, State.DEAD):
                vbuckets_by_replica.setdefault(replica, []).append(vb)
    for replica, vbuckets in vbuckets_by_replica.items():
        yield f"{replica} has no replica of {_vbucket_names(vbuckets)}, which the map gives it"
    yield from _without_replica(survey.map)
    yield from _in_one_group(survey)
    if survey.map.unknown:
        yield (
            "a failover or a rebalance was cut off before it knew how far copies of"
            f" {_vbucket_names(sorted(survey.map.unknown))} must be to be promoted; type it again, or headwater cluster"
            " rebalance"
        )


def _waiting(members: list[NodeView]) -> Iterator[str]:
    """Yield a problem for each member that waits for the others' answers."""
    for node in members:
        if node.fenced:
            yield f"{node.address} does not serve yet: {node.fenced}"
        if node.in_doubt:
            yield f"{node.address} stood still, and no majority has said since that it is still a member"


def _no_members(survey: Survey) -> Iterator[str]:
    """Yield a problem for each seed that is no member: such a node reports the others as if all were well."""
    for address, node in survey.nodes.items():
        if node.answers and not {address, node.this} & set(survey.map.servers):
            is_out = "is no member any more" if node.map is not None else "is no member"
            yield f"{address} {is_out}, and serves nothing of this; headwater cluster rebalance --add {address}"
            if node.damaged:
                yield f"{_damage(node)}; empty its folder before it joins"
            elif node.damaged_batches:
                yield f"{_unused_damage(node)}; empty its folder before it joins"


def _damage(node: NodeView) -> str:
    return f"{node.address} has damaged changes of {_vbucket_names(sorted(node.damaged))} on its disk: see its log"


def _unused_damage(node: NodeView) -> str:
    """Return a sentence about damaged batches that no vbucket needs any more: they harm nothing until the node
    restarts.
    """
    batches = "a damaged batch" if node.damaged_batches == 1 else f"{node.damaged_batches} damaged batches"
    return f"{node.address} has {batches} on its disk, which no vbucket needs, and can't be started again (see its log)"


def _possible(map_: ClusterMap) -> int:
    """Return the number of replicas that each vbucket can have: a node has one copy at most."""
    return min(map_.replica_count, len(map_.servers) - 1)


def _without_replica(map_: ClusterMap) -> Iterator[str]:
    """Yield problems of vbuckets with too few replicas, which the death of one more node may lose.

    A failover leaves such vbuckets, and a rebalance repairs them.
    """
    count, possible = map_.replica_count, _possible(map_)
    if count > possible:
        are, room = "is" if count == 1 else "are", "has" if len(map_.servers) == 1 else "have"
        yield (
            f"{_several(count, 'replica')} {are} wanted, {_several(len(map_.servers), 'node')} {room} room for "
            f"{possible}; headwater cluster rebalance --add NODE"
        )
    few = _few(map_)
    if few:
        replicas = _several(possible, "replica")
        yield f"{_vbucket_names(few)}: fewer than {replicas}; headwater cluster rebalance makes them"


def _in_one_group(survey: Survey) -> Iterator[str]:
    """Yield a problem about the vbuckets of which one group has more copies than necessary."""
    if vbuckets := crowded(survey.map.with_groups(survey.groups)):
        names = _vbucket_names(vbuckets)
        yield f"{names}: copies in one group, which fails as one; headwater cluster rebalance spreads them"


def _few(map_: ClusterMap) -> list[int]:
    return [vb for vb in range(map_.vbuckets) if len(map_.replicas(vb)) < _possible(map_)]


def _several(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


def _old_copies(survey: Survey, vbuckets: list[int]) -> Iterator[str]:
    """Yield a problem for each node that left the cluster and has old copies of vbuckets that no member has."""
    for node, old in survey.old_copies(vbuckets).items():
        yield (
            f"{node}, which left the cluster, has an old copy of {_vbucket_names(old)}, vbucket {old[0]} up to seqno"
            f" {survey.nodes[node].seqnos[old[0]]:,}: start the members that have newer ones, and keep its folder until"
            " then, for a node that joins again loses its old copies"
        )


def _without_owner(survey: Survey) -> Iterator[str]:
    settlement = settle(survey)
    for sentence, vbuckets in (
        ("no node has a copy of {}", settlement.lost),
        ("nobody owns {}, though there are copies", sorted(settlement.unowned)),
        ("the hand-over of {} was cut", sorted(settlement.cut)),
        ("{} changed hands, and the map does not say so", sorted(settlement.handed_over)),
        ("more than one node owns {}", sorted({*settlement.contested, *settlement.fenced})),
    ):
        if vbuckets:
            yield sentence.format(_vbucket_names(vbuckets))
    yield from _old_copies(survey, settlement.lost)


def _remarks(survey: Survey, nodes: tuple[NodeStatus, ...]) -> Iterator[str]:
    move_count = len(moves(survey.map, balance(survey.map, survey.map.servers, groups=survey.groups)))
    if move_count > len({*_few(survey.map), *crowded(survey.map.with_groups(survey.groups))}):
        yield f"{move_count} vbuckets are not where they would be best; headwater cluster rebalance moves them"
    lag = sum(node.behind for node in nodes)
    if lag:
        yield f"replicas lack {lag:,} changes"


def _vbucket_names(vbuckets: list[int]) -> str:
    return f"vbucket {vbuckets[0]}" if len(vbuckets) == 1 else f"vbuckets {vbucket_list(vbuckets)}"


def _version(version: tuple[int, int]) -> str:
    return f"{version[0]}:{version[1]}"
