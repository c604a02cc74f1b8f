"""Requests find the node that owns their vbucket, or say why not."""

import asyncio
import json
from collections.abc import Callable
from itertools import count

import pytest

from headwater.client.cluster import Cluster, tried
from headwater.client.collections import manifest_of, newest_manifest
from headwater.client.kv import Operations
from headwater.client.logs import failover_logs
from headwater.client.routing import Address, map_of_one
from headwater.client.settings import settings_for
from headwater.errors import BucketNotFound, ConnectionLost, NoAccess, PeerSilent, TemporaryFailure
from headwater.testing.peers import cluster_map, serve
from headwater.transport.aio import Waiters
from headwater.transport.blocking import run
from headwater.transport.waiting import Steps
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.client.seeds import PATIENT, Node, a_node, address_of, cluster, refusing_port


def test_when_the_owner_is_down_the_others_are_asked_who_took_its_place():
    gone, left = Address(*address_of(refusing_port())), a_node(vbuckets=1)
    owners = [0]
    left.config = lambda own: cluster_map([gone, own], owners, rev=1 + owners[0])
    with serve(left) as address:
        client = Cluster(settings_for(address, **PATIENT))
        run(client.connect())
        owners[:] = [1]
        assert run(client.call(0, Frame(0x80, Opcode.GET, b"k"), "get", reads=True)).value == b"v"
        client.close()


def test_where_the_owner_has_no_such_bucket_the_others_are_asked_who_took_its_place():
    """Its disk was replaced, and it waits to join again: it knows of no bucket, and the bucket is there."""
    emptied, left = emptied_and_left()
    with serve(emptied), serve(left) as address:
        client = cluster(f"{address}/beer")
        run(client.connect())
        left.owners[:] = [1]
        assert run(client.call(0, Frame(0x80, Opcode.GET, b"k"), "get", reads=True)).value == b"v"
        client.close()


def emptied_and_left() -> tuple[Node, Node]:
    """A node without the bucket, and one that has it and says who owns vbucket 0, by `owners`: the emptied one."""
    emptied, left = a_node({Opcode.SELECT_BUCKET: Status.KEY_ENOENT}), a_node({Opcode.STAT: 0}, vbuckets=1)
    left.owners = [0]
    left.config = lambda own: cluster_map([emptied.address, own], left.owners, rev=1 + left.owners[0])
    return emptied, left


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.call(0, Frame(0x80, Opcode.GET, b"k"), "get", reads=True),
        lambda client: client.seqnos(),
        failover_logs,
        lambda client: Operations(client).vbucket_stats("vbucket-seqno"),
        newest_manifest,
        manifest_of,
    ],
)
def test_a_node_that_was_emptied_is_waited_for_as_one_that_is_down(ask: Callable[[Cluster], Steps[object]]) -> None:
    """Until somebody fails it over, no map says who takes its place; each request failed meanwhile."""
    emptied, left = emptied_and_left()
    with serve(emptied), serve(left) as address:
        client = cluster(f"{address}/beer")
        run(client.connect())
        told, asked = left.config, count()

        def config(own: Address) -> dict[str, object]:
            left.owners[:] = [int(next(asked) >= 3)]
            return told(own)

        left.config = config
        run(ask(client))
        client.close()


def test_a_bucket_that_only_an_emptied_node_lacks_is_missing_when_the_time_is_over() -> None:
    emptied, left = emptied_and_left()
    with serve(emptied), serve(left) as address:
        client = cluster(f"{address}/beer", timeout_seconds=1.0)
        run(client.connect())
        with pytest.raises(BucketNotFound, match=r'select bucket "beer" \(\d+ attempts in'):
            run(client.call(0, Frame(0x80, Opcode.SET, b"k"), "set"))
        client.close()


def test_a_bucket_that_no_node_has_is_looked_for_at_the_others_once_and_not_by_each_request() -> None:
    """One of them may be silent, which takes seconds."""
    emptied, left = emptied_and_left()
    with serve(emptied), serve(left) as address:
        client = cluster(f"{address}/beer")
        run(client.connect())
        left.says[Opcode.SELECT_BUCKET] = Status.KEY_ENOENT
        without, selected = client.twin(), []
        for _ in range(3):
            with pytest.raises(BucketNotFound):
                run(without.call(0, Frame(0x80, Opcode.GET, b"k"), "get", reads=True))
            selected.append(sum(each.opcode == Opcode.SELECT_BUCKET for each in left.seen))
        assert selected == [2, 2, 2], "once to connect, once to look for it"
        without.close()
        client.close()


