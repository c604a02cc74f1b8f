"""The failover: a dead node is taken out of the map, and its vbuckets continue from their best replicas.

    1. look at all other nodes: they must answer, and the dead one must not
    2. send the map without the dead node, in which its vbuckets have no owner: no node follows the dead one any more,
       and it gets this map when it is back
    3. request the seqnos of all copies of those vbuckets, and choose the copy of the newest history that is complete up
       to the highest seqno
    4. send the map with the chosen copies as owners
    5. make them active: each begins a new branch of history at its last whole snapshot (failover.md 5)
    6. send the map to the dead node as well, if it answers by now

A copy that is behind its owner when another copy is taken out may lack changes that those two acknowledged. From then
on the map has the seqno that this copy must reach to be promoted (decision 0133).

Step 3 comes when no node follows the dead one any more. The dead node may be alive, and only unreachable for the
operator: together with each replica that does not have the map yet it is a majority, and step 3 must find the changes
that the two acknowledge.

The map goes first: a dead node that comes back requests the others' maps before it serves, and from step 2 on they have
a newer one. If this run is killed after that, the next run finds vbuckets without an owner, and continues with step 3.
Changes that the dead node had acknowledged and no replica had received yet are lost. If step 3 finds something that the
operator must decide first, such as damage that step 1 did not see, no copy is promoted: one more map gives these
vbuckets back to their former owner, and the dead node may be started. Vbuckets whose owner is alive keep it. The seqno
that their copies must reach is unknown until the next look, since the owner may have acknowledged changes without the
dead node's copy.

A node that came back between steps 1 and 2 requested the maps before the others had the newer one. It serves its
vbuckets until it gets that map. In a cluster of two members it could even take vbuckets over from the other member, and
lack the changes that the other acknowledged alone. So step 6 sends it the map.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from headwater.client.routing import Address
from headwater.cluster.admin import vbucket_list
from headwater.cluster.members import Members
from headwater.cluster.publisher import OWN_MAPS_MAX
from headwater.cluster.refusals import FailoverRefusal, judge
from headwater.cluster.survey import Copy, Log, Survey, best, chain_with_owner, current, rival
from headwater.errors import ClusterError, StatusError, TransportError
from headwater.failpoints import failpoint
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.vbucket import State

IS_PART = "has received a part only"


def _refusal_of(flaw: str) -> FailoverRefusal:
    return FailoverRefusal.PART if flaw == IS_PART else FailoverRefusal.DAMAGED


@dataclass(frozen=True, slots=True)
class Promotion:
    """The promotion of one vbucket: the former owner (None: none), the new one, and the seqno of its copy.

    Attributes:
        flaw: the flaw of that copy, for people: it refused changes, is damaged, lacks changes that a damaged copy of
            the former owner has or that a damaged replica may have acknowledged, or was never whole; empty for none.
        rival: the node whose copy has another history, with changes that the chosen copy lacks; None for none.
        complete: the seqno up to which that copy is complete. needed: the seqno that it had to reach.
        unasked: the nodes that had a copy and can't report its seqno, if an earlier failover broke off before all
            copies had reported theirs. emptied: those of them that answer, and have no copy now.
        is_stray: True if the map names only other copies, none of which is left: that copy is an old one.
    """

    vbucket: int
    lost: Address | None
    chosen: Address
    seqno: int
    flaw: str = ""
    rival: Address | None = None
    complete: int = 0
    needed: int = 0
    unasked: Sequence[Address] = ()
    emptied: Sequence[Address] = ()
    is_stray: bool = False

    @property
    def losses(self) -> dict[FailoverRefusal, str]:
        """The possible losses, in words, each by the refusal that the operator has to accept."""
        losses = {}
        if self.flaw:
            losses[_refusal_of(self.flaw)] = f"{self.flaw}, and is complete up to seqno {self.complete} of {self.seqno}"
        if self.rival is not None:
            losses[FailoverRefusal.HISTORIES] = f"lacks what {self.rival} has in a history of its own"
        if self.unasked:
            losses[FailoverRefusal.UNKNOWN] = f"may lack what {_names(self.unasked)} has behind seqno {self.complete}"
        if self.is_stray:
            losses[FailoverRefusal.BEHIND] = f"is no copy by the map, and may lack all behind seqno {self.complete}"
        if self.complete < self.needed:
            losses[FailoverRefusal.BEHIND] = f"may lack the seqnos {self.complete + 1} to {self.needed}"
        return losses


@dataclass(frozen=True, slots=True)
class FailoverPlan:
    """The steps of a failover.

    Attributes:
        before, after: the map with the dead nodes, and without.
        promotions: the new owners of the dead nodes' vbuckets.
        anew: vbuckets without any copy, with the node on which each begins anew, empty.
        shrunk: vbuckets of which the dead nodes have copies, and those with an owner that the map does not name.
        accepted: the overridden refusals, each with its text.
    """

    before: ClusterMap
    after: ClusterMap
    promotions: Sequence[Promotion]
    anew: dict[int, Address] = field(default_factory=dict)
    shrunk: Collection[int] = ()
    accepted: Mapping[FailoverRefusal, str] = field(default_factory=dict)

    @property
    def losses(self) -> dict[int, Promotion]:
        """The promotions that may lose more than the changes that no replica received, by vbucket."""
        return {promotion.vbucket: promotion for promotion in self.promotions if promotion.losses}

    @property
    def ownerless(self) -> ClusterMap:
        """The map without the dead nodes, in which the vbuckets to promote have no owner, and the seqno that copies
        must reach is unknown.

        Until all nodes have it, a dead node that is only unreachable is part of majorities. If this run breaks off, a
        later run finds this map, and requests the seqnos of all copies again; the seqno of a copy that is missing then
        is unknown.
        """
        chains = {promotion.vbucket: (None, *self.after.copies(promotion.vbucket)) for promotion in self.promotions}
        seqnos_needed = {**self.after.needed, **{vb: self.before.needed_at_least(vb) for vb in chains}}
        unknown_vbuckets = {*self.shrunk, *chains} - self.anew.keys()
        return self.after.with_chains(chains).with_needed(seqnos_needed).with_unknown(unknown_vbuckets)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to do."""
        is_known = not self.before.unknown
        is_same = (self.before.servers, self.before.chains) == (self.after.servers, self.after.chains)
        return is_known and not (self.promotions or self.anew) and is_same


