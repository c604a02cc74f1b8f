"""`headwater move`: move vbuckets from one node to another, through this process."""

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headwater.cli import stopping
from headwater.cli.failures import CommandError
from headwater.cli.forms import answer, remark, report
from headwater.cli.options import (
    Concurrency,
    DryRun,
    Password,
    Patience,
    User,
    Vbuckets,
    check_count,
    endpoint,
    examples,
    vbucket_set,
)

if TYPE_CHECKING:
    from headwater.cluster.admin import Endpoint, NodeAdmin
    from headwater.cluster.mover import Moved, MoveEvent, Mover

PART = ("older", 30)
EXAMPLES = examples(
    "headwater move --from 10.0.0.1:11210 --to 10.0.0.2:11210 --vbuckets 0-511 --takeover",
    "headwater move --from a:11210/orders --to b:11210/orders --once",
    "headwater move --from a:11210 --to b:11210 --follow",
)
EXITS = {0: "all are moved or copied; --follow: Ctrl-C", 1: "a vbucket was not; typed again, it goes on"}
DRAW_SECONDS = 0.2


def move(
    source: Annotated[str, typer.Option("--from", metavar="NODE", help="Who has them: host:port or host:port/bucket.")],
    target: Annotated[str, typer.Option("--to", metavar="NODE", help="Who shall have them.")],
    vbuckets: Vbuckets = None,
    takeover: Annotated[bool, typer.Option("--takeover", help="Make the other node the owner.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow/--once", help="Without --takeover: go on copying changes, or end when level.")
    ] = False,
    concurrency: Concurrency = 4,
    delete: Annotated[bool, typer.Option("--delete/--keep", help="What becomes of the old owner's dead copy.")] = False,
    patience: Patience = 60.0,
    dry_run: DryRun = False,
    user: User = None,
    password: Password = None,
) -> None:
    """Copy vbuckets to another node, or let it take them over.

    All changes pass through this process. At every moment a vbucket has at most one owner; if this process, a node or
    the network fails half-way, type the same again: what was begun is found, and finished or taken back.

    Without --vbuckets: all that the first node owns. Ctrl-C lets the take-overs under way finish, then ends; --follow
    ends well by it.
    """
    if follow and takeover:
        raise typer.BadParameter("--follow and --takeover exclude each other.")
    ends = endpoint(source, user, password), endpoint(target, user, password)
    if ends[0].address == ends[1].address:
        raise typer.BadParameter("--from and --to are the same node.")
    work = MoveRun(*ends, takeover=takeover, follow=follow, concurrency=concurrency, delete=delete, patience=patience)
    if dry_run:
        stopping.run(work.look(vbucket_set(vbuckets)))
    elif follow:
        with stopping.until_stopped():
            stopping.run(work.run(vbucket_set(vbuckets)))
    else:
        stopping.run(work.run(vbucket_set(vbuckets)))


