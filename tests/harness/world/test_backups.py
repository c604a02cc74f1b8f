"""Backups of a simulated cluster: each is judged, one is restored, and what is wrong with one is found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from harness.simulation.histories import Broken, Change
from harness.world.backups import Backups, compare
from harness.world.steps import Fault, Step
from harness.world.world import World
from tests.harness.world.resting import resting

STEPS = (
    Step(0.2, Fault.FULL_BACKUP, 0, 1, 0.0, 0.5),
    Step(0.5, Fault.BACKUP, 0, 1, 0.1, 0.5),
    Step(0.9, Fault.FAILOVER, 0, 1, 0.0, 0.5),
    Step(1.2, Fault.BACKUP, 0, 1, 0.0, 0.5),
)


@pytest.fixture(name="world", scope="module")
def a_world_at_rest() -> Iterator[World]:
    with resting(80, STEPS) as world:
        yield world


def test_backups_that_were_made_meanwhile_are_states_and_one_is_restored(world: World) -> None:
    world.job(Backups).check()
    assert world.counts["backups: full"] and world.counts["backups judged"] >= 2
    assert world.counts["restored documents"]


def test_a_backup_without_what_was_answered_before_it_was_begun_is_found(world: World) -> None:
    made = world.job(Backups).made
    first = made[0]
    made[0] = replace(first, began=world.now())
    with pytest.raises(Broken, match=r"^backup: .*was answered before it was begun"):
        world.job(Backups).check()
    made[0] = first


def test_a_backup_that_is_not_what_a_history_was_is_found(world: World) -> None:
    branches = world.watcher.branches._branches
    where, seqno = next((where, max(found)) for where, found in branches.items() if found)
    kept = branches[where][seqno]
    branches[where][seqno] = replace(kept, key=b"another")
    with pytest.raises(Broken, match=r"^backup: .* documents another version"):
        world.job(Backups).check()
    branches[where][seqno] = kept


def test_documents_that_differ_are_told() -> None:
    one, other = Change(b"k", b"v", 1, 1), Change(b"k", b"w", 1, 1)
    compare("it", 0, 7, {b"k": one}, {b"k": one})
    for held in ({}, {b"k": other}):
        with pytest.raises(Broken, match="backup: it has vbucket 0 at 7, and of 1 documents another version"):
            compare("it", 0, 7, held, {b"k": one})
