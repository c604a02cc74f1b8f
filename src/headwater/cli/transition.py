"""`headwater transition`: vbuckets of some nodes handed over to others, as a job that is watched."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.forms import answer
from headwater.cli.options import (
    DryRun,
    Engine,
    EngineName,
    Password,
    Patience,
    User,
    Vbuckets,
    endpoint,
    examples,
    retry_for,
    vbucket_set,
)
from headwater.cli.reporting import MetricsPort, ProgressFormat, ProgressOption, metered, reporter
from headwater.cli.screen import count, several
from headwater.cli.stopping import asked, run

if TYPE_CHECKING:
    from headwater.pipelines.transition import TransitionProgress, TransitionSurvey

EXAMPLES = examples(
    "headwater transition --from a:11210 --to b:11210 --to c:11210 --journal ./expansion",
    "headwater transition --from a:11210 --to b:11210 --vbuckets 0-511 --journal ./half --engine local",
    "headwater transition --from a:11210/orders --from b:11210/orders --to c:11210/orders --journal ./merge --delete",
)


def transition(
    sources: Annotated[list[str], typer.Option("--from", metavar="NODE", help="Who owns them; repeatable.")],
    targets: Annotated[
        list[str], typer.Option("--to", metavar="NODE", help="Who shall own them; of several each gets its share.")
    ],
    journal: Annotated[
        Path, typer.Option("--journal", metavar="DIR", help="Keep a row about each move there; made if missing.")
    ],
    vbuckets: Vbuckets = None,
    at_once: Annotated[
        int, typer.Option("--batch", min=1, max=1024, metavar="N", help="Vbuckets of each pair of nodes in a batch.")
    ] = 8,
    delete: Annotated[bool, typer.Option("--delete/--keep", help="What becomes of old owners' dead copies.")] = False,
    patience: Patience = 60.0,
    engine: Engine = EngineName.SPARK,
    retry: Annotated[float | None, retry_for(300)] = None,
    shown: ProgressOption = ProgressFormat.TEXT,
    metrics: MetricsPort = None,
    dry_run: DryRun = False,
    user: User = None,
    password: Password = None,
) -> None:
    """Let nodes take over the vbuckets of others, batch by batch, each move checked at both ends and noted.

    Each pair of nodes is a task of its own, on Spark's executors or in worker processes; changes pass through them.
    Ended at any moment, even half-way through a hand-over, it goes on where the nodes are when it is started again:
    at every moment a vbucket has at most one owner. Nodes that share a cluster map: headwater cluster rebalance.
    """
    from headwater.pipelines import transition as pipeline

    if dry_run:
        old, new = ([endpoint(node, user, password) for node in nodes] for nodes in (sources, targets))
        _show(run(pipeline.TransitionNodes(old, new, vbucket_set(vbuckets)).look()))
        return
    with asked(has_end=True) as stop, metered("transition", metrics, reporter(shown, _line)) as told:
        pipeline.transition(
            [endpoint(node, user, password) for node in sources],
            [endpoint(node, user, password) for node in targets],
            journal,
            vbuckets=vbucket_set(vbuckets),
            engine=engine.value,
            at_once=at_once,
            delete=delete,
            patience_seconds=patience,
            retry_seconds=retry,
            stop=stop,
            **told,
        )


def _show(found: "TransitionSurvey") -> None:
    """Say what would be moved from where to where; nothing was changed."""
    pairs = Counter((str(pair.source.address), str(pair.target.address)) for pair in found.left.values())
    lines = [f"{old} would hand {several(number, 'vbucket')} over to {new}" for (old, new), number in pairs.items()]
    lines.append(f"{count(len(found.left))} vbuckets would be moved, {count(len(found.moved))} have been")
    if found.ownerless:
        lines.append(f"{count(len(found.ownerless))} have an owner at none of these nodes, and a dead copy at a source")
    told = [{"from": old, "to": new, "vbuckets": number} for (old, new), number in pairs.items()]
    counts = {name: len(each) for name, each in vars(found).items()}
    answer("\n".join(lines), begun=False, **counts, pairs=told)


def _line(progress: "TransitionProgress") -> str:
    return ", ".join(
        [
            f"batch {progress.batches}: {count(progress.moved)} of {count(progress.total)} vbuckets moved",
            f"{count(progress.changes)} changes in {progress.seconds:.1f} s",
            f"without an owner for {1000 * progress.ownerless_seconds:.0f} ms at most",
        ]
    )
