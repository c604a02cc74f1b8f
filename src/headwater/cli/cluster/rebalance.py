"""`headwater cluster rebalance`: the plan as a table, a question, and the work."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.cluster.running import (
    FIRST_START_SECONDS,
    Node,
    Password,
    StopRequest,
    User,
    Yes,
    addresses,
    agreed,
    run,
    table_of,
)
from headwater.cli.forms import report
from headwater.cli.meter import Meter
from headwater.cli.options import Concurrency, Patience, examples
from headwater.cli.screen import count, out, rate, several

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.cluster.members import Members
    from headwater.cluster.plan import Plan
    from headwater.cluster.rebalance import RebalanceStep
    from headwater.wire.cluster_map import ClusterMap

EXAMPLES = examples(
    "headwater cluster rebalance 10.0.0.1:11210 --add 10.0.0.2:11210 --add 10.0.0.3:11210",
    "headwater cluster rebalance 10.0.0.1:11210 --remove 10.0.0.3:11210 --dry-run",
    "headwater cluster rebalance 10.0.0.1:11210 --replicas 1 --yes",
)


def rebalance(
    node: Node,
    add: Annotated[
        list[str] | None, typer.Option("--add", metavar="NODE", help="A node that joins; may be given more than once.")
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="NODE", help="A node that leaves; may be given more than once."),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas", min=0, max=3, metavar="N", help="From now on so many replicas; as before if left out."
        ),
    ] = None,
    concurrency: Concurrency = 8,
    patience: Patience = 60.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, do nothing.")] = False,
    yes: Yes = False,
    user: User = None,
    password: Password = None,
) -> None:
    """Spread vbuckets and replicas evenly, while clients go on reading and writing.

    Shows the plan and asks. A vbucket is copied, handed over and only then deleted where it was, so that there is never
    a copy less than before. Ctrl-C lets what is under way come to its end; typed again, killed or not, it goes on with
    what is left. All members must answer.
    """
    seeds, place = addresses([node])
    asked = _asked(add or [], remove or [], replicas, concurrency, patience)
    plan = run(_look(seeds, asked), place, user, password, answer_seconds=FIRST_START_SECONDS if add else None)
    if not agreed(plan, _show, facts_of, "Begin?", dry_run=dry_run, yes=yes):
        return
    with Meter("looking at the nodes", "vbuckets") as meter:
        after = run(_work(seeds, asked, meter), place, user, password)
    _tell(plan, after, meter.seconds)


def _asked(add: list[str], remove: list[str], replicas: int | None, at_once: int, patience: float) -> dict[str, Any]:
    """The options as the work takes them."""
    from headwater.cluster.proxied import Limits

    asked: dict[str, Any] = {"add": addresses(add)[0], "remove": addresses(remove)[0]}
    return asked | {"replicas": replicas, "vbuckets_at_once": at_once, "limits": Limits(patience_seconds=patience)}


def _tell(plan: "Plan", after: "ClusterMap", seconds: float) -> None:
    line = f"done in {seconds:.1f} s, {rate(len(plan.moves), seconds, 'vbuckets')}, map {after.epoch}:{after.rev}"
    told = facts_of(plan) | {"map": f"{after.epoch}:{after.rev}", "seconds": round(seconds, 3)}
    report(line, begun=True, **told)


def facts_of(plan: "Plan") -> dict[str, Any]:
    """The plan as JSON."""
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


def _look(seeds: "list[Address]", asked: dict[str, Any]) -> Any:
    async def look(members: "Members", _: StopRequest) -> "Plan":
        from headwater.cluster.rebalance import Rebalance

        return await Rebalance(members, seeds, **asked).plan()

    return look


def _work(seeds: "list[Address]", asked: dict[str, Any], meter: Meter) -> Any:
    def show(step: "RebalanceStep") -> None:
        meter.show(step.done, step.total, name=step.now)

    async def work(members: "Members", stop: StopRequest) -> "ClusterMap | None":
        from headwater.cluster.rebalance import Rebalance

        stop.gently = True
        return await Rebalance(members, seeds, progress=show, stopping=stop, **asked).run()

    return work


def _show(plan: "Plan") -> None:
    """Each node's vbuckets before and after; then who hands over to whom."""
    table = table_of(
        f"{plan.before.bucket}: {plan.before.vbuckets} vbuckets, {several(plan.after.replica_count, 'replica')}",
        "active",
        "then",
        "replicas",
        "then",
        "copied",
        "",
    )
    copies, handed = plan.copies(), plan.handovers()
    for node in dict.fromkeys((*plan.before.servers, *plan.after.servers)):
        before, after = plan.before.held_by(node), plan.after.held_by(node)
        new = copies[node] + sum(move.target == node and node in move.copied_to for move in plan.moves)
        change = "joins" if node in plan.joining else "leaves" if node in plan.leaving else ""
        numbers = (len(before[0]), len(after[0]), len(before[1]), len(after[1]), new)
        table.add_row(str(node), *map(count, numbers), change)
    console = out()
    console.print(table)
    for (source, target), number in sorted(handed.items()):
        console.print(f"{source} hands {several(number, 'vbucket')} over to {target}")
    for address, strays in plan.strays.items():
        console.print(f"{address} deletes {several(len(strays), 'vbucket')} that it should not have")
    if not plan.settlement.is_settled:
        console.print("what an earlier run left open is settled first; the plan may change by that")
