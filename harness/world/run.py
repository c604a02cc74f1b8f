"""One run of a simulated world, from the founding of its cluster to the verdict.

    outcome = run(plan_of(7))
    outcome.broken, outcome.digest

The same plan gives the same run, always. When the clients are done all faults are lifted, and the cluster must become
whole again: every node a member, every copy like its owner, every reader at the owners' positions.
"""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass, field
from unittest import mock

from harness.linearizability.record import History
from harness.linearizability.second import Word
from harness.simulation.histories import Broken
from harness.world import operators
from harness.world.invariants import judge
from harness.world.nemesis import begin
from harness.world.plan import WorldPlan
from harness.world.rights import ADMINISTRATOR
from harness.world.system import unwatched
from harness.world.world import World


@dataclass(slots=True)
class WorldOutcome:
    """The outcome of a run.

    Attributes:
        broken: the promise that did not hold, in words; "" if all did. digest: of all events.
        counts: how often each kind of event happened. history: of the clients.
        judged: the part of it that our search judged, with the faults that explain answers; verdicts: its verdicts.
    """

    plan: WorldPlan
    broken: str = ""
    digest: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    history: History = field(default_factory=History)
    judged: History = field(default_factory=History)
    verdicts: dict[str, Word] = field(default_factory=dict)
    trace: str = ""


def run(plan: WorldPlan) -> WorldOutcome:
    """Run one world; return its outcome."""
    with unwatched():
        return _run(plan)


def _run(plan: WorldPlan) -> WorldOutcome:
    world = World(plan)
    outcome = WorldOutcome(plan, counts=world.counts)
    login = mock.patch.object(operators, "LOGIN", ADMINISTRATOR if plan.has_users else (None, None))
    with login, world.inside():
        try:
            world.begin()
            world.happen(begin)
            world.heal()
            world.finish()
            judge(world)
        except Exception as error:  # whatever it is, it is told with its seed
            outcome.broken = str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"
            outcome.trace = traceback.format_exc()
        world.close()
        outcome.digest = world.digest()
        outcome.history = world.recorder.history()
        outcome.judged, outcome.verdicts = world.judged, world.verdicts
    return outcome
