"""Both judges of what the clients of many worlds saw: our own search spoke where a world ran, Porcupine is heard here.

    judges = BothJudges()
    judges.add(outcome)
    judges.finish()
    judges.counts, judges.disagreements, judges.missing

Histories are collected, since to start its process costs more than to judge one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from harness.linearizability.record import History
from harness.linearizability.second import NotBuilt, Word, verdicts_of
from harness.world.run import WorldOutcome

AT_ONCE = 64
KEY_SECONDS = 5.0
"""For Porcupine. Keys that take longer, with many answers that never came, are left undecided."""


def heard(histories: Sequence[History]) -> list[dict[str, Word]]:
    """Porcupine's verdicts; plain writes may be lost in a failover, as our own search has it."""
    return verdicts_of(histories, plain_may_be_lost=True, key_seconds=KEY_SECONDS)


class BothJudges:
    """Compares the verdicts about each key.

    Args:
        hear: the second judge.

    Attributes:
        counts: histories and keys that both have judged, and keys for which one of them gave up.
        disagreements: a line for each key about which they say different things, with its seed.
        missing: why the second judge is not heard; empty if it is.
    """

    def __init__(self, hear: Callable[[Sequence[History]], list[dict[str, Word]]] = heard) -> None:
        self.counts: Counter[str] = Counter()
        self.disagreements: list[str] = []
        self.missing = ""
        self._hear = hear
        self._waiting: list[WorldOutcome] = []

    def add(self, outcome: WorldOutcome) -> None:
        """Take the outcome of a world, if its history was judged: another promise may have been broken before."""
        if outcome.verdicts and not self.missing:
            self._waiting.append(outcome)
        if len(self._waiting) >= AT_ONCE:
            self.finish()

    def finish(self) -> None:
        """Hear the second judge about what is waiting."""
        waiting, self._waiting = self._waiting, []
        if not waiting or self.missing:
            return
        try:
            second = self._hear([each.judged for each in waiting])
        except NotBuilt as missing:
            self.missing = str(missing)
            return
        for outcome, verdicts in zip(waiting, second, strict=True):
            self.counts["histories"] += 1
            self._compare(outcome.plan.seed, outcome.verdicts, verdicts)

    def _compare(self, seed: int, first: Mapping[str, Word], second: Mapping[str, Word]) -> None:
        for key, mine in first.items():
            other = second.get(key, Word.UNKNOWN)
            if Word.UNKNOWN in {mine, other}:
                self.counts["undecided"] += 1
            elif mine is other:
                self.counts["keys"] += 1
            else:
                told = f"our search says {mine}, Porcupine says {other}"
                self.disagreements.append(f"seed {seed}, key {key}: {told}")

    def __str__(self) -> str:
        if self.missing:
            return f"one judge only: {self.missing}"
        found = self.counts
        return (
            f"{found['histories']:,} histories judged by both judges, {found['keys']:,} keys alike, "
            f"{found['undecided']:,} undecided, {len(self.disagreements)} disagreements"
        )