def plan_failover(
    survey: Survey,
    dead_nodes: Sequence[Address],
    logs: dict[tuple[Address, int], Log],
    *,
    force: bool = False,
    accept: Collection[FailoverRefusal] = (),
    lose_data: bool = False,
    restarts: Mapping[int, Address] = MappingProxyType({}),
    shrunk: Collection[int] = (),
    before: Survey | None = None,
) -> FailoverPlan:
    """Return the plan: which copies replace the dead nodes.

    Args:
        logs: failover logs of the copies (node, vbucket) of vbuckets without a living owner.
        force: True to accept all refusals. Then the dead nodes may be a majority (back together, they would serve
            again: decision 0030), the survivors may themselves be waiting for the dead nodes, and a copy with a flaw or
            with one of two histories may be promoted.
        accept: the refusals that are overridden one by one.
        lose_data: True to begin vbuckets without any copy anew; otherwise they are a reason to refuse.
        restarts: the node on which each vbucket begins anew, by an earlier decision that is in the map.
        shrunk: vbuckets of which the dead nodes had copies by the former map. before: the survey with the former map;
            None if the map has not changed yet.

    Raises:
        ClusterError: no member would be left; copies are missing and `lose_data` was not given; or there are refusals
            that are not accepted.
    """
    dead_members = [node for node in survey.map.servers if node in dead_nodes]
    survivors = [node for node in survey.map.servers if node not in dead_nodes]
    if not survivors:
        raise ClusterError(
            f"{_names(dead_members)}: the bucket has no other member, so nobody is left to take over",
            "start it; or, if its disk is gone, drop the bucket, make it again and restore it from a backup",
        )
    promotions = [_promotion(survey, vb, nodes, logs, before) for vb, nodes in orphans(survey, dead_nodes).items()]
    accepted_problems = judge(
        _checks(survey, dead_members, survivors, promotions), frozenset(FailoverRefusal) if force else accept
    )
    # Behind the refusals: the operator sees all that a start of the dead nodes would save before any offer to lose it.
    without = [vb for vb in range(survey.map.vbuckets) if not _living(survey, dead_nodes, vb)]
    if without and not lose_data:
        raise ClusterError(
            f"no copy is left of {len(without)} vbuckets ({vbucket_list(without)}){_old_copies(survey, without)}",
            "start the node that has them, or begin them anew, empty: --lose-data",
        )
    owners = {promotion.vbucket: promotion.chosen for promotion in promotions}
    restarted = _spread(survey, without, survivors, restarts)
    after = survey.map.with_servers(survivors)
    unnamed = _unnamed_owners(survey, after)
    # An owner that lives counts more than the map: a killed hand-over made it so, and others lack its changes.
    owners |= {**unnamed, **restarted}
    after = after.with_chains({vb: chain_with_owner(after.copies(vb), owner) for vb, owner in owners.items()})
    dead_copies = (vb for vb in range(after.vbuckets) if any(node in dead_members for node in survey.map.copies(vb)))
    # What an earlier failover left unknown is found now as well: its copies are all in this survey.
    shrunk = {*dead_copies, *shrunk, *survey.map.unknown, *unnamed}
    needed = needed_seqnos(
        survey, after, shrunk - restarted.keys(), {promotion.vbucket: promotion.complete for promotion in promotions}
    )
    return FailoverPlan(survey.map, after.with_needed(needed), promotions, restarted, shrunk, accepted_problems)


