"""The live table of `headwater observe`: rates of the newest window by prefix, and its hot keys."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headwater.cli.screen import count, out
from headwater.pipelines.jobs import ObserveProgress, Observer, losses_line

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Observer", "live", "table_of"]

PART = ("follow", 40)
ROWS = 20


@contextmanager
def live() -> Iterator[Callable[[ObserveProgress], None]]:
    """Yield the function that redraws the table, on a terminal."""
    from rich.live import Live

    with Live(console=out(), auto_refresh=False) as display:
        yield lambda progress: display.update(table_of(progress), refresh=True)


def table_of(progress: ObserveProgress) -> "Table":
    """Return the newest window as a table: the last closed one, or the open ones if none has closed yet."""
    from rich.table import Table

    window = progress.closed[-1] if progress.closed else progress.newest
    late = f"{count(progress.changes)} changes, {count(progress.late)} late, {count(progress.unclocked)} without a time"
    late = ", ".join([late, *losses_line(progress.data_loss, "so the rates lack them")])
    title = "nothing is written" if window is None else f"{window['window']}, {window['seconds']} s"
    table = Table(title=title, caption=progress.problem or late)
    table.add_column("prefix", no_wrap=True)
    for name in ("changes/s", "stored", "deleted", "expired", "expiring", "bytes/s", "largest"):
        table.add_column(name, justify="right", no_wrap=True)
    if window is not None:
        _fill(table, window)
    return table


def _fill(table: "Table", window: dict[str, Any]) -> None:
    seconds = window["seconds"]
    for prefix, counts in [*window.get("collections", {}).items(), *list(window["prefixes"].items())[:ROWS]]:
        changes = counts["stored"] + counts["deleted"] + counts["expired"]
        numbers = [counts[name] for name in ("stored", "deleted", "expired", "expiring")]
        rates = f"{changes / seconds:,.1f}", f"{counts['bytes'] / seconds:,.0f}"
        table.add_row(prefix or "(none)", rates[0], *map(count, numbers), rates[1], count(counts["largest"]))
    for hot in window["hot"]:
        table.add_row(f"  {hot['key']}", f"{hot['changes'] / seconds:,.1f}", count(hot["changes"]))
