"""Work on a pair without a cluster map: a node that followed another one by `headwater replicate` is promoted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from headwater.cluster.refusals import FailoverRefusal
from headwater.cluster.work.declared import NODE, DeclaredWork, WorkOutcome, WorkPlan, WorkRun
from headwater.counting import several
from headwater.errors import ClusterError
from headwater.options import option
from headwater.wire.vbucket import vbucket_set

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.cluster.members import Members
    from headwater.cluster.promotion import PromotionPlan

__all__ = ["PromoteReplicas"]


@dataclass(frozen=True)
class PromoteReplicas(DeclaredWork):
    """Promote the replicas of a node that follows a dead one (`headwater replicate`).

    For nodes without a cluster map; members of a cluster have `headwater cluster failover`. What the owner had
    acknowledged and the replica had not received is lost. The replicas begin a new branch of history, so that whoever
    streamed from the dead node finds out whether it must roll back.
    """

    KIND: ClassVar[str] = "pair-failover"
    PART: ClassVar[tuple[str, int]] = ("older", 50)
    HEADING: ClassVar[str] = "Failover of a pair"
    TITLE: ClassVar[str] = "Failover to {0.node}, which follows a dead node"
    CONFIRMATION: ClassVar[str] = "{0.node}"
    EXAMPLES: ClassVar[tuple[str, ...]] = (
        "headwater failover 10.0.0.2:11210",
        "headwater failover 10.0.0.2:11210 --from 10.0.0.1:11210 --vbuckets 0-511 --yes",
    )
    EXITS: ClassVar[Mapping[int, str]] = {
        1: "the owner lives, or replicas have gaps or damage or are parts, and that is not accepted"
    }
    REMARKS: ClassVar[tuple[str, ...]] = (
        "What the owner had acknowledged, and the replica had not received, is lost.",
    )
    HAS_DRY_RUN: ClassVar[bool] = True
    ANNOUNCES: ClassVar[bool] = True
    ASKS: ClassVar[bool] = True
    QUESTION: ClassVar[str] = "Go on?"

    node: Address = option(
        ...,
        "Whose replicas are promoted: host:port, or couchbase://host:port/bucket.",
        metavar=NODE,
        positional=True,
        allowed="the address of a node",
    )
    source: Address | None = option(
        None, "Who owned them; whomever it follows when left out.", metavar=NODE, flag="from", allowed="a node"
    )
    vbuckets: Sequence[int] | None = option(
        None, "Which vbuckets, e.g. 0-511,700. All of them when left out.", metavar="LIST", read=vbucket_set
    )
    force: bool = option(False, "Go on in spite of whatever is refused; a living owner is made dead.")
    accept: Sequence[str] = option(
        (),
        "Go on in spite of this refusal alone; may be given more than once.",
        many=True,
        choices=tuple(map(str, FailoverRefusal)),
    )

    async def _promotion_plan(self, members: Members) -> PromotionPlan:
        from headwater.cluster.promotion import plan_promotion

        accepted_refusals = tuple(map(FailoverRefusal, self.accept))
        return await plan_promotion(
            members, self.node, source=self.source, vbuckets=self.vbuckets, force=self.force, accept=accepted_refusals
        )

    async def plan(self, members: Members, seeds: Sequence[Address]) -> WorkPlan:
        """Return the vbuckets that become active, and those that are made dead at their owner for it."""
        return self._work_plan(await self._promotion_plan(members))

    async def run(self, members: Members, seeds: Sequence[Address], run: WorkRun) -> WorkOutcome:
        """Promote the replicas that the plan shows; do nothing if the plan has changed."""
        from headwater.cluster.promotion import promote

        plan = await self._promotion_plan(members)
        work_plan = self._work_plan(plan)
        # People take time to confirm, and the owner may be back, or have more, by then.
        if run.plan is not None and work_plan.digest != run.plan.digest:
            raise ClusterError("the nodes are not as they were when the plan was shown", "look again, then go on")
        await promote(members, plan)
        served = sum(plan.vbuckets.values())
        facts = {**work_plan.facts, "begun": True, "changes": served}
        return WorkOutcome(f"done: {served:,} changes of history are served", facts)

    def _work_plan(self, plan: PromotionPlan) -> WorkPlan:
        lives = "".join(f", {len(vbuckets):,} made dead on {node}" for node, vbuckets in plan.owned.items())
        accepted_lines = (f"accepted ({refusal}): {problem}" for refusal, problem in plan.accepted.items())
        line = f"to become active: {several(len(plan.vbuckets), 'vbucket')} of {self.node}{lives}"
        return WorkPlan((line, *accepted_lines), self._facts_of(plan))

    def _facts_of(self, plan: PromotionPlan) -> dict[str, Any]:
        return {
            "begun": False,
            "node": str(self.node),
            "vbuckets": sorted(plan.vbuckets),
            "made_dead": {str(owner): vbuckets for owner, vbuckets in plan.owned.items()},
            "accepted": {str(refusal): problem for refusal, problem in plan.accepted.items()},
        }
