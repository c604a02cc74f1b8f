"""Two movers with one vbucket: what one has seen stays true until it has acted on it (failover 4, more than one mover).

Each story is an order of steps that two processes could come to; the second mover begins in the middle of the first
one's look at the nodes. All end with one owner that has everything.
"""

import asyncio

import pytest

from headwater import client
from headwater.client.routing import Address
from headwater.cluster import mover as module
from headwater.cluster.admin import Endpoint, NodeAdmin
from headwater.cluster.mover import Mover
from headwater.cluster.proxied import Limits
from headwater.errors import ClusterError
from headwater.testing.embedded import embedded
from headwater.testing.faults import FaultyDisk
from headwater.wire.vbucket import State

DOCUMENTS = {f"key {number}": f"value {number}".encode() for number in range(40)}
AT_ONCE = Limits(connect_seconds=60.0, answer_seconds=60.0, patience_seconds=0.0)


@pytest.fixture
def nodes(monkeypatch):
    """The first owns the only vbucket, the second has a whole copy; a mover that is refused does not wait long."""
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.2, raising=False)
    ends = [embedded(disk=FaultyDisk(), vbuckets=1) for _ in range(3)]
    with ends[0] as one, ends[1] as two, ends[2] as three:
        with client.connect(f"couchbase://127.0.0.1:{one.port}") as bucket:
            assert not bucket.set_many(DOCUMENTS.items())
        places = [Endpoint(Address("127.0.0.1", each.port)) for each in (one, two, three)]
        asyncio.run(copied(*places))
        yield places


async def copied(source, *targets):
    for target in targets:
        async with NodeAdmin(target, 60) as admin:
            await admin.delete(0)
        async with Mover(source, target) as mover:
            await mover.move(0, takeover=False)


async def hand_over_broke_off(source, *targets):
    """Dead at the source, pending at the targets, which have everything."""
    async with NodeAdmin(source, 60) as owner:
        for target in targets:
            async with NodeAdmin(target, 60) as admin:
                await admin.set_state(0, State.PENDING)
        await owner.set_state(0, State.DEAD)


def interrupted(mover, other):
    """Let another mover do all that it can right after this one was told the target's state."""
    ask = mover._target.state

    async def state(vb):
        found = await ask(vb)
        mover._target.state = ask
        await other()
        return found

    mover._target.state = state


async def moved_by_somebody_else(source, target):
    """As far as it comes; then, as a rebalance does, the old copy is deleted."""
    try:
        async with Mover(source, target, limits=AT_ONCE) as mover:
            await mover.move(0)
    except ClusterError:
        return
    async with NodeAdmin(source, 60) as admin:
        await admin.delete(0)


def owners(nodes):
    async def states():
        found = []
        for node in nodes:
            async with NodeAdmin(node, 60) as admin:
                found.append(await admin.state(0))
        return found

    return [node for node, state in zip(nodes, asyncio.run(states()), strict=True) if state is State.ACTIVE]


def check(nodes):
    (owner,) = owners(nodes)
    with client.connect(f"couchbase://{owner.address}") as bucket:
        assert {key: bucket.get(key).value for key in DOCUMENTS} == DOCUMENTS
    return owner


def test_a_vbucket_is_not_made_pending_again_after_another_mover_made_it_active(nodes):
    """Else it is left pending at the target, and owned nowhere."""
    source, target, _ = nodes

    async def story():
        await hand_over_broke_off(source, target)
        async with Mover(source, target, limits=AT_ONCE) as mover:
            interrupted(mover, lambda: moved_by_somebody_else(source, target))
            await mover.move(0)

    asyncio.run(story())
    assert check(nodes) == target


def test_a_target_that_another_mover_made_active_is_not_made_a_replica(nodes):
    source, target, _ = nodes

    async def story():
        async with NodeAdmin(target, 60) as admin:
            await admin.set_state(0, State.DEAD)
        async with Mover(source, target, limits=AT_ONCE) as mover:
            interrupted(mover, lambda: moved_by_somebody_else(source, target))
            await mover.move(0)

    asyncio.run(story())
    assert check(nodes) == target


def test_two_targets_of_one_source_do_not_both_become_active(nodes):
    source, target, third = nodes

    async def story():
        await hand_over_broke_off(source, target, third)
        async with Mover(source, target, limits=AT_ONCE) as mover:
            interrupted(mover, lambda: moved_by_somebody_else(source, third))
            await mover.move(0)

    asyncio.run(story())
    assert check(nodes) == target


def test_a_source_is_not_made_active_again_after_another_mover_has_finished(nodes):
    """One gives the vbucket back for the target lacks something; the other has moved it by then."""
    source, target, _ = nodes

    async def story():
        async with NodeAdmin(target, 60) as admin:
            await admin.set_state(0, State.PENDING)
        with client.connect(f"couchbase://{source.address}") as bucket:
            bucket.set("key 0", DOCUMENTS["key 0"])
        async with NodeAdmin(source, 60) as admin:
            await admin.set_state(0, State.DEAD)
        async with Mover(source, target, limits=AT_ONCE) as mover:
            giving_back = mover._settling._act

            async def act(*decided, **how):
                mover._settling._act = giving_back
                await moved_by_somebody_else(source, target)
                return await giving_back(*decided, **how)

            mover._settling._act = act
            await mover.move(0)

    asyncio.run(story())
    assert check(nodes) == target
