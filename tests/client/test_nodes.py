"""The map and the connections of a bucket: seeds, nodes that fail, clients that were closed."""

import asyncio
import json
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from headwater.client import aio
from headwater.client.cluster import Cluster
from headwater.client.kv import Operations
from headwater.client.routing import Address
from headwater.client.settings import settings_for
from headwater.errors import ConnectionLost, LocalProtocolError, OptionError, PeerSilent, RemoteProtocolError
from headwater.testing.clock import FakeClock
from headwater.testing.peers import cluster_map, history, serve
from headwater.transport.blocking import resolve, run
from headwater.transport.waiting import Ready, Resolve
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.client.seeds import PATIENT, a_node, cluster, refusing_port


def test_a_seed_that_is_down_is_passed_over():
    with serve(a_node(vbuckets=4)) as address:
        found = cluster(f"{refusing_port()},{address}")
        run(found.connect())
        assert found.map.vbuckets == 4
        found.close()


def test_of_seeds_that_are_all_down_the_last_ones_error_is_told():
    first, last = refusing_port(), refusing_port()
    with pytest.raises(ConnectionLost, match=f"{last}: connection refused"):
        run(cluster(f"{first},{last}").connect())


def test_before_connecting_there_is_no_map():
    with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:9: not connected yet"):
        _ = cluster("127.0.0.1:9").map


@pytest.mark.parametrize(("vbuckets", "count"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8)])
def test_without_maps_the_highest_vbucket_tells_how_many_there_are(vbuckets: int, count: int):
    with serve(a_node({Opcode.GET_CLUSTER_CONFIG: Status.UNKNOWN_COMMAND}, vbuckets=vbuckets)) as address:
        found = cluster(address)
        run(found.connect())
        assert found.map.vbuckets == count
        found.close()


def test_without_maps_the_count_that_was_given_is_not_asked_for():
    peer = a_node({Opcode.GET_CLUSTER_CONFIG: Status.NOT_SUPPORTED}, vbuckets=2)
    with serve(peer) as address:
        found = cluster(address, vbuckets=64)
        run(found.connect())
        assert found.map.vbuckets == 64
        found.close()
    assert Opcode.GET_ALL_VB_SEQNOS not in {frame.opcode for frame in peer.seen}


def test_a_node_with_neither_a_map_nor_a_vbucket_leads_to_the_option():
    with serve(a_node({Opcode.GET_CLUSTER_CONFIG: Status.NOT_SUPPORTED}, vbuckets=0)) as address:
        found = cluster(address)
        with pytest.raises(OptionError, match="neither a map nor an active vbucket; give it"):
            run(found.connect())
        found.close()


def test_an_older_map_does_not_replace_a_newer_one():
    found, node = cluster("127.0.0.1:9"), Address("127.0.0.1", 9)
    sizes = []
    for rev, count in ((5, 2), (4, 8), (5, 16), (6, 32)):
        found.learn(json.dumps(cluster_map([node], [0] * count, rev=rev)).encode(), node)
        sizes.append(found.map.vbuckets)
    assert sizes == [2, 2, 2, 32]


def test_a_twin_has_the_map_and_connections_of_its_own():
    with serve(a_node(vbuckets=4)) as address:
        one = cluster(address)
        run(one.connect())
        twin = one.twin()
        one.close()
        assert twin.map is one.map
        assert run(twin.seqnos()) == {0: 0, 1: 0, 2: 0, 3: 0}
        twin.close()


def test_a_client_that_was_closed_says_so():
    with serve(a_node()) as address:
        found = cluster(address)
        run(found.connect())
        found.close()
        with pytest.raises(LocalProtocolError, match="this client was closed; connect again"):
            run(found.seqnos())


def test_closing_ends_the_connections_that_are_being_made():
    peer = a_node()
    with serve(peer) as address:

        async def main() -> BaseException | None:
            client = await aio.connect(address, connect_timeout_seconds=60.0, timeout_seconds=60.0)
            client._cluster._links.popitem()[1].close()
            peer.silent = {Opcode.HELLO}
            task = asyncio.create_task(client.get("k"))
            while [frame.opcode for frame in peer.seen].count(Opcode.HELLO) < 2:
                await asyncio.sleep(0)
            await client.close()
            (outcome,) = await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 120)
            return outcome

        assert isinstance(asyncio.run(main()), LocalProtocolError)


