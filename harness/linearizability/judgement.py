"""Both judges of a history, by the rules that apply to it.

    judgement = judged(history)
    print(judgement.summary())
    for report in judgement.reports: print(report)

Where a replica was promoted, plain writes may be lost: the model `plain`. Keys whose changes were all durable writes
are judged strictly all the same, and so is every key of a history without a promotion.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from harness.linearizability.judge import judge
from harness.linearizability.model import Model
from harness.linearizability.record import FaultKind, History, Kind, Outcome
from harness.linearizability.second import NotBuilt, Word, verdicts
from harness.linearizability.window import report

__all__ = ["Judgement", "judged"]

CHANGES = frozenset(Kind) - {Kind.GET, Kind.GET_AND_LOCK, Kind.UNLOCK}


@dataclass(slots=True)
class Judgement:
    """The judges' findings.

    Attributes:
        operations, maybes, keys: how many there were. strict_keys: how many keys were judged strictly.
        violations: keys that no order explains. undecided: keys for which a judge gave up.
        disagreements: keys for which the judges differ. reports: for people, one for each violation.
        porcupine: why the second judge did not run; empty if it did.
    """

    operations: int = 0
    maybes: int = 0
    keys: int = 0
    strict_keys: int = 0
    violations: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    disagreements: list[str] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    porcupine: str = ""

    @property
    def is_good(self) -> bool:
        """True if both judges find an order for every key."""
        return not self.violations and not self.disagreements

    def summary(self) -> str:
        """Return the numbers, in a line."""
        second = f"; {self.porcupine}" if self.porcupine else ""
        return (
            f"{self.operations:,} operations on {self.keys} keys ({self.strict_keys} judged strictly), "
            f"{self.maybes:,} maybes, {len(self.violations)} violations, {len(self.undecided)} undecided, "
            f"{len(self.disagreements)} disagreements of the judges{second}"
        )


def judged(history: History, *, with_porcupine: bool = True) -> Judgement:
    """Judge all keys of a history, each by its rules.

    Args:
        with_porcupine: False to leave the second judge out.
    """
    judgement = Judgement(len(history.operations), keys=len(history.keys))
    judgement.maybes = sum(operation.outcome is Outcome.MAYBE for operation in history.operations)
    loses = any(fault.kind is FaultKind.FAILOVER for fault in history.faults)
    strict = {key for key in history.keys if not loses or _is_durable(history, key)}
    judgement.strict_keys = len(strict)
    for is_plain in (False, True):
        part = replace(
            history,
            operations=tuple(
                operation for operation in history.operations if (operation.key in strict) is not is_plain
            ),
        )
        if part.operations:
            _judge_part(part, Model(is_plain, history.clock_error_seconds), judgement, with_porcupine=with_porcupine)
    return judgement


def _is_durable(history: History, key: str) -> bool:
    """Return True if all changes of a key were durable writes."""
    return all(
        operation.argument.level
        for operation in history.operations
        if operation.key == key and operation.kind in CHANGES
    )


def _judge_part(part: History, model: Model, judgement: Judgement, *, with_porcupine: bool) -> None:
    second: dict[str, Word] = {}
    if with_porcupine and not judgement.porcupine:
        try:
            second = verdicts(part, plain_may_be_lost=model.plain_may_be_lost)
        except NotBuilt as missing:
            judgement.porcupine = str(missing)
    for verdict in judge(part, model):
        other = second.get(verdict.key, Word.UNKNOWN)
        if verdict.is_violation:
            judgement.violations.append(verdict.key)
            judgement.reports.append(report(part.of(verdict.key), model, verdict))
        elif verdict.is_undecided and other is Word.ILLEGAL:
            judgement.violations.append(verdict.key)
            judgement.reports.append(f"key {verdict.key}: Porcupine finds no order, our search was given up")
        if verdict.is_undecided or (second and other is Word.UNKNOWN):
            judgement.undecided.append(verdict.key)
        elif second and (other is Word.ILLEGAL) is not verdict.is_violation:
            judgement.disagreements.append(verdict.key)
