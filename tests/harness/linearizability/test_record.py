"""Histories: how they are noted, what an answer's status says, and that nothing is lost on the way through a file."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.linearizability.record import (
    CAS_OF_LOCKED,
    Argument,
    Fault,
    FaultKind,
    History,
    Kind,
    Level,
    Operation,
    Outcome,
    Recorder,
    Result,
    from_lines,
    outcome_of,
    result_of,
    text_of,
    to_lines,
)
from headwater.wire.status import Status

NUMBERS = st.integers(0, 2**64 - 1)
TIMES = st.floats(0, 2e9)
ARGUMENTS = st.builds(
    Argument, st.text(), NUMBERS, NUMBERS, NUMBERS, st.none() | NUMBERS, st.integers(0, 30), st.sampled_from(Level)
)
RESULTS = st.builds(
    Result, st.sampled_from(Outcome), st.none() | st.text(), NUMBERS, st.booleans(), NUMBERS, NUMBERS, st.text()
)
OPERATIONS = st.builds(
    Operation,
    st.integers(0, 9),
    st.text(),
    st.sampled_from(Kind),
    ARGUMENTS,
    RESULTS,
    TIMES,
    st.none() | TIMES,
)
KEYS = st.none() | st.lists(st.text()).map(tuple)
FAULTS = st.builds(Fault, st.sampled_from(FaultKind), TIMES, st.none() | TIMES, KEYS, st.text())
HISTORIES = st.builds(History, st.lists(OPERATIONS).map(tuple), st.lists(FAULTS).map(tuple), st.floats(0, 100))


@given(HISTORIES)
def test_a_history_is_the_same_after_it_was_written_and_read(history: History) -> None:
    assert from_lines(to_lines(history)) == history


def test_a_line_that_is_no_part_of_a_history_is_named() -> None:
    lines = [*to_lines(History()), '{"client": 1}']
    with pytest.raises(ValueError, match="line 2 is no part of a history"):
        from_lines(lines)
    with pytest.raises(ValueError, match="line 1"):
        from_lines(["[]"])


def test_what_was_not_answered_is_a_maybe_that_may_take_effect_for_ever() -> None:
    recorder = Recorder()
    first = recorder.asked(1, "k", Kind.SET, Argument("v"), called=1.0)
    recorder.asked(2, "k", Kind.GET, Argument(), called=1.5)
    recorder.answered(first, result_of(Status.SUCCESS, cas=7), at=2.0)
    recorder.fault(FaultKind.FAILOVER, began=3.0, ended=None, keys=("k",))
    history = recorder.history()
    assert len(recorder) == 2
    assert [operation.outcome for operation in history.operations] == [Outcome.DONE, Outcome.MAYBE]
    assert [operation.end for operation in history.operations] == [2.0, math.inf]
    assert history.faults[0].end == math.inf


def test_an_ambiguous_answer_does_not_end_an_operation() -> None:
    recorder = Recorder()
    number = recorder.asked(1, "k", Kind.SET, Argument("v", level=Level.MAJORITY), called=1.0)
    recorder.answered(number, result_of(Status.SYNC_WRITE_AMBIGUOUS), at=2.0)
    (operation,) = recorder.history().operations
    assert (operation.outcome, operation.end) == (Outcome.MAYBE, math.inf)


def test_a_history_has_parts_of_its_keys() -> None:
    recorder = Recorder()
    for key in "bab":
        recorder.asked(1, key, Kind.GET, Argument(), called=1.0)
    recorder.fault(FaultKind.RESTART, began=1.0, ended=2.0)
    recorder.fault(FaultKind.FAILOVER, began=1.0, ended=2.0, keys=("a",))
    history = recorder.history()
    assert history.keys == ["a", "b"]
    assert (len(history.of("a").operations), len(history.of("a").faults)) == (1, 2)
    assert (len(history.of("b").operations), len(history.of("b").faults)) == (2, 1)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (Status.SUCCESS, Outcome.DONE),
        (Status.KEY_ENOENT, Outcome.MISSING),
        (Status.KEY_EEXISTS, Outcome.EXISTS),
        (Status.LOCKED, Outcome.LOCKED),
        (Status.ETMPFAIL, Outcome.REFUSED),
        (Status.DURABILITY_IMPOSSIBLE, Outcome.REFUSED),
        (Status.SYNC_WRITE_AMBIGUOUS, Outcome.MAYBE),
        (Status.EINTERNAL, Outcome.MAYBE),
        (0xFF01, Outcome.MAYBE),
    ],
)
def test_a_status_says_whether_it_happened(status: int, outcome: Outcome) -> None:
    assert outcome_of(status) is outcome
    assert result_of(status).outcome is outcome


def test_the_cas_of_a_locked_document_is_no_cas() -> None:
    assert result_of(0, value="v", cas=CAS_OF_LOCKED) == Result(Outcome.DONE, "v", 0, is_locked=True)


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_bytes_become_text_one_to_one(one: bytes, other: bytes) -> None:
    assert (text_of(one) == text_of(other)) == (one == other)
