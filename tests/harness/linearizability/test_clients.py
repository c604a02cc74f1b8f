"""Clients write down what a real node answers; all that they can ask for has an explanation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from random import Random
from threading import Lock

import pytest

from harness.linearizability.clients import KINDS, Client, is_durable_key
from harness.linearizability.judgement import judged
from harness.linearizability.record import Argument, Kind, Level, Outcome, Recorder
from headwater import testing
from headwater.testing.node import Node
from headwater.wire.address import Address


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with testing.node(vbuckets=4) as made:
        yield made


def client(node: Node, recorder: Recorder, number: int = 0, *, keys: tuple[str, ...] = ("p1", "d1")) -> Client:
    seed = Address(node.host, node.port)
    return Client(number, recorder, Lock(), [seed], keys=keys, random=Random(number))


def test_an_answer_becomes_an_outcome(node: Node) -> None:
    with closing(client(node, recorder := Recorder())) as asks:
        outcomes_of(asks)
    assert judged(recorder.history()).is_good


def outcomes_of(asks: Client) -> None:
    assert asks.do(Kind.GET, "new", Argument()).outcome is Outcome.MISSING
    written = asks.do(Kind.SET, "new", Argument("v", level=Level.MAJORITY))
    assert written.outcome is Outcome.DONE and written.cas and written.vb_uuid and written.seqno
    read = asks.do(Kind.GET, "new", Argument())
    assert (read.value, read.cas) == ("v", written.cas)
    assert asks.do(Kind.ADD, "new", Argument("w")).outcome is Outcome.EXISTS
    locked = asks.do(Kind.GET_AND_LOCK, "new", Argument(seconds=5))
    assert asks.do(Kind.GET, "new", Argument()).is_locked
    assert asks.do(Kind.SET, "new", Argument("w")).outcome is Outcome.LOCKED
    assert asks.do(Kind.UNLOCK, "new", Argument(cas=locked.cas)).outcome is Outcome.DONE
    assert asks.do(Kind.INCREMENT, "new", Argument(delta=1)).outcome is Outcome.NOT_A_NUMBER
    assert asks.do(Kind.INCREMENT, "counter", Argument(delta=1, initial=5)).value == "5"
    assert asks.do(Kind.DECREMENT, "counter", Argument(delta=2)).value == "3"


def test_all_that_four_clients_of_a_node_see_is_explained(node: Node) -> None:
    recorder, lock = Recorder(), Lock()
    seed = Address(node.host, node.port)
    clients = [
        Client(number, recorder, lock, [seed], keys=("p8", "p9", "d9"), random=Random(number)) for number in range(4)
    ]
    for client in clients:
        client.start()
    while len(recorder) < 1200:
        assert all(client.is_alive() for client in clients)
        clients[0].join(0.05)
    for client in clients:
        client.stopping.set()
    for client in clients:
        client.join(60)
        assert client.error is None
    found = recorder.history()
    assert {operation.kind for operation in found.operations} == set(KINDS)
    outcomes = Counter(operation.outcome for operation in found.operations)
    assert outcomes[Outcome.DONE] > 300 and outcomes[Outcome.EXISTS] and outcomes[Outcome.MISSING]
    judgement = judged(found)
    assert judgement.is_good, judgement.reports
    assert judgement.strict_keys == 3


def test_nobody_to_ask_is_a_refusal_for_nothing_was_sent() -> None:
    with testing.node(vbuckets=4) as node:
        asks = client(node, Recorder())
        node.kill()
        assert asks.do(Kind.SET, "p1", Argument("v")).outcome is Outcome.REFUSED


def test_a_node_that_dies_under_a_request_leaves_a_maybe() -> None:
    with testing.node(vbuckets=4, environment={"HEADWATER_FAILPOINTS": "log.after_sync=kill@2"}) as node:
        with closing(client(node, Recorder())) as asks:
            outcomes = [asks.do(Kind.SET, "p1", Argument(f"v{number}")).outcome for number in range(4)]
        assert Outcome.MAYBE in outcomes and outcomes[-1] is Outcome.REFUSED


def test_keys_say_whether_their_changes_are_durable() -> None:
    assert is_durable_key("d1") and not is_durable_key("p1")
