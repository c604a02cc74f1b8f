"""`headwater replicate`: let one node follow another, by calls of its own."""

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli import stopping
from headwater.cli.failures import CommandError
from headwater.cli.forms import answer, report
from headwater.cli.options import DryRun, Password, User, Vbuckets, endpoint, examples, vbucket_set

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headwater.cluster.admin import Endpoint, NodeAdmin

PART = ("older", 20)
EXAMPLES = examples(
    "headwater replicate 10.0.0.1:11210 10.0.0.2:11210",
    "headwater replicate a:11210/orders b:11210/orders --vbuckets 0-511 --once",
    "headwater replicate a:11210 b:11210 --stop",
)
EXITS = {0: "--once or --stop: done; else Ctrl-C, and the node goes on following", 1: "the node can't follow"}
POLL_SECONDS = 0.2
PATIENCE_SECONDS = 30.0


def replicate(
    source: Annotated[str, typer.Argument(metavar="A", help="Who is followed: host:port or host:port/bucket.")],
    target: Annotated[str, typer.Argument(metavar="B", help="Who follows.")],
    vbuckets: Vbuckets = None,
    once: Annotated[bool, typer.Option("--once", help="Until B has what A has now; then it follows no more.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="B follows no more; what it has stays.")] = False,
    dry_run: DryRun = False,
    user: User = None,
    password: Password = None,
) -> None:
    """Let node B follow node A: its vbuckets become replicas of A's, and B itself calls A for changes.

    Shows how far B is. Ctrl-C leaves B following; --stop ends that. Without --vbuckets: all that A owns.
    """
    ends = endpoint(source, user, password), endpoint(target, user, password)
    if ends[0].address == ends[1].address:
        raise typer.BadParameter("A and B are the same node.")
    numbers_ = vbucket_set(vbuckets)
    if stop:
        stopping.run(_stop(*ends, numbers_))
        return
    if dry_run:
        stopping.run(_look_up(*ends, numbers_))
        return
    try:
        stopping.run(_replicate(*ends, numbers_, once=once))
    except stopping.Stopped:
        report(f"{ends[1]} goes on following {ends[0]}; --stop ends that", following=True)


async def _stop(source: "Endpoint", target: "Endpoint", vbuckets: list[int] | None) -> None:
    from headwater.cluster.admin import NodeAdmin

    async with await NodeAdmin.connect(target) as node:
        if not await node.stop_replicating(source, vbuckets):
            raise CommandError(f"{target} does not follow {source}")
    report(f"{target} follows {source} no more", following=False)


async def _look_up(source: "Endpoint", target: "Endpoint", numbers: list[int] | None) -> None:
    """Report the vbuckets that would be followed, and the node's present part of them, without changing anything."""
    from headwater.cli.screen import count, several
    from headwater.cluster.admin import NodeAdmin
    from headwater.cluster.collections import refuse_strangers

    async with await NodeAdmin.connect(source) as old, await NodeAdmin.connect(target) as new:
        await refuse_strangers(old, new)
        seqnos_owned, own_seqnos = await _seqnos_to_follow(old, source, numbers), await new.seqnos()
    lag = sum(max(0, seqno - own_seqnos.get(vb, 0)) for vb, seqno in seqnos_owned.items())
    line = (
        f"{target} would follow {several(len(seqnos_owned), 'vbucket')} of {source}; it is {count(lag)} changes behind"
    )
    answer(line, following=False, vbuckets=sorted(seqnos_owned), behind=lag)


async def _seqnos_to_follow(old: "NodeAdmin", source: "Endpoint", numbers: list[int] | None) -> dict[int, int]:
    """Return the vbuckets to follow and their seqnos; raises CommandError for one that is not owned."""
    seqnos_owned = await _owned_seqnos(old)
    if foreign := set(numbers or ()) - set(seqnos_owned):
        raise CommandError(f"{source} does not own vbucket {min(foreign)}, nor {len(foreign) - 1} others asked for")
    return {vb: seqno for vb, seqno in seqnos_owned.items() if numbers is None or vb in numbers}


async def _owned_seqnos(old: "NodeAdmin") -> dict[int, int]:
    """Return the seqnos of all vbuckets that a node owns. A node that has just started does not know them all yet, and
    would be followed only in part.
    """
    from headwater.errors import TemporaryFailure
    from headwater.wire.vbucket import State

    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return await old.seqnos(State.ACTIVE)
        except TemporaryFailure:
            if time.monotonic() >= until:
                raise
        await asyncio.sleep(POLL_SECONDS)


async def _replicate(source: "Endpoint", target: "Endpoint", numbers: list[int] | None, *, once: bool) -> None:
    from headwater.cluster.admin import NodeAdmin
    from headwater.cluster.collections import refuse_strangers

    async with await NodeAdmin.connect(source) as old, await NodeAdmin.connect(target) as new:
        await refuse_strangers(old, new)
        numbers_ = sorted(await _seqnos_to_follow(old, source, numbers))
        await new.replicate(source, numbers_)
        changes, seconds = await FollowingWatch(old, new, numbers_).watch(once=once)
        await new.stop_replicating(source, numbers_)
    from headwater.cli.screen import count, several

    level = several(len(numbers_), "vbucket")
    summary = {"vbuckets": len(numbers_), "changes": changes, "seconds": round(seconds, 3)}
    report(
        f"{level} level, {count(changes)} changes in {seconds:.1f} s; {target} follows no more",
        following=False,
        **summary,
    )


class FollowingWatch:
    """Watches the lag of one node behind the other, in seqnos."""

    def __init__(self, old: "NodeAdmin", new: "NodeAdmin", vbuckets: list[int]) -> None:
        self._old, self._new, self._vbuckets = old, new, vbuckets

    async def watch(self, *, once: bool) -> tuple[int, float]:
        """Show the lag until stopped, or until level with the state at the beginning; return the changes and the
        seconds.

        Raises:
            CommandError: the node can't follow, for longer than patience lasts.
        """
        from headwater.cli.meter import Meter
        from headwater.cli.screen import count, several

        began = good = time.monotonic()
        first, goal = await self._new.seqnos(), await self._old.seqnos()
        with Meter(several(len(self._vbuckets), "vbucket"), "changes") as meter:
            while True:
                own_seqnos, source_seqnos, problem = await self._look_up()
                got = sum(own_seqnos.get(vb, 0) - first.get(vb, 0) for vb in self._vbuckets)
                lag = sum(max(0, source_seqnos.get(vb, 0) - own_seqnos.get(vb, 0)) for vb in self._vbuckets)
                now = time.monotonic()
                good = good if problem else now
                if now - good > PATIENCE_SECONDS:
                    raise CommandError(f"{self._new.address} can't follow {self._old.address}: {problem}")
                line = f"{problem} " * bool(problem) + f"{count(lag)} behind"
                meter.show(max(got, 0), max(got, 0) + lag, note=line)
                # A copy within a snapshot has the high seqno and lacks keys: it must be complete up to there as well.
                if (
                    once
                    and not problem
                    and self._has_reached(own_seqnos, goal)
                    and self._has_reached(await self._new.complete(), goal)
                ):
                    return max(got, 0), now - began
                await asyncio.sleep(POLL_SECONDS)

    def _has_reached(self, seqnos: dict[int, int], goal: dict[int, int]) -> bool:
        return all(seqnos.get(vb, 0) >= goal.get(vb, 0) for vb in self._vbuckets)

    async def _look_up(self) -> tuple[dict[int, int], dict[int, int], str]:
        own_seqnos, source_seqnos = await asyncio.gather(self._new.seqnos(), self._old.seqnos())
        report = (await self._new.replication()).get(str(self._old.endpoint))
        return (
            own_seqnos,
            source_seqnos,
            "not begun" if report is None else report.problem or self._refusal_text(report.problems),
        )

    def _refusal_text(self, problems: "Mapping[int, str]") -> str:
        """Return the reason why the first of our vbuckets without a stream was refused."""
        return next((f"vbucket {vb}: {problems[vb]}" for vb in self._vbuckets if vb in problems), "")
