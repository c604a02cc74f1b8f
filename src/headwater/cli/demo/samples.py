"""Measurements of a running demo: how many changes the node has, and how many of them the table holds."""

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
        """Changes on the way."""
        return max(0, self.node_changes - self.table_changes)


@dataclass(slots=True)
class Samples:
    """All looks, in order, and the marks set between them (the crash, the end of the load)."""

    clock: Callable[[], float]
    rows: list[Sample] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)
    began: float = 0.0

    def __post_init__(self) -> None:
        self.began = self.clock()

    def seconds(self) -> float:
        """Time since the start."""
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
        """(seconds, node changes/s, table changes/s) between each look and the one before."""
        pairs = zip(self.rows, self.rows[1:], strict=False)
        return [
            (b.seconds, (b.node_changes - a.node_changes) / span, (b.table_changes - a.table_changes) / span)
            for a, b in pairs
            if (span := b.seconds - a.seconds) > 0
        ]

    def lag_seconds(self) -> list[tuple[float, float]]:
        """(seconds, how long ago the node had only what the table has) for each look."""
        return [(row.seconds, row.seconds - self._reached(row.table_changes)) for row in self.rows]

    def _reached(self, changes: int) -> float:
        """When the node last held no more than `changes`."""
        held = [row.seconds for row in self.rows if row.node_changes <= changes]
        return held[-1] if held else 0.0
