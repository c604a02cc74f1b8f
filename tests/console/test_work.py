import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headwater import testing
from headwater.cluster import buckets, collections
from headwater.cluster.buckets import BucketWish
from headwater.cluster.collections import CollectionPath, Lacking
from headwater.cluster.members import Members
from headwater.cluster.work import (
    Compact,
    DropBucket,
    DropCollection,
    FailOver,
    Flush,
    SetQuota,
    SpreadVbuckets,
)
from headwater.console.work import Foreman, Job
from headwater.errors import ClusterError, OptionError
from tests.cluster.nodes import at, check, documents, empty_nodes, fill, init


def foreman_of(*nodes: testing.Node) -> Foreman:
    return Foreman(lambda: Members(timeout_seconds=30.0), lambda: at(*nodes))


def work(foreman: Foreman, doing: Callable[[Foreman], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        try:
            return await doing(foreman)
        finally:
            await foreman.close()

    return asyncio.run(run())


async def ended(job: Job) -> Job:
    while job.state == "running":
        await asyncio.sleep(0.05)
    return job


def test_a_rebalance_is_planned_done_and_told_step_by_step() -> None:
    with empty_nodes(2) as (one, two):
        init(one)
        fill(one, documents(200))

        async def doing(foreman: Foreman) -> None:
            asked = SpreadVbuckets(add=tuple(at(two)))
            shown = await foreman.plan(asked)
            stays = (one.address, "16", "8", "0", "0", "0", "")
            assert shown.rows == (stays, (two.address, "0", "8", "0", "0", "8", "joins"))
            assert shown.lines == (f"{one.address} hands 8 vbuckets over to {two.address}",)
            job = foreman.begin(asked)
            assert foreman.running is job
            with pytest.raises(OptionError, match="once this has ended"):
                foreman.begin(Flush())
            await ended(job)
            assert (job.state, job.done, job.total, foreman.running) == ("done", 8, 8, None)
            assert "8 vbuckets are where they belong" in job.now
            assert (await foreman.plan(SpreadVbuckets())).is_empty

        work(foreman_of(one), doing)
        check([one, two], documents(200))


def test_a_rebalance_that_is_told_to_stop_leaves_the_rest_and_loses_nothing() -> None:
    with empty_nodes(2) as (one, two):
        init(one)
        fill(one, documents(200))

        async def doing(foreman: Foreman) -> None:
            job = foreman.begin(SpreadVbuckets(add=tuple(at(two))))
            assert foreman.stop(job.id)
            await ended(job)
            assert (job.state, job.stopping) == ("stopped", True)
            again = await ended(foreman.begin(SpreadVbuckets(add=tuple(at(two)))))
            assert again.state == "done"
            assert list(foreman.jobs) == [again, job]

        work(foreman_of(one), doing)
        check([one, two], documents(200))


def test_a_dead_node_is_failed_over() -> None:
    with empty_nodes(3) as (one, two, three):
        init(one, two, three, replicas=1)
        fill(one, documents(100))
        two.kill()

        async def doing(foreman: Foreman) -> None:
            asked = FailOver(dead=tuple(at(two)))
            shown = await foreman.plan(asked)
            assert [row[0] for row in shown.rows if row[-1] == "taken out"] == [two.address]
            assert "is lost" in asked.REMARKS[0]
            job = await ended(foreman.begin(asked))
            assert job.state == "done", job.now
            assert "vbuckets promoted, 0 begun anew" in job.now

        work(foreman_of(one, two), doing)


def test_a_compaction_and_a_flush_do_what_they_say() -> None:
    with testing.node(vbuckets=1) as node, node.client() as bucket:
        bucket.set("gone", "v")
        bucket.delete("gone")
        bucket.set("kept", "v")

        async def doing(foreman: Foreman) -> None:
            asked = Compact(vbucket=0, hours=1)
            assert node.address in (await foreman.plan(asked)).lines[0]
            job = await ended(foreman.begin(asked))
            assert (job.state, job.now) == ("done", f"{node.address} has compacted its log")
            assert "Every document" in (await foreman.plan(Flush())).lines[0]
            job = await ended(foreman.begin(Flush()))
            assert (job.state, job.done, job.total) == ("done", 1, 1)
            job = await ended(foreman.begin(Compact(vbucket=5, hours=1)))
            assert job.state == "failed"
            assert "one that a node has active" in job.now

        work(foreman_of(node), doing)
        assert bucket.get_many(["kept"]) == {}
        assert bucket.stats("vbucket-details 0")["vb_0:purge_seqno"] == "0", "no tombstone was an hour old"


def test_a_node_that_is_in_no_cluster_is_said() -> None:
    with testing.node(vbuckets=4) as node:

        async def doing(foreman: Foreman) -> None:
            with pytest.raises(ClusterError, match="cluster init"):
                await foreman.plan(SpreadVbuckets())
            job = await ended(foreman.begin(SpreadVbuckets()))
            assert job.state == "failed"
            assert "cluster init" in job.now

        work(foreman_of(node), doing)


def test_work_that_was_confirmed_reaches_no_bucket_that_was_made_anew_since() -> None:
    """Somebody drops the bucket and makes one of its name between the last look at it and the work itself."""
    with testing.node(vbuckets=4) as node:

        async def doing(foreman: Foreman) -> None:
            async with Members() as members:
                await buckets.create(members, at(node), BucketWish("carts"))
                for asked in (
                    Flush(),
                    Compact(vbucket=0, hours=1),
                    DropBucket("carts"),
                    SetQuota("carts", 2048),
                    DropCollection("shop.orders"),
                    DropCollection("shop.orders", force=True),
                ):
                    await collections.make(members.of("carts"), at(node), [Lacking(CollectionPath("shop", "orders"))])
                    shown = await foreman.plan(asked)
                    await buckets.drop(members, at(node), "carts")
                    await buckets.create(members, at(node), BucketWish("carts"))
                    await collections.make(members.of("carts"), at(node), [Lacking(CollectionPath("shop", "orders"))])
                    job = await ended(foreman.begin(asked, plan=shown))
                    assert job.state == "failed", (asked.KIND, job.now)
                    assert "is not the one that was looked at" in job.now, asked.KIND
                    again = await foreman.plan(asked)
                    assert again.digest != shown.digest, "the page shows the plan again"
                    job = await ended(foreman.begin(asked, plan=again))
                    assert job.state == "done", (asked.KIND, job.now)
                    if asked.KIND == "bucket-drop":
                        await buckets.create(members, at(node), BucketWish("carts"))

        work(Foreman(lambda: Members("carts", timeout_seconds=30.0), lambda: at(node)), doing)


def test_a_collection_that_was_made_anew_is_another_one_than_that_which_was_to_be_dropped() -> None:
    with testing.node(vbuckets=4) as node:

        async def doing(foreman: Foreman) -> None:
            path = CollectionPath("shop", "orders")
            asked = DropCollection(str(path))
            async with Members() as members:
                await collections.make(members, at(node), [Lacking(path)])
                shown = await foreman.plan(asked)
                await collections.change(members, at(node), collections.removal(path))
                await collections.make(members, at(node), [Lacking(path)])
                job = await ended(foreman.begin(asked, plan=shown))
                assert job.state == "failed", job.now
                assert "shop.orders is not what was shown" in job.now
                assert path.is_in(await collections.current(members, at(node)))

        work(foreman_of(node), doing)


def test_a_page_that_is_old_does_not_stop_what_was_begun_after_the_work_it_showed() -> None:
    with empty_nodes(2) as (one, two):
        init(one)

        async def doing(foreman: Foreman) -> None:
            shown = await ended(foreman.begin(Compact(vbucket=0, hours=1)))
            job = foreman.begin(SpreadVbuckets(add=tuple(at(two))))
            assert not foreman.stop(shown.id)
            assert (await ended(job)).state == "done"

        work(foreman_of(one), doing)