def _old_copies(survey: Survey, vbuckets: Sequence[int]) -> str:
    """Return the old copies of nodes that left the cluster, in words; empty if none of those that answer has any."""
    texts = [
        f"; {node}, which left the cluster, has old copies of {vbucket_list(old)}, vbucket {old[0]} up to seqno"
        f" {survey.nodes[node].seqnos[old[0]]:,} (keep its folder: a node that joins again loses them)"
        for node, old in survey.old_copies(vbuckets).items()
    ]
    return "".join(texts)


def _unnamed_owners(survey: Survey, after: ClusterMap) -> dict[int, Address]:
    """Return the vbuckets whose only owner is not the one in the map, each with that owner.

    They were handed over, and the run was killed before it could send the map. Only the new owner may have the changes
    that it and the former one acknowledged.
    """
    owners_by_vbucket = {vb: survey.in_state(vb, State.ACTIVE) for vb in range(after.vbuckets)}
    return {
        vb: owners[0] for vb, owners in owners_by_vbucket.items() if len(owners) == 1 and after.owner(vb) != owners[0]
    }


def _checks(
    survey: Survey, dead_members: Sequence[Address], survivors: Sequence[Address], promotions: Sequence[Promotion]
) -> dict[FailoverRefusal, Callable[[], None]]:
    parts = [promotion for promotion in promotions if promotion.flaw == IS_PART]
    return {
        FailoverRefusal.MAJORITY: lambda: _check_survivors(survey, dead_members, survivors),
        FailoverRefusal.DAMAGED: lambda: check_flaws([promotion for promotion in promotions if promotion not in parts]),
        FailoverRefusal.PART: lambda: check_flaws(parts),
        FailoverRefusal.HISTORIES: lambda: check_rivals(promotions),
        FailoverRefusal.UNKNOWN: lambda: check_asked(promotions),
        FailoverRefusal.BEHIND: lambda: check_needed(promotions),
        FailoverRefusal.LAST_COPY: lambda: _check_damaged_owners(survey, dead_members),
    }


def needed_seqnos(
    survey: Survey, after: ClusterMap, shrunk: Collection[int], restarts: Mapping[int, int]
) -> dict[int, int]:
    """Return the seqnos that replicas of some vbuckets must reach to be promoted, including replicas that an owner gets
    later.

    Args:
        after: the map that is sent next. shrunk: vbuckets whose chain loses a copy by it.
        restarts: vbuckets whose owner begins a new branch, each with the seqno of that beginning.
    """
    # A promotion ends an older need: the chosen copy has reached it, or the operator accepted the loss.
    same_owner = (vb for vb in survey.map.needed if after.owner(vb) == survey.map.owner(vb))
    before = {vb: survey.map.needed_at_least(vb) for vb in same_owner}
    seqnos = {}
    for vb in shrunk | before.keys() | restarts.keys():
        owner = after.owner(vb)
        # A new owner's branch begins where it is complete, so copies need no more than that. An owner that goes on may
        # have acknowledged all that it has with the copy that leaves.
        seqno = (
            restarts[vb] if vb in restarts else survey.nodes[owner].seqnos.get(vb, 0) if owner and vb in shrunk else 0
        )
        needed, replicas = max(seqno, before.get(vb, 0)), after.replicas(vb)
        # An owner that is left alone gets its next replica from a rebalance, which may be cut while that fills up.
        if (needed and not replicas) or any(survey.nodes[node].copy(vb, ()).complete < needed for node in replicas):
            seqnos[vb] = needed
    return seqnos


