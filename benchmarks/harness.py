"""Figures that can be relied on: side by side, in turn, and as medians.

A shared machine changes its speed by half from minute to minute, so an absolute figure says little. The measured code
and its reference (a memcpy of the same bytes, say) take turns within the same seconds, and a claim may rest on the
ratio of their medians.

    measure("decode, 256 B values", unit="M frames/s", amount=frames / 1e6, ours=decode, reference=("memcpy", copy))

prints `name: figure unit, reference figure, ratio`, and writes the same as a line of JSON to the file of `results_to`.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

Shown = TypeVar("Shown", bound=Any)

REPETITIONS = 9

_results: Path | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured rate.

    Attributes:
        figure: amount per second, median over the repetitions; `low` and `high` are the slowest and the fastest.
        reference: the name of the work that took turns with it; `reference_figure` is its rate.
        ratio: figure / reference_figure.
        target: the promised rate, None where none is promised.
    """

    name: str
    unit: str
    figure: float
    low: float
    high: float
    reference: str | None = None
    reference_figure: float | None = None
    ratio: float | None = None
    target: float | None = None

    def __str__(self) -> str:
        text = f"{self.name}: {self.figure:.4g} {self.unit} ({self.low:.4g} to {self.high:.4g})"
        if self.reference is not None:
            text += f", {self.reference} {self.reference_figure:.4g}, ratio {self.ratio:.2f}"
        if self.target is not None:
            text += f"; target {self.target:.4g}: {'met' if self.figure >= self.target else 'MISSED'}"
        return text


def results_to(path: Path | None) -> None:
    """Append every figure to this file as well, each as a JSON object on a line; None to stop."""
    global _results  # noqa: PLW0603 - one run, one file
    _results = path
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)


def seconds(run: Callable[[], object]) -> float:
    """Return how long one run takes, in seconds."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(
    name: str,
    *,
    unit: str,
    amount: float,
    ours: Callable[[], object],
    reference: tuple[str, Callable[[], object]] | None = None,
    target: float | None = None,
    repetitions: int = REPETITIONS,
) -> Figure:
    """Time `ours` and the reference in turn; print and return the rate in `amount` per second.

    Args:
        amount: how much of `unit` one run does, of ours and of the reference alike.
        reference: a name, and the function to run.
        target: the promised rate.
    """
    runs = [ours] if reference is None else [ours, reference[1]]
    for run in runs:
        run()  # compile, fault pages in, fill caches
    taken = list(zip(*[[seconds(run) for run in runs] for _ in range(repetitions)], strict=True))
    rates = [[amount / each for each in column] for column in taken]
    figure = statistics.median(rates[0])
    compared: tuple[str | None, float | None, float | None] = (None, None, None)
    if reference is not None:
        other = statistics.median(rates[1])
        compared = (reference[0], other, figure / other)
    return publish(Figure(name, unit, figure, min(rates[0]), max(rates[0]), *compared, target))


def publish(figure: Shown) -> Shown:
    """Print a figure, a dataclass, and append it to the file of `results_to`, if there is one; return the figure."""
    print(figure, flush=True)
    if _results is not None:
        with _results.open("a") as file:
            file.write(json.dumps(asdict(figure) | {"at": time.time()}) + "\n")
    return figure
