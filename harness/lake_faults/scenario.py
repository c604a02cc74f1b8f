"""Scenarios: the faults of a seed, drawn by the weights of its profile, and a comparison."""

from __future__ import annotations

import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType

from harness.lake_faults.catalog import rest_catalog
from harness.lake_faults.engines import Engine
from harness.lake_faults.strangers import IcebergOnSpark
from harness.lake_faults.world import DELTA, VBUCKETS, World, nodes_of
from harness.nodes import cluster
from headwater.testing.node import node

STEPS_MIN, STEPS_MAX = 8, 16
SECONDS_MAX = {"local": 540.0, "spark": 1800.0}
"""How long a scenario may take, by engine."""


@dataclass(frozen=True)
class Profile:
    """A kind of scenario.

    Attributes:
        name: its name in the report.
        steps: weights by the name of a `World`'s method.
        beside: the faults that may happen in the middle of a batch, or while a mirror runs.
        nodes: one or two.
        unfold: True if JSON documents become columns.
        catalog: True if a catalog follows the table.
    """

    name: str
    steps: dict[str, int]
    beside: tuple[str, ...] = ("write",)
    nodes: int = 1
    unfold: bool = False
    catalog: bool = False


BESIDE = ("mirror_that_meets", "mirror_meanwhile", "mirror_folding")
"""Steps during which a fault of the profile's `beside` happens."""

USUAL = {"write": 6, "mirror": 3, "mirror_that_meets": 3, "mirror_meanwhile": 1}
RETURNING = {"keep": 2, "go_back": 2, "go_back_twice": 1}
CARE = {"optimize": 1, "checkpoint": 1, "vacuum": 1, "harm_an_index": 2, "lose_all_indexes": 1}
STRANGERS = {"rewrite_as_a_stranger": 2, "delete_as_a_stranger": 1}
DEATHS = {"mirror_that_dies": 4, "mirror_that_fails": 2}
BY_ICEBERG = {"merge_by_iceberg": 2, "delete_by_iceberg": 1, "rewrite_by_iceberg": 1, "expire_by_iceberg": 1}
OF_CATALOGS = {
    "catalog_is_away": 2,
    "catalog_loses_answers": 3,
    "commit_through_the_catalog": 2,
    "drop_from_the_catalog": 1,
    "leave_the_catalog": 2,
}
BY_SPARK = {"optimize_by_spark": 3, "delete_by_spark": 1}
PAIR = {"take_over": 1, "cut": 3, "fail_over": 2}

PROFILES = (
    Profile("writes", USUAL),
    Profile("mirrors that die", USUAL | DEATHS),
    Profile("nodes killed", USUAL | {"kill_a_node": 3}, ("write", "kill_a_node")),
    Profile("purges", USUAL | {"purge": 3}, ("write", "purge")),
    Profile(
        "purges, nodes and mirrors killed",
        USUAL | DEATHS | {"purge": 3, "kill_a_node": 3},
        ("write", "purge", "kill_a_node"),
    ),
    Profile("replicas promoted", USUAL | RETURNING, ("write", "keep", "go_back", "go_back_twice")),
    Profile(
        "replicas promoted, mirrors that die, purges",
        USUAL | RETURNING | DEATHS | {"purge": 2},
        ("write", "keep", "go_back", "purge"),
    ),
    Profile("two nodes: failovers", USUAL | PAIR, ("write", "cut", "fail_over"), nodes=2),
    Profile("two nodes: vbuckets moved", USUAL | {"take_over": 4}, ("write", "take_over"), nodes=2),
    Profile(
        "two nodes: all",
        USUAL | PAIR | DEATHS | {"purge": 2, "kill_a_node": 1},
        ("write", "cut", "fail_over", "take_over", "purge"),
        nodes=2,
    ),
    Profile("two mirrors", USUAL | RETURNING | {"two_mirrors": 4}, ("write", "mirror", "go_back", "keep")),
    Profile(
        "strangers and lost files",
        USUAL | CARE | STRANGERS,
        ("write", "rewrite_as_a_stranger", "harm_an_index", "optimize", "vacuum", "checkpoint"),
    ),
    Profile(
        "folds in a process of their own",
        USUAL | CARE | STRANGERS | {"mirror_folding": 8},
        ("write", "rewrite_as_a_stranger", "delete_as_a_stranger", "optimize", "vacuum", "mirror"),
    ),
    Profile("JSON", USUAL | RETURNING | DEATHS | STRANGERS, ("write", "go_back"), unfold=True),
    Profile(
        "everything",
        USUAL | RETURNING | DEATHS | CARE | STRANGERS | {"purge": 2, "kill_a_node": 2, "two_mirrors": 1},
        ("write", "go_back", "keep", "purge", "kill_a_node", "mirror", "optimize", "rewrite_as_a_stranger", "vacuum"),
    ),
    Profile("two nodes: one vbucket fails over", USUAL | {"lose_a_branch": 6}, ("write", "cut"), nodes=2),
    Profile("rows moved when they were looked up", USUAL | {"mirror_that_is_overtaken": 6}),
)