def _spread(
    survey: Survey, vbuckets: Sequence[int], nodes: Sequence[Address], restarts: Mapping[int, Address]
) -> dict[int, Address]:
    """Return the node that begins each vbucket anew: the one chosen before, else the one with the fewest
    vbuckets.
    """
    counts = {node: len(survey.map.held_by(node)[0]) for node in nodes}
    nodes_ = {}
    for vb in vbuckets:
        nodes_[vb] = restarts[vb] if restarts.get(vb) in nodes else min(nodes, key=lambda node: counts[node])
        counts[nodes_[vb]] += 1
    return nodes_


def _check_survivors(survey: Survey, dead_members: Sequence[Address], survivors: Sequence[Address]) -> None:
    """Check that the survivors are a majority, or a half of which at least one node neither waits behind its fence nor
    stood still.

    The other half may have continued without them, by a map that they do not have, and changes that it acknowledged
    then are only there.

    Raises:
        ClusterError: they are not.
    """
    if len(dead_members) > len(survey.map.servers) // 2:
        raise ClusterError(
            f"{len(dead_members)} of {len(survey.map.servers)} members are dead: back together, they would serve again",
            f"start one of them first, or {FailoverRefusal.MAJORITY.option} if they never come back",
        )
    if 2 * len(dead_members) < len(survey.map.servers):
        return
    views = [survey.nodes[node] for node in survivors if survey.nodes[node].answers]
    if not any(not view.fenced and not view.in_doubt for view in views):
        how = "started anew" if all(view.fenced for view in views) else "stood still for a while"
        raise ClusterError(
            f"{_names(survivors)} {how} and heard from no majority of {len(survey.map.servers)} members since: "
            f"{_names(dead_members)} may have gone on alone, and have what was written since",
            f"start one of those first, or {FailoverRefusal.MAJORITY.option} if they never come back",
        )


def _check_damaged_owners(survey: Survey, dead_members: Sequence[Address]) -> None:
    """Check that no dead node has the only whole replica of a vbucket whose owner is damaged.

    That replica is the only whole one if no living replica is sound and complete as far. Once the map leaves the dead
    node out, that node deletes its copies when it is back.

    Raises:
        ClusterError: a dead node may have such a replica.
    """
    for owner in survey.map.servers:
        damaged = sorted(survey.nodes[owner].damaged)
        only = [vb for vb in damaged if owner not in dead_members and survey.loses_whole_copy(vb, owner, dead_members)]
        if only:
            raise ClusterError(
                f"{owner} owns the vbuckets {vbucket_list(only)} and has damaged changes of them; the other copies are"
                f" on {_names([node for node in dead_members if any(node in survey.map.copies(vb) for vb in only)])}",
                f"start that node, then replace the damaged one: headwater cluster failover --dead {owner} --force;"
                f" or type this with {FailoverRefusal.LAST_COPY.option} if it never comes back",
            )


def _names(nodes: Sequence[Address]) -> str:
    return ", ".join(map(str, nodes))


def orphans(survey: Survey, dead_nodes: Sequence[Address]) -> dict[int, list[Address]]:
    """Return the vbuckets without a living owner, each with the living members that have a copy, the map's chain
    first.
    """
    copies_by_vbucket = {}
    for vb in range(survey.map.vbuckets):
        if not survey.in_state(vb, State.ACTIVE):
            copies = _living(survey, dead_nodes, vb)
            if copies:
                copies_by_vbucket[vb] = copies
    return copies_by_vbucket


def _living(survey: Survey, dead_nodes: Sequence[Address], vb: int) -> list[Address]:
    copies = survey.in_state(vb, *State)
    order = [*(node for node in survey.map.copies(vb) if node in copies), *copies]
    return [node for node in dict.fromkeys(order) if node not in dead_nodes]


def _promotion(
    survey: Survey, vb: int, nodes: list[Address], logs: dict[tuple[Address, int], Log], before: Survey | None
) -> Promotion:
    copies = [survey.nodes[node].copy(vb, logs.get((node, vb), ())) for node in nodes]
    bare: list[Address] = []
    if before is not None and not before.map.is_unknown(vb):  # else they may have had one when that began
        bare = [node for node in survey.map.copies(vb) if vb not in before.nodes[node].states]
    return promotion(survey.map, vb, copies, bare, [node.address for node in survey.nodes.values() if node.answers])


