"""Bits that flip on one disk of a world: chosen where another copy is whole, found by the node, gone with its disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from harness.linearizability.record import Argument, Kind, Level, Outcome, Result
from harness.simulation.histories import Broken, Change
from harness.simulation.host import Crash
from harness.world import damage, operators
from harness.world.damage import Override, problems_of
from harness.world.invariants import judged_history
from harness.world.nemesis import begin
from harness.world.operators import Work
from harness.world.plan import plan_of
from harness.world.run import run
from harness.world.steps import Fault, Step
from harness.world.system import simulated, unwatched
from harness.world.watcher import Branches, unflipped
from harness.world.world import World
from headwater.client.routing import Address
from headwater.wire.cluster_map import ClusterMap

IN_A_HEADER, IN_A_VALUE, LATE_IN_A_VALUE = 0.1, 0.4, 0.7
"""Amounts of a step: of the first two the scrubber's turn comes at once."""


@contextmanager
def a_written_world(replicas: int = 1) -> Iterator[World]:
    with unwatched():
        world = World(replace(plan_of(3, 60), steps=(), replicas=replicas))
        with simulated(world.schedule, world.network, {}):
            world.begin()
            world.happen(begin)
            world.schedule.run(1.0)
            try:
                yield world
            finally:
                world.close()


async def send(known: ClusterMap, nodes: Sequence[Address]) -> None:
    async with operators.members() as connected:
        await connected.survey(nodes)
        await connected.send(known)


def flip(amount: float, node: int = 0) -> Step:
    return Step(0.0, Fault.FLIP, node, 0, 1.0, amount)


def test_a_bit_of_a_value_is_found_told_and_replaced() -> None:
    with a_written_world() as world:
        assert begin(world, flip(IN_A_VALUE)) is not None
        found = world.damage.current
        assert found is not None and found.number and found.is_there(world.machines[0])
        world.damage.replace_now()
        assert found.found_at is not None and not found.is_there(world.machines[0])
        assert world.counts["damage found by the scrubber"] == world.counts["machines replaced"] == 1
        assert world.damage.current is None


def test_damage_is_told_that_no_vbucket_needs_any_more_for_the_next_start_meets_it() -> None:
    with a_written_world() as world:
        assert begin(world, flip(IN_A_VALUE)) is not None
        world.schedule.run(5.0)
        assert world.damage.current is not None and world.damage.current.found_at is not None
        work = partial(operators.do, Work.REMOVE, world.addresses, world.addresses[0], Random(1))
        assert world.complete("remover", work, 60) is True
        address, problems = (
            world.machines[0].address,
            world.complete("looker", partial(problems_of, world.addresses), 9),
        )
        assert [problem.partition(",")[0] for problem in problems if "damaged" in problem] == [  # type: ignore[attr-defined]
            f"{address} has a damaged batch on its disk"
        ]
        world.damage.replace_now()
        assert world.counts["machines replaced"] == 1


def test_a_start_on_a_damaged_disk_is_refused_and_the_machine_replaced_all_the_same() -> None:
    with a_written_world() as world:
        assert begin(world, flip(LATE_IN_A_VALUE)) is not None
        world.crash(0, Crash.POWER)
        world.start(0)
        assert not world.machines[0].is_up and world.counts["starts refused"] == 1
        world.damage.replace_now()
        assert world.machines[0].is_up and world.counts["damaged machines failed over"] >= 1


def test_a_machine_is_replaced_by_force_where_the_whole_copy_was_started_anew_and_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(damage, "REPLACED_SECONDS", 60.0)
    with a_written_world() as world:
        work = partial(operators.do, Work.REMOVE, world.addresses, world.addresses[2], Random(1))
        assert world.complete("remover", work, 60) is True
        assert begin(world, flip(LATE_IN_A_VALUE)) is not None
        world.crash(0, Crash.POWER)
        world.crash(1, Crash.KILL)
        world.start(0)
        world.start(1)
        assert not world.machines[0].is_up and world.machines[1].is_up
        world.damage.replace_now()
        assert world.counts["failover --force"] == world.counts["machines replaced"] == 1
        assert not world.damage.overrides  # the damaged one did not go on alone: nothing durable may be lost


def test_a_force_may_lose_what_the_machine_acknowledged_alone_and_nothing_else() -> None:
    with a_written_world() as world:
        world.crash(1, Crash.KILL)
        world.crash(2, Crash.KILL)
        alone = world.schedule.now
        world.schedule.run(1.0)
        machine = world.machines[0]
        known = world.newest_map()
        assert known is not None
        machine.server.first.membership.map = known.after(known.rev)
        world.crash(0, Crash.KILL)
        world.start(1)
        world.start(2)
        world.damage.force(0)
        for address, at in ((machine.address, alone - 0.5), (machine.address, alone + 0.5), ("n1:1", alone + 0.5)):
            called = at + world.now() - world.schedule.now
            number = world.recorder.asked(1, "k", Kind.SET, Argument(level=Level.MAJORITY), called=called)
            world.recorder.answered(number, Result(Outcome.DONE, node=address), at=called)
        levels = [operation.argument.level for operation in judged_history(world).of("k").operations]
        assert levels == [Level.MAJORITY, Level.NONE, Level.MAJORITY]


