"""A world whose plan has been played, and which is at rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from harness.world.nemesis import begin
from harness.world.plan import plan_of
from harness.world.steps import Step
from harness.world.system import unwatched
from harness.world.world import World


@contextmanager
def resting(operations: int, steps: Sequence[Step] = ()) -> Iterator[World]:
    """Play these steps alone, without users, and heal the world; it is open while the block runs."""
    with unwatched():
        world = World(
            replace(plan_of(5, operations), steps=tuple(steps), has_users=False, has_history=True, has_befores=True)
        )
        with world.inside():
            world.begin()
            world.happen(begin)
            world.heal()
            world.finish()
            yield world
            world.close()