class MoveRun:
    """One run of the command."""

    def __init__(
        self,
        source: "Endpoint",
        target: "Endpoint",
        *,
        takeover: bool,
        follow: bool,
        concurrency: int,
        delete: bool,
        patience: float,
    ) -> None:
        self.source: Final = source
        self.target: Final = target
        self.takeover: Final = takeover
        self.follow: bool = follow
        self.delete: bool = delete
        self.concurrency: Final = concurrency
        self.patience: Final = patience
        self.done: int = 0
        self.problem: str = ""

    async def run(self, vbuckets: list[int] | None) -> None:
        """Move or copy the vbuckets, show the progress, and report the result."""
        from headwater.cluster.admin import NodeAdmin
        from headwater.cluster.mover import Mover
        from headwater.cluster.proxied import Limits

        async with await NodeAdmin.connect(self.source) as old, await NodeAdmin.connect(self.target) as new:
            await refuse_members(old, new, takeover=self.takeover)
            moving = await choose(old, new, vbuckets)
            await self._warn(old, moving)
            await self._tell_of_another(old)
            items = await old.items()
            total = sum(items.get(vb, 0) for vb in moving)
            limits = Limits(patience_seconds=self.patience)
            async with Mover(
                self.source, self.target, concurrency=self.concurrency, limits=limits, progress=self._note
            ) as mover:
                drawing = asyncio.create_task(self._draw(mover, moving, total))
                try:
                    began = time.monotonic()
                    outcomes = await asyncio.gather(
                        *(self._move(mover, old, vb) for vb in moving), return_exceptions=True
                    )
                    self._report(mover, outcomes, time.monotonic() - began)
                    if self.follow:
                        await self._go_on(mover, moving)
                finally:
                    drawing.cancel()

    async def look(self, vbuckets: list[int] | None) -> None:
        """Report the vbuckets to move and their documents, without changing anything."""
        from headwater.cli.screen import count, several
        from headwater.cluster.admin import NodeAdmin

        async with await NodeAdmin.connect(self.source) as old, await NodeAdmin.connect(self.target) as new:
            await refuse_members(old, new, takeover=self.takeover)
            moving = await choose(old, new, vbuckets)
            items = await old.items()
        documents = sum(items.get(vb, 0) for vb in moving)
        verb = "moved" if self.takeover else "copied"
        line = f"{several(len(moving), 'vbucket')} with {count(documents)} documents would be {verb}"
        answer(line, begun=False, takeover=self.takeover, vbuckets=moving, documents=documents)

    async def _tell_of_another(self, old: "NodeAdmin") -> None:
        """Report another mover between the two nodes: both would begin again and again."""
        from headwater.cluster.mover import copying_peer

        if (peer := await copying_peer(old, self.target)) is not None:
            remark(
                f"{peer} copies vbuckets from {self.source.address} to {self.target.address} already: two that do end "
                "each other's connections, and begin again; stop one of them"
            )

    async def _warn(self, old: "NodeAdmin", moving: list[int]) -> None:
        """Warn about a takeover of a part of the vbuckets: without a map no client finds both halves."""
        from headwater.cli.screen import several
        from headwater.wire.vbucket import State

        remaining = [vb for vb, state in (await old.states()).items() if state is State.ACTIVE and vb not in moving]
        if self.takeover and remaining and moving:
            remark(
                f"{self.source.address} keeps {several(len(remaining), 'vbucket')}, and no cluster map leads "
                "clients to both nodes: each finds what is on the node it was given. For one bucket on several nodes "
                "use headwater cluster init and headwater cluster rebalance."
            )

    async def _move(self, mover: "Mover", old: "NodeAdmin", vb: int) -> "Moved":
        from headwater.wire.vbucket import State

        result = await mover.move(vb, takeover=self.takeover)
        self.done += 1
        if self.delete and self.takeover and await old.state(vb) is State.DEAD:
            await old.delete(vb)
        return result

    async def _go_on(self, mover: "Mover", moving: list[int]) -> None:
        """Follow until stopped; begin a broken stream again."""
        while True:
            await asyncio.sleep(DRAW_SECONDS)
            if not mover.is_copying:
                await asyncio.gather(*(mover.move(vb, takeover=False) for vb in moving))

    def _note(self, event: "MoveEvent") -> None:
        self.problem = event.problem

    async def _draw(self, mover: "Mover", moving: list[int], total: int) -> None:
        from headwater.cli.meter import Meter
        from headwater.cli.screen import count

        with Meter("move", "changes") as meter:
            while True:
                changes, _ = mover.passed()
                lag = sum(mover.lags.values())
                note = f"{self.problem} " * bool(self.problem) + f"{count(lag)} behind"
                now = f"{self.done} of {len(moving)} vbuckets"
                changes_min = (
                    0 if self.done == len(moving) else total
                )  # of documents; the last of them may be deletions
                meter.show(changes, max(changes_min, changes + lag), name=now, note=note)
                await asyncio.sleep(DRAW_SECONDS)

    def _report(self, mover: "Mover", outcomes: list["Moved | BaseException"], seconds: float) -> None:
        from headwater.cli.screen import count, rate, several

        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        results = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        changes, _ = mover.passed()
        verb = "moved" if self.takeover else "copied"
        line = f"{several(len(results), 'vbucket')} {verb}, {count(changes)} changes in {seconds:.1f} s, "
        line += rate(changes, seconds, "changes")
        if gaps := sorted(result.ownerless_seconds for result in results if result.ownerless_seconds):
            median, longest = 1000 * gaps[len(gaps) // 2], 1000 * gaps[-1]
            line += f"; without an owner for {median:.0f} ms (median), {longest:.0f} ms at most"
        numbers = {"seconds": round(seconds, 3), "ownerless_seconds": max(gaps, default=0.0)}
        report(line, takeover=self.takeover, vbuckets=len(results), changes=changes, failed=len(failures), **numbers)
        if failures:
            raise CommandError(f"{len(failures)} of {len(outcomes)} vbuckets were not {verb}; the first: {failures[0]}")


async def refuse_members(old: "NodeAdmin", new: "NodeAdmin", *, takeover: bool) -> None:
    """Refuse nodes of a cluster for a takeover, and nodes whose collections contradict each other.

    The map decides about a cluster's vbuckets: a takeover without a new map would be undone. Nodes with contradicting
    collections must not exchange documents.
    """
    from headwater.client.routing import read_map
    from headwater.cluster.collections import refuse_strangers

    await refuse_strangers(old, new)

    for node in (old, new) if takeover else ():
        config = await node.config()
        if config and len(read_map(config, node.address).servers) > 1:
            raise CommandError(f"{node.address} belongs to a cluster; use headwater cluster rebalance {node.address}")


async def choose(old: "NodeAdmin", new: "NodeAdmin", vbuckets: list[int] | None) -> list[int]:
    """Return the vbuckets to move: the chosen ones, or all that the first node owns, or has begun to hand over."""
    from headwater.client.routing import read_map
    from headwater.wire.vbucket import State

    if vbuckets is not None:
        config = await old.config()
        if config:
            check_count(vbuckets, read_map(config, old.address).vbuckets)
        return vbuckets
    old_states, new_states = await asyncio.gather(old.states(), new.states())
    owned_vbuckets = {vb for vb, state in old_states.items() if state is State.ACTIVE}
    unfinished = {vb for vb, state in old_states.items() if state is State.DEAD and new_states.get(vb) is State.PENDING}
    return sorted(owned_vbuckets | unfinished)