def promotion(
    cluster_map: ClusterMap,
    vbucket: int,
    copies: Sequence[Copy],
    bare: Iterable[Address] = (),
    running: Container[Address] = (),
) -> Promotion:
    """Choose the copy of a vbucket without an owner that is promoted; return it with its possible losses.

    A damaged copy is complete only up to the damage; changes that it acknowledged, as the owner, or as a replica before
    the damage was found, lie behind that. A copy that is complete up to 0 never had a whole snapshot: it is being
    filled, for instance by a rebalance.

    Args:
        cluster_map: the map, which has the former owner and the seqno that the copy must reach.
        copies: the copies of all nodes that answer. bare: the nodes of the chain without a copy when this failover
            began.
        running: the members that answer.
    """
    owner, seqno_needed = cluster_map.owner(vbucket), cluster_map.needed_at_least(vbucket)
    best_copy, rival_copy = best(copies), rival(copies)
    rivals = None if rival_copy is None else rival_copy.address
    damaged = _damaged_with_more(copies, best_copy, owner)
    flaw = best_copy.flaw or (f"lacks changes that {damaged}, whose copy is damaged, has" if damaged else "")
    if not flaw and best_copy.seqno and not best_copy.complete:
        flaw = IS_PART
    answered = {*bare, *(copy.address for copy in copies)}
    unasked = (
        [node for node in cluster_map.copies(vbucket) if node not in answered]
        if cluster_map.is_unknown(vbucket)
        else []
    )
    emptied = [node for node in unasked if node in running]
    # A node that left the map, or lost its place in it, keeps an old copy. Those of the map went on without it.
    chain = cluster_map.copies(vbucket)
    is_stray = bool(chain) and not any(copy.address in chain for copy in copies)
    return Promotion(
        vbucket,
        owner,
        best_copy.address,
        best_copy.seqno,
        flaw,
        rivals,
        best_copy.complete,
        seqno_needed,
        unasked,
        emptied,
        is_stray,
    )


def _damaged_with_more(copies: Sequence[Copy], best_copy: Copy, owner: Address | None) -> Address | None:
    """Return the node of a damaged copy that may have acknowledged changes which the chosen copy lacks; None for
    none.
    """
    alive = current(copies)
    for copy in copies:
        # The former owner may have acknowledged each change that it had, a replica only what it noted, and a copy of a
        # superseded history nothing that still counts.
        seqno_max = copy.seqno if copy.address == owner else copy.acknowledged if copy in alive else 0
        if copy.is_damaged and seqno_max > best_copy.complete:
            return copy.address
    return None


def check_asked(promotions: Sequence[Promotion]) -> None:
    """Check that no copy is promoted while the seqno that it must have reached is unknown.

    Raises:
        ClusterError: such a promotion is planned.
    """
    unknown_promotions = [promotion for promotion in promotions if promotion.unasked]
    if unknown_promotions:
        example = max(
            unknown_promotions, key=lambda each: len(each.unasked) - len(each.emptied)
        )  # with somebody to start, if any
        node_names = _names([node for node in example.unasked if node not in example.emptied])
        reasons = [f"{node_names} may have more"] if node_names else []
        reasons += [f"{_names(example.emptied)}, which has no copy now, may have had more"] if example.emptied else []
        promote = f"promote what is left: headwater cluster failover {FailoverRefusal.UNKNOWN.option}"
        raise ClusterError(
            f"a failover was cut off before it had asked all copies of the vbuckets"
            f" {_vbuckets_of(unknown_promotions)}, and {' and '.join(reasons)}:"
            f" {example.chosen} has vbucket {example.vbucket} up to seqno {example.complete}",
            f"start {node_names}; or {promote}" if node_names else promote,
        )


def check_needed(promotions: Sequence[Promotion]) -> None:
    """Check that each promoted copy has reached the seqno that it must have, and is one of the map's copies.

    Raises:
        ClusterError: a copy has not: it was added, or was behind when another copy was taken out, and has not caught
            up. Or all copies of the map are on dead nodes, and only an old copy is left.
    """
    late_promotions = [promotion for promotion in promotions if promotion.complete < promotion.needed]
    if late_promotions:
        example = late_promotions[0]
        raise ClusterError(
            f"{example.chosen} has not caught up since it was added, or another copy taken out, of the vbuckets"
            f" {_vbuckets_of(late_promotions)}: it has vbucket {example.vbucket} up to seqno"
            f" {example.complete}, and durable writes up to {example.needed} may be at the dead node alone",
            "start the dead node, which has them; or lose them: headwater cluster failover"
            f" {FailoverRefusal.BEHIND.option}",
        )
    _check_strays([promotion for promotion in promotions if promotion.is_stray])


