"""Nodes in groups that fail as one: where the copies are, and what is left when a group is gone."""

import asyncio
from contextlib import ExitStack

from headwater.cluster.failover import Failover
from headwater.cluster.members import Members
from headwater.testing.node import node

from .nodes import VBUCKETS, at, check, command, documents, fill, init, rebalance, until_level

DOCUMENTS = documents()


def start(stack, group, **options):
    return stack.enter_context(node(vbuckets=VBUCKETS, vbucket_state="none", group=group, **options))


def survey(seed):
    async def work():
        async with Members() as members:
            return await members.survey(at(seed))

    return asyncio.run(work())


def fail_over(seed, dead):
    async def work():
        async with Members() as members:
            return await Failover(members, at(seed), at(*dead), force=True).run()

    return asyncio.run(work())


def groups_of_chains(found):
    return {tuple(sorted(found.groups[node] for node in found.copies(vb))) for vb in range(found.vbuckets)}


def test_a_rack_that_fails_leaves_a_copy_of_every_document():
    with ExitStack() as stack:
        nodes = [start(stack, group) for group in ("east", "east", "west", "west")]
        init(*nodes, replicas=1)
        assert groups_of_chains(survey(nodes[0]).map) == {("east", "west")}
        fill(nodes[0], DOCUMENTS)
        until_level(*nodes)
        for node in nodes[:2]:
            node.kill()
        fail_over(nodes[2], nodes[:2])
        check(nodes[2:], DOCUMENTS)


def test_nodes_that_are_put_into_groups_are_spread_by_the_next_rebalance():
    with ExitStack() as stack:
        nodes = [start(stack, "") for _ in range(3)]
        init(*nodes, replicas=1)
        fill(nodes[0], DOCUMENTS)
        until_level(*nodes)
        for each, group in zip(nodes, ("east", "east", "west"), strict=True):
            each.stop()
            each.options["group"] = group
            each.restart()
        until_level(*nodes)
        code, shown, told = command("cluster", "status", nodes[0].address)
        assert code == 1 and "group" in shown and "copies in one group, which fails as one" in told
        rebalance(nodes[0])
        assert groups_of_chains(survey(nodes[0]).map) == {("east", "west")}
        assert command("cluster", "status", nodes[0].address)[0] == 0
        check(nodes, DOCUMENTS)
        nodes[0].stop()
        del nodes[0].options["group"]
        nodes[0].restart()
        until_level(*nodes)
        rebalance(nodes[0])
        assert {node.port for node in survey(nodes[1]).map.groups} == {nodes[1].port, nodes[2].port}
        assert command("cluster", "rebalance", nodes[0].address, "--yes")[1] == "there is nothing to do\n"
