"""`headwater failover`: the replicas of one node become owners, because the one they follow is gone."""

from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.cluster.running import Password, StopRequest, User, Yes, addresses, run
from headwater.cli.forms import answer, ask, forms, report
from headwater.cli.options import DryRun, Vbuckets, examples, vbucket_set
from headwater.cli.screen import count, several
from headwater.cluster.refusals import FailoverRefusal

if TYPE_CHECKING:
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
    found, place = addresses([node])
    owner = addresses([source])[0][0] if source else None
    wanted = vbucket_set(vbuckets)

    async def look(members: "Members", _: StopRequest) -> "PromotionPlan":
        from headwater.cluster.promotion import plan_promotion

        return await plan_promotion(members, found[0], source=owner, vbuckets=wanted, force=force, accept=accept or ())

    plan = run(look, place, user, password)
    lives = "".join(f", {count(len(each))} made dead on {where}" for where, each in plan.owned.items())
    told = {
        "node": str(found[0]),
        "vbuckets": sorted(plan.vbuckets),
        "made_dead": {str(k): v for k, v in plan.owned.items()},
        "accepted": {str(refusal): problem for refusal, problem in plan.accepted.items()},
    }
    if dry_run:
        answer(f"to become active: {several(len(plan.vbuckets), 'vbucket')} of {found[0]}{lives}", begun=False, **told)
        return
    if not forms().json:
        report(f"to become active: {several(len(plan.vbuckets), 'vbucket')} of {found[0]}{lives}")
        for refusal, problem in plan.accepted.items():
            report(f"accepted ({refusal}): {problem}")
    ask("Go on?", yes)

    async def work(members: "Members", _: StopRequest) -> bool:
        from headwater.cluster.promotion import promote

        await promote(members, plan)
        return True

    run(work, place, user, password)
    served = sum(plan.vbuckets.values())
    report(f"done: {count(served)} changes of history are served", begun=True, **told, changes=served)