def test_a_machine_is_replaced_that_a_failover_which_was_cut_off_had_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "REPLACED_SECONDS", 120.0)
    with a_written_world() as world:
        assert begin(world, flip(LATE_IN_A_VALUE)) is not None
        known = world.newest_map()
        assert known is not None
        held = {vb for vb in range(known.vbuckets) if world.addresses[0] in known.copies(vb)}
        world.complete("cut off", partial(send, known.with_unknown(held), world.addresses), 60)
        world.crash(0, Crash.POWER)
        world.start(0)
        assert not world.machines[0].is_up
        world.damage.replace_now()
        assert world.counts["failover --accept unknown"] == world.counts["machines replaced"] == 1
        (override,) = world.damage.overrides
        assert override.addresses == {world.machines[0].address} and override.vbuckets == held


def test_going_on_unasked_may_lose_what_machines_acknowledged_that_are_gone_and_of_those_vbuckets_alone() -> None:
    override = Override(frozenset({"n0:1", "n3:1"}), 5.0, frozenset({1}))
    assert override.covers("n3:1", 1, 5.0)
    assert not override.covers("n1:1", 1, 5.0)
    assert not override.covers("n3:1", 0, 5.0)
    assert not override.covers("n3:1", 1, 4.9)


def test_a_bit_flips_on_one_machine_at_a_time_and_where_another_copy_is_whole() -> None:
    with a_written_world() as world:
        assert begin(world, flip(IN_A_HEADER)) is not None
        assert world.damage.current is not None and not world.damage.current.number
        assert begin(world, flip(IN_A_VALUE, node=1)) is None
        assert world.counts["bits not flipped"] == 1
    with a_written_world() as world:
        world.crash(1, Crash.KILL)
        world.crash(2, Crash.KILL)
        assert begin(world, flip(IN_A_VALUE)) is None


def test_no_bit_flips_where_a_vbucket_s_other_copy_has_not_come_as_far_as_it_must_to_be_promoted() -> None:
    with a_written_world() as world:
        known = world.newest_map()
        assert known is not None
        behind = known.with_needed(dict.fromkeys(range(known.vbuckets), 1 << 40))
        for machine in world.machines:
            machine.server.first.membership.map = behind
        assert begin(world, flip(IN_A_VALUE)) is None
        for machine in world.machines:
            machine.server.first.membership.map = behind.with_needed({})
        assert begin(world, flip(IN_A_VALUE)) is not None


def test_no_bit_flips_where_a_machine_is_the_only_member_of_the_second_bucket() -> None:
    with a_written_world() as world:

        def change(work: Work, node: int, bucket: str = operators.SECOND_BUCKET) -> None:
            done = partial(operators.do, work, world.addresses, world.addresses[node], Random(1), bucket=bucket)
            assert world.complete(work.value, done, 60) is True

        change(Work.MAKE_BUCKET, 0, operators.BUCKET)
        change(Work.REMOVE, 1)
        change(Work.REMOVE, 2)
        assert begin(world, flip(IN_A_VALUE)) is None
        change(Work.ADD, 1)
        assert begin(world, flip(IN_A_VALUE)) is not None
        assert begin(world, Step(0.0, Fault.ORDERS_FAILOVER, 1, 0, 0.0, 0.5)) is None
        assert world.counts["failovers in the second bucket put off"] == 1 and world.machines[1].is_up
        assert not world.damage.is_put_off_in_the_second_bucket(0)
        assert not world.damage.is_put_off_in_the_second_bucket(2)


def test_who_has_the_only_other_copy_is_not_failed_over_meanwhile() -> None:
    with a_written_world() as world:
        assert begin(world, flip(LATE_IN_A_VALUE)) is not None
        known = world.newest_map()
        assert known is not None
        alone = {world.addresses.index(copy) for vb in range(known.vbuckets) for copy in known.copies(vb)[:2]} - {0}
        is_put_off = [at for at in range(len(world.machines)) if world.damage.is_put_off(at)]
        if known.replica_count == 1:
            assert set(is_put_off) <= alone and is_put_off
        for at in is_put_off:
            assert begin(world, Step(0.0, Fault.FAILOVER, at, 0, 0.0, 0.5)) is None
        assert not world.damage.is_put_off(0)


