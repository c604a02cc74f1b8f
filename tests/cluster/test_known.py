"""Which nodes there are, by the map of any of their buckets."""

from __future__ import annotations

import asyncio

from headwater.client.routing import Address
from headwater.cluster.founding import found
from headwater.cluster.known import known_map
from headwater.cluster.members import Members
from headwater.testing.node import node

from .nodes import at


def test_nodes_that_are_alone_have_no_map_with_others_and_members_have() -> None:
    with node(vbuckets=4, vbucket_state="none") as one, node(vbuckets=4, vbucket_state="none") as other:

        async def work() -> None:
            async with Members() as members:
                assert await known_map(members, at(one)) == (at(one)[0], None)
                made = await found(members, at(one, other), 1)
            async with Members() as members:
                first, known = await known_map(members, at(other))
                assert first == Address(other.host, other.port)
                assert known is not None and (known.uuid, set(known.servers)) == (made.map.uuid, set(at(one, other)))

        asyncio.run(work())
