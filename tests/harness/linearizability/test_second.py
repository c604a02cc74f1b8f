"""The second judge says what the first one says; where it can't be built, it is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.linearizability import second
from harness.linearizability.judge import judge
from harness.linearizability.model import Model
from harness.linearizability.record import Fault, History, Kind, Operation
from harness.linearizability.second import NotBuilt, Word, program, verdicts, verdicts_of
from tests.harness.linearizability.histories import KEY, did, history, sequential
from tests.harness.linearizability.test_model import EXPLAINED, LOST, NOT_LOST, UNEXPLAINED


@pytest.fixture(scope="module", autouse=True)
def porcupine() -> None:
    """Skip what follows where there is no Go."""
    try:
        program()
    except NotBuilt as missing:
        pytest.skip(str(missing))


def side_by_side(parts: Sequence[History]) -> History:
    """Histories of one key each as one history of many keys."""
    operations: list[Operation] = []
    faults: list[Fault] = []
    for number, part in enumerate(parts):
        key = f"{number:03}"
        operations += [replace(operation, key=key) for operation in part.operations]
        faults += [replace(fault, keys=(key,)) for fault in part.faults]
    error = parts[0].clock_error_seconds if parts else 1.5
    return History(tuple(operations), tuple(faults), error)


def words(whole: History, *, plain_may_be_lost: bool) -> dict[str, Word]:
    model = Model(plain_may_be_lost, whole.clock_error_seconds)
    return {each.key: Word.ILLEGAL if each.is_violation else Word.OK for each in judge(whole, model)}


@pytest.mark.parametrize("plain_may_be_lost", [False, True], ids=["strict", "plain"])
def test_both_judges_agree_about_histories_by_hand(plain_may_be_lost: bool) -> None:
    parts = [history(*case) for cases in (EXPLAINED, UNEXPLAINED, LOST, NOT_LOST) for case in cases.values()]
    whole = replace(side_by_side(parts), clock_error_seconds=0.0)
    assert verdicts(whole, plain_may_be_lost=plain_may_be_lost) == words(whole, plain_may_be_lost=plain_may_be_lost)


@given(st.lists(sequential(length=14, mixed=True), min_size=10, max_size=10).map(side_by_side))
@settings(max_examples=10, suppress_health_check=list(HealthCheck), deadline=None)
def test_both_judges_agree_about_random_histories(whole: History) -> None:
    for plain_may_be_lost in (False, True):
        told = verdicts(whole, plain_may_be_lost=plain_may_be_lost)
        mine = words(whole, plain_may_be_lost=plain_may_be_lost)
        assert Word.UNKNOWN not in told.values()
        assert told == mine


def test_each_of_many_histories_is_judged_by_itself() -> None:
    well = history(did(0, 1, Kind.SET, "a"), did(2, 3, Kind.GET, shows="a"))
    lost = history(did(0, 1, Kind.SET, "a"), did(2, 3, Kind.GET, shows="b"))
    assert verdicts_of([well, lost, history(), well], plain_may_be_lost=True) == [
        {KEY: Word.OK},
        {KEY: Word.ILLEGAL},
        {},
        {KEY: Word.OK},
    ]


def test_what_is_no_history_is_told() -> None:
    wrong = replace(did(0, 1, Kind.GET), client="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="line 2 is no part of a history"):
        verdicts(history(wrong), plain_may_be_lost=False)


def test_without_go_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(second.sys, "prefix", str(tmp_path))
    with pytest.raises(NotBuilt, match="needs Go"):
        program({"PATH": str(tmp_path)})