PROFILES_OF_ICEBERG = (
    *PROFILES,
    Profile("a catalog that goes away", USUAL | OF_CATALOGS, ("write", *OF_CATALOGS), catalog=True),
    Profile(
        "a catalog, mirrors that die, replicas promoted",
        USUAL | OF_CATALOGS | DEATHS | RETURNING | {"two_mirrors": 2, "optimize": 1, "vacuum": 1},
        ("write", "go_back", "catalog_is_away", "catalog_loses_answers", "leave_the_catalog", "mirror"),
        catalog=True,
    ),
    Profile("Iceberg on Spark writes too", USUAL | BY_ICEBERG | DEATHS, ("write", *BY_ICEBERG)),
)
"""Those of tables that are published as Iceberg."""


@dataclass
class Result:
    """The outcome of a seed.

    Attributes:
        problem: in one line; empty when all was equal.
        lines: the steps, in words.
    """

    seed: int
    profile: str
    steps: int = 0
    seconds: float = 0.0
    problem: str = ""
    lines: list[str] = field(default_factory=list)
    trace: str = ""


def profiles_of(form: str) -> tuple[Profile, ...]:
    """Return the profiles of a form of tables."""
    return PROFILES if form == DELTA else PROFILES_OF_ICEBERG


def profile_of(seed: int, form: str = DELTA) -> Profile:
    """Return a seed's profile: the profiles take turns."""
    profiles = profiles_of(form)
    return profiles[seed % len(profiles)]


def run(
    seed: int,
    told: Callable[[str], None] = lambda line: None,
    engine: Engine | None = None,
    form: str = DELTA,
    strangers: IcebergOnSpark | None = None,
) -> Result:
    """Run a scenario; return its result. Nothing is raised except errors that end the process.

    Args:
        seed: decides everything except durations.
        told: called with a line for each step as it ends.
        engine: runs the mirrors; None for the local engine. With Spark, Delta's own commands also write to the table,
            as foreign writers.
        form: of the table, as `--format` has it.
        strangers: Iceberg on Spark; without it its steps do nothing.
    """
    profile, began = profile_of(seed, form), time.monotonic()
    result = Result(seed, profile.name)
    if strangers and BY_ICEBERG.keys() & profile.steps.keys():
        strangers.begin()  # which may take minutes, of none of the scenario's

    def note(line: str) -> None:
        result.lines.append(line)
        told(line)

    try:
        with (
            _within(SECONDS_MAX[engine.name if engine else "local"]),
            tempfile.TemporaryDirectory(prefix="headwater-lake-") as folder,
        ):
            chance = Random(seed)  # noqa: S311 -- to be repeated
            world = _world(profile, chance, Path(folder), note, engine, form, strangers)
            _perform(profile, chance, result, world)
    except Exception as error:
        result.problem = f"{type(error).__name__}: {error}".splitlines()[0]
        result.trace = traceback.format_exc()
    result.seconds = round(time.monotonic() - began, 1)
    return result


def _perform(profile: Profile, random: Random, result: Result, opened: AbstractContextManager[World]) -> None:
    with opened as world:
        spark = BY_SPARK if world.engine.name == "spark" and "rewrite_as_a_stranger" in profile.steps else {}
        steps = profile.steps | spark
        names, weights = list(steps), list(steps.values())
        beside = [getattr(world, name) for name in (*profile.beside, *spark)]
        for _ in range(random.randint(STEPS_MIN, STEPS_MAX)):
            name = random.choices(names, weights)[0]
            step = getattr(world, name)
            step(beside) if name in BESIDE else step()
            result.steps += 1
        world.check()


@contextmanager
def _world(  # noqa: PLR0917 -- what a seed decides, and where it is told
    profile: Profile,
    random: Random,
    folder: Path,
    note: Callable[[str], None],
    engine: Engine | None,
    form: str,
    strangers: IcebergOnSpark | None,
) -> Iterator[World]:
    with ExitStack() as opened:
        if profile.nodes == 1:
            nodes = nodes_of(opened.enter_context(node(vbuckets=VBUCKETS)))
        else:
            nodes = opened.enter_context(cluster(profile.nodes, VBUCKETS))
        yield World(
            random,
            nodes,
            folder,
            unfold=profile.unfold,
            told=note,
            engine=engine,
            form=form,
            catalog=opened.enter_context(rest_catalog()) if profile.catalog else None,
            strangers=strangers,
        )


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in this thread when a block takes longer."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the scenario did not end in {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
