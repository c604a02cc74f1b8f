"""Measurements of a running demo: how many changes the node has, and how many of them the table holds.

Time begins with the load. The wait for the mirror's first batch is no lag: it is noted (`waited`) and left out of the
drawing; lag counts from the time at which the table was first level with the node.
"""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sample:
    """One look: seconds since the start, changes durable in the node, changes that reached the table."""

    seconds: float
    node_changes: int
    table_changes: int

    @property
    def lag(self) -> int:
        """The number of changes on the way."""
        return max(0, self.node_changes - self.table_changes)


@dataclass(slots=True)
class Samples:
    """All looks, in order, and the marks set between them (the crash, the end of the load).

    Attributes:
        waited: the beginning and end of the time in which the mirror was starting.
    """

    clock: Callable[[], float]
    rows: list[Sample] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)
    waited: tuple[float, float] | None = None
    began: float = 0.0

    def __post_init__(self) -> None:
        self.began = self.clock()

    def begin(self) -> None:
        """Start the clock, with nothing in node and table."""
        self.began = self.clock()
        self.add(0, 0)

    def drawn(self, seconds: float) -> float:
        """Return the place at which a moment is drawn: the wait for the mirror is as wide as one second."""
        if self.waited is None:
            return seconds
        began, ended = self.waited
        return min(seconds, began) + min(1.0, max(0.0, seconds - began)) + max(0.0, seconds - max(ended, began + 1.0))

    def seconds(self) -> float:
        """Return the time since the start."""
        return self.clock() - self.began

    def add(self, node_changes: int, table_changes: int) -> Sample:
        """Record one look, now."""
        sample = Sample(self.seconds(), node_changes, table_changes)
        self.rows.append(sample)
        return sample

    def mark(self, text: str) -> None:
        """Note that something happened now."""
        self.marks.append((self.seconds(), text))

    def rates(self) -> list[tuple[float, float, float]]:
        """Return (seconds, node changes/s, table changes/s) since the last look; the first batch counts from the
        beginning of the wait.
        """
        pairs = zip(self.rows, self.rows[1:], strict=False)
        return [
            (
                b.seconds,
                (b.node_changes - a.node_changes) / span,
                (b.table_changes - a.table_changes) / self._seconds_between(a, b),
            )
            for a, b in pairs
            if (span := b.seconds - a.seconds) > 0
        ]

    def _seconds_between(self, a: Sample, b: Sample) -> float:
        """Return the seconds over which the table's changes between two looks came."""
        came_first = self.waited is not None and a.table_changes == 0 < b.table_changes
        return b.seconds - (self.waited[0] if came_first and self.waited else a.seconds)

    def lag_seconds(self) -> list[tuple[float, float]]:
        """Return (seconds, age of the table's state at the node) for each look, once the two were level."""
        level = next((at for at, row in enumerate(self.rows) if row.table_changes and row.lag == 0), len(self.rows))
        return [(row.seconds, row.seconds - self._seconds_of_level(row.table_changes)) for row in self.rows[level:]]

    def _seconds_of_level(self, changes: int) -> float:
        """Return the time at which the node last held no more than `changes`."""
        times = [row.seconds for row in self.rows if row.node_changes <= changes]
        return times[-1] if times else 0.0
