"""Being the only operator at work, on real nodes: who gets the leases, who is refused, and what it loses."""

import asyncio
import itertools
import socket

import pytest

from headwater import testing
from headwater.client.routing import Address
from headwater.cluster.admin import LEASE_SECONDS, Endpoint, NodeAdmin, Operator
from headwater.cluster.alone import lease_all
from headwater.cluster.members import Members
from headwater.cluster.proxied import Limits, open_proxied
from headwater.errors import ClusterError, ConnectionLost
from headwater.testing.embedded import embedded
from headwater.testing.faults import FaultyDisk
from headwater.wire.vbucket import State

ONE, OTHER = Operator("run 1", "rebalance one"), Operator("run 2", "rebalance two")


@pytest.fixture(scope="module")
def nodes():
    with embedded(disk=FaultyDisk(), vbuckets=8) as one, embedded(disk=FaultyDisk(), vbuckets=8) as other:
        yield [Address("127.0.0.1", each.port) for each in (one, other)]


def admins(nodes):
    return [NodeAdmin(Endpoint(address), timeout_seconds=60) for address in nodes]


def close(*groups):
    for each in itertools.chain(*groups):
        each.close()


def run(story):
    async def bounded():
        async with asyncio.timeout(60):
            await story()

    asyncio.run(bounded())


def test_of_two_that_ask_one_works_and_the_other_is_told_who_that_is(nodes):
    async def story():
        one, other = admins(nodes), admins(nodes)
        await lease_all(one, ONE, wait_seconds=60)
        with pytest.raises(ClusterError, match="rebalance one is at work on this node; wait until that ends"):
            await lease_all(other, OTHER, wait_seconds=0.2)
        await one[0].set_state(1, State.ACTIVE)
        close(one, other)

    run(story)


def test_who_waits_gets_the_leases_when_the_other_has_ended(nodes):
    async def story():
        one, other = admins(nodes), admins(nodes)
        await lease_all(one, ONE, wait_seconds=60)
        waiting = asyncio.create_task(lease_all(other, OTHER, wait_seconds=60))
        await asyncio.sleep(0)
        assert not waiting.done()
        close(one)
        await waiting
        close(other)

    run(story)


def test_two_that_have_one_node_each_do_not_wait_for_each_other_for_ever(nodes):
    """A run that does not get all of them holds none while it waits."""

    async def story():
        one, other = admins(nodes), admins(nodes)
        asking = lease_all(one, ONE, 0.5), lease_all(list(reversed(other)), OTHER, 0.5)
        await asyncio.gather(*asking, return_exceptions=True)
        close(one, other)
        third = admins(nodes)
        await lease_all(third, Operator("run 3", "the third"), wait_seconds=60)
        close(third)

    run(story)


def test_a_connection_that_is_opened_again_has_the_lease_again_unless_another_operator_was_there(nodes):
    async def story():
        (one, *_), (other, *_) = admins(nodes), admins(nodes)
        await lease_all([one], ONE, wait_seconds=60)
        one._link.close()
        await one.set_state(1, State.ACTIVE)  # taken again
        with pytest.raises(ClusterError, match="rebalance one is at work"):
            await other.lease(OTHER)
        one._link.close()
        await other.release()
        await lease_all([other], OTHER, wait_seconds=60)
        for _ in range(2):
            with pytest.raises(ClusterError, match="rebalance two is at work"):
                await one.set_state(1, State.DEAD)
        await other.release()
        with pytest.raises(ClusterError, match="rebalance two has been at work on this node meanwhile"):
            await one.set_state(1, State.DEAD)
        assert await other.state(1) is State.ACTIVE
        close([one, other])

    run(story)


def test_an_operator_who_was_cut_off_is_refused_by_a_node_that_started_again_since():
    """Another operator has worked meanwhile, and the node can't know: it lost the lease with its process."""

    async def story(node):
        seconds, address = [0.0], Address("127.0.0.1", node.port)
        one = NodeAdmin(Endpoint(address), 60, lambda: seconds[0])
        (other,) = admins([address])
        await lease_all([one], Operator("run 1", "rebalance one"), wait_seconds=60)
        one._link.close()
        seconds[0] += LEASE_SECONDS / 2
        node.restart()
        await one.set_state(1, State.REPLICA)  # the run knows that it was alone
        one._link.close()
        seconds[0] += LEASE_SECONDS
        await lease_all([other], OTHER, wait_seconds=60)
        await other.set_state(1, State.ACTIVE)
        close([other])
        node.restart()
        for _ in range(2):
            with pytest.raises(ClusterError, match="no node has answered rebalance one for 20 s; another operator may"):
                await one.delete(1)
        (third,) = admins([address])
        assert await third.state(1) is State.ACTIVE
        close([one, third])

    with testing.node(vbuckets=8) as node:
        run(lambda: story(node))


def test_a_new_operator_ends_the_hand_overs_of_the_one_before_and_no_other_connection(nodes):
    async def story():
        (one, *_), (other, *_) = admins(nodes), admins(nodes)
        await lease_all([one], ONE, wait_seconds=60)
        ends = [Endpoint(address) for address in nodes]
        copying, handing_over = [
            await open_proxied(*ends, Limits(connect_seconds=60.0), purpose) for purpose in ("copy", "hand-over")
        ]
        one.close()
        await lease_all([other], OTHER, wait_seconds=60)
        assert isinstance(await handing_over.proxy.lost, ConnectionLost)
        assert copying.is_open
        copying.close()
        close([other])

    run(story)


def test_members_are_alone_for_as_long_as_the_work_lasts(nodes):
    async def story():
        async with Members() as one, Members() as other:
            async with one.alone("rebalance", nodes, wait_seconds=60):
                assert one.operator is not None and "rebalance" in one.operator.by
                with pytest.raises(ClusterError, match=r"rebalance .process .* is at work"):
                    async with other.alone("failover", nodes, wait_seconds=0.2):
                        raise AssertionError("two at once")
            assert one.operator is None
            async with other.alone("failover", nodes, wait_seconds=60):
                pass

    run(story)


def test_a_node_that_does_not_answer_is_left_out(nodes):
    async def story():
        gone = NodeAdmin(Endpoint(Address("127.0.0.1", closed.getsockname()[1])), timeout_seconds=5)
        (there, *_) = admins(nodes)
        await lease_all([gone, there], ONE, wait_seconds=60)
        await there.set_state(1, State.ACTIVE)
        close([gone, there])

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        run(story)
