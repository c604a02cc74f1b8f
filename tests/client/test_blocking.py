"""The blocking client: closed by `with`; what its methods do is in test_kv, test_bulk and test_feeds."""

import pickle
import threading
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import polars
import pyarrow as pa
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


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (lambda client: client.changes(vbuckets=5), "a list of vbuckets"),
        (lambda client: client.changes(vbuckets="5"), "one of the bucket's 4 vbuckets, 0 to 3"),
        (lambda client: client.failover_log(4), "one of the bucket's 4 vbuckets, 0 to 3"),
        (lambda client: client.failover_logs([0, 4]), "one of the bucket's 4 vbuckets, 0 to 3"),
        (lambda client: client.set("a", "b", cas="5"), 'option "cas": "5" is not a number'),
        (lambda client: client.set("a", "b", flags=1.5), 'option "flags": 1.5 is not a number'),
        (lambda client: client.collection(None), 'a name like "scope.collection"'),
    ],
)
def test_what_can_not_be_meant_is_refused_in_words_and_at_once(mistake: Any, says: str) -> None:
    with (
        serve(Peer(vbuckets=4)) as address,
        blocking.connect(address, timeout_seconds=3600) as client,
        pytest.raises(OptionError, match=says),
    ):
        mistake(client)


def test_what_is_no_text_is_no_address_and_no_key() -> None:
    with pytest.raises(TypeError, match="a connection is text such as couchbase://"):
        blocking.connect(11210)  # type: ignore[arg-type]
    with serve(Peer()) as address, blocking.connect(address) as client:
        for ask in (client.vbucket_of, client.get):
            with pytest.raises(TypeError, match=r"a key is text or bytes, not int: 5; give str or bytes$"):
                ask(5)


def test_what_lives_in_this_process_says_so_when_it_is_to_be_pickled() -> None:
    with serve(Peer(histories={0: history(5)})) as address, blocking.connect(address) as client:
        with pytest.raises(TypeError, match="connect in the other one"):
            pickle.dumps(client)
        with client.changes(until="now") as changes, pytest.raises(TypeError, match="give its `positions`"):
            pickle.dumps(changes)


def test_a_drain_is_one_threads_at_a_time() -> None:
    """The second one got `generator already executing`, and the first one an end without a reason."""
    with serve(Peer(histories={0: history(5)})) as address, blocking.connect(address) as client:
        changes = client.changes()
        with (
            changes,
            changes._reading("thread", "another one"),
            pytest.raises(LocalProtocolError, match="another thread is reading"),
        ):
            next(changes)


def test_a_batch_is_arrow_for_whoever_asks() -> None:
    with serve(Peer(histories={0: history(5)})) as address, blocking.connect(address) as client:
        with client.batches(until="now") as batches:
            batch = next(batches)
        assert pa.record_batch(batch).equals(batch.records)
        assert polars.DataFrame(batch)["seqno"].to_list() == [1, 2, 3, 4, 5]


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


def test_a_thread_whose_reading_was_interrupted_between_two_lines_reads_on() -> None:
    with (
        serve(Peer(histories={0: history(5)})) as address,
        blocking.connect(address) as client,
        client.changes(until="now") as changes,
    ):
        changes._reading("thread", threading.get_ident()).__enter__()
        assert len(list(changes)) > 4
