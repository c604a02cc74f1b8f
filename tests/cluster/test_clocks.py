"""Nodes that join promise what the members have promised their readers."""

import asyncio

from headwater import client
from headwater.cluster.clocks import level_clocks
from headwater.cluster.members import Members

from .nodes import at, empty_nodes, init, rebalance


class Admin:
    """A node that has promised a time, or makes no promises."""

    def __init__(self, held):
        self.held, self.given = held, []

    async def clock_held(self):
        return self.held

    async def hold_clock(self, cas):
        self.given.append(cas)


class Admins:
    def __init__(self, *held):
        self.admins = [Admin(each) for each in held]

    def admin(self, node):
        return self.admins[node]


def test_all_members_promise_the_latest_time_that_one_has_promised():
    members = Admins(5, 0, 9, None)
    asyncio.run(level_clocks(members, range(4)))
    assert [admin.given for admin in members.admins] == [[9], [9], [], []]


def test_nothing_is_promised_where_no_reader_asked():
    members = Admins(0, 0, None)
    asyncio.run(level_clocks(members, range(3)))
    assert not any(admin.given for admin in members.admins)


async def held_by(nodes):
    async with Members() as members:
        return [await members.admin(node).clock_held() for node in at(*nodes)]


def test_a_node_that_joins_promises_what_the_members_have_promised():
    with empty_nodes(2) as nodes:
        init(nodes[0])
        with client.connect(f"couchbase://{nodes[0].address}/default") as reader:
            promised = reader.hold_clocks(reader.hold_clocks().now).cas
        assert asyncio.run(held_by(nodes)) == [promised, 0]
        rebalance(nodes[0], add=at(nodes[1]))
        assert asyncio.run(held_by(nodes)) == [promised, promised]
        with client.connect(f"couchbase://{nodes[0].address}/default") as reader:
            assert reader.set("k", "v") > promised
