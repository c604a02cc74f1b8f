"""Work on the places of vbuckets: spreading them over the nodes, and promoting their replicas when a node is dead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from headwater.cluster.refusals import FailoverRefusal
from headwater.cluster.work.declared import NODE, DeclaredWork, WorkOutcome, WorkPlan, WorkRun
from headwater.cluster.work.nodes import AGAIN
from headwater.counting import several
from headwater.errors import ClusterError
from headwater.options import SECONDS, option

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.cluster.failover import Failover, FailoverPlan, Promotion
    from headwater.cluster.members import Members
    from headwater.cluster.plan import Plan
    from headwater.cluster.rebalance import RebalanceStep

__all__ = ["FailOver", "SpreadVbuckets"]


@dataclass(frozen=True)
class SpreadVbuckets(DeclaredWork):
    """Spread vbuckets and replicas evenly, while clients go on reading and writing.

    Shows the plan and asks. A vbucket is copied, handed over and only then deleted where it was, so that there is never
    a copy less than before. Ctrl-C lets what is under way come to its end; typed again, killed or not, it goes on with
    what is left. All members must answer.
    """

    KIND: ClassVar[str] = "rebalance"
    HEADING: ClassVar[str] = "Rebalance"
    CONFIRMATION: ClassVar[str] = "yes"
    EXAMPLES: ClassVar[tuple[str, ...]] = (
        "headwater cluster rebalance 10.0.0.1:11210 --add 10.0.0.2:11210 --add 10.0.0.3:11210",
        "headwater cluster rebalance 10.0.0.1:11210 --remove 10.0.0.3:11210 --dry-run",
        "headwater cluster rebalance 10.0.0.1:11210 --replicas 1 --yes",
    )
    EXITS: ClassVar[Mapping[int, str]] = AGAIN
    HAS_DRY_RUN: ClassVar[bool] = True
    SHOWS_PLAN: ClassVar[bool] = True
    ASKS: ClassVar[bool] = True
    QUESTION: ClassVar[str] = "Begin?"
    UNIT: ClassVar[str] = "vbuckets"

    add: Sequence[Address] = option((), "A node that joins; may be given more than once.", metavar=NODE, many=True)
    remove: Sequence[Address] = option((), "A node that leaves; may be given more than once.", metavar=NODE, many=True)
    replicas: int | None = option(
        None, "From now on so many replicas; as before if left out.", metavar="N", least=0, most=3
    )
    concurrency: int = option(
        8,
        "How many vbuckets are moved at the same time; of small ones up to eight times as many.",
        metavar="N",
        least=1,
        most=64,
    )
    patience: float = option(60.0, "Give up a vbucket of which nothing has come for so long.", unit=SECONDS, least=0)

    @property
    def title(self) -> str:
        """The work in a few words."""
        parts = [f"add {node}" for node in self.add] + [f"remove {node}" for node in self.remove]
        parts += [f"{self.replicas} replicas"] * (self.replicas is not None)
        return f"Rebalance: {', '.join(parts) or 'spread evenly'}"

    @property
    def is_patient(self) -> bool:
        """True if nodes join, which may still be starting."""
        return bool(self.add)

    def _options(self) -> dict[str, Any]:
        from headwater.cluster.proxied import Limits

        options = {"add": list(self.add), "remove": list(self.remove), "replicas": self.replicas}
        return options | {"vbuckets_at_once": self.concurrency, "limits": Limits(patience_seconds=self.patience)}

    async def plan(self, members: Members, seeds: Sequence[Address]) -> WorkPlan:
        """Return each node's vbuckets before and after, and the hand-overs."""
        from headwater.cluster.rebalance import Rebalance

        return _spread(await Rebalance(members, list(seeds), **self._options()).plan())

    async def run(self, members: Members, seeds: Sequence[Address], run: WorkRun) -> WorkOutcome:
        """Move the vbuckets to their places; after a request to stop, let running moves finish."""
        from headwater.cluster.rebalance import Rebalance

        def note(step: RebalanceStep) -> None:
            run.step(step.now, step.done, step.total)

        work = Rebalance(members, list(seeds), progress=note, stopping=run.stop, **self._options())
        if (after := await work.run()) is None:
            return WorkOutcome("stopped before all was done; ask for the same again, and it goes on", state="stopped")
        version = f"{after.epoch}:{after.rev}"
        return WorkOutcome(f"{run.total} vbuckets are where they belong, map {version}", {"map": version})


