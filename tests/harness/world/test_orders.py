"""The second bucket: clients of its own, lives that begin empty, and what breaks that."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest

from harness.linearizability.judge import judge
from harness.linearizability.model import Model
from harness.linearizability.record import Argument, History, Kind, Level, Operation, Outcome, Result
from harness.simulation.scheduler import NOON_SECONDS
from harness.world.nemesis import begin
from harness.world.operators import Work
from harness.world.orders import Life, Loss, Orders, OwnersChange, faults, lowered, parts, weighed, within
from harness.world.plan import WorldPlan, plan_of
from harness.world.run import WorldOutcome, run
from harness.world.steps import Fault, Step
from harness.world.system import simulated, unwatched
from harness.world.world import World
from headwater.cluster.failover import FailoverPlan
from headwater.wire.vbucket import vbucket_of

ANEW = Step(2.0, Fault.ANEW, 0, 0, 0.0, 0.5)


def plan_with(*steps: Step) -> WorldPlan:
    return replace(plan_of(4, 150), steps=steps, has_orders=True)


def test_each_life_of_the_second_bucket_is_judged() -> None:
    outcome = run(plan_with(ANEW))
    assert not outcome.broken, outcome.broken
    assert outcome.counts["lives of the second bucket judged"] == 2
    assert outcome.counts["answers of the second bucket"] > 20


def test_while_it_has_an_operator_of_its_own_others_leave_it_alone() -> None:
    outcome = run(plan_with(replace(ANEW, fault=Fault.DROP_BUCKET), replace(ANEW, fault=Fault.MAKE_BUCKET)))
    assert outcome.counts["left to the operator of the second bucket"] == 2
    assert outcome.counts["lives of the second bucket judged"] == 1


def test_one_operator_at_a_time_makes_it_anew() -> None:
    with unwatched():
        world = World(plan_with())
        with simulated(world.schedule, world.network, {}):
            world.begin()
            assert world.orders is not None
            kill = begin(world, replace(ANEW, lasts=0.001))
            assert kill is not None and begin(world, ANEW) is None
            kill()
            assert world.counts["operators killed"] == 1
            begin(world, ANEW)
            world.schedule.run(20.0)
            lives = world.orders.lives
            assert [life.is_clean for life in lives] == [True, False, False]
            assert lives[0].made is not None and lives[2].made is not None
            world.close()


def test_the_second_bucket_is_failed_over_alone_and_keeps_what_is_durable() -> None:
    steps = (Step(1.0, Fault.ORDERS_FAILOVER, 1, 1, 2.0, 0.9), Step(3.5, Fault.ORDERS_ADD, 1, 1, 0.0, 0.5))
    outcome = run(plan_with(*steps))
    assert not outcome.broken, outcome.broken
    done = outcome.counts
    assert done["second bucket: failover"] == done["second bucket: rebalance --add"] == 1 and not done["failover"]


def test_a_failover_of_the_second_bucket_that_loses_durable_writes_is_found() -> None:
    begun = OwnersChange(Work.FAILOVER, "n1:1", 5.0, 6.0)
    life = Life(0.0, made=1.0, is_clean=True)
    for level, is_lost in ((Level.NONE, False), (Level.MAJORITY, True)):
        argument = Argument(value="v1-", level=level)
        written = Operation(1, "k", Kind.SET, argument, Result(Outcome.DONE), NOON_SECONDS + 2, NOON_SECONDS + 3)
        missing = replace(an_operation(Kind.GET, 7, 8), result=Result(Outcome.MISSING, node="n2:1"))
        history = History((written, missing), tuple(faults([begun], life, 20.0)))
        (verdict,) = judge(history, Model(plain_may_be_lost=True))
        assert verdict.is_violation == is_lost


def test_a_machine_is_replaced_for_damage_in_the_first_bucket_and_the_second_keeps_what_is_durable() -> None:
    flip = Step(1.5, Fault.FLIP, 0, 0, 1.0, 0.4)
    outcome = run(plan_with(flip))
    assert not outcome.broken, outcome.broken
    assert outcome.counts["machines replaced"] == outcome.counts["lives of the second bucket judged"] == 1
    assert not outcome.counts["second bucket: vbuckets lost with a disk"]


def test_a_vbucket_of_which_no_copy_was_left_begins_anew_and_what_others_have_is_kept() -> None:
    argument = Argument(value="v1-", level=Level.MAJORITY)
    written = Operation(1, "k", Kind.SET, argument, Result(Outcome.DONE), NOON_SECONDS + 2, NOON_SECONDS + 3)
    missing = replace(an_operation(Kind.GET, 7, 8), result=Result(Outcome.MISSING, node="n2:1"))
    life = Life(0.0, made=1.0, is_clean=True)
    vb = vbucket_of(b"k", 4)
    for anew, ended, is_lost in (({vb}, 6.0, False), ({vb ^ 1}, 6.0, True), ({vb}, 1.5, True)):
        loss = Loss(1.2 if ended < 2 else 5.0, ended, 4, frozenset(anew), frozenset())
        verdicts = [
            verdict.is_violation
            for begun, until, own in parts((written, missing), [(life, 20.0)], [loss])
            for verdict in judge(History(tuple(within(own, begun, until))), Model(plain_may_be_lost=True))
        ]
        assert any(verdicts) == is_lost


def test_a_level_holds_but_for_a_copy_that_too_few_of_those_who_acknowledged_have_left() -> None:
    argument, vb = Argument(value="v1-", level=Level.MAJORITY), vbucket_of(b"k", 4)
    before, after = (replace(an_operation(Kind.SET, at, at + 1), argument=argument) for at in (2, 7))
    loss = Loss(5.0, 6.0, 4, frozenset(), frozenset({vb}))
    assert [each.argument.level for each in lowered((before, after), [loss])] == [Level.NONE, Level.MAJORITY]
    assert lowered((before, after), [replace(loss, lowered=frozenset({vb ^ 1}))]) == [before, after]
    assert [each.argument.level for each in lowered((after,), [replace(loss, ended=None)])] == [Level.NONE]


def test_a_failover_that_calls_a_vbucket_lost_of_which_another_machine_has_a_copy_is_found() -> None:
    with unwatched():
        world = World(plan_with())
        with simulated(world.schedule, world.network, {}):
            world.begin()
            assert world.orders is not None
            node, known = world.addresses[0], world.newest_map()
            assert known is not None
            plan = FailoverPlan(known, known, (), anew={0: world.addresses[1]})
            world.orders._lose(node, OwnersChange(Work.FAILOVER, str(node), 5.0), plan)
            (failure,) = world.schedule.failures
            assert str(failure).startswith(f"buckets: a failover of {node} calls vbucket 0 of orders lost")
            world.close()


def test_what_a_node_says_that_may_have_been_failed_over_is_old_until_it_has_joined_again() -> None:
    changes = [OwnersChange(Work.FAILOVER, "n1:1", 5.0, 6.0), OwnersChange(Work.ADD, "n1:1", 8.0, 9.0, is_done=True)]
    answers = [
        replace(an_operation(Kind.GET, at, at + 0.5), result=Result(Outcome.DONE, node="n1:1")) for at in (3, 7, 10)
    ]
    assert list(weighed(answers, changes)) == [answers[0], answers[2]]
    assert list(weighed(answers, changes[:1])) == answers[:1]
    others = [replace(answer, result=Result(Outcome.DONE, node="n2:1")) for answer in answers]
    assert list(weighed(others, changes)) == others
    written = replace(an_operation(Kind.SET, 7, 8), result=Result(Outcome.DONE, node="n1:1"))
    assert [each.outcome for each in weighed([written], changes)] == [Outcome.MAYBE]
    durable = replace(written, argument=Argument(value="v1-", level=Level.MAJORITY))
    assert list(weighed([durable], changes)) == [durable]


def test_a_bucket_that_is_not_empty_when_it_is_made_anew_is_found() -> None:
    def not_dropped(self: Orders, life: Life) -> object:
        life.is_clean = True
        return self._make(life)

    with mock.patch.object(Orders, "_replace", not_dropped):
        assert found(run(plan_with(ANEW)))


def found(outcome: WorldOutcome) -> bool:
    return outcome.broken.startswith("buckets: orders, made at")


def an_operation(kind: Kind, called: float, answered: float | None, outcome: Outcome = Outcome.DONE) -> Operation:
    at = None if answered is None else NOON_SECONDS + answered
    return Operation(1, "k", kind, Argument(value="v1-"), Result(outcome), NOON_SECONDS + called, at)


@pytest.mark.parametrize(
    ("operation", "comes_as"),
    [
        (an_operation(Kind.GET, 11, 12), Outcome.DONE),
        (an_operation(Kind.SET, 11, 12), Outcome.DONE),
        (an_operation(Kind.SET, 9, 12), Outcome.MAYBE),
        (an_operation(Kind.SET, 7, 9), Outcome.MAYBE),
        (an_operation(Kind.SET, 19, 21), Outcome.MAYBE),
        (an_operation(Kind.SET, 3, None, Outcome.MAYBE), Outcome.MAYBE),
        (an_operation(Kind.SET, 3, 4), None),
        (an_operation(Kind.SET, 21, 22), None),
        (an_operation(Kind.GET, 9, 12), None),
        (an_operation(Kind.SET, 9, 12, Outcome.REFUSED), None),
    ],
)
def test_an_operation_belongs_to_a_life_surely_perhaps_or_not_at_all(
    operation: Operation, comes_as: Outcome | None
) -> None:
    life = Life(5.0, made=10.0, is_clean=True)
    assert [each.outcome for each in within([operation], life, 20.0)] == ([] if comes_as is None else [comes_as])
