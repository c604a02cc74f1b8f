"""Work on buckets, on one node."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from headwater import testing
from headwater.cluster.members import Members
from headwater.cluster.work import CreateBucket, DropBucket, SetHistory, SetQuota, WorkRun
from headwater.errors import OptionError, WorkRefused
from tests.cluster.nodes import at


@pytest.fixture(scope="module")
def node() -> Iterator[testing.Node]:
    with testing.node(vbuckets=4) as running:
        yield running


def on(node: testing.Node, doing: Callable[..., Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with Members() as members:
            return await doing(members, at(node))

    return asyncio.run(run())


def do(node: testing.Node, work: Any) -> Any:
    return on(node, lambda members, seeds: work.run(members, seeds, WorkRun()))


def test_a_bucket_is_made_and_dropped_as_its_plans_say(node: testing.Node) -> None:
    carts = CreateBucket("carts", vbuckets=4, quota_mib=2048)
    plan = on(node, carts.plan)
    assert plan.lines == (
        "Bucket carts is made on all nodes, with 4 vbuckets",
        "It may take 2,048 MiB on each node",
    )
    outcome = do(node, carts)
    assert (outcome.line, outcome.facts) == ("carts is there, on 1 node", {"name": "carts", "nodes": 1})
    with pytest.raises(OptionError, match="none of default, carts"):
        on(node, carts.plan)
    plan = on(node, DropBucket("carts").plan)
    assert (plan.lines, plan.facts["dropped"]) == (("carts would be dropped, with all its documents",), False)
    assert do(node, DropBucket("carts")).facts == {"name": "carts", "nodes": 1, "dropped": True}


def test_a_bucket_that_is_not_there_or_the_first_is_not_dropped(node: testing.Node) -> None:
    with pytest.raises(WorkRefused, match="there is no bucket carts; see headwater bucket list"):
        on(node, DropBucket("carts").plan)
    with pytest.raises(WorkRefused, match=r"default is the first bucket: .* to be rid of it: serve another folder"):
        on(node, DropBucket("default").plan)


def test_a_quota_is_planned_given_and_read(node: testing.Node) -> None:
    do(node, CreateBucket("carts", vbuckets=4))
    plan = on(node, SetQuota("carts", 4096).plan)
    assert (plan.rows, plan.is_empty) == (((node.address, "the disk", "4,096 MiB"),), False)
    assert do(node, SetQuota("carts", 4096)).line == "carts may take 4096 MiB, on 1 node"
    assert on(node, SetQuota("carts", 4096).plan).is_empty
    assert on(node, SetQuota("carts").plan).is_empty, "to ask changes nothing"
    known = do(node, SetQuota("carts"))
    assert (known.line, known.is_answer) == (f"{node.address}: 4096 MiB", True)
    do(node, DropBucket("carts"))


def test_a_history_is_planned_set_and_read_of_the_first_bucket_as_well(node: testing.Node) -> None:
    plan = on(node, SetHistory("default", seconds=3600, mib=5).plan)
    assert (plan.rows, plan.is_empty) == (
        ((node.address, "what compaction leaves", "3600 s and at most 5 MiB"),),
        False,
    )
    done = do(node, SetHistory("default", seconds=3600, mib=5))
    assert done.line == "default keeps 3600 s and at most 5 MiB, on 1 node"
    assert done.facts["history"] == {node.address: {"seconds": 3600, "bytes": 5 << 20, "collections": True}}
    assert on(node, SetHistory("default", mib=5).plan).is_empty
    assert do(node, SetHistory("default", seconds=0)).line == "default keeps 5 MiB, on 1 node"
    known = do(node, SetHistory("default"))
    assert (known.line, known.is_answer) == (f"{node.address}: 5 MiB", True)
    assert do(node, SetHistory("default", mib=0)).line == "default keeps what compaction leaves, on 1 node"


def test_whether_new_collections_have_a_history_is_a_setting_of_the_bucket(node: testing.Node) -> None:
    line = "what compaction leaves; new collections have no history"
    plan = on(node, SetHistory("default", collections="off").plan)
    assert (plan.rows, plan.is_empty) == (((node.address, "what compaction leaves", line),), False)
    assert do(node, SetHistory("default", collections="off")).line == f"default keeps {line}, on 1 node"
    assert on(node, SetHistory("default", collections="off").plan).is_empty
    assert do(node, SetHistory("default", collections="on")).line == "default keeps what compaction leaves, on 1 node"