def _vbuckets_of(promotions: Iterable[Promotion]) -> str:
    """Return the vbuckets of some promotions, for a message."""
    return vbucket_list(promotion.vbucket for promotion in promotions)


def _check_strays(promotions: Sequence[Promotion]) -> None:
    """Raise ClusterError if there are promotions of copies that the map does not name; the argument has only such."""
    if promotions:
        example = promotions[0]
        raise ClusterError(
            "the copies that the map names of the vbuckets"
            f" {_vbuckets_of(promotions)} are on dead nodes; {example.chosen}, which the map does not name, has an old"
            f" copy of vbucket {example.vbucket}"
            f" up to seqno {example.complete}",
            "start the dead node, which has what was acknowledged since; or lose that: headwater cluster failover"
            f" {FailoverRefusal.BEHIND.option}",
        )


def check_flaws(promotions: Sequence[Promotion]) -> None:
    """Check that no copy with a flaw is promoted.

    Raises:
        ClusterError: a copy with a flaw would be promoted, since no other copy is complete up to the same seqno.
    """
    by_flaw: dict[tuple[str, str], list[int]] = {}
    for promotion in promotions:
        if promotion.flaw:
            by_flaw.setdefault((str(promotion.chosen), promotion.flaw), []).append(promotion.vbucket)
    if by_flaw:
        options = " ".join(sorted({_refusal_of(flaw).option for _, flaw in by_flaw}))
        flaws = (f"{node} {flaw} of the vbuckets {vbucket_list(vbs)}" for (node, flaw), vbs in sorted(by_flaw.items()))
        raise ClusterError(
            f"{'; '.join(flaws)}, and no other copy is complete as far",
            f"start the dead node, which has them; or promote them as they are: headwater cluster failover {options}",
        )


def check_rivals(promotions: Sequence[Promotion]) -> None:
    """Check that no copy is promoted while another one has a history of its own.

    Raises:
        ClusterError: such a promotion is planned.
    """
    with_rival = [promotion for promotion in promotions if promotion.rival is not None]
    if with_rival:
        example = with_rival[0]
        raise ClusterError(
            f"{example.chosen} and {example.rival} have different histories of the vbuckets"
            f" {_vbuckets_of(with_rival)}: each was promoted while the other was away,"
            " and has changes that the other lacks",
            f"take out whose changes are to go: headwater cluster failover --dead {example.rival} --force, or"
            f" {example.chosen}; or {FailoverRefusal.HISTORIES.option} to give up those of {example.rival}",
        )


def taken_back(plan: FailoverPlan, survey: Survey) -> ClusterMap:
    """Return the map that takes the ownerless map back: it has all former members, and the former chains of the
    vbuckets that were to be promoted.

    A vbucket with an owner keeps it, even an owner that the former map does not name. The seqno that its copies must
    reach stays unknown: under the ownerless map an owner acknowledged changes without the dead nodes, whose copies
    count again.

    Args:
        survey: the nodes as they are now, with the ownerless map.
    """
    sent_map, before = plan.ownerless, plan.before
    owners = {vb: sent_map.owner(vb) for vb in range(sent_map.vbuckets) if survey.in_state(vb, State.ACTIVE)}
    owners |= _unnamed_owners(survey, sent_map)
    chains = {vb: (owner, *(node for node in before.copies(vb) if node != owner)) for vb, owner in owners.items()}
    promoted = {promotion.vbucket for promotion in plan.promotions}
    unknown_vbuckets = [vb for vb in sent_map.unknown if vb in owners or vb not in promoted]
    seqnos_needed = {vb: max(before.needed_at_least(vb), sent_map.needed_at_least(vb)) for vb in unknown_vbuckets}
    return before.with_chains(chains).with_needed({**before.needed, **seqnos_needed}).with_unknown(unknown_vbuckets)


