"""`headwater observe`: what is written to a bucket, by prefix and window: a live table, lines, JSON, Parquet."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.options import (
    Bucket,
    ChosenCollections,
    ChosenScope,
    Engine,
    EngineName,
    Loss,
    OnDataLoss,
    Password,
    Retry,
    User,
    check_answers,
    examples,
    source_options,
)
from headwater.cli.reporting import MetricsPort, ProgressFormat, ProgressOption, metered, reporter
from headwater.cli.screen import count, out
from headwater.cli.stopping import asked
from headwater.pipelines.jobs import losses_line

if TYPE_CHECKING:
    from rich.table import Table

    from headwater.pipelines.observe import ObserveProgress

EXAMPLES = examples(
    "headwater observe couchbase://127.0.0.1:11210/default",
    "headwater observe couchbase://10.0.0.7/users --window 60 --delay 30 --to ./users-rates --checkpoint ./users-state",
    "headwater observe couchbase://10.0.0.7/users --separator / --depth 2 --keys-only --progress json",
    "headwater observe couchbase://10.0.0.7/store --collections all",
)
ROWS = 20


class Since(StrEnum):
    """The place to begin at without a checkpoint."""

    LATEST = "latest"
    EARLIEST = "earliest"


From = Annotated[
    Since | None,
    typer.Option("--from", help="Without a checkpoint: latest, what is written from now on; with --once earliest."),
]


def observe(
    url: Bucket,
    window: Annotated[int, typer.Option("--window", min=1, metavar="SECONDS", help="Length of a window.")] = 10,
    delay: Annotated[
        int, typer.Option("--delay", min=0, metavar="SECONDS", help="How long a window waits for what comes late.")
    ] = 5,
    separator: Annotated[str, typer.Option("--separator", metavar="TEXT", help="Ends the prefix of a key.")] = ":",
    depth: Annotated[int, typer.Option("--depth", min=1, metavar="N", help="Separators in a prefix.")] = 1,
    hot: Annotated[int, typer.Option("--hot", min=0, max=100, metavar="N", help="Hottest keys to tell.")] = 10,
    keys_only: Annotated[
        bool, typer.Option("--keys-only", help="Let no value leave a node; sizes are those of keys then.")
    ] = False,
    to: Annotated[
        str | None, typer.Option("--to", metavar="DIR", help="Keep closed windows there, as Parquet; or a URL.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", metavar="DIR", help="Go on from there, if ended, another time.")
    ] = None,
    since: From = None,
    collections: ChosenCollections = None,
    scope: ChosenScope = None,
    engine: Engine = EngineName.SPARK,
    once: Annotated[bool, typer.Option("--once", help="End when all changes of now are counted.")] = False,
    on_data_loss: Loss = OnDataLoss.WARN,
    retry: Retry = None,
    shown: ProgressOption = ProgressFormat.TEXT,
    metrics: MetricsPort = None,
    user: User = None,
    password: Password = None,
) -> None:
    """Count what is written to a bucket in windows of time, by prefix of the key: stores, deletions, expirations,
    bytes, and the keys that change most.

    Of the default collection, unless others are chosen; then prefixes and keys stand behind the name of their
    collection, and rates are told for each collection too.

    A terminal shows a live table; elsewhere each window that closes is a line for each prefix. Time is that of the
    changes' CAS, the nodes' clock.
    """
    check_answers(url, user, password, retry, collections=collections, scope=scope)
    from headwater.pipelines import observe as pipeline
    from headwater.pipelines.windows import WindowRules

    begin = since.value if since else None
    reading = source_options(user, password, on_data_loss, startingOffsets=begin, collections=collections, scope=scope)
    with asked(has_end=once) as stop, _watching(shown) as tell, metered("observe", metrics, tell) as told:
        pipeline.observe(
            url,
            to=to,
            checkpoint=checkpoint,
            rules=WindowRules(window, delay, separator, depth, hot=hot),
            sizes=not keys_only,
            engine=engine.value,
            once=once,
            reading=reading,
            retry_seconds=retry,
            stop=stop,
            **told,
        )


@contextmanager
def _watching(shown: ProgressFormat) -> "Iterator[Callable[[ObserveProgress], None]]":
    """Yield the function that shows progress: a table that is drawn anew, on a terminal."""
    console = out()
    if shown is not ProgressFormat.TEXT or not console.is_terminal:
        lines = reporter(shown, lines_of)
        yield lambda progress: lines(progress) if progress.closed or progress.problem or shown != "text" else None
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        yield lambda progress: live.update(table_of(progress), refresh=True)


def lines_of(progress: "ObserveProgress") -> str:
    """Return a line for each prefix of the windows that a batch closed, and one for their hot keys."""
    lines = losses_line(progress.data_loss, "so the rates lack them")
    return "\n".join([*lines, *(line for told in progress.closed for line in _lines(told))])


def _lines(told: dict[str, Any]) -> Iterator[str]:
    for name, counts in (*told.get("collections", {}).items(), *told["prefixes"].items()):
        numbers = ", ".join(f"{count(counts[kind])} {kind}" for kind in ("stored", "deleted", "expired", "bytes"))
        yield f"{told['window']}  {name or '(none)'}  {numbers}"
    if told["hot"]:
        yield f"{told['window']}  hot: " + ", ".join(f"{hot['key']} {count(hot['changes'])}" for hot in told["hot"])


def table_of(progress: "ObserveProgress") -> "Table":
    """Return the newest window as a table: the last that closed, or what is open if none did yet."""
    from rich.table import Table

    told = progress.closed[-1] if progress.closed else progress.newest
    late = f"{count(progress.changes)} changes, {count(progress.late)} late, {count(progress.unclocked)} without a time"
    late = ", ".join([late, *losses_line(progress.data_loss, "so the rates lack them")])
    title = "nothing is written" if told is None else f"{told['window']}, {told['seconds']} s"
    table = Table(title=title, caption=progress.problem or late)
    table.add_column("prefix", no_wrap=True)
    for name in ("changes/s", "stored", "deleted", "expired", "expiring", "bytes/s", "largest"):
        table.add_column(name, justify="right", no_wrap=True)
    if told is not None:
        _fill(table, told)
    return table


def _fill(table: "Table", told: dict[str, Any]) -> None:
    seconds = told["seconds"]
    for prefix, counts in [*told.get("collections", {}).items(), *list(told["prefixes"].items())[:ROWS]]:
        changes = counts["stored"] + counts["deleted"] + counts["expired"]
        numbers = [counts[name] for name in ("stored", "deleted", "expired", "expiring")]
        rates = f"{changes / seconds:,.1f}", f"{counts['bytes'] / seconds:,.0f}"
        table.add_row(prefix or "(none)", rates[0], *map(count, numbers), rates[1], count(counts["largest"]))
    for hot in told["hot"]:
        table.add_row(f"  {hot['key']}", f"{hot['changes'] / seconds:,.1f}", count(hot["changes"]))
