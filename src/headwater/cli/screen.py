"""What commands draw: a console, progress bars, numbers as people read them. Plain lines where there is no terminal."""

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


def out() -> Console:
    """Results go to stdout. Made at each use, so that it is the stdout of now."""
    return Console(highlight=False, soft_wrap=True)


def err() -> Console:
    """Progress and remarks go to stderr, so that results can be piped."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def progress(console: Console) -> Progress:
    """A bar with a count, a rate (the task's field `rate`) and the time left; drawn only where there is a terminal."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def transfer(console: Console) -> Progress:
    """A bar for what goes from node to node: with the task's fields `rate` and `lag`."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[lag]}"),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def count(number: int) -> str:
    """336776 as `336,776`."""
    return f"{number:,}"


def rate(number: int, seconds: float, unit: str = "documents") -> str:
    """`84,000 documents/s`; a run too short to measure has no rate."""
    return f"{number / seconds:,.0f} {unit}/s" if seconds > 0 else f"- {unit}/s"
