"""`headwater failover`: the replicas of one node become owners, because the one they follow is gone."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.cluster.running import Password, StopRequest, User, Yes, addresses, run
from headwater.cli.forms import answer, ask, forms, report
from headwater.cli.options import DryRun, Vbuckets, examples, vbucket_set
from headwater.cli.screen import count, several
from headwater.cluster.refusals import FailoverRefusal

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.cluster.members import Members
    from headwater.cluster.promotion import PromotionPlan

EXAMPLES = examples(
    "headwater failover 10.0.0.2:11210",
    "headwater failover 10.0.0.2:11210 --from 10.0.0.1:11210 --vbuckets 0-511 --yes",
)


def failover(
    node: Annotated[
        str,
        typer.Argument(metavar="NODE", help="Whose replicas are promoted: host:port, or couchbase://host:port/bucket."),
    ],
    source: Annotated[
        str | None, typer.Option("--from", metavar="NODE", help="Who owned them; whomever it follows when left out.")
    ] = None,
    vbuckets: Vbuckets = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Go on in spite of whatever is refused; a living owner is made dead."),
    ] = False,
    accept: Annotated[
        list[FailoverRefusal] | None,
        typer.Option("--accept", help="Go on in spite of this refusal alone; may be given more than once."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    user: User = None,
    password: Password = None,
) -> None:
    """Promote the replicas of a node that follows a dead one (`headwater replicate`).

    For nodes without a cluster map; members of a cluster have `headwater cluster failover`. What the owner had
    acknowledged and the replica had not received is lost. The replicas begin a new branch of history, so that whoever
    streamed from the dead node finds out whether it must roll back.
    """
    nodes, place = addresses([node])
    owner = addresses([source])[0][0] if source else None
    wanted = vbucket_set(vbuckets)

    async def look(members: "Members", _: StopRequest) -> "PromotionPlan":
        from headwater.cluster.promotion import plan_promotion

        return await plan_promotion(members, nodes[0], source=owner, vbuckets=wanted, force=force, accept=accept or ())

    plan = run(look, place, user, password)
    line, *accepted = _lines(nodes[0], plan)
    if dry_run:
        answer(line, begun=False, **_facts_of(nodes[0], plan))
        return
    for each in () if forms().json else (line, *accepted):
        report(each)
    ask("Go on?", yes)

    async def work(members: "Members", _: StopRequest) -> bool:
        from headwater.cluster.promotion import promote

        await promote(members, plan)
        return True

    run(work, place, user, password)
    served = sum(plan.vbuckets.values())
    facts = _facts_of(nodes[0], plan)
    report(f"done: {count(served)} changes of history are served", begun=True, **facts, changes=served)


def _lines(node: "Address", plan: "PromotionPlan") -> list[str]:
    lives = "".join(f", {count(len(each))} made dead on {where}" for where, each in plan.owned.items())
    accepted = (f"accepted ({refusal}): {problem}" for refusal, problem in plan.accepted.items())
    return [f"to become active: {several(len(plan.vbuckets), 'vbucket')} of {node}{lives}", *accepted]


def _facts_of(node: "Address", plan: "PromotionPlan") -> dict[str, Any]:
    """The plan as JSON."""
    return {
        "node": str(node),
        "vbuckets": sorted(plan.vbuckets),
        "made_dead": {str(owner): vbuckets for owner, vbuckets in plan.owned.items()},
        "accepted": {str(refusal): problem for refusal, problem in plan.accepted.items()},
    }
