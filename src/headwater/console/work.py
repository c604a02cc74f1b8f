"""Work on the cluster for the console: one piece at a time, in the background, with its progress.

It runs the commands' own code (headwater.cluster), over connections of its own. The nodes hold all of its state: if
this process dies in the middle, requesting the same again continues it, here or by the command.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias

from headwater.client.routing import Address, Target, parse
from headwater.cluster.failover import Failover, FailoverPlan
from headwater.cluster.members import Members
from headwater.cluster.plan import Plan
from headwater.cluster.rebalance import Rebalance, RebalanceStep
from headwater.console.lookout import plain
from headwater.errors import HeadwaterError, OptionError

KEPT = 10
TICKETS = 100
END_SECONDS = 30.0
HOURS_MAX = 24 * 365 * 10
REPLICAS_MAX = 3
ASKED_KINDS = ("rebalance", "failover", "compaction", "flush")
Outcome: TypeAlias = tuple[str, str]
"""The state in which work ended, and a sentence about it."""


@dataclass(slots=True)
class Job:
    """A piece of work.

    Attributes:
        state: running, done, stopped or failed. now: what happens, or the outcome. done, total: vbuckets.
        began_at, ended_at: Unix seconds. stopping: True once it was asked to stop. plan: as it was confirmed.
        id: the work that a form on a page is about; there is no other with it, in a later console neither.
    """

    kind: str
    title: str
    began_at: float
    state: str = "running"
    now: str = "looking at the nodes"
    done: int = 0
    total: int = 0
    ended_at: float = 0.0
    stopping: bool = False
    plan: Shown | None = None
    id: str = field(default_factory=partial(secrets.token_hex, 8))

    def step(self, step: RebalanceStep) -> None:
        """Take over the progress of a rebalance."""
        self.done, self.total, self.now = step.done, step.total, step.now


@dataclass(frozen=True, slots=True)
class Shown:
    """A plan for a page: rows of figures with their heading, and sentences; `digest` distinguishes plans.

    Attributes:
        bucket, uuids: the bucket that the work harms, and its uuids on the nodes; the work reaches no other bucket of
            this name. Empty where it harms none.
    """

    heading: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    sentences: tuple[str, ...] = ()
    is_empty: bool = False
    bucket: str = ""
    uuids: frozenset[str] = frozenset()

    @property
    def digest(self) -> str:
        """A short digest of the plan."""
        return hashlib.sha256(
            json.dumps([self.heading, self.rows, self.sentences, self.bucket, sorted(self.uuids)]).encode()
        ).hexdigest()[:16]


class Work(Protocol):
    """Work from a form, read and checked: AskedWork, or one of the kinds in chores.py."""

    @property
    def kind(self) -> str:
        """The name in addresses of pages."""

    @property
    def title(self) -> str:
        """The work in a few words."""

    def confirmation(self, bucket: str) -> str:
        """Return the words to type before it begins; empty if it can do no harm."""

    async def plan(self, members: Members, seeds: Sequence[Address]) -> Shown:
        """Return the plan, without changing anything. Errors as those of the command."""

    async def run(self, members: Members, seeds: Sequence[Address], job: Job) -> Outcome:
        """Do the work, and report progress to `job`."""


@dataclass(frozen=True, slots=True)
class AskedWork:
    """The fields of a form about work, read and checked.

    Attributes:
        kind: rebalance, failover, compaction or flush.
        add, remove, replicas: of a rebalance. dead, force, lose_data: of a failover. vbucket, hours: of a compaction.
    """

    kind: str
    add: tuple[Address, ...] = ()
    remove: tuple[Address, ...] = ()
    replicas: int | None = None
    dead: tuple[Address, ...] = ()
    force: bool = False
    lose_data: bool = False
    vbucket: int = 0
    hours: int = 0

    @classmethod
    def of(cls, kind: str, fields: Mapping[str, str], target: Target) -> AskedWork:
        """Read a form.

        Raises:
            OptionError: an invalid value of a field.
        """
        if kind == "rebalance":
            replicas = fields.get("replicas", "").strip()
            count = number_from("replicas", replicas, REPLICAS_MAX) if replicas else None
            add, remove = (addresses_of(name, fields.get(name, ""), target) for name in ("add", "remove"))
            return cls(kind, add=add, remove=remove, replicas=count)
        if kind == "failover":
            if not (dead := addresses_of("dead", fields.get("dead", ""), target)):
                raise OptionError("dead", "", "the address of the node that is dead")
            return cls(kind, dead=dead, force=bool(fields.get("force")), lose_data=bool(fields.get("lose_data")))
        if kind == "compaction":
            vbucket = number_from("vbucket", fields.get("vbucket", "").strip(), 1023)
            return cls(kind, vbucket=vbucket, hours=number_from("hours", fields.get("hours", "").strip(), HOURS_MAX))
        if kind == "flush":
            return cls(kind)
        raise OptionError("work", kind, "rebalance, failover, compaction or flush")

    @property
    def title(self) -> str:
        """The work in a few words."""
        if self.kind == "rebalance":
            parts = [f"add {each}" for each in self.add] + [f"remove {each}" for each in self.remove]
            parts += [f"{self.replicas} replicas"] * (self.replicas is not None)
            return f"Rebalance: {', '.join(parts) or 'spread evenly'}"
        if self.kind == "failover":
            return f"Failover of {', '.join(map(str, self.dead))}"
        if self.kind == "compaction":
            return f"Compaction, dropping tombstones of vbucket {self.vbucket} older than {self.hours} h"
        return "Flush: delete every document"

    def confirmation(self, bucket: str) -> str:
        """Return the words to type before it begins: the object that a slip would harm."""
        if self.kind == "failover":
            return " ".join(map(str, self.dead))
        return bucket if self.kind == "flush" else "yes"

    async def plan(self, members: Members, seeds: Sequence[Address]) -> Shown:
        """Return the plan, without changing anything.

        Raises:
            ClusterError, OptionError, TransportError, StatusError: it is impossible, and why.
        """
        if self.kind == "rebalance":
            return show_rebalance(await self._rebalance(members, seeds).plan())
        if self.kind == "failover":
            return show_failover(await self._failover(members, seeds).plan())
        if self.kind == "compaction":
            owner = await _owner(members, seeds, self.vbucket)
            sentence = "Its log is read and written anew where that frees room; requests go on. Readers that were away"
            sentence += " for longer than that begin again."
            uuids = await members.uuids([owner])
            return Shown(sentences=(f"{self.title}, on {owner}.", sentence), bucket=members.bucket, uuids=uuids)
        owners = [each async for each in _owners(members, seeds)]
        sentence = f"Every document of this bucket is deleted, on {', '.join(map(str, owners))}."
        more = "Streams and replicas see the deletions. There is no way back but a backup."
        return Shown(sentences=(sentence, more), bucket=members.bucket, uuids=await members.uuids(owners))

    async def run(self, members: Members, seeds: Sequence[Address], job: Job) -> Outcome:
        """Do the work, and report progress to `job`."""
        doing = {"rebalance": self._do_rebalance, "failover": self._do_failover, "compaction": self._do_compaction}
        return await doing.get(self.kind, self._do_flush)(members, seeds, job)

    def _rebalance(self, members: Members, seeds: Sequence[Address], job: Job | None = None) -> Rebalance:
        more: dict[str, Any] = {} if job is None else {"progress": job.step, "stopping": lambda: job.stopping}
        wanted: dict[str, Any] = {"add": self.add, "remove": self.remove, "replicas": self.replicas}
        return Rebalance(members, list(seeds), **wanted, **more)

    async def _do_rebalance(self, members: Members, seeds: Sequence[Address], job: Job) -> Outcome:
        after = await self._rebalance(members, seeds, job).run()
        if after is None:
            return "stopped", "stopped before all was done; ask for the same again, and it goes on"
        return "done", f"{job.total} vbuckets are where they belong, map {after.epoch}:{after.rev}"

    def _failover(self, members: Members, seeds: Sequence[Address]) -> Failover:
        return Failover(members, list(seeds), self.dead, force=self.force, lose_data=self.lose_data)

    async def _do_failover(self, members: Members, seeds: Sequence[Address], job: Job) -> Outcome:
        plan = await self._failover(members, seeds).run()
        losses = f"; {len(plan.losses)} of them may have lost changes" if plan.losses else ""
        return "done", f"{len(plan.promotions)} vbuckets promoted, {len(plan.anew)} begun anew{losses}"

    async def _do_compaction(self, members: Members, seeds: Sequence[Address], job: Job) -> Outcome:
        owner = await _owner(members, seeds, self.vbucket)
        job.now = f"{owner} compacts its log"
        await members.admin(owner).purge(self.vbucket, int(time.time()) - 3600 * self.hours)
        return "done", f"{owner} has compacted its log"

    async def _do_flush(self, members: Members, seeds: Sequence[Address], job: Job) -> Outcome:
        owners = [each async for each in _owners(members, seeds)]
        for job.done, owner in enumerate(owners):
            job.total, job.now = len(owners), f"{owner} deletes its documents"
            await members.admin(owner).flush()
        job.done = job.total
        return "done", f"{len(owners)} nodes have deleted their documents"


async def _owners(members: Members, seeds: Sequence[Address]) -> AsyncIterator[Address]:
    """Yield the nodes that have active vbuckets."""
    for address in await members.identified(seeds):
        if any(state.name == "ACTIVE" for state in (await members.admin(address).states()).values()):
            yield address


async def _owner(members: Members, seeds: Sequence[Address], vbucket: int) -> Address:
    async for address in _owners(members, seeds):
        states = await members.admin(address).states()
        if vbucket in states and states[vbucket].name == "ACTIVE":
            return address
    raise OptionError("vbucket", vbucket, "one that a node has active")


def number_from(name: str, text: str, most: int) -> int:
    """Read a field of a form; OptionError if it is not an integer up to `most`."""
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and int(text) <= most):
        raise OptionError(name, text[:40], f"a whole number from 0 to {most}")
    return int(text)


def addresses_of(name: str, text: str, target: Target) -> tuple[Address, ...]:
    """Read addresses separated by blanks or commas; with TLS the ports are those for TLS, as in the console's own URL.

    Raises:
        OptionError: one of them has a bucket or a login.
    """
    addresses: list[Address] = []
    for part in text.replace(",", " ").split():
        if set(part) & set("/@?"):
            raise OptionError(name, part, "host:port, without a bucket or a login")
        addresses += parse(("couchbases://" if target.tls is not None else "couchbase://") + part).seeds
    return tuple(dict.fromkeys(addresses))


class Foreman:
    """Plans and does the work of one console.

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
        """The work under way."""
        return next((job for job in self.jobs if job.state == "running"), None)

    async def plan(self, work: Work) -> Shown:
        """Return the plan of some work, without changing anything.

        Raises:
            ClusterError, OptionError, TransportError, StatusError: it is impossible, and why.
        """
        async with self._members() as members:
            return await work.plan(members, self._seeds())

    def begin(self, work: Work, ticket: str = "", plan: Shown | None = None) -> Job:
        """Begin work in the background; the ticket marks its form as used.

        Args:
            plan: as it was confirmed; the work reaches only the bucket that it is about.

        Raises:
            OptionError: other work is under way.
        """
        if (other := self.running) is not None:
            raise OptionError("work", work.title, f"begun once this has ended: {other.title}")
        job = Job(work.kind, work.title, time.time(), plan=plan)
        self.jobs.appendleft(job)
        if ticket:
            self._tickets.append(ticket)
        self._task = asyncio.create_task(self._run(job, work))
        return job

    def stop(self, id_: str) -> bool:
        """Stop work in order: a rebalance finishes its moves and begins no others. False if it is not under way."""
        if (job := self.running) is None or job.id != id_:
            return False
        job.stopping = True
        return True

    async def close(self) -> None:
        """Stop, and wait for the work for a while; work that is cut then continues when it is requested again."""
        if (job := self.running) is not None:
            self.stop(job.id)
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task], timeout=END_SECONDS)
            self._task.cancel()
            await asyncio.wait([self._task])

    # ------------------------------------------------------------------ doing it

    async def _run(self, job: Job, work: Work) -> None:
        try:
            async with self._members() as members:
                if job.plan is not None and job.plan.bucket:
                    members.of(job.plan.bucket).bind(job.plan.uuids)
                job.state, job.now = await work.run(members, self._seeds(), job)
        except HeadwaterError as error:
            job.state, job.now = "failed", plain(error)
        except BaseException:
            job.state, job.now = "failed", "it was cut; ask for the same again, and it goes on"
            raise
        finally:
            job.ended_at = time.time()


