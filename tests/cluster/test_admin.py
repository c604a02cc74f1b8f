"""One node, administered: states, seqnos, failover logs, replication, maps; and what happens when it is not there."""

import asyncio
import json
import time

import pytest

from headwater import testing
from headwater.client.routing import Address
from headwater.cluster.admin import Endpoint, NodeAdmin, vbucket_list
from headwater.cluster.answers import CopyReport
from headwater.errors import (
    AuthError,
    ClusterError,
    ConnectionLost,
    InvalidArguments,
    KeyNotFound,
    NotMyVbucket,
    PeerSilent,
)
from headwater.testing.embedded import embedded
from headwater.testing.faults import FaultyDisk
from headwater.wire.vbucket import State


@pytest.fixture(scope="module")
def node():
    with embedded(disk=FaultyDisk(), vbuckets=8) as made:
        yield made


def administered(node, work):
    """Return the result of `work`, given an administrator of the node."""

    async def run():
        async with await NodeAdmin.connect(Address("127.0.0.1", node.port)) as admin:
            return await work(admin)

    return asyncio.run(run())


def test_states_are_set_told_and_forgotten(node):
    async def work(admin):
        await admin.set_state(1, State.REPLICA)
        replica = await admin.state(1)
        assert await admin.delete(1)
        assert not await admin.delete(1)
        gone = await admin.state(1)
        await admin.set_state(1, State.ACTIVE)
        return replica, gone, await admin.states()

    replica, gone, states = administered(node, work)
    assert (replica, gone) == (State.REPLICA, None)
    assert states == dict.fromkeys(range(8), State.ACTIVE)


def test_seqnos_and_failover_logs_are_those_of_the_node(node):
    async def work(admin):
        await admin.set_state(2, State.REPLICA)
        by_state = await admin.seqnos(State.REPLICA)
        await admin.set_state(2, State.ACTIVE)
        return by_state, await admin.failover_log(2), await admin.seqnos(), await admin.items()

    by_state, log, seqnos, items = administered(node, work)
    assert by_state == {2: 0}
    assert log[-1][1] == 0
    assert log[0][0] != 0
    assert set(seqnos) == set(items) == set(range(8))


def test_copies_are_told_in_one_answer_and_from_a_server_without_it_as_they_are_told_there(node, monkeypatch):
    async def work(admin):
        await admin.set_state(2, State.REPLICA)
        found = await admin.copies(range(1, 8))
        old = NodeAdmin(admin.endpoint)
        monkeypatch.setattr(old, "stats", refuse_copies(old.stats))
        async with old:
            same = await old.copies(range(1, 8))
        await admin.set_state(2, State.ACTIVE)
        return found, same

    def refuse_copies(stats):
        async def asked(group=""):
            if group.startswith("vbucket-copies"):
                raise KeyNotFound("node", "there is no such group")
            return await stats(group)

        return asked

    found, same = administered(node, work)
    assert found.keys() == same.keys() == set(range(1, 8))
    for vb, copy in found.items():
        assert (copy.state, copy.seqno, copy.complete, list(copy.log)) == (
            same[vb].state,
            same[vb].seqno,
            same[vb].complete,
            list(same[vb].log),
        )
    assert found[2].state is State.REPLICA and (found[2].bytes, same[2].bytes) == (0, None)


class OldNode(NodeAdmin):
    """A server without STAT vbucket-copies; its one vbucket has the next of `states` each time that it is asked."""

    def __init__(self, states, **details):
        super().__init__(Endpoint(Address("old", 11210)))
        self.states, self.details = states, {f"vb_0:{name}": value for name, value in details.items()}

    async def stats(self, group=""):
        if group.startswith("vbucket-details"):
            return self.details
        raise KeyNotFound("node", "there is no such group")

    async def state(self, vbucket):
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    async def seqnos(self, state=None):
        return {0: 10} if state is self.states[0] else {}

    async def failover_log(self, vbucket):
        return [(1, 0)]


def test_an_older_servers_copy_has_the_flaw_that_it_tells():
    old = OldNode([State.PENDING], high_seqno="10", complete_seqno="4", damaged_changes="3", refused_changes="2")
    assert asyncio.run(old.copies([0])) == {0: CopyReport(State.PENDING, 10, 4, [(1, 0)], refused=2, damaged=3)}


def test_an_older_servers_copy_that_changes_its_state_between_two_answers_is_looked_at_again():
    """Such an owner would have no change at all, and every copy would be level with it."""
    old = OldNode([State.ACTIVE, State.DEAD], high_seqno="10")
    assert asyncio.run(old.copies([0]))[0].state is State.DEAD
    restless = OldNode([State.ACTIVE, State.DEAD] * 20, high_seqno="10")
    with pytest.raises(ClusterError, match="changes its state all the time"):
        asyncio.run(restless.copies([0]))


