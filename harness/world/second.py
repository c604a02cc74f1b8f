"""Both judges of the clients' histories of many worlds: our own search ran in each world, Porcupine runs here.

    judges = BothJudges()
    judges.add(outcome)
    judges.finish()
    judges.counts, judges.disagreements, judges.missing

Histories are collected, since the start of Porcupine's process costs more than judging one of them. It runs beside the
worlds: a key with many missing answers takes it seconds, in which nothing else would be done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from harness.linearizability.record import History
from harness.linearizability.second import NotBuilt, Word, verdicts_of
from harness.world.run import WorldOutcome

Firsts = Sequence[tuple[int, Mapping[str, Word]]]
"""For each world: its seed, and our own search's verdict about each key."""
AT_ONCE = 64
KEY_SECONDS = 5.0
"""Porcupine's time for a key. Keys that take longer, as many missing answers can cause, are left undecided."""


def heard(histories: Sequence[History]) -> list[dict[str, Word]]:
    """Return Porcupine's verdicts; plain writes may be lost in a failover, as in our own search."""
    return verdicts_of(histories, plain_may_be_lost=True, key_seconds=KEY_SECONDS)


class BothJudges:
    """A comparison of the two judges' verdicts about each key.

    Args:
        hear: the second judge.

    Attributes:
        counts: histories and keys that both have judged, and keys for which one of them gave up.
        disagreements: a line for each key about which they differ, with its seed.
        missing: why the second judge does not run; empty if it does.
    """

    def __init__(self, hear: Callable[[Sequence[History]], list[dict[str, Word]]] = heard) -> None:
        self.counts: Counter[str] = Counter()
        self.disagreements: list[str] = []
        self.missing = ""
        self._hear = hear
        self._waiting: list[WorldOutcome] = []
        self._thread = ThreadPoolExecutor(1)
        self._heard: list[tuple[Firsts, Future[list[dict[str, Word]]]]] = []

    def add(self, outcome: WorldOutcome) -> None:
        """Add the outcome of a world, if its history was judged: another promise may have been broken before."""
        if outcome.verdicts and not self.missing:
            self._waiting.append(outcome)
        if len(self._waiting) >= AT_ONCE:
            self._hand_over()

    def finish(self) -> None:
        """Judge all remaining histories, and wait for the verdicts."""
        self._hand_over()
        for firsts, seconds in self._heard:
            try:
                self._compare_all(firsts, seconds.result())
            except NotBuilt as missing:
                self.missing = str(missing)
        self._heard.clear()

    def _hand_over(self) -> None:
        if self._waiting:
            firsts = [(each.plan.seed, each.verdicts) for each in self._waiting]
            histories = [each.judged for each in self._waiting]
            self._waiting = []
            self._heard.append((firsts, self._thread.submit(self._hear, histories)))

    def _compare_all(self, firsts: Firsts, seconds: Sequence[Mapping[str, Word]]) -> None:
        for (seed, first), second in zip(firsts, seconds, strict=True):
            self.counts["histories"] += 1
            self._compare(seed, first, second)

    def _compare(self, seed: int, first: Mapping[str, Word], second: Mapping[str, Word]) -> None:
        for key, mine in first.items():
            other = second.get(key, Word.UNKNOWN)
            if Word.UNKNOWN in {mine, other}:
                self.counts["undecided"] += 1
            elif mine is other:
                self.counts["keys"] += 1
            else:
                line = f"our search says {mine}, Porcupine says {other}"
                self.disagreements.append(f"seed {seed}, key {key}: {line}")

    def __str__(self) -> str:
        if self.missing:
            return f"one judge only: {self.missing}"
        found = self.counts
        return (
            f"{found['histories']:,} histories judged by both judges, {found['keys']:,} keys alike, "
            f"{found['undecided']:,} undecided, {len(self.disagreements)} disagreements"
        )
