"""Two real nodes: replicas and takeovers carry collections, their documents and the manifest."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from headwater.testing.node import Node, node
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.aware import Aware, everything, manifest
from tests.node.replication.support import replicate, set_state, state, until

A, B = 8, 9


@pytest.fixture
def pair() -> Iterator[tuple[Node, Node]]:
    with node(vbuckets=2) as owner, node(vbuckets=2, vbucket_state="none") as other:
        yield owner, other


def seqno(of: Node) -> int:
    with Aware(of.port) as client:
        answer = client.ask(Opcode.GET_ALL_VB_SEQNOS)
        return int.from_bytes(answer.value[2:10]) if answer.value else 0


def level(owner: Node, other: Node) -> bool:
    return seqno(owner) == seqno(other)


def test_a_replica_has_the_documents_of_all_collections_and_the_same_history(pair: tuple[Node, Node]) -> None:
    owner, other = pair
    with Aware(owner.port) as client:
        client.becomes(manifest(1, a=A, b=(B, 50)))
        for collection in (0, A, B):
            client.put(b"k", b"%d" % collection, collection)
        client.put(b"large", b"x" * 100_000, A)
        client.ask(Opcode.DELETE, key=b"\x09k")
        replicate(other, owner.address, "0")
        until(lambda: level(owner, other), "the replica is there")
        client.becomes(manifest(2, b=(B, 50)))
        client.put(b"later", b"v", B)
    until(lambda: level(owner, other), "the drop is there")
    assert everything(other.port) == everything(owner.port)
    assert everything(other.port, {"scope": "8"}) == everything(owner.port, {"scope": "8"}, name=b"scope")
    with Aware(other.port) as client:
        assert json.loads(client.ask(Opcode.COLLECTIONS_GET_MANIFEST).value)["uid"] == "2"
        assert client.ask(Opcode.GET_REPLICA, key=b"\0k").value == b"0"
        assert client.ask(Opcode.GET_REPLICA, key=b"\x09later").value == b"v"
        assert client.ask(Opcode.GET_REPLICA, key=b"\x08k").status == Status.UNKNOWN_COLLECTION
    other.kill()
    other.start()
    assert everything(other.port, name=b"again") == everything(owner.port, name=b"again")


def test_who_takes_over_keeps_the_manifest_and_goes_on(pair: tuple[Node, Node]) -> None:
    owner, other = pair
    with Aware(owner.port) as client:
        client.becomes(manifest(3, a=A))
        client.put(b"k", b"v", A)
        replicate(other, owner.address, "0", takeover=True)
        until(lambda: state(other, 0) == State.ACTIVE, "the vbucket has changed hands")
    with Aware(other.port) as client:
        assert client.got(b"k", A) == b"v"
        assert client.put(b"k2", b"v", A) == 0
        assert client.becomes(manifest(2, a=A)) == Status.ERANGE
        assert client.becomes(manifest(4, a=A, b=B)) == client.put(b"k", b"v", B) == 0
    assert [each[:4] for each in everything(other.port) if each[0] == "event"] == [
        ("event", 1, 3, 8),
        ("event", 2, 0, A),
        ("event", 5, 0, B),
    ]


def test_a_replica_that_is_promoted_is_brought_up_to_the_nodes_newer_manifest(pair: tuple[Node, Node]) -> None:
    owner, other = pair
    with Aware(owner.port) as client:
        client.becomes(manifest(1, a=A))
        client.put(b"k", b"v", A)
    replicate(other, owner.address, "0")
    until(lambda: level(owner, other), "the replica is there")
    with Aware(other.port) as client:
        assert client.becomes(manifest(2, a=A, b=B)) == 0
        owner.kill()
        set_state(other, 0, State.ACTIVE)
        until(lambda: client.put(b"k", b"v", B) == 0, "the promoted vbucket knows the newer collection")
        assert client.got(b"k", A) == b"v"


def test_nobody_follows_a_producer_whose_collections_have_the_ids_of_others(pair: tuple[Node, Node]) -> None:
    owner, other = pair
    with Aware(owner.port) as client, Aware(other.port) as there:
        assert client.becomes(manifest(1, orders=A)) == client.put(b"k", b"v", A) == 0
        assert there.becomes(manifest(1, things=A)) == 0
        replicate(other, owner.address, "0")
        until(lambda: "shop.orders of the one and shop.things of the other have the same id, 8" in other.log, "it says")
        assert seqno(other) == 0
        assert there.becomes(manifest(2, mine=B)) == client.becomes(manifest(3)) == 0
        until(lambda: level(owner, other), "what contradicts was dropped at both: it follows")
