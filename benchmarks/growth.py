"""Work whose size can be chosen, and how its cost grows: what benchmarks/scale.py measures and prints."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

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
        """The exponent of the growth from the second size to the third."""
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
        size: the first of the three sizes.
        limit: the largest exponent that is allowed.
        run: does the work at a size; returns the CPU seconds of the measured part, without its preparation.
    """

    name: str
    size: int
    limit: float
    run: Callable[[int], float]

    def measured(self) -> Growth:
        """Do the work REPETITIONS times at each of three sizes; return the least CPU seconds of each."""
        sizes = self.size, STEP * self.size, STEP * STEP * self.size
        first, middle, last = (min(self.run(size) for _ in range(REPETITIONS)) for size in sizes)
        return Growth(self.name, sizes, (first, middle, last), self.limit)