def learned(emptied: Node, nodes: list[Address], **settings: object) -> Cluster:
    """A client that knows nodes by a map in which an emptied one owns vbucket 0."""
    here = Address(*emptied.address)
    client = cluster(f"{here}/beer", **settings)
    client.learn(json.dumps(cluster_map(nodes, [nodes.index(here)])).encode(), here)
    return client


@pytest.mark.parametrize("place", [0, 1])
def test_that_no_node_has_a_bucket_is_not_concluded_from_silence(place: int) -> None:
    """The other node starts again, and has it: all requests failed meanwhile, and for five seconds more."""
    emptied, _ = emptied_and_left()
    with serve(emptied):
        nodes = [Address(*address_of(refusing_port()))]
        nodes.insert(place, Address(*emptied.address))
        client = learned(emptied, nodes, timeout_seconds=1.0)
        with pytest.raises(BucketNotFound, match="attempts in"):
            run(client.call(0, Frame(0x80, Opcode.GET, b"k"), "get", reads=True))
        with pytest.raises(ConnectionLost):
            run(client.refresh())
        client.close()


def test_a_bucket_is_not_missing_because_another_task_asked_all_but_the_node_that_has_it() -> None:
    emptied, left = emptied_and_left()

    async def main(client: Cluster, here: Address) -> bool:
        waiters = Waiters()
        _, was_emptied = await asyncio.gather(
            waiters.run(client.look_around(without=here)),
            waiters.run(client.was_emptied(BucketNotFound("get"), client.deadline())),
        )
        return was_emptied

    with serve(emptied), serve(left) as address:
        here = Address(*address_of(address))
        client = learned(emptied, [Address(*emptied.address), here])
        assert asyncio.run(main(client, here))
        client.close()


def test_a_bucket_that_is_missing_is_no_missing_document_however_often_that_was_tried():
    assert type(tried(BucketNotFound("get"), 3, 1.0)) is BucketNotFound


def test_the_seqnos_of_an_emptied_node_are_those_of_who_took_its_place():
    emptied, left = emptied_and_left()
    with serve(emptied), serve(left) as address:
        client = cluster(f"{address}/beer")
        run(client.connect())
        left.owners[:] = [1]
        assert list(run(client.seqnos())) == [0]
        client.close()


def test_a_seed_without_the_bucket_leaves_it_to_the_others():
    emptied, left = a_node({Opcode.SELECT_BUCKET: Status.KEY_ENOENT}), a_node(vbuckets=1)
    with serve(emptied) as without, serve(left) as address:
        client = cluster(f"{without},{address}/beer")
        run(client.connect())
        assert run(client.call(0, Frame(0x80, Opcode.GET, b"k"), "get", reads=True)).value == b"v"
        client.close()
        alone = cluster(f"{without},127.0.0.1:{address_of(refusing_port())[1]}/beer")
        with pytest.raises(BucketNotFound, match='select bucket "beer"'):
            run(alone.connect())
        alone.close()


@pytest.mark.parametrize("opcode", [Opcode.HELLO, Opcode.SELECT_BUCKET, Opcode.GET_CLUSTER_CONFIG])
def test_a_node_that_accepts_and_says_nothing_is_an_error_and_not_a_hang(opcode: int):
    with serve(a_node(silent={opcode})) as address, pytest.raises(PeerSilent, match=address):
        run(cluster(address, connect_timeout_seconds=0.05).connect())


def test_a_bucket_that_may_not_be_selected_is_named():
    node = a_node({Opcode.SELECT_BUCKET: Status.EACCESS})
    with serve(node) as address, pytest.raises(NoAccess, match='select bucket "beer"'):
        run(cluster(f"{address}/beer").connect())


def test_no_attempt_has_less_time_than_the_delay_before_it():
    """A write that is cut short would leave nobody knowing whether it was done."""
    now = 0.0
    client = cluster("127.0.0.1", timeout_seconds=1.0, clock=lambda: now)

    def refused(*_: object):
        yield from ()
        return TemporaryFailure("not now")

    client._map = map_of_one(Address("127.0.0.1", 11210), 1)
    client._link_of_owner = refused
    steps = client.call(0, Frame(0x80, Opcode.SET, b"k"), "set")
    delays = []
    with pytest.raises(TemporaryFailure, match="not now"):
        while True:
            asked = next(steps)
            delays.append(asked.deadline - now)
            now = asked.deadline
            assert 1.0 - now >= delays[-1]
    assert len(delays) >= 3
