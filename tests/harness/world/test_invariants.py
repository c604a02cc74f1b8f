"""The promises: each is broken once, and found; and the page prints them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.linearizability.record import FaultKind, Kind, Level, Operation, Outcome
from harness.simulation.histories import Broken, Change
from harness.simulation.scheduler import NOON_SECONDS
from harness.world import invariants
from harness.world.invariants import INVARIANTS, judge, judged_history, table
from harness.world.watcher import Interval, Turn
from harness.world.world import World
from tests.harness.world.resting import resting

PAGE = Path(__file__).parents[3] / "docs" / "reliability.md"


def durable_set(world: World) -> Operation:
    """A durable write that was acknowledged."""
    operations = world.recorder.history().operations
    return next(
        operation
        for operation in operations
        if operation.kind is Kind.SET and operation.outcome is Outcome.DONE and operation.argument.level
    )


@pytest.fixture(name="world")
def a_world_at_rest() -> Iterator[World]:
    with resting(60) as world:
        yield world


def test_the_page_prints_the_promises() -> None:
    """`python tools/write_invariants.py` writes them."""
    assert f"<!-- invariants -->\n\n{table()}\n\n<!-- /invariants -->" in PAGE.read_text("utf-8")


def test_each_promise_has_a_name_of_its_own_and_a_judge() -> None:
    assert len({invariant.name for invariant in INVARIANTS}) == len(INVARIANTS)
    assert all(invariant.by and invariant.sentence for invariant in INVARIANTS)


def test_a_durable_write_is_kept_where_a_promoted_copy_commits_its_prepare(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = durable_set(world)
    vb, uuid, seqno = world.vbucket_of(operation.key), operation.result.vb_uuid, operation.result.seqno
    log = ((0xB, seqno - 1), (uuid, 0))
    owner = SimpleNamespace(failover=SimpleNamespace(entries=log), high_seqno=seqno + 9)
    monkeypatch.setattr(world, "owner", lambda _: owner)
    world.recorder._operations[:] = [operation]
    with pytest.raises(Broken, match=r"^kept: set of"):
        invariants.check_kept(world)
    branches = world.watcher.branches._branches
    branches[vb, 0xB] = {seqno + 4: branches[vb, uuid][seqno]}
    invariants.check_kept(world)
    plain = replace(operation, argument=replace(operation.argument, level=Level.NONE))
    world.recorder._operations[:] = [plain]
    with pytest.raises(Broken, match=r"^kept: set of"):
        invariants.check_kept(world)


def test_a_world_without_faults_keeps_all_promises_and_each_that_is_broken_is_found(world: World) -> None:
    judge(world)
    operations, operation = world.recorder._operations, durable_set(world)
    number = operations.index(operation)

    operations[number] = replace(operation, result=replace(operation.result, seqno=10_000))
    with pytest.raises(Broken, match=r"^kept: set of"):
        invariants.check_kept(world)
    operations[number] = operation

    last = next(at for at in reversed(range(len(operations))) if operations[at].kind is Kind.GET)
    read = operations[last]
    operations[last] = replace(read, result=replace(read.result, outcome=Outcome.DONE, value="made up"))
    with pytest.raises(Broken, match=r"^linearizable: vbucket"):
        invariants.check_linearizable(world)
    operations[last] = read

    vb = world.vbucket_of(operation.key)
    held = world.readers[0].held[vb]
    kept = dict(held)
    held.clear()
    with pytest.raises(Broken, match=r"^complete: reader-0"):
        invariants.check_complete(world)
    held.update(kept)

    reader = next(each for each in world.readers if each.history)
    invariants.check_versions(world)
    assert world.counts["old versions judged"]
    old = next(seqno for seqno, change in reader.held[vb].items() if reader.documents(vb)[change.key][0] != seqno)
    version = reader.held[vb].pop(old)
    with pytest.raises(Broken, match=rf"^versions: reader-of-versions, .* lacks \[{old}\] and has \[\] beside"):
        invariants.check_versions(world)
    reader.gaps[vb] = [(0, old)]
    invariants.check_versions(world)
    reader.held[vb][old] = version
    reader.gaps[vb] = []

    branches, seqno = world.watcher.branches._branches[vb, operation.result.vb_uuid], operation.result.seqno
    unused = next(at for at in range(1, seqno) if at not in branches)  # that of its prepare, at the latest
    branches[unused] = branches[seqno]
    with pytest.raises(Broken, match=r"^cas: seqno \d+ of vbucket .* before it the CAS was"):
        invariants.check_cas(world)
    del branches[unused]
    token = replace(operation, kind=Kind.GET_AND_LOCK)
    operations.append(token)
    with pytest.raises(Broken, match=r"^cas: seqno \d+ of vbucket .* the token of a lock"):
        invariants.check_cas(world)
    operations.remove(token)

    observer = world.watcher.observers[world.copies(vb)[1]]
    observer.held = lambda *_: {b"other": (1, Change(b"other", b"v", 1, 1))}  # type: ignore[method-assign]
    with pytest.raises(Broken, match=r"^equal: n\d and the owner"):
        invariants.check_equal(world)


def test_what_a_superseded_node_said_is_left_out_but_for_durable_writes(world: World) -> None:
    operations = world.recorder.history().operations
    for name in (machine.name for machine in world.machines):
        world.watcher.superseded += [Interval(name, vb, 0.0) for vb in range(world.plan.vbuckets)]
    left = judged_history(world).operations
    assert all(each.argument.level > Level.NONE for each in left if each.outcome is Outcome.DONE)
    durable = [operation for operation in operations if operation.outcome is Outcome.DONE and operation.argument.level]
    assert [each for each in left if each.outcome is Outcome.DONE] == durable


def test_turns_become_the_faults_that_explain_answers(world: World) -> None:
    world.watcher.turns = [
        Turn(1.0, 0, "n1", is_taken_over=False, is_restart=False),
        Turn(2.0, 0, "n1", is_taken_over=True, is_restart=False),
        Turn(3.0, 1, "n1", is_taken_over=False, is_restart=True),
    ]
    found = invariants.faults(world)
    assert [each.kind for each in found] == [FaultKind.FAILOVER, FaultKind.MOVE, FaultKind.RESTART]
    assert found[0].began == found[0].ended == NOON_SECONDS + 1.0
    assert found[0].keys is not None and all(world.vbucket_of(key) == 0 for key in found[0].keys)
