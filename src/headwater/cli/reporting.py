"""The progress of a job that runs until it is ended: after each batch a line for people, a JSON object, or nothing."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import typer

from headwater.cli.forms import remark
from headwater.errors import OptionError, OutputLost

if TYPE_CHECKING:
    from headwater.pipelines.attempts import Progress

PORT_MAX = 65535

P = TypeVar("P", bound="Progress")


class ProgressFormat(StrEnum):
    """The form of the printed progress."""

    TEXT = "text"
    JSON = "json"
    NONE = "none"


ProgressOption = Annotated[
    ProgressFormat, typer.Option("--progress", help="A line for people or one JSON object for each batch, or nothing.")
]

MetricsPort = Annotated[
    str | None,
    typer.Option(
        "--metrics-port", metavar="[HOST:]PORT", help="Serve metrics for Prometheus; 0: on a port that is free."
    ),
]


@contextmanager
def metered(job: str, address: str | None, report: Callable[[P], None]) -> Iterator[dict[str, Any]]:
    """Yield a job's `progress` and `watch`; with an address, a port of 127.0.0.1 or HOST:PORT, its metrics are made of
    both and served there.

    Raises: OptionError.
    """
    if address is None:
        yield {"progress": report}
        return
    from headwater.pipelines.metrics import JobMetrics, served

    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > PORT_MAX:
        raise OptionError("metrics-port", address, "a port, or HOST:PORT")
    metrics, host = JobMetrics(job), host or "127.0.0.1"
    with served(metrics, host, int(port)) as server:
        remark(f"metrics at http://{host}:{server}/metrics")
        yield {"progress": metrics.counting(report), "watch": metrics}


def _print(line: str) -> None:
    """Print a line; raise OutputLost if it can't be printed, which a job must not take for a failure that may
    pass.

    Raises: OutputLost.
    """
    try:
        typer.echo(line)
    except OSError as error:
        raise OutputLost(error.strerror or str(error)) from error


class IdleRun(Generic[P]):
    """Reports a run of `--once` without a batch, which would otherwise look as if it had failed.

    Args:
        line: makes the text of a batch.
        reason: the reason why it had nothing to do; "" to report none.
    """

    def __init__(self, line: Callable[[P], str], reason: str) -> None:
        self._line_of, self._reason, self._batches = line, reason, 0
        self._last_line: object = None

    def line(self, progress: P) -> str:
        """Return the line of a batch; an empty one for a batch that moved positions only, as the last of
        `--once` may.
        """
        self._batches += 1
        before, self._last_line = self._last_line, progress.to_json() | {"batch": 0, "batches": 0, "seconds": 0}
        return "" if self._last_line == before else self._line_of(progress)

    def tell(self, form: ProgressFormat, *, unless: bool) -> None:
        """Report on stderr that there was nothing to do, if there was no batch and progress is text."""
        if self._reason and not (unless or self._batches) and form is ProgressFormat.TEXT:
            remark(f"nothing to do: {self._reason}")


def reporter(form: ProgressFormat, line: Callable[[P], str]) -> Callable[[P], None]:
    """Return the function that prints a job's progress; `line` makes the text of a successful batch, "" for none."""

    def text(progress: P) -> None:
        if progress.problem:
            remark(f"{progress.problem}; trying again")
        elif message := line(progress):
            _print(message)

    return {
        ProgressFormat.TEXT: text,
        ProgressFormat.JSON: lambda progress: _print(json.dumps(progress.to_json())),
        ProgressFormat.NONE: lambda progress: None,
    }[form]
