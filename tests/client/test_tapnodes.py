"""TAP of a whole bucket, on real nodes: who is listened to, and what is told of one that is not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from headwater import testing
from headwater.client import tap
from headwater.client.routing import Address
from headwater.client.tapnodes import TapNodes
from headwater.errors import OptionError, TransportError
from headwater.protocol.tap.consumer import TapMessage
from headwater.wire.tap import Mutation, Opaque, OpaqueCode
from tests.cluster.nodes import VBUCKETS, empty_nodes, init

DEADLINE_SECONDS = 120.0


class Ear:
    """Notes the messages that came, and from which node: ("begin", vbucket), ("stored", key), ("missed", None)."""

    def __init__(self) -> None:
        self.told: list[tuple[int, str, object]] = []
        self.changed = threading.Condition()

    def take(self, node: Address, message: TapMessage) -> None:
        match message:
            case Opaque() if message.code == OpaqueCode.INITIAL_VBUCKET_STREAM:
                self.tell(node.port, "begin", message.vbucket)
            case Mutation():
                self.tell(node.port, "stored", message.key)

    def missed(self) -> None:
        self.tell(0, "missed", None)

    def tell(self, port: int, what: str, of: object) -> None:
        with self.changed:
            self.told.append((port, what, of))
            self.changed.notify_all()

    def wait_for(self, true: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(true, DEADLINE_SECONDS), self.told


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
def pair() -> Iterator[tuple[testing.Node, testing.Node, str]]:
    """Two nodes that know nothing of each other, and the address of both."""
    with testing.node(vbuckets=2) as one, testing.node(vbuckets=2) as two:
        with two.client() as admin:
            for vb in (0, 1):
                admin.set_vbucket_state(vb, "replica")
        yield one, two, f"couchbase://{one.address},{two.address}/default"


def key_of(node: testing.Node, vbucket: int) -> str:
    with node.client() as bucket:
        return next(f"k{number}" for number in range(100) if bucket.vbucket_of(f"k{number}") == vbucket)


def test_a_vbucket_with_another_owner_comes_from_there_from_scratch_and_not_from_the_old_one(
    pair: tuple[testing.Node, testing.Node, str], ear: Ear
) -> None:
    one, two, url = pair
    key = key_of(one, 0)
    with TapNodes(url, ear.take, name="i", owners_only=True, poll_seconds=0.1) as nodes:
        nodes.wait_until_heard(DEADLINE_SECONDS)
        with one.client() as old, two.client() as new:
            old.set(key, "lost with the old owner")
            ear.wait_for(lambda: (one.port, "stored", key.encode()) in ear.told)
            assert not [what for port, *what in ear.told if port == two.port]
            old.set_vbucket_state(0, "dead")
            new.set_vbucket_state(0, "active")
            ear.wait_for(lambda: (two.port, "begin", 0) in ear.told)
            new.set(key, "there")
            ear.wait_for(lambda: (two.port, "stored", key.encode()) in ear.told)
        assert nodes.owners == {0: Address("127.0.0.1", two.port), 1: Address("127.0.0.1", one.port)}
    assert (two.port, "begin", 1) not in ear.told


def test_all_that_a_node_has_is_told_unless_owners_only_are_wanted(
    pair: tuple[testing.Node, testing.Node, str], ear: Ear
) -> None:
    one, two, url = pair
    with TapNodes(url, ear.take) as nodes:
        nodes.wait_until_heard(DEADLINE_SECONDS)
        wanted = {(port, "begin", vb) for port in (one.port, two.port) for vb in (0, 1)}
        ear.wait_for(lambda: wanted <= set(ear.told))


def test_a_node_goes_by_the_name_that_the_map_gives_it(ear: Ear) -> None:
    with empty_nodes(2) as (one, two):
        init(one, two)
        url = f"couchbase://localhost:{one.port}/default"
        with TapNodes(url, ear.take, name="i", missed=ear.missed, poll_seconds=0.1) as nodes:
            nodes.wait_until_heard(DEADLINE_SECONDS)
            assert ear.told.count((0, "missed", None)) == 2  # at the beginning, once for each node
            ear.wait_for(lambda: {vb for _, what, vb in ear.told if what == "begin"} == set(range(VBUCKETS)))
    assert len([vb for _, what, vb in ear.told if what == "begin"]) == VBUCKETS


def test_a_node_that_is_away_is_told_and_heard_again_when_it_is_back(ear: Ear) -> None:
    with testing.node(vbuckets=2) as node, TapNodes(node.url, ear.take, missed=ear.missed, since=tap.NOW) as nodes:
        nodes.wait_until_heard(DEADLINE_SECONDS)
        before = ear.told.count((0, "missed", None))
        node.kill()
        ear.wait_for(lambda: ear.told.count((0, "missed", None)) > before)
        assert nodes.deaf == {Address("127.0.0.1", node.port)}
        with pytest.raises(TimeoutError, match=f"{node.address}: "):
            nodes.wait_until_heard(0.1)
        node.start()
        nodes.wait_until_heard(DEADLINE_SECONDS)
        with node.client() as bucket:
            bucket.set("k", "v")
        ear.wait_for(lambda: (node.port, "stored", b"k") in ear.told)


def test_what_was_not_taken_comes_again_and_the_error_is_raised(ear: Ear) -> None:
    def fail(_: Address, message: TapMessage) -> None:
        if isinstance(message, Mutation):
            raise ValueError("no room")

    with testing.node(vbuckets=2, tap_keep_alive_seconds=60) as node:
        with node.client() as bucket:
            bucket.set("k", "v")
        failing = TapNodes(node.url, fail, name="i")
        failing.open()
        with pytest.raises(ValueError, match="no room"):
            wait_for_error(failing)
        failing.close()
        with TapNodes(node.url, ear.take, name="i"):
            ear.wait_for(lambda: (node.port, "stored", b"k") in ear.told)


def wait_for_error(nodes: TapNodes) -> None:
    over = threading.Event()
    for _ in range(600):
        nodes.check()
        over.wait(0.1)


def test_nobody_there_is_an_error_at_once(ear: Ear) -> None:
    with pytest.raises(TransportError):
        TapNodes("couchbase://127.0.0.1:1/default", ear.take).open()


@pytest.mark.parametrize("options", [{"owners_only": True}, {"since": -1}], ids=str)
def test_options_that_cannot_be_are_refused(ear: Ear, options: dict[str, int]) -> None:
    with pytest.raises(OptionError):
        TapNodes("couchbase://127.0.0.1:1/default", ear.take, **options)  # type: ignore[arg-type]