class Failover:
    """One run of a failover.

    Args:
        seeds: nodes to start from.
        dead_nodes: the nodes to take out; empty to continue with vbuckets without an owner.
        force: True to accept all refusals.
        accept: the accepted refusals; with FailoverRefusal.ALIVE, a dead node that answers is fenced first.
        lose_data: as `plan_failover`.
        check: called with the plan before anything is done, and once more before copies are promoted; refuses it by a
            ClusterError.
    """

    def __init__(
        self,
        members: Members,
        seeds: Sequence[Address],
        dead_nodes: Sequence[Address],
        *,
        force: bool = False,
        accept: Collection[FailoverRefusal] = (),
        lose_data: bool = False,
        check: Callable[[FailoverPlan], None] = lambda plan: None,
    ) -> None:
        self._confirm = check
        self._members, self._seeds, self._dead_nodes = members, seeds, tuple(dict.fromkeys(dead_nodes))
        self._accepted_refusals, self._lose_data = frozenset(FailoverRefusal if force else accept), lose_data

    @property
    def _may_live(self) -> bool:
        """True if the operator accepted that the nodes called dead may be alive; then they are fenced before the
        failover.
        """
        return FailoverRefusal.ALIVE in self._accepted_refusals

    async def plan(self) -> FailoverPlan:
        """Survey the nodes and return the plan, without changing anything.

        Raises:
            ClusterError: a node that should answer does not, or a dead node does; or as `plan_failover`.
        """
        return (await self._look_and_plan())[0]

    async def run(self) -> FailoverPlan:
        """Carry the failover out; return the plan.

        Raises:
            ClusterError, TransportError, StatusError: a node failed or refused, or another operator is at work; run it
                again to continue.
        """
        seeds = [node for node in self._seeds if node not in self._dead_nodes]
        if not seeds:
            raise ClusterError(f"{', '.join(map(str, self._seeds))}: to be taken for dead", "name a member that lives")
        # This look only says on which nodes to be alone: the decision comes from another, made under their leases.
        survey = await self._members.survey(seeds, without=self._dead_nodes)
        dead_nodes = list(map(self._members.name_of, self._dead_nodes))
        living = [node for node in survey.nodes if node not in dead_nodes]
        if self._may_live:
            living += [node for node in dead_nodes if (await self._members.view(node)).answers]
        async with self._members.alone("failover", living):
            return await self._run()

    async def _run(self) -> FailoverPlan:
        if self._may_live:
            # Before the look: what the node acknowledges up to here, its copies may have when they are looked at.
            await self._fence()
        plan, survey = await self._look_and_plan()
        self._confirm(plan)
        if plan.is_empty:
            return plan
        if plan.promotions or plan.shrunk:
            # The dead may have been asked alone by a rebalance, in newer maps than all others have. And they may have
            # failed these nodes over: two different maps with one revision would never agree, so the number is drawn.
            ahead = survey.latest_rev() + OWN_MAPS_MAX + secrets.randbelow(OWN_MAPS_MAX)
            await self._members.send(plan.ownerless.after(ahead))
            failpoint("failover.ownerless")
            plan, survey = await self._chosen_now(plan, survey)
        new_map = plan.after.after(survey.latest_rev())
        await self._members.send(new_map)
        failpoint("failover.map_sent")
        by_node: dict[Address, dict[int, State]] = {}
        for vb, node in {**{promotion.vbucket: promotion.chosen for promotion in plan.promotions}, **plan.anew}.items():
            by_node.setdefault(node, {})[vb] = State.ACTIVE
        # Without force a node refuses a flawed copy. These flaws are known and accepted; one found since is refused.
        flawed = {promotion.vbucket for promotion in plan.promotions if promotion.flaw}
        for node, states in by_node.items():
            await self._members.set_states(node, states, forced=flawed)
        await asyncio.gather(*(self._send_map(node, new_map) for node in self._dead_nodes))
        return plan

    async def _send_map(self, node: Address, new_map: ClusterMap) -> None:
        """Send a node the map, if it answers as a member of this cluster; otherwise it requests the map when it is
        back.
        """
        view = await self._members.view(node)
        if view.map is not None and view.map.is_same_bucket(new_map):
            with suppress(ClusterError, TransportError, StatusError):
                await self._members.tell(node, new_map)

    async def _chosen_now(self, first: FailoverPlan, before: Survey) -> tuple[FailoverPlan, Survey]:
        """Plan again, now that no copy changes any more; the dead node counts as the owner of its vbuckets.

        Raises:
            ClusterError: the new plan is refused, and the former map is in force again; or a member does not answer.
        """
        survey, logs = await self._sighting(is_out=True)
        try:
            plan = self._new_plan(survey, logs, restarts=first.anew, shrunk=first.shrunk, before=before)
            self._confirm(plan)
        except ClusterError:
            await self._take_back(first, survey)
            raise
        promotions = [replace(promotion, lost=first.before.owner(promotion.vbucket)) for promotion in plan.promotions]
        accepted_problems = {**first.accepted, **plan.accepted}
        return replace(plan, before=first.before, promotions=promotions, accepted=accepted_problems), survey

    async def _take_back(self, first: FailoverPlan, survey: Survey) -> None:
        """Send the former members once more: no copy was promoted, so a node with the changes that the copies lack may
        come back.

        A node that does not accept the map gets it from the others; if none accepts it, the next run finds vbuckets
        without an owner.
        """
        new_map = taken_back(first, survey).after(survey.latest_rev())
        await asyncio.gather(
            *(self._send_map(node, new_map) for node in dict.fromkeys((*new_map.servers, *self._dead_nodes)))
        )

    async def _fence(self) -> None:
        """Fence each node in `dead` that answers: its active vbuckets get the state dead, on disk, before another node
        takes them.

        A node that does not report its states is left as it is, which the operator has accepted.

        Raises:
            TransportError, StatusError: a node reported its states and did not accept the new ones.
        """
        for node in self._dead_nodes:
            try:
                states = await self._members.admin(node).states()
            except (TransportError, StatusError):
                continue
            new_states = {vb: State.DEAD for vb, state in states.items() if state is State.ACTIVE}
            await self._members.set_states(node, new_states)

    async def _look_and_plan(self) -> tuple[FailoverPlan, Survey]:
        """Survey the nodes; return the plan and the survey."""
        survey, logs = await self._sighting()
        return self._new_plan(survey, logs), survey

    async def _sighting(self, *, is_out: bool = False) -> tuple[Survey, dict[tuple[Address, int], Log]]:
        """Survey all living nodes, and read the failover logs of vbuckets without an owner.

        Args:
            is_out: True if the map leaves the dead nodes out already, so that they may answer again.
        """
        seeds = [node for node in self._seeds if node not in self._dead_nodes]
        if not seeds:
            raise ClusterError(f"{', '.join(map(str, self._seeds))}: to be taken for dead", "name a member that lives")
        survey = await self._members.survey(seeds, without=self._dead_nodes)
        # Only the survey finds the names that belong to ports for TLS.
        self._dead_nodes = tuple(map(self._members.name_of, self._dead_nodes))
        await self._check(survey, () if is_out else self._dead_nodes)
        logs: dict[tuple[Address, int], Log] = {}
        by_node: dict[Address, list[int]] = {}
        for vb, nodes in orphans(survey, self._dead_nodes).items():
            for node in nodes:
                by_node.setdefault(node, []).append(vb)
        for node, vbuckets in by_node.items():
            logs_of_node = await self._members.logs(node, vbuckets)
            logs |= {(node, vb): log for vb, log in logs_of_node.items()}
        return survey, logs

    def _new_plan(
        self,
        survey: Survey,
        logs: dict[tuple[Address, int], Log],
        *,
        restarts: Mapping[int, Address] = MappingProxyType({}),
        shrunk: Collection[int] = (),
        before: Survey | None = None,
    ) -> FailoverPlan:
        return plan_failover(
            survey,
            self._dead_nodes,
            logs,
            accept=self._accepted_refusals,
            lose_data=self._lose_data,
            restarts=restarts,
            shrunk=shrunk,
            before=before,
        )

    async def _check(self, survey: Survey, dead_nodes: Sequence[Address]) -> None:
        silent_nodes = [node for node in survey.silent if node.address not in self._dead_nodes]
        if silent_nodes:
            raise ClusterError(
                "; ".join(f"{node.address} does not answer either ({node.error})" for node in silent_nodes),
                "start it, or name it with --dead as well",
            )
        for node in dead_nodes:
            view = await self._members.view(node)
            # It has the bucket and does not let us in: its clients may go on writing, so a promotion makes a second
            # owner.
            if view.lives and not self._may_live:
                raise ClusterError(
                    f"{node} can't be asked ({view.error}), and is not dead",
                    "see to it that it lets you in, or stop it, then type this again; or"
                    f" {FailoverRefusal.ALIVE.option}",
                )
            if view.answers and not self._may_live:
                if node not in survey.map.servers and any(
                    survey.map.owner(vb) is None for vb in range(survey.map.vbuckets)
                ):
                    raise ClusterError(
                        f"{node} answers, and is out of the map already: a failover of before was cut off",
                        "go on from the copies that are left: headwater cluster rebalance, or this with"
                        f" {FailoverRefusal.ALIVE.option}",
                    )
                raise ClusterError(
                    f"{node} answers: it is not dead",
                    "take it out with headwater cluster rebalance --remove, which loses nothing; or"
                    f" {FailoverRefusal.ALIVE.option}",
                )