def test_two_operators_do_not_take_out_all_other_copies_of_the_damaged_machine() -> None:
    with a_written_world(replicas=2) as world:
        assert begin(world, flip(LATE_IN_A_VALUE)) is not None
        known = world.newest_map()
        assert known is not None
        chain = next(each for each in map(known.copies, range(known.vbuckets)) if world.addresses[0] in each)
        first, second = (world.addresses.index(each) for each in chain if each != world.addresses[0])
        assert not world.damage.is_put_off(second)
        begin(world, Step(0.0, Fault.FAILOVER, first, 0, 0.0, 0.5))
        assert world.damage.is_put_off(second)
        assert begin(world, Step(0.0, Fault.FAILOVER, second, 0, 0.0, 0.5)) is None
        assert world.counts["failovers put off"] == 1


def test_no_removal_leaves_the_damaged_machine_alone() -> None:
    with a_written_world() as world:
        assert begin(world, flip(LATE_IN_A_VALUE)) is not None
        others = range(1, len(world.machines))
        assert not any(world.damage.is_removal_put_off(at) for at in range(len(world.machines)))
        for at in others[:-1]:
            begin(world, Step(0.0, Fault.REMOVE, at, 0, 0.0, 0.5))
        assert world.leaving == {world.addresses[at] for at in others[:-1]}
        assert begin(world, Step(0.0, Fault.REMOVE, others[-1], 0, 0.0, 0.5)) is None
        assert world.counts["removals put off"] == 1
        assert not world.damage.is_removal_put_off(0)


def test_no_bit_flips_while_a_machine_is_removed() -> None:
    with a_written_world() as world:
        begin(world, Step(0.0, Fault.REMOVE, 1, 0, 0.0, 0.5))
        assert begin(world, flip(LATE_IN_A_VALUE)) is None
        assert world.schedule.run(60, lambda: not world.leaving)
        assert begin(world, flip(LATE_IN_A_VALUE)) is not None


def test_damage_that_nobody_finds_breaks_the_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_written_world() as world:
        begin(world, flip(LATE_IN_A_VALUE))
        monkeypatch.setattr(type(world.damage), "event", lambda *_: None)
        with pytest.raises(Broken, match="damage: n0 has not found"):
            world.damage.replace_now()


def test_a_value_is_read_as_it_was_written_for_one_bit_of_one_number_alone() -> None:
    assert unflipped("w17-xx", ["17"]) == "v17-xx"
    assert unflipped("w17-xx", ["7", ""]) == "w17-xx"
    assert unflipped("v17-xw", ["17"]) == "v17-xw"


def test_a_copy_may_hold_the_flipped_bit_and_nothing_else_that_is_wrong() -> None:
    branches = Branches()
    branches.wrote("n0", 0, 7, 1, Change(b"k", b"v17-", 5, 1))
    with pytest.raises(Broken, match="identity"):
        branches.shown("n1", 0, [(7, 0)], 1, Change(b"k", b"w17-", 5, 1))
    branches.flipped.add("17")
    branches.shown("n1", 0, [(7, 0)], 1, Change(b"k", b"w17-", 5, 1))
    assert branches.documents({b"k": (1, Change(b"k", b"w17-", 5, 1))})[b"k"][1].value == b"v17-"
    with pytest.raises(Broken, match="identity"):
        branches.shown("n1", 0, [(7, 0)], 1, Change(b"k", b"w17-", 6, 1))


def test_a_node_that_found_the_bit_may_not_serve_it() -> None:
    with a_written_world() as world:
        begin(world, flip(LATE_IN_A_VALUE))
        found = world.damage.current
        assert found is not None
        text, node = f"w{found.number}-", world.machines[0].address
        found.found_at = world.schedule.now
        for called in (found.found_at - 0.5, found.found_at + 0.5):
            at = called + world.now() - world.schedule.now
            number = world.recorder.asked(1, "k", Kind.GET, Argument(), called=at)
            world.recorder.answered(number, Result(Outcome.DONE, text, node=node), at=at)
        before, after = judged_history(world).of("k").operations
        assert (before.result.value, after.result.value) == (f"v{found.number}-", text)


@pytest.mark.parametrize("amount", [IN_A_VALUE, IN_A_HEADER, LATE_IN_A_VALUE])
def test_all_promises_hold_with_one_copy_damaged(amount: float) -> None:
    plan = plan_of(3, 150)
    steps = (Step(1.5, Fault.FLIP, 0, 0, 1.0, amount), Step(3.0, Fault.KILL, 1, 0, 0.5, 0.5))
    outcome = run(replace(plan, steps=steps))
    assert not outcome.broken, outcome.broken
    assert outcome.counts["machines replaced"] == 1
