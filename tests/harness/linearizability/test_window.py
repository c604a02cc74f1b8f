"""The report of a violation is small, and a violation by itself."""

from __future__ import annotations

from hypothesis import given, settings

from harness.linearizability.judge import is_optional, judge_key
from harness.linearizability.model import Model
from harness.linearizability.record import History, Kind
from harness.linearizability.window import report, smallest
from tests.harness.linearizability.histories import KEY, changed_reads, did, failover, history, sequential

MODEL = Model(plain_may_be_lost=True)


def test_of_many_operations_those_remain_that_contradict_each_other() -> None:
    before = [did(at, at + 0.5, Kind.SET, f"v{at}", client=at % 4) for at in range(50)]
    reads = [did(at + 0.6, at + 0.9, Kind.GET, shows=f"v{at}") for at in range(50)]
    stale = did(60, 61, Kind.GET, shows="v48", client=3)
    part = history(*before, *reads, stale, did(70, 71, Kind.SET, "later"))
    search = smallest(part, MODEL, judge_key(part, MODEL, KEY))
    certain = [operation for operation in search.found.operations if not is_optional(operation)]
    assert search.unexplained == stale
    assert len(certain) <= 3
    text = report(part, MODEL, judge_key(part, MODEL, KEY))
    assert "nothing explains this answer" in text
    assert len(text.splitlines()) < 20


@given(sequential(length=15))
@settings(max_examples=50)
def test_what_is_told_is_a_violation_by_itself(part: History) -> None:
    for changed in changed_reads(part):
        search = smallest(changed, MODEL, judge_key(changed, MODEL, KEY))
        assert judge_key(search.found, MODEL, KEY, start=search.start).is_violation


def test_faults_are_told_as_well() -> None:
    part = history(did(0, 1, Kind.SET, "a"), failover(2, 3), did(4, 5, Kind.GET, shows="b"))
    assert "failover" in report(part, MODEL, judge_key(part, MODEL, KEY))
