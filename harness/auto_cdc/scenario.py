"""A bucket that is written, loses changes in failovers and is read into tables, all by a seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Protocol

from harness.auto_cdc.ledger import Ledger
from harness.nodes import keep, return_to
from headwater.testing.node import Node

VBUCKETS = 4
KEYS = 24


class Pipeline(Protocol):
    """Reads the bucket into the tables."""

    def update(self, changes_max: int | None = None, *, repeats: bool = False) -> None:
        """Bring the tables to the bucket's present state."""


@dataclass
class Scenario:
    """A run of some rounds; `ledger` is what was acknowledged.

    Attributes:
        taken_back: failovers that took back changes which the tables had.
    """

    bucket: Node
    pipeline: Pipeline
    seed: int
    ledger: Ledger = field(default_factory=Ledger)
    taken_back: int = 0
    _number: int = 0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)  # noqa: S311

    def run(self, rounds: int) -> None:
        """Write, fail over and update, so many times; the first failover takes back what the tables have."""
        self._write()
        self._update()
        for number in range(rounds):
            if number == 0 or self.random.random() < 0.6:
                self._fail_over(delivers=number == 0 or self.random.random() < 0.8)
            if self.random.random() < 0.5:
                self._write()
            if number == rounds - 1 or self.random.random() < 0.8:
                self._update()

    def _write(self) -> None:
        with self.bucket.client() as client:
            for number in self.random.sample(range(KEYS), self.random.randint(1, KEYS // 2)):
                key = f"k{number}"
                if key in self.ledger.now and self.random.random() < 0.3:
                    client.delete(key)
                    self.ledger.put(key, None)
                else:
                    self._number += 1
                    client.set(key, f"v{self._number}")
                    self.ledger.put(key, f"v{self._number}")

    def _update(self) -> None:
        changes_max = self.random.choice([None, None, 5])
        self.pipeline.update(changes_max, repeats=self.random.random() < 0.3)
        self.ledger.note_update(in_batches=changes_max is not None)

    def _fail_over(self, *, delivers: bool) -> None:
        kept: Path = keep(self.bucket)
        before = self.ledger.copy()
        self._write()
        if delivers:
            self._update()
            self.taken_back += 1
            if self.random.random() < 0.3:
                self._write()
        return_to(self.bucket, kept, VBUCKETS)
        self.ledger.return_to(before)
