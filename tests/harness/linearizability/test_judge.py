"""The search: it finds an order where there is one, says so where there is none, and gives up in time."""

from __future__ import annotations

from unittest import mock

from hypothesis import given, settings

from harness.linearizability import judge as search
from harness.linearizability.judge import judge, judge_key, table
from harness.linearizability.model import Model
from harness.linearizability.record import Fault, History, Kind, Level, Operation
from tests.harness.linearizability.histories import (
    KEY,
    changed_reads,
    did,
    failover,
    has_an_order,
    history,
    sequential,
)

PLAIN = Model(plain_may_be_lost=True)


@given(sequential(length=40))
def test_what_one_node_did_one_after_the_other_has_an_order(part: History) -> None:
    assert [each.unexplained for each in judge(part, PLAIN)] in ([None], [])


@given(sequential(length=40, faults=False))
def test_without_a_failover_nothing_is_lost(part: History) -> None:
    assert [each.unexplained for each in judge(part, Model())] in ([None], [])


@given(sequential(length=25))
def test_a_value_that_was_never_there_is_found(part: History) -> None:
    for changed in changed_reads(part):
        assert [each.is_violation for each in judge(changed, PLAIN)] == [True]


@given(sequential(length=7, mixed=True))
@settings(max_examples=300)
def test_the_search_agrees_with_trying_every_order(part: History) -> None:
    for model in (PLAIN, Model()):
        assert any(each.is_violation for each in judge(part, model)) == (not has_an_order(part, model))


@given(sequential(length=7, mixed=True))
@settings(max_examples=100)
def test_the_search_alone_agrees_with_trying_every_order(part: History) -> None:
    with mock.patch.object(search, "DESCENT_SHARE", 0.0):
        for model in (PLAIN, Model()):
            assert any(each.is_violation for each in judge(part, model)) == (not has_an_order(part, model))


def test_keys_are_judged_one_by_one() -> None:
    part = history(did(0, 1, Kind.SET, "a"), did(2, 3, Kind.GET, shows="a"))
    other = history(did(0, 1, Kind.SET, "a", key="other"), did(2, 3, Kind.GET, shows="b", key="other"))
    verdicts = judge(History(part.operations + other.operations), Model())
    assert [(verdict.key, verdict.is_violation) for verdict in verdicts] == [(KEY, False), ("other", True)]


def test_many_changes_without_an_answer_are_no_matter() -> None:
    maybes = [did(at / 10, None, Kind.SET, f"m{at}") for at in range(60)]
    reads = [did(10 + at, 10.5 + at, Kind.GET, shows=f"m{at}") for at in range(0, 60, 7)]
    verdict = judge_key(history(*maybes, *reads, failover(15.6, 15.9)), PLAIN, KEY)
    assert not verdict.is_violation and not verdict.is_undecided
    assert verdict.positions < 100_000


def test_a_version_that_a_maybe_would_make_again_is_not_remembered() -> None:
    maybes = [did(2 + at, None, Kind.REPLACE, f"m{at}") for at in range(2)]
    answered = [did(4 + at, 4.5 + at, Kind.REPLACE, f"r{at}") for at in range(60)]
    deleted = [did(3.5, None, Kind.DELETE)]
    begin = did(0, 1, Kind.SET, "a")
    for shown, is_violation in (("m1", False), ("r7", False), ("none", True)):
        read = did(71, 72, Kind.GET, shows=shown)
        verdict = judge_key(history(begin, *maybes, *deleted, *answered, failover(69, 70), read), PLAIN, KEY)
        assert (verdict.is_violation, verdict.is_undecided) == (is_violation, False)
        assert verdict.positions < 2000


def test_a_maybe_that_was_used_is_not_made_again() -> None:
    events: list[Operation | Fault] = [
        did(0, 1, Kind.SET, "a"),
        did(2, None, Kind.REPLACE, "m"),
        did(3, 4, Kind.REPLACE, "b"),
        failover(5, 6),
        did(7, 8, Kind.GET, shows="m"),
        did(9, 10, Kind.SET, "c", level=Level.MAJORITY),
        failover(11, 12),
    ]
    assert not judge_key(history(*events, did(13, 14, Kind.GET, shows="c")), PLAIN, KEY).is_violation
    assert judge_key(history(*events, did(13, 14, Kind.GET, shows="m")), PLAIN, KEY).is_violation


def test_a_search_that_takes_too_long_is_given_up() -> None:
    counters = [did(at / 10, None, Kind.INCREMENT, delta=1 << at, initial=0) for at in range(20)]
    part = history(*counters, did(5, 6, Kind.GET, shows="never"))
    verdict = judge_key(part, Model(), KEY, positions_max=1000)
    assert verdict.is_undecided and not verdict.is_violation


def test_a_search_is_given_up_where_few_positions_are_held_against_each_other_too_often() -> None:
    # Many sums of the deltas 1, 2, 3, ... are the same number: none of these positions is better than another.
    counters = [did(at / 10, None, Kind.INCREMENT, delta=at + 1, initial=0) for at in range(18)]
    part = history(*counters, did(5, 6, Kind.GET, shows="never"))
    verdict = judge_key(part, Model(), KEY, positions_max=20_000)
    assert verdict.is_undecided
    assert verdict.positions < 10_000


def test_an_order_is_found_though_there_are_more_of_them_than_can_be_looked_at() -> None:
    counters = [did(at / 10, None, Kind.INCREMENT, delta=at + 1, initial=0) for at in range(18)]
    reads = [did(5 + at, 5.5 + at, Kind.GET, shows=shown) for at, shown in enumerate(("0", "7", "7", "19", "30"))]
    verdict = judge_key(history(*counters, *reads), Model(), KEY, positions_max=20_000)
    assert not verdict.is_undecided and not verdict.is_violation


def test_an_order_is_found_where_an_earlier_answer_must_have_had_another_reason() -> None:
    part = history(
        did(0, 1, Kind.SET, "a"),
        did(2, 9, Kind.GET, shows="a"),  # before the write that is answered first
        did(3, 4, Kind.SET, "b", cas=7),
        did(10, 11, Kind.GET, shows="b"),
    )
    assert judge_key(part, PLAIN, KEY).positions < 20
    assert not judge_key(part, PLAIN, KEY).is_violation


def test_a_history_is_told_in_the_order_of_time() -> None:
    answer = did(2, 3, Kind.GET, shows="b", client=4)
    told = table(history(did(0, 1, Kind.SET, "a"), answer, failover(1, 2)).operations, answer)
    assert told.splitlines() == [
        "     0.0000 ..    1.0000  client 1  set k 'a'                                -> done",
        "     2.0000 ..    3.0000  client 4  get k                                    -> done 'b'"
        "  <- nothing explains this answer",
    ]
