"""The time up to which a reader has everything, by promises and by the highest CAS of servers that promise nothing."""

from __future__ import annotations

from datetime import UTC, datetime

from headwater.protocol.dcp.complete import MARKS_MAX, SILENCE_SECONDS, ClocksHeld, Completeness, as_time

SECOND = 1_000_000_000
NOON = 1_700_000_000 * SECOND


def seen(complete: Completeness, cas: int, seqnos: dict[int, int], **more: object) -> Completeness:
    """Let two vbuckets be looked at."""
    complete.look(ClocksHeld(cas, cas, **more), seqnos, range(2), 0.0)  # type: ignore[arg-type]
    return complete


def test_a_reader_that_has_come_to_the_seqnos_of_a_promise_has_everything_up_to_it() -> None:
    complete = seen(Completeness(), NOON, {0: 5, 1: 0})
    assert complete.until({0: 4}) == 0
    assert complete.until({0: 5}) == NOON
    assert complete.problem == ""


def test_a_reader_that_is_behind_has_what_an_earlier_promise_says() -> None:
    complete = seen(seen(Completeness(), NOON, {0: 5, 1: 1}), NOON + SECOND, {0: 9, 1: 1})
    assert complete.until({0: 7, 1: 3}) == NOON
    assert complete.until({0: 9, 1: 3}) == NOON + SECOND


def test_the_time_does_not_go_back_when_a_failover_takes_changes_back() -> None:
    complete = seen(Completeness(), NOON, {0: 9, 1: 1})
    assert complete.until({0: 9, 1: 1}) == NOON
    assert complete.until({0: 3, 1: 1}, known=NOON) == NOON
    assert complete.until({0: 3, 1: 1}) == 0, "what another process had said is in its offset"


def test_a_branch_that_was_lost_holds_no_later_promise_up() -> None:
    """The seqnos of the lost branch are never reached again."""
    complete = seen(seen(Completeness(), NOON, {0: 90, 1: 1}), NOON + SECOND, {0: 40, 1: 1})
    assert complete.until({0: 40, 1: 1}) == NOON + SECOND


def test_a_vbucket_without_an_owner_stops_the_time_and_is_named() -> None:
    complete = seen(seen(Completeness(), NOON, {0: 1, 1: 1}), NOON + SECOND, {0: 1})
    assert complete.problem == "vbucket 1 has no owner"
    assert complete.until({0: 1, 1: 1}) == NOON


def test_a_durable_write_under_way_holds_the_time_up() -> None:
    complete = seen(Completeness(), NOON, {0: 1, 1: 1}, exceptions={1: NOON - SECOND})
    assert complete.until({0: 1, 1: 1}) == NOON - SECOND
    assert complete.problem.startswith("vbucket 1 has a durable write under way")


def test_durable_writes_that_come_and_go_hold_nothing_up() -> None:
    """Of a bucket with many of them each look meets some: a metric that said so would flap."""
    complete = seen(Completeness(), NOON, {0: 1, 1: 1})
    for after in range(1, 4):
        under_way = NOON + after * SECOND - 1
        seen(complete, NOON + after * SECOND, {0: 1, 1: 1}, exceptions={1: under_way})
        assert (complete.problem, complete.until({0: 1, 1: 1})) == ("", under_way)
    seen(complete, NOON + 4 * SECOND, {0: 1, 1: 1}, exceptions={1: under_way})
    assert complete.problem.startswith("vbucket 1 has a durable write under way")


def test_a_silent_node_stops_the_time_and_is_left_alone_for_a_while() -> None:
    complete = seen(Completeness(), NOON, {0: 1, 1: 1})
    complete.look(ClocksHeld(problem="n2 holds no clock"), {0: 1, 1: 1}, range(2), 7.0)
    assert complete.problem == "n2 holds no clock" and complete.until({0: 1, 1: 1}) == NOON
    assert complete.rests(7.0) and not complete.rests(7.0 + SILENCE_SECONDS)


def test_promises_are_asked_of_the_clock_that_is_furthest_behind() -> None:
    complete = Completeness()
    assert complete.wanted(3.0) == 0
    complete.look(ClocksHeld(0, NOON), {0: 1, 1: 1}, range(2), 3.0)
    assert complete.wanted(3.0) == NOON
    assert complete.wanted(4.5) == NOON + 3 * SECOND // 2


def test_without_promises_the_vbucket_whose_last_change_is_oldest_decides() -> None:
    highest = {0: NOON, 1: NOON - 5 * SECOND}
    complete = Completeness()
    complete.look(ClocksHeld(1 << 63, exceptions=highest, is_promised=False), {0: 4, 1: 2}, range(2), 0.0)
    assert complete.until({0: 4, 1: 2}) == NOON - 5 * SECOND
    assert complete.problem == "the servers promise no time, and vbucket 1 has had no change since"


def test_without_promises_a_vbucket_that_never_had_a_change_leaves_nothing_to_say() -> None:
    complete = Completeness()
    complete.look(ClocksHeld(1 << 63, exceptions={0: NOON}, is_promised=False), {0: 4, 1: 0}, range(2), 0.0)
    assert complete.until({0: 4}) == 0


def test_a_reader_that_is_far_behind_keeps_a_few_promises_and_the_newest() -> None:
    complete = Completeness()
    for number in range(1, 10 * MARKS_MAX):
        seen(complete, NOON + number, {0: number, 1: 1})
    newest = 10 * MARKS_MAX - 1
    assert complete.until({0: newest, 1: 1}) == NOON + newest


def test_a_cas_is_a_time_to_the_millisecond_below() -> None:
    assert as_time(NOON + 123_999_999) == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert as_time(0) is None
    assert as_time((1 << 64) - 1) == datetime(2554, 7, 21, 23, 34, 33, 709_000, tzinfo=UTC)