def test_a_vbucket_that_is_not_there_has_no_failover_log(node):
    async def work(admin):
        await admin.failover_log(77)

    with pytest.raises(NotMyVbucket, match="vbucket 77"):
        administered(node, work)


def test_many_tasks_share_one_administrator(node):
    async def work(admin):
        return await asyncio.gather(*(admin.state(vb % 8) for vb in range(100)))

    assert administered(node, work) == [State.ACTIVE] * 100


def test_a_seqno_on_disk_is_not_waited_for_and_one_that_never_comes_is_given_up(node):
    async def work(admin):
        await admin.wait_persisted(3, 0)
        await admin.wait_persisted(3, 10, timeout_seconds=0.05)

    with pytest.raises(PeerSilent):
        administered(node, work)


def test_following_a_producer_begins_and_ends(node):
    nobody = Endpoint(Address("127.0.0.1", 1))

    async def work(admin):
        with pytest.raises(InvalidArguments, match="active"):
            await admin.replicate(nobody, [4])
        await admin.set_state(4, State.REPLICA)
        await admin.replicate(nobody, [4])
        told = await admin.replication()
        assert await admin.stop_replicating(nobody, [4])
        assert not await admin.stop_replicating(Endpoint(Address("127.0.0.1", 2)))
        await admin.set_state(4, State.ACTIVE)
        return told

    assert list(administered(node, work)["127.0.0.1:1/default"].vbuckets) == [4]


def test_a_map_is_set_and_handed_out(node):
    async def work(admin):
        before = json.loads(await admin.config())
        after = before | {"rev": before["rev"] + 1}
        await admin.set_config(after["revEpoch"], after["rev"], "default", json.dumps(after).encode())
        return json.loads(await admin.config())["rev"] - before["rev"]

    assert administered(node, work) == 1


def test_a_node_that_is_not_there_is_named():
    async def run():
        await NodeAdmin.connect(Address("127.0.0.1", 1))

    with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1"):
        asyncio.run(run())


def test_a_connection_that_broke_is_opened_again(node):
    async def work(admin):
        await admin.state(0)
        admin._link.close()
        return await admin.state(0)

    assert administered(node, work) is State.ACTIVE


def test_after_its_end_an_administrator_opens_no_connection_for_a_late_call(node):
    async def work(admin):
        admin.close()
        with pytest.raises(ConnectionLost, match="was closed here"):
            await admin.set_state(0, State.DEAD)

    administered(node, work)
    assert administered(node, lambda admin: admin.state(0)) is State.ACTIVE


def test_vbuckets_are_told_as_ranges():
    assert vbucket_list([7, 0, 1, 2, 2, 9, 10]) == "0-2,7,9-10"


def test_tombstones_of_a_vbucket_are_purged_and_a_node_is_emptied():
    with testing.node(vbuckets=1) as node, node.client() as bucket:
        bucket.set("gone", "v")
        bucket.delete("gone")
        bucket.set("kept", "v")

        async def work(admin):
            await admin.purge(0, int(time.time()) + 60)
            purged = await admin.stats("vbucket-details 0")
            await admin.flush()
            return purged, await admin.items()

        purged, items = administered(node, work)
        assert (purged["vb_0:purge_seqno"], purged["vb_0:num_items"], items) == ("2", "1", {0: 0})
        with pytest.raises(KeyNotFound):
            bucket.get("kept")


def test_a_login_that_was_refused_is_not_tried_again_for_a_minute(tmp_path):
    users = tmp_path / "users"
    users.write_text("ann:right\n")
    users.chmod(0o600)
    with testing.node(vbuckets=2, users_file=users) as guarded:
        shift = 0.0

        async def refused(admin, times):
            asked = await asyncio.gather(*(admin.states() for _ in range(times)), return_exceptions=True)
            assert [type(each) for each in asked] == [AuthError] * times
            return int((await looking.stats(""))["total_connections"])

        async def run():
            nonlocal shift, looking
            address = Address(guarded.host, guarded.port)
            looking = await NodeAdmin.connect(address, user="ann", password="right")
            before = int((await looking.stats(""))["total_connections"])
            admin = NodeAdmin(Endpoint(address, user="ann", password="wrong"), clock=lambda: time.monotonic() + shift)
            first, again = await refused(admin, 5), await refused(admin, 2)
            shift = 61.0
            later = await refused(admin, 2)
            admin.close()
            looking.close()
            return first - before, again - before, later - before

        looking = None
        assert asyncio.run(run()) == (1, 1, 2)