def _spread(plan: Plan) -> WorkPlan:
    copies, handed = plan.copies(), sorted(plan.handovers().items())
    rows = []
    for node in dict.fromkeys((*plan.before.servers, *plan.after.servers)):
        before, after = plan.before.held_by(node), plan.after.held_by(node)
        new = copies[node] + sum(move.target == node and node in move.copied_to for move in plan.moves)
        change = "joins" if node in plan.joining else "leaves" if node in plan.leaving else ""
        numbers = (len(before[0]), len(after[0]), len(before[1]), len(after[1]), new)
        rows.append((str(node), *(f"{number:,}" for number in numbers), change))
    lines = [f"{old} hands {several(number, 'vbucket')} over to {new}" for (old, new), number in handed]
    strays = plan.strays.items()
    lines += [
        f"{node} deletes {several(len(vbuckets), 'vbucket')} that it should not have" for node, vbuckets in strays
    ]
    if not plan.settlement.is_settled:
        lines.append("what an earlier run left open is settled first; the plan may change by that")
    title = f"{plan.before.bucket}: {plan.before.vbuckets} vbuckets, {several(plan.after.replica_count, 'replica')}"
    heading = ("node", "active", "then", "replicas", "then", "copied", "")
    return WorkPlan(
        tuple(lines), _facts_of_plan(plan), heading, tuple(rows), title, len(plan.moves), is_empty=plan.is_empty
    )


def _facts_of_plan(plan: Plan) -> dict[str, Any]:
    handed = plan.handovers().items()
    return {
        "map": f"{plan.after.epoch}:{plan.after.rev}",
        "joining": list(map(str, plan.joining)),
        "leaving": list(map(str, plan.leaving)),
        "replicas": plan.after.replica_count,
        "vbuckets": sorted(move.vbucket for move in plan.moves),
        "copies": {str(node): number for node, number in plan.copies().items()},
        "handovers": [{"from": str(old), "to": str(new), "vbuckets": number} for (old, new), number in handed],
        "strays": {str(node): strays for node, strays in plan.strays.items()},
    }


@dataclass(frozen=True)
class FailOver(DeclaredWork):
    """Take a dead node out of the cluster and promote the best replica of each vbucket it owned.

    What it had acknowledged and no replica had received yet is lost. When it comes back, it finds that others own its
    vbuckets; let it join again with `headwater cluster rebalance --add`. All other members must answer.
    """

    KIND: ClassVar[str] = "failover"
    HEADING: ClassVar[str] = "Failover"
    EXAMPLES: ClassVar[tuple[str, ...]] = (
        "headwater cluster failover 10.0.0.1:11210 --dead 10.0.0.3:11210",
        "headwater cluster failover 10.0.0.1:11210 --dead 10.0.0.3:11210 --dry-run",
    )
    EXITS: ClassVar[Mapping[int, str]] = {
        1: "it answers, a majority is dead or no copy is sound, and neither --accept nor --force says so"
    }
    REMARKS: ClassVar[tuple[str, ...]] = (
        "What the dead node had acknowledged, and no replica had received yet, is lost.",
    )
    HAS_DRY_RUN: ClassVar[bool] = True
    SHOWS_PLAN: ClassVar[bool] = True
    ASKS: ClassVar[bool] = True
    QUESTION: ClassVar[str] = "Go on?"

    dead: Sequence[Address] = option(
        (),
        "Who is dead; may be given more than once. Without it, vbuckets that nobody owns go on from their best copies.",
        metavar=NODE,
        many=True,
    )
    force: bool = option(
        False, "Go on in spite of whatever is refused; the plan says what, and what each vbucket may lose."
    )
    accept: Sequence[str] = option(
        (),
        "Go on in spite of this refusal alone; may be given more than once.",
        many=True,
        choices=tuple(map(str, FailoverRefusal)),
    )
    lose_data: bool = option(False, "Begin vbuckets anew, empty, of which no copy is left.")

    @property
    def title(self) -> str:
        """The work in a few words."""
        return f"Failover of {', '.join(map(str, self.dead)) or 'what nobody owns'}"

    def confirmation(self, bucket: str) -> str:
        """Return the names of the dead nodes; without any, the bucket whose vbuckets have no owner."""
        return " ".join(map(str, self.dead)) or bucket

    def _work(self, members: Members, seeds: Sequence[Address], confirmed_plan: WorkPlan | None = None) -> Failover:
        from headwater.cluster.failover import Failover

        return Failover(
            members,
            list(seeds),
            list(self.dead),
            force=self.force,
            accept=tuple(map(FailoverRefusal, self.accept)),
            lose_data=self.lose_data,
            check=partial(_check_losses, confirmed_plan),
        )

    async def plan(self, members: Members, seeds: Sequence[Address]) -> WorkPlan:
        """Return the vbuckets that each node takes over, and the losses."""
        plan = await self._work(members, seeds).plan()
        promoted, restarted = Counter(promotion.chosen for promotion in plan.promotions), Counter(plan.anew.values())
        rows = []
        for node in plan.before.servers:
            numbers = (len(plan.before.held_by(node)[0]), promoted[node], restarted[node])
            change = "" if node in plan.after.servers else "taken out"
            rows.append((str(node), *(f"{number:,}" for number in numbers), change))
        heading = ("node", "active", "promoted", "begun anew", "")
        title = f"{plan.before.bucket}: {plan.before.vbuckets} vbuckets"
        return WorkPlan(_losses(plan), _facts_of_failover(plan), heading, tuple(rows), title, is_empty=plan.is_empty)

    async def run(self, members: Members, seeds: Sequence[Address], run: WorkRun) -> WorkOutcome:
        """Fence the dead nodes, and promote the replicas; raises ClusterError if more would be lost than was shown."""
        plan = await self._work(members, seeds, run.plan).run()
        line = f"{several(len(plan.promotions), 'vbucket')} promoted, {len(plan.anew)} begun anew"
        return WorkOutcome(line, _facts_of_failover(plan), details=_losses(plan))


