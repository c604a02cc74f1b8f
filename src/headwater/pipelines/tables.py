"""Manual work on a mirror's table: open it with the index of its rows, fold it, remove its old files."""

from __future__ import annotations

from collections.abc import Callable

from headwater.cluster.work import WorkOutcome, WorkPlan
from headwater.errors import OptionError, TableError
from headwater.lake import folds, upkeep
from headwater.lake.commit import record_of
from headwater.lake.index import Indexes
from headwater.lake.log import TableLog
from headwater.lake.places import store_of
from headwater.lake.vacuum import UNDER_WAY_SECONDS
from headwater.lake.vacuum import vacuum as remove_unneeded
from headwater.pipelines.tasks import SEED

__all__ = ["fold", "fold_plan", "open_table", "vacuum", "vacuum_plan"]

Tell = Callable[[int, int], None]


def open_table(place: str) -> tuple[TableLog, Indexes | None]:
    """Return the log of a table, read up to its newest version, and its indexes; a log of changes has none.

    Raises:
        TableError: there is no table, or it is no mirror's.
    """
    log = TableLog(store_of(place))
    log.refresh()
    if not log.exists:
        raise TableError(log.store.root, "there is no table here")
    kind = record_of(log.store.root, log.state).kind
    seed = bytes.fromhex(log.state.properties[SEED])
    return log, Indexes(log.store, log.state.id, seed) if kind != "changes" else None


def fold_plan(place: str, tell: Tell, *, everything: bool = False) -> WorkPlan:
    """Return the number of files that `fold` would take. `tell` is called with the numbers of files done and
    in all.
    """
    state = open_table(place)[0].state
    before = len(state.files)
    file_count = before if everything else len(folds.choose(state))
    tell(0, file_count)
    facts = {"folded": 0, "chosen": file_count, "before": before}
    return WorkPlan((f"{file_count:,} of {before:,} files would be folded",), facts, is_empty=not file_count)


def fold(place: str, tell: Tell, *, everything: bool = False) -> WorkOutcome:
    """Fold the small and mostly dead files of a table, or all of them, and write a checkpoint."""
    log, indexes = open_table(place)
    before = len(log.state.files)
    folded = folds.optimize(log, indexes, everything=everything, tell=tell)
    upkeep.checkpoint(log)
    facts = {"folded": folded, "before": before, "after": len(log.state.files)}
    return WorkOutcome(f"folded {folded:,} files: the table had {before:,} and has {facts['after']:,}", facts)


def vacuum_plan(place: str, tell: Tell, *, seconds: float | None = None) -> WorkPlan:
    """Return the files that `vacuum` would remove; arguments and errors as of `vacuum`."""
    files = _vacuumed(place, tell, seconds, dry=True)
    line = f"{len(files):,} files would be removed"
    return WorkPlan((line,), {"files": files, "removed": 0}, is_empty=not files)


def vacuum(place: str, tell: Tell, *, seconds: float | None = None) -> WorkOutcome:
    """Remove files that no version of a table within `seconds` needs; None for its own retention.

    Raises:
        OptionError: less than an hour, within which the files of a batch or a fold may wait for their commit.
        TableError: there is no table, or it is no mirror's.
    """
    files = _vacuumed(place, tell, seconds, dry=False)
    return WorkOutcome(f"{len(files):,} files were removed", {"files": files, "removed": len(files)})


def _vacuumed(place: str, tell: Tell, seconds: float | None, *, dry: bool) -> list[str]:
    seconds_min = UNDER_WAY_SECONDS
    # Not a number is no number of seconds either.
    if seconds is not None and not seconds >= seconds_min:
        raise OptionError("seconds", seconds, f"a number of seconds, {seconds_min:g} or more, or None")
    return remove_unneeded(open_table(place)[0], seconds, dry=dry, tell=tell)
