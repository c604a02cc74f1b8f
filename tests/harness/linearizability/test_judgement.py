"""Both judges of a history, and by which rules: what may be lost where a replica was promoted, and what never."""

from __future__ import annotations

import pytest

from harness.linearizability import judgement
from harness.linearizability.judgement import judged
from harness.linearizability.record import Fault, Kind, Level, Operation, Outcome
from harness.linearizability.second import NotBuilt
from tests.harness.linearizability.histories import did, failover, history


def lost(level: Level) -> list[Operation | Fault]:
    return [
        did(0, 1, Kind.SET, "a", level=level),
        did(2, 3, Kind.SET, "b", level=level),
        failover(4, 5),
        did(6, 7, Kind.GET, shows="a"),
    ]


def test_a_plain_write_may_be_lost_where_a_replica_was_promoted() -> None:
    found = judged(history(*lost(Level.NONE)))
    assert found.is_good and found.strict_keys == 0
    without = [each for each in lost(Level.NONE) if isinstance(each, Operation)]
    assert judged(history(*without)).violations == ["k"]


def test_a_durable_write_may_not() -> None:
    found = judged(history(*lost(Level.MAJORITY)))
    assert (found.violations, found.disagreements, found.strict_keys) == (["k"], [], 1)
    assert "nothing explains this answer" in found.reports[0]


def test_the_numbers_are_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise NotBuilt("there is no Go")

    monkeypatch.setattr(judgement, "verdicts", missing)
    found = judged(history(did(0, None, Kind.SET, "a"), did(1, 2, Kind.GET, outcome=Outcome.MISSING)))
    assert found.summary() == (
        "2 operations on 1 keys (1 judged strictly), 1 maybes, 0 violations, 0 undecided, "
        "0 disagreements of the judges; there is no Go"
    )


def test_judges_that_disagree_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judgement, "verdicts", lambda *_, **__: {"k": judgement.Word.ILLEGAL})
    found = judged(history(did(0, 1, Kind.SET, "a")))
    assert found.disagreements == ["k"] and not found.is_good
