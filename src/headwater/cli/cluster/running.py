"""The shared part of the commands about several nodes: the names of nodes, and the start and stop of work on
them.

Ctrl-C (or SIGTERM, or a closed terminal) asks for an end: work under way finishes, no other begins. A second one ends
at once. In both cases the same command goes on from there when it is typed again, because all state is in the nodes.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import typer

from headwater.cli.forms import ask, forms, remark, report
from headwater.cli.options import Password, User
from headwater.cli.stopping import Stopped, signals
from headwater.cluster.work import WorkPlan
from headwater.errors import OptionError

if TYPE_CHECKING:
    from rich.table import Table

    from headwater.client.routing import Address
    from headwater.cluster.members import Members
    from headwater.tls.settings import TlsSettings

__all__ = ["Node", "Password", "User", "Yes", "addresses", "agreed", "run", "table_of"]


Result = TypeVar("Result")

Node = Annotated[
    str,
    typer.Argument(
        metavar="NODE",
        envvar="HEADWATER_NODE",
        help="A node of the cluster: host:port, or couchbase(s)://host:port/bucket.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before it begins.")]


class Place(NamedTuple):
    """The bucket, and the TLS settings of its nodes (None: without TLS)."""

    bucket: str
    tls: "TlsSettings | None"


def addresses(nodes: Sequence[str]) -> "tuple[list[Address], Place]":
    """Read nodes in the user's form; return addresses and the bucket, which must be the same for all, as must
    TLS.

    Raises: OptionError for an invalid address; typer.BadParameter for different buckets, or TLS for some only.
    """
    from headwater.client.routing import parse

    targets = [parse(node) for node in nodes]
    if with_user := [target for target in targets if target.user is not None]:
        raise OptionError("node", with_user[0].url, "without a name and a password here: --user and --password-file")
    buckets = {target.bucket for target in targets}
    if len(buckets) > 1:
        raise typer.BadParameter(f"the nodes name different buckets: {', '.join(sorted(buckets))}.")
    if len({target.tls for target in targets}) > 1:
        raise typer.BadParameter("the nodes say different things of TLS: couchbases:// and its parameters for all.")
    seeds = [seed for target in targets for seed in target.seeds]
    return list(dict.fromkeys(seeds)), Place(next(iter(buckets), "default"), targets[0].tls if targets else None)


FIRST_START_SECONDS = 60.0
"""The longest wait for an answer of a member at its first start: it may compile its kernels, as others do beside it."""
WAITED_SECONDS = 3.0
"""The time after which a node that owes an answer is named, and the interval at which it is named again."""


def run(
    work: "Callable[[Members, StopRequest], Awaitable[Result]]",
    place: Place,
    user: str | None,
    password: str | None,
    *,
    answer_seconds: float | None = None,
) -> Result:
    """Run work on the nodes of a bucket; raise `Stopped` if a signal ended it before there was a result (other than
    None).

    Args:
        answer_seconds: the longest wait for a connection, or an answer, of a node that may be starting; such nodes are
            named meanwhile. None: the longest time that running nodes need.
    """
    before = [(number, signal.getsignal(number)) for number in signals()]
    try:
        return asyncio.run(_run(work, place, user, password, answer_seconds))
    finally:
        for number, handler in before:
            signal.signal(number, handler)


class StopRequest:
    """The user's request to stop. `gently` is set by work that can finish its running parts; otherwise a signal cancels
    the work at once.
    """

    def __init__(self) -> None:
        self.signals: list[int] = []
        self.gently = False

    def __call__(self) -> bool:
        """Return True if no new part may begin."""
        return bool(self.signals)


async def _run(
    work: "Callable[[Members, StopRequest], Awaitable[Result]]",
    place: Place,
    user: str | None,
    password: str | None,
    answer_seconds: float | None,
) -> Result:
    from headwater.cluster.members import Members

    stop, loop, task = StopRequest(), asyncio.get_running_loop(), asyncio.current_task()

    def on_signal(number: int) -> None:
        stop.signals.append(number)
        if task is not None and (not stop.gently or len(stop.signals) > 1):
            task.cancel()

    for number in signals():
        loop.add_signal_handler(number, on_signal, number)
    try:
        patient = {} if answer_seconds is None else {"timeout_seconds": answer_seconds}
        async with Members(place.bucket, user, password, tls=place.tls, **patient) as members:
            result = await _run_reporting(work(members, stop), members, answer_seconds)
    except asyncio.CancelledError:
        if stop.signals:
            raise Stopped(stop.signals[0]) from None
        raise
    finally:
        for number in signals():
            loop.remove_signal_handler(number)
        await _end_the_others()
    if stop.signals and result is None:
        raise Stopped(stop.signals[0])
    return result


async def _run_reporting(work: Awaitable[Result], members: "Members", seconds: float | None) -> Result:
    """Run the work; with `seconds`, name the nodes that it waits for meanwhile."""
    if seconds is None:
        return await work
    telling = asyncio.create_task(_tell_of_waiting(members, seconds))
    try:
        return await work
    finally:
        telling.cancel()


async def _tell_of_waiting(members: "Members", seconds: float) -> None:
    while True:
        await asyncio.sleep(WAITED_SECONDS)
        for address, waited in members.waited_for(WAITED_SECONDS):
            remark(f"waiting for {address}, {waited:.0f} of {seconds:.0f} s: it may be starting")


async def _end_the_others() -> None:
    """End the other requests after one has failed: their own errors are no news, and asyncio would print them."""
    other_tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in other_tasks:
        task.cancel()
    await asyncio.gather(*other_tasks, return_exceptions=True)


def agreed(plan: WorkPlan, show: Callable[[WorkPlan], None], question: str, *, dry_run: bool, yes: bool) -> bool:
    """Show a plan and ask; return False if there is nothing to do, or the plan was only to be shown. A no ends the
    command.
    """
    if plan.is_empty:
        report("there is nothing to do", begun=False, **plan.facts)
        return False
    show(plan)
    if dry_run:
        if forms().json:
            report("", begun=False, **plan.facts)
        return False
    ask(question, yes)
    return True


def table_of(title: str, *columns: str) -> "Table":
    """Return a table with a line for each node: its address, then columns of numbers; it fits into 80 characters."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("node", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table