def _check_losses(confirmed_plan: WorkPlan | None, plan: FailoverPlan) -> None:
    """Check that a plan loses nothing that people were not shown when they confirmed it.

    Raises:
        ClusterError: it does: a node may have died since.
    """
    if confirmed_plan is None:
        return
    facts = _facts_of_failover(plan)
    new_losses = [
        f"vbucket {vb}: {problem}"
        for vb, loss in facts["losses"].items()
        for refusal, problem in loss["accepted"].items()
        if refusal not in confirmed_plan.facts["losses"].get(vb, {"accepted": {}})["accepted"]
    ]
    new_losses += [f"vbucket {vb} begins anew, empty" for vb in facts["anew"] if vb not in confirmed_plan.facts["anew"]]
    new_losses += [
        problem for name, problem in facts["accepted"].items() if name not in confirmed_plan.facts["accepted"]
    ]
    if new_losses:
        raise ClusterError(
            f"{new_losses[0]}, which was not shown ({len(new_losses)} such losses)",
            "look at the plan of now, and confirm that",
        )


def _losses(plan: FailoverPlan) -> tuple[str, ...]:
    """Return the accepted refusals, and a line for each vbucket that may lose changes."""
    accepted_lines = [f"accepted ({refusal}): {problem}" for refusal, problem in plan.accepted.items()]
    lossy = plan.losses.items()
    return (
        *accepted_lines,
        *(f"vbucket {vb} of {promotion.chosen} {'; '.join(promotion.losses.values())}" for vb, promotion in lossy),
    )


def _facts_of_failover(plan: FailoverPlan) -> dict[str, Any]:
    return {
        "map": f"{plan.after.epoch}:{plan.after.rev}",
        "out": [str(node) for node in plan.before.servers if node not in plan.after.servers],
        "promoted": {str(promotion.vbucket): str(promotion.chosen) for promotion in plan.promotions},
        "anew": {str(vb): str(node) for vb, node in plan.anew.items()},
        "accepted": {str(refusal): problem for refusal, problem in plan.accepted.items()},
        "losses": {str(vb): _loss(loss) for vb, loss in plan.losses.items()},
    }


def _loss(promotion: Promotion) -> dict[str, Any]:
    """Return the possible loss of a vbucket, as JSON: "needed" is null if the seqno that the copy must reach is
    unknown.
    """
    return {
        "node": str(promotion.chosen),
        "seqno": promotion.seqno,
        "complete": promotion.complete,
        "needed": None if promotion.unasked else promotion.needed,
        "accepted": {str(refusal): problem for refusal, problem in promotion.losses.items()},
    }