def test_a_connection_that_was_ready_just_after_the_client_was_closed_is_not_kept():
    with serve(a_node()) as address:
        found = cluster(address)
        steps = found.connect()
        asked = next(steps)  # the name is being looked up; there is nothing to close yet
        found.close()
        with pytest.raises(LocalProtocolError, match="this client was closed"):
            run(resumed(steps, asked))
        assert found._links == {} == found._opening


def resumed(steps, asked):
    """A step generator from what it asked last."""
    while True:
        asked = steps.send((yield asked))


def test_two_tasks_that_need_the_same_node_make_one_connection():
    peer = a_node()
    with serve(peer) as address:

        async def main() -> list[bytes]:
            async with await aio.connect(address, **PATIENT) as client:
                client._cluster._links.popitem()[1].close()
                found = await asyncio.gather(*(client.get("k") for _ in range(5)))
                return [document.value for document in found]

        assert asyncio.run(main()) == [b"v"] * 5
    assert peer.connections == 2


def test_old_servers_are_asked_for_their_seqnos_without_a_state():
    peer = a_node(vbuckets=2, histories={1: history(7)})
    answered = peer.answers

    def old(request: Frame):
        if request.opcode == Opcode.GET_ALL_VB_SEQNOS and request.extras:
            return iter([response(request, Status.EINVAL)])
        return answered(request)

    peer.answers = old
    with serve(peer) as address:
        found = cluster(address)
        run(found.connect())
        assert run(found.seqnos()) == {0: 0, 1: 7}
        found.close()


def test_seqnos_that_are_no_whole_entries_are_refused():
    peer = a_node(vbuckets=2)
    with serve(peer) as address:
        found = cluster(address)
        run(found.connect())
        peer.answers = lambda request: iter([response(request, value=bytes(19))])
        with pytest.raises(
            RemoteProtocolError, match=r"GetAllVbSeqnosResponse \(opcode 0x48\): 8 bytes expected at offset 12 of 19"
        ):
            run(found.seqnos())
        found.close()


@contextmanager
def silent_nodes(count: int) -> Iterator[list[Address]]:
    """Nodes that let everybody in and say nothing."""
    with ExitStack() as stack:
        made = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        yield [Address(*each.getsockname()) for each in made]


def in_quick_time(steps, clock: FakeClock):
    """Run steps; where nothing comes for a moment, the time is taken to have passed."""
    answer = None
    while True:
        try:
            asked = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = resolve(asked) if isinstance(asked, Resolve) else None
        if isinstance(asked, Ready) and not (asked.channels and comes(asked.channels)):
            clock.now = max(clock.now, asked.deadline)


def comes(channels) -> bool:
    writing = [channel for channel in channels if channel.wants_to_write]
    return any(select.select(channels, writing, (), 0.05))


def test_however_many_nodes_are_silent_an_operation_ends_in_its_time():
    clock = FakeClock()
    with silent_nodes(6) as nodes:
        found = Cluster(settings_for(str(nodes[0]), timeout_seconds=10.0, connect_timeout_seconds=5.0, clock=clock))
        found.learn(json.dumps(cluster_map(nodes, [0])).encode(), nodes[0])
        began = clock.now
        with pytest.raises(PeerSilent):
            in_quick_time(Operations(found).get("k"), clock)
        assert clock.now - began <= 10.0
        found.close()


def test_a_node_that_answers_is_asked_in_time_although_others_before_it_are_silent():
    clock = FakeClock()
    with silent_nodes(4) as nodes, serve(a_node(vbuckets=1, histories={})) as address:
        here = Address("127.0.0.1", int(address.partition(":")[2]))
        found = Cluster(settings_for(str(nodes[0]), timeout_seconds=10.0, connect_timeout_seconds=5.0, clock=clock))
        found.learn(json.dumps(cluster_map([*nodes, here], [0])).encode(), nodes[0])
        in_quick_time(found.look_around(until=clock.now + 10.0), clock)
        assert here in found._links
        found.close()
