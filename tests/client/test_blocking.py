"""The blocking client: closed by `with`; what its methods do is in test_kv, test_bulk and test_feeds."""

from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from headwater import testing
from headwater.client import blocking
from headwater.client.kv import Document
from headwater.errors import ConnectionLost, LocalProtocolError, OptionError
from headwater.testing.peers import Peer, history, serve
from headwater.wire.opcodes import Opcode


def test_leaving_the_block_closes_the_client_but_not_its_drains() -> None:
    with serve(Peer(histories={0: history(5)})) as address:
        with blocking.connect(address) as client:
            changes = client.changes(until="now")
        with changes:
            assert [change.seqno for change in changes if hasattr(change, "key")] == [1, 2, 3, 4, 5]
        with pytest.raises(LocalProtocolError, match="closed"):
            client.noop()


def test_no_drain_begins_from_a_client_that_was_closed() -> None:
    with serve(Peer(histories={0: history(5)})) as address:
        with blocking.connect(address) as client:
            pass
        for begin in (client.changes, client.batches):
            with pytest.raises(LocalProtocolError, match="closed; connect again"):
                begin()


def test_what_is_shown_at_a_prompt_says_what_it_is_in_one_short_line() -> None:
    with serve(Peer(vbuckets=4, histories={0: history(5)})) as address:
        with blocking.connect(f"couchbase://{address}/default") as client:
            where = f"couchbase://{address}/default"
            assert repr(client) == f"<Client {where}, 1 node, 4 vbuckets>"
            assert (
                repr(client.collection("shop.orders"))
                == f"<CollectionClient shop.orders of {where}, 1 node, 4 vbuckets>"
            )
            assert repr(client.scope("shop")).startswith("<ScopeClient shop of <Client ")
            assert len(repr(client.map)) < 500
            with client.batches(until="now") as batches:
                assert repr(batches) == f"<Batches of 4 vbuckets, {where}, 1 node, 4 vbuckets>"
                assert repr(next(batches)).startswith("<ChangeBatch of 5 rows, ")
        assert repr(client) == f"<Client {where}, closed>"


def test_a_client_that_could_not_connect_leaves_nothing_open() -> None:
    with serve(Peer()) as address:
        pass
    with pytest.raises(ConnectionLost):
        blocking.connect(address)


def test_an_address_that_makes_no_sense_is_refused_before_anything_is_tried() -> None:
    with pytest.raises(OptionError):
        blocking.connect("couchbase://:nowhere/b")


def test_a_key_is_of_the_same_vbucket_as_text_and_as_bytes() -> None:
    with serve(Peer(vbuckets=64)) as address, blocking.connect(address) as client:
        assert client.vbucket_of("grüße") == client.vbucket_of("grüße".encode())
        assert client.map.vbuckets == 64


def test_every_node_is_asked_for_a_no_op() -> None:
    peer = Peer()
    with serve(peer) as address, blocking.connect(address) as client:
        client.noop()
    assert Opcode.NOOP in [frame.opcode for frame in peer.seen]


def test_threads_may_share_a_client_and_take_turns() -> None:
    others: list[Future[Document]] = []

    def operation() -> Generator[Any, Any, bool]:
        others.append(pool.submit(client.get, "other"))
        with suppress(TimeoutError):
            others[0].result(0.2)
        return others[0].done()
        yield

    with testing.node(vbuckets=4) as node, node.client() as client, ThreadPoolExecutor(1) as pool:
        client.set("other", "v")
        assert not client._run(operation()), "another thread was let in between"
        assert others[0].result(120).value == b"v"
