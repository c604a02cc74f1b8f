"""All that can befall a mirror does befall it: each step once, told in a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from harness.lake_faults.engines import WithoutSpark
from harness.lake_faults.world import VBUCKETS, World, nodes_of
from harness.nodes import cluster
from headwater.lake.log import TableLog
from headwater.lake.store import TableStore
from headwater.testing.node import node

ALONE = [
    *("write", "mirror", "keep", "mirror_that_dies", "mirror_that_fails", "two_mirrors", "harm_an_index"),
    *("lose_all_indexes", "optimize", "checkpoint", "vacuum", "rewrite_as_a_stranger", "delete_as_a_stranger"),
    *("purge", "kill_a_node", "go_back_twice", "mirror_that_is_overtaken"),
]
PAIR = ["write", "mirror", "cut", "write", "mirror", "fail_over", "take_over", "lose_a_branch", "kill_a_node", "purge"]


class Told(list[str]):
    """The lines of a world."""


@pytest.fixture(params=[1, 2])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    told = Told()
    if request.param == 1:
        with node(vbuckets=VBUCKETS) as alone:
            yield World(Random(5), nodes_of(alone), tmp_path, unfold=False, told=told.append)
    else:
        with cluster(2, VBUCKETS) as two:
            yield World(Random(5), two, tmp_path, unfold=False, told=told.append)


def test_each_step_happens_and_the_table_is_what_the_bucket_is(world: World) -> None:
    for name in ALONE if len(world.cluster.nodes) == 1 else PAIR:
        getattr(world, name)()
    world.mirror_that_meets([world.write])
    world.mirror_meanwhile([world.write])
    if len(world.cluster.nodes) == 1:
        world.mirror_folding([world.rewrite_as_a_stranger])
    world.check()
    told = world.told.__self__  # type: ignore[attr-defined]
    assert len(told) >= 9 and told[-1].startswith("equal: ")


def test_a_mirror_that_dies_leaves_what_it_had_done(tmp_path: Path) -> None:
    with node(vbuckets=VBUCKETS) as alone:
        world = World(Random(1), nodes_of(alone), tmp_path, unfold=False, told=lambda line: None)
        world.write()
        # The first is the change log's.
        WithoutSpark().die(world.url, world.place, "lake.before_commit=kill@2", False, Random(1))
        assert (TableLog(TableStore(world.place)).refresh().version, len(list(world.place.glob("part-*")))) == (0, 1)
        assert TableLog(TableStore(f"{world.place}_changes")).refresh().version == 1
        world.check()
