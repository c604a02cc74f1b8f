"""All kinds of work that the console does: operators' work on a cluster, and work in the folders of mirrors' tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

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
        work = partial(self._call, f"{self.KIND}_plan", WorkRun())
        return cast("WorkPlan", await readings.bounded(self.table, work, PLAN_SECONDS))

    async def run(self, members: Members, seeds: Sequence[Address], run: WorkRun) -> WorkOutcome:
        run.step("at work in the folder", 0, 0)  # not in the loop's own threads, which look up the names of hosts
        return cast("WorkOutcome", await readings.begin(partial(self._call, self.KIND, run)))

    def _call(self, name: str, run: WorkRun) -> Any:
        from headwater.pipelines import tables  # noqa: PLC0415 - its library is of an extra of its own

        return getattr(tables, name)(self.table, partial(run.step, "at work in the folder"))


class _Fold(_TableUpkeep):
    KIND, TITLE = "fold", "Fold files of the table {0.table}"
    REMARKS = ("A mirror may run meanwhile.",)


class _Vacuum(_TableUpkeep):
    KIND, TITLE, CONFIRMATION = "vacuum", "Remove old files of the table {0.table}", "yes"
    REMARKS = ("No version within the table's retention needs them. Older versions can't be read any more.",)


OF_TABLES: dict[str, type[_TableUpkeep]] = {each.KIND: each for each in (_Fold, _Vacuum)}
"""Work in folders, which needs no node."""
KINDS: dict[str, type[DeclaredWork]] = WORKS | OF_TABLES
"""All kinds of work, by their names in addresses."""


def requested_work(kind: str, fields: Fields, settings: ConsoleSettings) -> DeclaredWork:
    """Return the work of any kind that a form requests.

    Raises:
        OptionError: an unknown kind, or an invalid value of a field.
    """
    if kind not in KINDS:
        raise OptionError("work", kind, f"one of {', '.join(KINDS)}")
    work = work_of(KINDS[kind], fields, settings.target)
    if isinstance(work, _TableUpkeep) and work.table not in settings.lakes:
        raise work.options()[0].refusal(work.table[:80])
    return work
