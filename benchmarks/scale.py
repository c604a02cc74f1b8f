"""How cost grows: CPU seconds of the same work at sizes x1, x4 and x16, and the exponent; `make bench-scale`.

    python -m benchmarks.scale [NAME ...]

    collections: 64, 256, 1024 in 64 vbuckets: 0.060, 0.232, 0.910 CPU s; exponent 0.99, at most 1.1: met

The exponent is that of the last step, log(cost x16 / cost x4) / log 4: what does not grow weighs least there. 1 is
linear. A limit of 1.1 is for work that has to be linear, 0.1 for work that has to cost the same at every size. The
figure of a size is the least of REPETITIONS runs: other work on a machine makes a run dearer, never cheaper.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.harness import publish

REPETITIONS = 3
STEP = 4
LINEAR, CONSTANT = 1.1, 0.1


@dataclass(frozen=True, slots=True)
class Growth:
    """The CPU seconds of one kind of work at three sizes."""

    name: str
    sizes: tuple[int, int, int]
    seconds: tuple[float, float, float]
    limit: float

    @property
    def exponent(self) -> float:
        """Of the step from the second size to the third."""
        _, middle, last = self.seconds
        return math.log(last / middle) / math.log(STEP)

    def __str__(self) -> str:
        sizes = ", ".join(f"{size:,}" for size in self.sizes)
        seconds = ", ".join(f"{each:.4f}" for each in self.seconds)
        judged = "met" if self.exponent <= self.limit else "MISSED"
        return f"{self.name}: {sizes}: {seconds} CPU s; exponent {self.exponent:.2f}, at most {self.limit}: {judged}"


@dataclass(frozen=True, slots=True)
class Axis:
    """Work whose size can be chosen.

    Attributes:
        name: what grows, and where.
        size: the first of the three.
        limit: of the exponent.
        run: does the work at a size; returns the CPU seconds of what is measured, without its preparation.
    """

    name: str
    size: int
    limit: float
    run: Callable[[int], float]

    def measured(self) -> Growth:
        """Do the work at each size."""
        sizes = self.size, STEP * self.size, STEP * STEP * self.size
        first, middle, last = (min(self.run(size) for _ in range(REPETITIONS)) for size in sizes)
        return Growth(self.name, sizes, (first, middle, last), self.limit)


def axes() -> dict[str, Axis]:
    """All of them, by a short name."""
    from benchmarks import scale_axes  # noqa: PLC0415 - `--help` needs none of it

    return scale_axes.AXES


def main(arguments: list[str] | None = None) -> int:
    """Measure what was named, or all; 1 where an exponent is over its limit."""
    known = axes()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description="Measure how cost grows with size.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; all unless given")
    names = parser.parse_args(arguments).names or list(known)
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"nothing is called {', '.join(unknown)}; there are {', '.join(known)}")
    found = [publish(known[name].measured()) for name in names]
    return int(any(each.exponent > each.limit for each in found))


if __name__ == "__main__":
    sys.exit(main())
