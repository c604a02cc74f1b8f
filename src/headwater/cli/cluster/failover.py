"""`headwater cluster failover`: a member is dead; its vbuckets go on from their replicas."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.cluster.running import Node, Password, StopRequest, User, Yes, addresses, agreed, run, table_of
from headwater.cli.forms import forms, report
from headwater.cli.options import examples
from headwater.cli.screen import count, out, several
from headwater.cluster.refusals import FailoverRefusal

if TYPE_CHECKING:
    from headwater.cluster.failover import FailoverPlan, Promotion
    from headwater.cluster.members import Members

EXAMPLES = examples(
    "headwater cluster failover 10.0.0.1:11210 --dead 10.0.0.3:11210",
    "headwater cluster failover 10.0.0.1:11210 --dead 10.0.0.3:11210 --dry-run",
)


def failover(
    node: Node,
    dead: Annotated[
        list[str], typer.Option("--dead", metavar="NODE", help="Who is dead; may be given more than once.")
    ],
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Go on in spite of whatever is refused; the plan says what, and what each vbucket may lose.",
        ),
    ] = False,
    accept: Annotated[
        list[FailoverRefusal] | None,
        typer.Option("--accept", help="Go on in spite of this refusal alone; may be given more than once."),
    ] = None,
    lose_data: Annotated[
        bool, typer.Option("--lose-data", help="Begin vbuckets anew, empty, of which no copy is left.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, do nothing.")] = False,
    yes: Yes = False,
    user: User = None,
    password: Password = None,
) -> None:
    """Take a dead node out of the cluster and promote the best replica of each vbucket it owned.

    What it had acknowledged and no replica had received yet is lost. When it comes back, it finds that others own its
    vbuckets; let it join again with `headwater cluster rebalance --add`. All other members must answer.
    """
    seeds, place = addresses([node])
    gone, _ = addresses(dead)
    options: dict[str, Any] = {"force": force, "accept": accept or (), "lose_data": lose_data}

    async def look(members: "Members", _: StopRequest) -> "FailoverPlan":
        from headwater.cluster.failover import Failover

        return await Failover(members, seeds, gone, **options).plan()

    async def work(members: "Members", _: StopRequest) -> "FailoverPlan":
        from headwater.cluster.failover import Failover

        return await Failover(members, seeds, gone, **options).run()

    if agreed(run(look, place, user, password), _show, facts_of, "Go on?", dry_run=dry_run, yes=yes):
        plan = run(work, place, user, password)
        line = f"{several(len(plan.promotions), 'vbucket')} promoted, {len(plan.anew)} begun anew"
        report(line, begun=True, **facts_of(plan))
        _tell_losses(plan)


def facts_of(plan: "FailoverPlan") -> dict[str, Any]:
    """The plan as JSON."""
    return {
        "map": f"{plan.after.epoch}:{plan.after.rev}",
        "out": [str(node) for node in plan.before.servers if node not in plan.after.servers],
        "promoted": {str(each.vbucket): str(each.chosen) for each in plan.promotions},
        "anew": {str(vb): str(node) for vb, node in plan.anew.items()},
        "accepted": {str(refusal): problem for refusal, problem in plan.accepted.items()},
        "losses": {str(vb): _loss(each) for vb, each in plan.losses.items()},
    }


def _loss(promotion: "Promotion") -> dict[str, Any]:
    """Return what a vbucket may lose, as JSON: "needed" is null where nobody knows how far the copy must be."""
    return {
        "node": str(promotion.chosen),
        "seqno": promotion.seqno,
        "complete": promotion.complete,
        "needed": None if promotion.unasked else promotion.needed,
        "accepted": {str(refusal): told for refusal, told in promotion.losses.items()},
    }


def _tell_losses(plan: "FailoverPlan") -> None:
    """Print what was refused and is accepted, and a line for each vbucket that may lose something; not with --json."""
    if forms().json:
        return
    for refusal, problem in plan.accepted.items():
        out().print(f"accepted ({refusal}): {problem}")
    for vb, each in plan.losses.items():
        out().print(f"vbucket {vb} of {each.chosen} {'; '.join(each.losses.values())}")


def _show(plan: "FailoverPlan") -> None:
    table = table_of(
        f"{plan.before.bucket}: {plan.before.vbuckets} vbuckets",
        "active",
        "promoted",
        "begun anew",
        "",
    )
    promoted = Counter(each.chosen for each in plan.promotions)
    anew = Counter(plan.anew.values())
    for node in plan.before.servers:
        gone = "" if node in plan.after.servers else "taken out"
        numbers = (len(plan.before.held_by(node)[0]), promoted[node], anew[node])
        table.add_row(str(node), *map(count, numbers), gone)
    out().print(table)
    _tell_losses(plan)
