"""The transition, as users see it: its options, its progress and its line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headwater.options import SECONDS, option
from headwater.pipelines.jobs.declared import ENGINE, DeclaredJob, JobProgress
from headwater.wire.vbucket import vbucket_set

if TYPE_CHECKING:
    from headwater.cluster.admin import Endpoint


@dataclass
class TransitionProgress(JobProgress):
    """Progress of a transition, reported after each batch.

    Attributes:
        moved: vbuckets that are at their new owners, of `total`; those of earlier runs included.
        changes, bytes: changes, and their bytes, that passed through the tasks of this run.
        ownerless_seconds: the longest time that a vbucket of this run had no owner, as its task measured it.
        latest: the vbuckets of the last batch, as rows of the journal.
    """

    ROWS: ClassVar[tuple[str, ...]] = ("changes",)

    moved: int = 0
    total: int = 0
    changes: int = 0
    bytes: int = 0
    ownerless_seconds: float = 0.0
    latest: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Transition(DeclaredJob[TransitionProgress]):
    """Let nodes take over the vbuckets of others, batch by batch, each move checked at both ends and noted.

    Each pair of nodes is a task of its own, on Spark's executors or in worker processes; changes pass through them.
    Ended at any moment, even half-way through a hand-over, it goes on where the nodes are when it is started again:
    at every moment a vbucket has at most one owner. Nodes that share a cluster map: headwater cluster rebalance.
    """

    NAME: ClassVar[str] = "transition"
    PART: ClassVar[tuple[str, int]] = ("older", 40)
    WORK: ClassVar[str] = "headwater.pipelines.transition:work"
    PLAN: ClassVar[str] = "headwater.pipelines.transition:plan"
    TRACED: ClassVar[bool] = True
    HAS_END: ClassVar[bool] = True
    EXITS: ClassVar[Mapping[int, str]] = {1: "some are not moved; each has one owner, and the next run goes on"}
    EXAMPLES: ClassVar[tuple[str, ...]] = (
        "headwater transition --from a:11210 --to b:11210 --to c:11210 --journal ./expansion",
        "headwater transition --from a:11210 --to b:11210 --vbuckets 0-511 --journal ./half --engine local",
        "headwater transition --from a:11210/orders --from b:11210/orders --to c:11210/orders --journal ./merge"
        " --delete",
    )

    sources: Sequence[str | Endpoint] = option(
        ..., "Who owns them; repeatable.", flag="from", metavar="NODE", many=True
    )
    targets: Sequence[str | Endpoint] = option(
        ..., "Who shall own them; of several each gets its share.", flag="to", metavar="NODE", many=True
    )
    journal: str | Path = option(..., "Keep a row about each move there; made if missing.", metavar="DIR")
    _: KW_ONLY
    vbuckets: Sequence[int] | None = option(
        None, "Which vbuckets, e.g. 0-511,700. All of them when left out.", metavar="LIST", read=vbucket_set
    )
    at_once: int = option(
        8, "Vbuckets of each pair of nodes in a batch.", flag="batch", metavar="N", least=1, most=1024
    )
    delete: bool = option(False, "What becomes of old owners' dead copies.", flag="delete/--keep")
    patience_seconds: float = option(
        60.0, "Give up a vbucket of which nothing has come for so long.", flag="patience", unit=SECONDS, least=0
    )
    engine: str = option("spark", ENGINE, choices=("spark", "local"))
    retry_seconds: float | None = option(
        None,
        "Go on trying for so long after failures that may pass: 300 unless given.",
        flag="retry",
        unit=SECONDS,
        least=0,
    )
    dry_run: bool = option(False, "Show what would be done, do nothing.")

    def line(self, progress: TransitionProgress) -> str:
        """Return the progress after a batch as a line for people."""
        return ", ".join(
            [
                f"batch {progress.batches}: {progress.moved:,} of {progress.total:,} vbuckets moved",
                f"{progress.changes:,} changes in {progress.seconds:.1f} s",
                f"without an owner for {1000 * progress.ownerless_seconds:.0f} ms at most",
            ]
        )
