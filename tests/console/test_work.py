import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headwater import testing
from headwater.client.routing import Address, parse
from headwater.cluster import buckets, collections
from headwater.cluster.buckets import BucketWish
from headwater.cluster.collections import CollectionPath, Lacking
from headwater.cluster.members import Members
from headwater.console.chores import asked_work
from headwater.console.work import AskedWork, Foreman, Job, Shown
from headwater.errors import ClusterError, OptionError
from tests.cluster.nodes import at, check, documents, empty_nodes, fill, init

from .test_chores import SETTINGS

PLAIN, SECURE = parse("couchbase://h:1/default"), parse("couchbases://h:1/default")


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


# --------------------------------------------------------------------------- what is asked


def test_a_form_is_read_with_its_bounds() -> None:
    asked = AskedWork.of("rebalance", {"add": "a:1, b:2 a:1", "remove": "", "replicas": "1"}, PLAIN)
    assert (asked.add, asked.remove, asked.replicas) == ((Address("a", 1), Address("b", 2)), (), 1)
    assert asked.title == "Rebalance: add a:1, add b:2, 1 replicas"
    assert AskedWork.of("rebalance", {}, PLAIN).title == "Rebalance: spread evenly"
    assert AskedWork.of("rebalance", {"add": "a b:2"}, SECURE).add == (Address("a", 11207), Address("b", 2))
    failover = AskedWork.of("failover", {"dead": "a:1", "force": "yes"}, PLAIN)
    assert (failover.dead, failover.force, failover.lose_data) == ((Address("a", 1),), True, False)
    assert AskedWork.of("compaction", {"vbucket": "3", "hours": "0"}, PLAIN).vbucket == 3


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("rebalance", {"replicas": "4"}),
        ("rebalance", {"add": "http://a:1"}),
        ("rebalance", {"add": "ann:secret@a:1"}),
        ("rebalance", {"add": "a:99999"}),
        ("failover", {"dead": " "}),
        ("compaction", {"vbucket": "1024", "hours": "1"}),
        ("compaction", {"vbucket": "1", "hours": ""}),
        ("compaction", {"vbucket": "-1", "hours": "1"}),
        ("demolition", {}),
    ],
)
def test_what_can_not_be_asked_is_refused(kind: str, fields: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        AskedWork.of(kind, fields, PLAIN)


def test_what_hurts_is_confirmed_by_its_name() -> None:
    assert AskedWork("failover", dead=(Address("a", 1),)).confirmation("orders") == "a:1"
    assert AskedWork("flush").confirmation("orders") == "orders"
    assert AskedWork("rebalance").confirmation("orders") == "yes"


def test_two_plans_that_differ_have_other_digests() -> None:
    one, other = Shown(rows=(("a", "1"),)), Shown(rows=(("a", "2"),))
    assert one.digest == Shown(rows=(("a", "1"),)).digest != other.digest


# --------------------------------------------------------------------------- what is done


def test_a_rebalance_is_planned_done_and_told_step_by_step() -> None:
    with empty_nodes(2) as (one, two):
        init(one)
        fill(one, documents(200))

        async def doing(foreman: Foreman) -> None:
            asked = AskedWork("rebalance", add=tuple(at(two)))
            shown = await foreman.plan(asked)
            stays = (one.address, "16", "8", "0", "0", "0", "")
            assert shown.rows == (stays, (two.address, "0", "8", "0", "0", "8", "joins"))
            assert shown.sentences == (f"{one.address} hands 8 vbuckets over to {two.address}.",)
            job = foreman.begin(asked)
            assert foreman.running is job
            with pytest.raises(OptionError, match="once this has ended"):
                foreman.begin(AskedWork("flush"))
            await ended(job)
            assert (job.state, job.done, job.total, foreman.running) == ("done", 8, 8, None)
            assert "8 vbuckets are where they belong" in job.now
            assert (await foreman.plan(AskedWork("rebalance"))).is_empty

        work(foreman_of(one), doing)
        check([one, two], documents(200))


def test_a_rebalance_that_is_told_to_stop_leaves_the_rest_and_loses_nothing() -> None:
    with empty_nodes(2) as (one, two):
        init(one)
        fill(one, documents(200))

        async def doing(foreman: Foreman) -> None:
            job = foreman.begin(AskedWork("rebalance", add=tuple(at(two))))
            assert foreman.stop(job.id)
            await ended(job)
            assert (job.state, job.stopping) == ("stopped", True)
            again = await ended(foreman.begin(AskedWork("rebalance", add=tuple(at(two)))))
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
            asked = AskedWork("failover", dead=tuple(at(two)))
            shown = await foreman.plan(asked)
            assert [row[0] for row in shown.rows if row[-1] == "taken out"] == [two.address]
            assert "is lost" in shown.sentences[0]
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
            asked = AskedWork("compaction", vbucket=0, hours=1)
            assert node.address in (await foreman.plan(asked)).sentences[0]
            job = await ended(foreman.begin(asked))
            assert (job.state, job.now) == ("done", f"{node.address} has compacted its log")
            assert "Every document" in (await foreman.plan(AskedWork("flush"))).sentences[0]
            job = await ended(foreman.begin(AskedWork("flush")))
            assert (job.state, job.done, job.total) == ("done", 1, 1)
            job = await ended(foreman.begin(AskedWork("compaction", vbucket=5, hours=1)))
            assert job.state == "failed"
            assert "one that a node has active" in job.now

        work(foreman_of(node), doing)
        assert bucket.get_many(["kept"]) == {}
        assert bucket.stats("vbucket-details 0")["vb_0:purge_seqno"] == "0", "no tombstone was an hour old"


def test_a_node_that_is_in_no_cluster_is_said() -> None:
    with testing.node(vbuckets=4) as node:

        async def doing(foreman: Foreman) -> None:
            with pytest.raises(ClusterError, match="cluster init"):
                await foreman.plan(AskedWork("rebalance"))
            job = await ended(foreman.begin(AskedWork("rebalance")))
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
                    AskedWork("flush"),
                    AskedWork("compaction", vbucket=0, hours=1),
                    asked_work("bucket-drop", {"name": "carts"}, SETTINGS),
                    asked_work("bucket-quota", {"name": "carts", "quota_mib": "2048"}, SETTINGS),
                    asked_work("collection-drop", {"name": "shop.orders"}, SETTINGS),
                ):
                    await collections.make(members.of("carts"), at(node), [Lacking(CollectionPath("shop", "orders"))])
                    shown = await foreman.plan(asked)
                    await buckets.drop(members, at(node), "carts")
                    await buckets.create(members, at(node), BucketWish("carts"))
                    await collections.make(members.of("carts"), at(node), [Lacking(CollectionPath("shop", "orders"))])
                    job = await ended(foreman.begin(asked, plan=shown))
                    assert job.state == "failed", (asked.kind, job.now)
                    assert "is not the one that was looked at" in job.now, asked.kind
                    again = await foreman.plan(asked)
                    assert again.digest != shown.digest, "the page shows the plan again"
                    job = await ended(foreman.begin(asked, plan=again))
                    assert job.state == "done", (asked.kind, job.now)
                    if asked.kind == "bucket-drop":
                        await buckets.create(members, at(node), BucketWish("carts"))

        work(Foreman(lambda: Members("carts", timeout_seconds=30.0), lambda: at(node)), doing)


def test_a_collection_that_was_made_anew_is_another_one_than_that_which_was_to_be_dropped() -> None:
    with testing.node(vbuckets=4) as node:

        async def doing(foreman: Foreman) -> None:
            path = CollectionPath("shop", "orders")
            asked = asked_work("collection-drop", {"name": str(path)}, SETTINGS)
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
            shown = await ended(foreman.begin(AskedWork("compaction", vbucket=0, hours=1)))
            job = foreman.begin(AskedWork("rebalance", add=tuple(at(two))))
            assert not foreman.stop(shown.id)
            assert (await ended(job)).state == "done"

        work(foreman_of(one), doing)
