"""The work of operators in a world, by the product's own code."""

from dataclasses import replace
from functools import partial
from random import Random

import pytest

from harness.simulation.host import Crash
from harness.world import operators
from harness.world.operators import Work
from harness.world.plan import plan_of
from harness.world.system import simulated, unwatched
from harness.world.world import World
from headwater.client.routing import Address
from headwater.cluster import collections
from headwater.cluster.collections import CollectionPath
from headwater.errors import ClusterError
from headwater.wire.manifest import CollectionsManifest


@pytest.mark.parametrize("work", [work for work in Work if work not in {Work.FAILOVER, Work.UNASKED_FAILOVER}])
def test_work_comes_to_its_end_where_nothing_befalls_anybody(work: Work) -> None:
    assert done(work) is True


@pytest.mark.parametrize("work", [Work.FAILOVER, Work.UNASKED_FAILOVER])
def test_a_node_that_answers_is_not_failed_over_and_one_that_does_not_is(work: Work) -> None:
    assert done(work) is False
    assert done(work, is_down=True) is True


def test_a_refusal_proposes_a_loss_where_an_option_overrides_it() -> None:
    assert operators.proposes_loss(ClusterError("no copy is left of 1 vbuckets (3)", "start it, or: --lose-data"))
    assert operators.proposes_loss(ClusterError("it lacks changes", "start it, or --accept behind"))
    assert not operators.proposes_loss(ClusterError("n2 does not answer either", "start it, then type this again"))


@pytest.mark.parametrize("change", [11, 12])
def test_a_node_joins_whose_disk_fails_at_the_batch_that_makes_it_a_replica(change: int) -> None:
    with unwatched():
        world = World(plan_of(3, 20))
        with world.inside():
            world.begin()
            world.complete("remover", asked(world, Work.REMOVE), 120)
            world.machines[1].disk.fail(change)
            assert world.complete("adder", asked(world, Work.ADD), 120) is True
            assert world.watcher.placed[1].committer.failures == 1
            world.close()


def done(work: Work, *, is_down: bool = False) -> object:
    with unwatched():
        world = World(plan_of(3, 20))
        with simulated(world.schedule, world.network, {}):
            world.begin()
            if is_down:
                world.crash(1, Crash.KILL)
            if work is Work.DROP_BUCKET:
                world.complete("maker", asked(world, Work.MAKE_BUCKET), 60)
            found = world.complete("operator", asked(world, work), 120)
            world.close()
            return found


def asked(world: World, work: Work) -> partial[object]:
    return partial(operators.do, work, world.addresses, world.addresses[1], Random(1), 2)


def test_a_machine_with_another_disk_and_a_collection_of_its_own_is_brought_into_the_cluster() -> None:
    with unwatched():
        world = World(replace(plan_of(3, 20), steps=()))
        with world.inside():
            world.begin()

            async def change(seeds: list[Address], name: str) -> CollectionsManifest:
                async with operators.members() as connected:
                    return await collections.change(
                        connected, seeds, collections.creation(CollectionPath("shop", name))
                    )

            assert world.complete("remover", asked(world, Work.REMOVE), 120) is True
            world.crash(1, Crash.KILL)
            world.machines[1].disk = type(world.machines[1].disk)()
            world.watcher.observers[1].vanished()
            world.start(1)
            world.complete("of the cluster", lambda: change(world.addresses[:1], "c1"), 60)
            world.complete("of the machine", lambda: change(world.addresses[1:2], "c2"), 60)
            assert world.complete("healer", partial(operators.make_whole, world.addresses, 60.0), 120) == ""
            shown = world.complete("looker", lambda: current(world.addresses[1:2]), 60)
            assert shown.collection("shop", "c1") is not None and shown.collection("shop", "c2") is None
            world.close()


async def current(seeds: list[Address]) -> CollectionsManifest:
    async with operators.members() as connected:
        return await collections.current(connected, seeds)
