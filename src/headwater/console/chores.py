"""All kinds of work that the console does: operators' work on a cluster, and work in the folders of mirrors' tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.cluster.work import WORKS, DeclaredWork, WorkOutcome, WorkPlan, WorkRun
from headwater.console import readings
from headwater.console.forms import Fields, work_of
from headwater.errors import OptionError
from headwater.options import option

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.cluster.members import Members
    from headwater.console.desk import ConsoleSettings

__all__ = ["KINDS", "OF_TABLES", "requested_work"]

PLAN_SECONDS = 300.0
"""The time for the plan of work in a folder; an object store lists a large table for minutes."""


@dataclass(frozen=True)
class _TableUpkeep(DeclaredWork):
    table: str = option(..., "The table's folder or url.", allowed="one that this console was given by --lake")

    async def plan(self, members: Members, seeds: Sequence[Address]) -> WorkPlan:
        return await readings.bounded(self.table, self._plan, PLAN_SECONDS)

    async def run(self, members: Members, seeds: Sequence[Address], run: WorkRun) -> WorkOutcome:
        run.step("at work in the folder", 0, 0)
        return WorkOutcome(await readings.begin(self._run))  # the loop's own threads also look up the names of hosts

    def _plan(self) -> WorkPlan:
        raise TypeError(f"{type(self).__name__} has no plan")

    def _run(self) -> str:
        raise TypeError(f"{type(self).__name__} does nothing")


class _Fold(_TableUpkeep):
    KIND = "fold"
    TITLE = "Fold files of the table {0.table}"
    REMARKS = ("A mirror may run meanwhile.",)

    def _plan(self) -> WorkPlan:
        from headwater.lake import upkeep  # noqa: PLC0415 - its library is of an extra of its own
        from headwater.pipelines.tables import open_table  # noqa: PLC0415

        log, _ = open_table(self.table)
        chosen = len(upkeep.choose(log.state))
        return WorkPlan((f"{chosen:,} of {len(log.state.files):,} files are folded",), is_empty=not chosen)

    def _run(self) -> str:
        from headwater.lake import upkeep  # noqa: PLC0415
        from headwater.pipelines.tables import open_table  # noqa: PLC0415

        log, indexes = open_table(self.table)
        folded = upkeep.optimize(log, indexes, everything=False)
        upkeep.checkpoint(log)
        return f"{folded:,} files were folded; the table has {len(log.state.files):,}"


class _Vacuum(_TableUpkeep):
    KIND = "vacuum"
    TITLE, CONFIRMATION = "Remove old files of the table {0.table}", "yes"
    REMARKS = ("Versions older than that can't be read any more.",)

    def _plan(self) -> WorkPlan:
        gone = len(self._vacuum(dry=True))
        line = f"{gone:,} files are removed that no version within the table's retention needs"
        return WorkPlan((line,), is_empty=not gone)

    def _run(self) -> str:
        return f"{len(self._vacuum(dry=False)):,} files were removed"

    def _vacuum(self, *, dry: bool) -> Sequence[str]:
        from headwater.lake import upkeep  # noqa: PLC0415
        from headwater.pipelines.tables import open_table  # noqa: PLC0415

        return upkeep.vacuum(open_table(self.table)[0], None, dry=dry)


OF_TABLES: dict[str, type[_TableUpkeep]] = {each.KIND: each for each in (_Fold, _Vacuum)}
"""Work in folders, which needs no node."""
KINDS: dict[str, type[DeclaredWork]] = WORKS | OF_TABLES
"""All kinds of work, by their names in addresses."""


def requested_work(kind: str, fields: Fields, settings: ConsoleSettings) -> DeclaredWork:
    """Read a form for work of any kind.

    Raises:
        OptionError: an unknown kind, or an invalid value of a field.
    """
    if kind not in KINDS:
        raise OptionError("work", kind, f"one of {', '.join(KINDS)}")
    work = work_of(KINDS[kind], fields, settings.target)
    if isinstance(work, _TableUpkeep) and work.table not in settings.lakes:
        raise work.options()[0].refusal(work.table[:80])
    return work