def show_rebalance(plan: Plan) -> Shown:
    """Return the plan of a rebalance: each node's vbuckets before and after, and the handovers."""
    copies, handed = plan.copies(), plan.handovers()
    rows = []
    for node in dict.fromkeys((*plan.before.servers, *plan.after.servers)):
        before, after = plan.before.held_by(node), plan.after.held_by(node)
        new = copies[node] + sum(move.target == node and node in move.copied_to for move in plan.moves)
        change = "joins" if node in plan.joining else "leaves" if node in plan.leaving else ""
        numbers = (len(before[0]), len(after[0]), len(before[1]), len(after[1]), new)
        rows.append((str(node), *(f"{number:,}" for number in numbers), change))
    sentences = [f"{source} hands {number:,} vbuckets over to {to}." for (source, to), number in sorted(handed.items())]
    sentences += [f"{node} deletes {len(vbs):,} vbuckets that it should not have." for node, vbs in plan.strays.items()]
    if not plan.settlement.is_settled:
        sentences.append("What an earlier run left open is settled first; the plan may change by that.")
    heading = ("node", "active", "then", "replicas", "then", "copied", "change")
    return Shown(heading, tuple(rows), tuple(sentences), plan.is_empty)


def show_failover(plan: FailoverPlan) -> Shown:
    """Return the plan of a failover: the vbuckets that each node takes over, and the losses."""
    promoted, anew = Counter(each.chosen for each in plan.promotions), Counter(plan.anew.values())
    rows = [
        (
            str(node),
            f"{len(plan.before.held_by(node)[0]):,}",
            f"{promoted[node]:,}",
            f"{anew[node]:,}",
            "" if node in plan.after.servers else "taken out",
        )
        for node in plan.before.servers
    ]
    sentences = ["What the dead node had acknowledged, and no replica had received yet, is lost."]
    sentences += [f"Accepted: {problem}." for problem in plan.accepted.values()]
    sentences += [
        f"vbucket {vb} of {each.chosen} {'; '.join(each.losses.values())}." for vb, each in plan.losses.items()
    ]
    return Shown(("node", "active", "promoted", "begun anew", "change"), tuple(rows), tuple(sentences), plan.is_empty)
