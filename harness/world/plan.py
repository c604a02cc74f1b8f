"""The plan of a run: everything that decides it, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from harness.world.steps import (
    Fault,
    Step,
    anew_of,
    duplicates_of,
    flips_of,
    histories_of,
    jumps_of,
    owners_of,
    rights_of,
    steps_of,
    stops_of,
)


@dataclass(frozen=True, slots=True)
class WorldPlan:
    """Everything that decides a run.

    Attributes:
        operations: of all clients together. seconds: the time in which faults come.
        clock_error_seconds: the most seconds by which clocks may jump.
        has_users: True if nodes have users, and there are guests.
        has_orders: True if a second bucket has clients.
        has_tenants: True if some users have rights in single collections alone.
        has_history: True if a reader requests every version.
        has_befores: True if that reader requests what each change replaced, too.
        has_times: True if a reader says up to which time it has everything.
    """

    seed: int
    nodes: int
    vbuckets: int
    replicas: int
    clients: int
    keys: int
    operations: int
    seconds: float
    clock_error_seconds: float
    steps: tuple[Step, ...]
    has_users: bool = False
    has_orders: bool = False
    has_tenants: bool = False
    has_history: bool = False
    has_befores: bool = False
    has_times: bool = False

    @property
    def has_flips(self) -> bool:
        """True if bits flip, and machines are replaced for that."""
        return any(step.fault is Fault.FLIP for step in self.steps)


def with_times(plan: WorldPlan) -> WorldPlan:
    """Return a plan with a reader of the time, in which clocks jump more often."""
    random = Random(f"times {plan.seed}")  # noqa: S311 - must be repeatable
    steps = tuple(sorted((*plan.steps, *jumps_of(random, plan.nodes, plan.seconds)), key=lambda step: step.at))
    return replace(plan, steps=steps, clock_error_seconds=5.0, has_times=True)


def plan_of(seed: int, operations: int = 1000) -> WorldPlan:
    """Return the plan of a seed."""
    random = Random(seed)  # noqa: S311 - must be repeatable
    nodes = random.choice([3, 3, 3, 4, 5])
    seconds = operations * 0.03
    jumps = random.choice([0.0, 0.0, 5.0])
    flips = flips_of(Random(f"decay {seed}"), nodes, seconds)  # noqa: S311 - must be repeatable
    chance = Random(f"logins {seed}")  # noqa: S311 - must be repeatable
    has_users = not flips and chance.random() < 0.5
    changes = rights_of(chance, nodes, seconds) if has_users else ()
    chance = Random(f"orders {seed}")  # noqa: S311 - must be repeatable
    has_orders = chance.random() < 0.4
    anew = anew_of(chance, nodes, seconds) if has_orders and not flips else ()
    chance = Random(f"owners of orders {seed}")  # noqa: S311 - must be repeatable
    owners = owners_of(chance, nodes, seconds) if has_orders and chance.random() < 0.5 else ()
    has_tenants = has_users and Random(f"tenants {seed}").random() < 0.5  # noqa: S311 - must be repeatable
    has_history = Random(f"history {seed}").random() < 0.5  # noqa: S311 - must be repeatable
    has_befores = has_history and Random(f"replaced {seed}").random() < 0.5  # noqa: S311 - must be repeatable
    chance = Random(f"duplicates {seed}")  # noqa: S311 - must be repeatable
    twice = duplicates_of(chance, nodes, seconds)
    chance = Random(f"kept {seed}")  # noqa: S311 - must be repeatable
    kept = histories_of(chance, nodes, seconds) if chance.random() < 0.5 else ()
    found = (*steps_of(random, nodes, seconds), *flips, *changes, *anew, *owners, *twice, *kept)
    stops = stops_of(Random(f"stops {seed}"), found, nodes, seconds)  # noqa: S311 - must be repeatable
    steps = tuple(sorted((*found, *stops), key=lambda step: step.at))
    return WorldPlan(
        seed,
        nodes,
        random.choice([2, 4]),
        random.choice([1, 2, 2]),
        random.randrange(3, 7),
        random.choice([4, 10, 20]),
        operations,
        seconds,
        jumps,
        steps,
        has_users,
        has_orders,
        has_tenants,
        has_history,
        has_befores,
    )
