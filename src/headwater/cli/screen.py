"""The output of commands: a console, progress bars, readable numbers. Plain lines where there is no terminal."""

from typing import TYPE_CHECKING

from headwater.cli.forms import forms
from headwater.counting import several

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

__all__ = ["count", "err", "out", "progress", "rate", "several"]


def out() -> "Console":
    """Return the console on stdout, for results for people; made at each use, so that it has the present stdout."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True, quiet=forms().json or forms().quiet)


def err() -> "Console":
    """Return the console on stderr, for progress and remarks, so that results can be piped."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True, quiet=forms().quiet)


def progress(console: "Console", *fields: str) -> "Progress":
    """Return a bar with a count, the task's `fields`, the elapsed time and the time left; drawn only on a terminal.
    Output of the command to stdout stays there meanwhile, and does not go to the bar's stderr.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *(TextColumn(f"{{task.fields[{name}]}}") for name in fields),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=console,
        redirect_stdout=False,
        disable=console.quiet or not console.is_terminal,
    )


def count(number: int) -> str:
    """Return 336776 as `336,776`."""
    return f"{number:,}"


def rate(number: int, seconds: float, unit: str = "documents") -> str:
    """Return `84,000 documents/s` or `0.4 documents/s`; a run too short to measure has no rate."""
    if seconds <= 0:
        return f"- {unit}/s"
    a_second = number / seconds
    return f"{a_second:,.{int(0 < a_second < 10)}f} {unit}/s"
