"""Work on the cluster for the console: one piece at a time, in the background, with its progress.

It runs the commands' own code (headwater.cluster), over connections of its own. The nodes hold all of its state: if
this process dies half-way, the same request continues the work, here or by the command.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from headwater.client.routing import Address
from headwater.cluster import buckets
from headwater.cluster.members import Members
from headwater.cluster.work import DeclaredWork, WorkPlan, WorkRun
from headwater.console.lookout import plain
from headwater.errors import HeadwaterError, OptionError

KEPT = 10
TICKETS = 100
END_SECONDS = 30.0


@dataclass
class Job(WorkRun):
    """A piece of work.

    Attributes:
        state: running, done, stopped or failed. now: the present step, or the outcome.
        began_at, ended_at: Unix seconds. stopping: True once a stop was requested. details: more about the outcome.
        unit: of its progress; work without a unit can't be stopped.
        id: a unique id by which a form on a page names this work; no other work has it, in a later console neither.
    """

    kind: str
    title: str
    began_at: float
    state: str = "running"
    ended_at: float = 0.0
    stopping: bool = False
    details: tuple[str, ...] = ()
    unit: str = ""
    id: str = field(default_factory=partial(secrets.token_hex, 8))

    def __post_init__(self) -> None:
        self.stop: Callable[[], bool] = lambda: self.stopping


class Foreman:
    """A planner and runner of the work of one console.

    Args:
        members: opens connections for one piece of work. seeds: the nodes to begin with.
    """

    def __init__(self, members: Callable[[], Members], seeds: Callable[[], list[Address]]) -> None:
        self.jobs: deque[Job] = deque(maxlen=KEPT)
        self._members, self._seeds = members, seeds
        self._task: asyncio.Task[None] | None = None
        self._tickets: deque[str] = deque(maxlen=TICKETS)

    def has_begun(self, ticket: str) -> bool:
        """Return True if the form with this ticket has begun its work; each shown plan has a ticket of its own."""
        return ticket in self._tickets

    @property
    def running(self) -> Job | None:
        """The running work; None for none."""
        return next((job for job in self.jobs if job.state == "running"), None)

    async def plan(self, work: DeclaredWork) -> WorkPlan:
        """Return the plan of some work, without changing anything.

        Raises:
            ClusterError, OptionError, TransportError, StatusError: the work is impossible; the message has the reason.
        """
        async with self._members() as members:
            seeds, bucket = self._seeds(), work.harmed(members.bucket)
            uuids = await buckets.uuids(members, seeds, bucket) if bucket else frozenset()
            return replace(await work.plan(members, seeds), bucket=bucket, uuids=uuids)

    def begin(self, work: DeclaredWork, ticket: str = "", plan: WorkPlan | None = None) -> Job:
        """Begin work in the background.

        Args:
            ticket: the ticket of the form, which is used up by this.
            plan: as it was confirmed; the work reaches only the bucket that the plan names.

        Raises:
            OptionError: other work is running.
        """
        if (running := self.running) is not None:
            raise OptionError("work", work.title, f"begun once this has ended: {running.title}")
        job = Job(work.KIND, work.title, time.time(), unit=work.UNIT, plan=plan)
        self.jobs.appendleft(job)
        if ticket:
            self._tickets.append(ticket)
        self._task = asyncio.create_task(self._run(job, work))
        return job

    def stop(self, id_: str) -> bool:
        """Stop work in order: a rebalance finishes its moves and begins no others.

        Returns: False if this work is not running.
        """
        if (job := self.running) is None or job.id != id_:
            return False
        job.stopping = True
        return True

    async def close(self) -> None:
        """Request a stop, and wait for the work for END_SECONDS, then cancel it; the same request continues it
        later.
        """
        if (job := self.running) is not None:
            self.stop(job.id)
        # A hand-over that is cut is put right by the next run only: so it gets some time to end.
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task], timeout=END_SECONDS)
            self._task.cancel()
            await asyncio.wait([self._task])

    # ------------------------------------------------------------------ doing it

    async def _run(self, job: Job, work: DeclaredWork) -> None:
        try:
            async with self._members() as members:
                if job.plan is not None and job.plan.bucket:
                    # Before any call: a bucket of this name that was made since the confirmation is another one.
                    members.of(job.plan.bucket).bind(job.plan.uuids)
                outcome = await work.run(members, self._seeds(), job)
                job.state, job.now, job.details = outcome.state, outcome.line, outcome.details
        except HeadwaterError as error:
            job.state, job.now = "failed", plain(error)
        except BaseException:
            job.state, job.now = "failed", "it was cut; ask for the same again, and it goes on"
            raise
        finally:
            job.ended_at = time.time()
