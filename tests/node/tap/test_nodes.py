"""TAP sessions of real nodes: what a client that only reads and answers gets to see, without anybody's help."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from harness.nodes import until
from headwater import client, testing
from headwater.client import Client, tap
from headwater.errors import StatusError, TransportError
from headwater.protocol.tap.consumer import TapMessage
from headwater.protocol.tap.producer import BACKOFF_SECONDS
from headwater.testing.embedded import embedded
from headwater.testing.faults import FaultyDisk
from headwater.wire.status import Status
from headwater.wire.tap import Mutation, OpaqueCode
from headwater.wire.tap import Opaque as OpaqueMessage
from headwater.wire.vbucket import State
from tests.cluster.nodes import at, command, empty_nodes, init
from tests.node.aware import Aware, manifest

DEADLINE_SECONDS = 120.0


def read_until(stream: tap.TapStream, true: Callable[[object], bool]) -> list[object]:
    """The messages up to the first for which it is true; each is acknowledged but that one."""
    found: list[object] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not found or not true(found[-1]):
        message = stream.next(timeout_seconds=max(0.0, deadline - time.monotonic()))
        assert message is not None, f"it never came, after {found}"
        found.append(message)
    return found


def stores(key: bytes) -> Callable[[object], bool]:
    return lambda message: isinstance(message, Mutation) and message.key == key


@pytest.fixture(scope="module")
def node() -> Iterator[testing.Node]:
    with testing.node(vbuckets=16) as made:
        yield made


# --- what is refused comes again --------------------------------------------------------------------------------------


@contextmanager
def refusing(node: testing.Node, status: Status, **options: bool) -> Iterator[tuple[tap.TapStream, float]]:
    """A stream whose client has refused the only document there is, and nobody writes any more; and when that was."""
    with tap.connect(node.url, patience_seconds=0, **options) as stream:
        read_until(stream, stores(b"refused"))
        at = time.monotonic()
        stream.answer(status)
        yield stream, at


def test_what_was_refused_for_now_comes_again_by_itself_after_the_back_off(node: testing.Node) -> None:
    with node.client() as bucket:
        bucket.set("refused", "1")
    with (
        refusing(node, Status.ETMPFAIL) as (live, at),
        refusing(node, Status.EBUSY) as (busy, _),
        refusing(node, Status.ETMPFAIL, dump=True) as (dump, _),
    ):
        for stream in (live, busy):
            read_until(stream, stores(b"refused"))
        assert time.monotonic() - at > BACKOFF_SECONDS - 0.1  # timers may be a little early
        rest = list(dump)
        assert list(filter(stores(b"refused"), rest))
        assert isinstance(rest[-1], OpaqueMessage)
        assert rest[-1].code == OpaqueCode.CLOSE_BACKFILL


def test_a_client_that_is_out_of_memory_is_disconnected_and_the_log_says_why(node: testing.Node) -> None:
    with node.client() as bucket:
        bucket.set("refused", "1")
    with refusing(node, Status.ENOMEM) as (stream, _), pytest.raises(TransportError):
        read_until(stream, stores(b"refused"))
    until(lambda: "the TAP client answered ENOMEM" in node.log, "it is told")


def fills_up(stream: tap.TapStream, disk: FaultyDisk, *, after: int) -> None:
    """The disk has no more room once so many messages were read."""
    read, left = stream.next, iter(range(after))

    def next_message(timeout_seconds: float | None = None) -> TapMessage | None:
        if next(left, None) == after - 1:
            disk.capacity = 1 << 20
        return read(timeout_seconds)

    stream.next = next_message  # type: ignore[method-assign]


def refusals(source: Client) -> int:
    return sum(int(value) for key, value in source.stats("tap").items() if key.endswith(":num_tap_nack"))


def wait_for(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_relay_to_a_full_node_goes_on_once_there_is_room_and_nothing_is_missing() -> None:
    keys = [f"k{number}" for number in range(5000)]
    disk = FaultyDisk()
    with testing.node(vbuckets=1) as source, embedded(disk=disk, vbuckets=1) as target, source.client() as writer:
        writer.set_many((key, b"v" * 2000) for key in keys)
        url = f"couchbase://127.0.0.1:{target.port}/default"
        with client.connect(url) as reader, tap.connect(source.url, dump=True) as stream:
            reader.set_vbucket_state(0, "replica")
            fills_up(stream, disk, after=2500)
            relayed = threading.Thread(target=tap.relay, args=(stream, url))
            relayed.start()
            wait_for(lambda: refusals(writer) > 0, "the target was never full")
            disk.capacity = None
            relayed.join(DEADLINE_SECONDS)
            assert not relayed.is_alive()
            reader.set_vbucket_state(0, "active")
            assert len(reader.get_many(keys)) == len(keys)


# --- vbuckets that come and go ----------------------------------------------------------------------------------------


def listening(node: testing.Node, **options: Any) -> tap.TapStream:
    """A stream that is set up: whatever is written from now on will come."""
    stream = tap.connect(node.url, patience_seconds=0, **options)
    stream.next(timeout_seconds=DEADLINE_SECONDS)
    stream.answer()
    return stream


def next_change(stream: tap.TapStream) -> tuple[bytes, bytes]:
    *_, message = read_until(stream, lambda message: isinstance(message, Mutation))
    assert isinstance(message, Mutation)
    return message.key, message.value


def test_after_a_takeover_the_clients_of_the_new_owner_hear_what_is_written_there() -> None:
    with testing.node(vbuckets=64) as old, testing.node(vbuckets=64, vbucket_state="none") as new:
        with old.client() as writer:
            vbucket = writer.vbucket_of("price")
        with (
            listening(old, since=tap.NOW) as before,
            listening(new, since=tap.NOW) as everything,
            listening(new, since=tap.NOW, vbuckets=[vbucket]) as listed,
            old.client() as writer,
        ):
            writer.set("price", "10")
            assert next_change(before) == (b"price", b"10")
            moving = ("move", "--from", old.address, "--to", new.address, "--vbuckets", str(vbucket), "--takeover")
            assert command(*moving)[0] == 0
            with client.connect(new.url, vbuckets=64) as writer_there:
                writer_there.set("price", "12")
            for stream in (everything, listed):
                assert [next_change(stream), next_change(stream)] == [(b"price", b"10"), (b"price", b"12")]


def test_a_vbucket_that_comes_back_begins_from_scratch(node: testing.Node) -> None:
    with listening(node, vbuckets=[7]) as stream, node.client() as admin:
        assert begins(stream) == 7
        admin.set_vbucket_state(7, "dead")
        admin.delete_vbucket(7)
        admin.set_vbucket_state(7, "active")
        assert begins(stream) == 7


def begins(stream: tap.TapStream) -> int:
    """The vbucket that is said to come from scratch next."""
    *_, message = read_until(
        stream,
        lambda message: isinstance(message, OpaqueMessage) and message.code == OpaqueCode.INITIAL_VBUCKET_STREAM,
    )
    assert isinstance(message, OpaqueMessage)
    return message.vbucket


# --- the fence --------------------------------------------------------------------------------------------------------


def test_a_dump_of_a_node_that_waits_for_its_peers_fails_and_a_stream_of_it_goes_on_when_they_are_there() -> None:
    with empty_nodes(2) as (one, two):
        init(one, two)
        with one.client() as bucket:
            bucket.set_many((f"k{number}", "v") for number in range(50))
        one.kill()
        two.kill()
        one.start()
        with pytest.raises(StatusError, match="ETMPFAIL"), tap.connect(one.url, dump=True) as dump:
            list(dump)
        status, shown, told = command("tap", "--dump", "--node", one.url)
        assert (status, shown) == (1, "")
        assert "ETMPFAIL" in told
        until(lambda: "no TAP dump or takeover yet" in one.log, "it is told")
        with listening(one, since=tap.NOW) as stream:
            two.start()
            with one.client(timeout_seconds=DEADLINE_SECONDS) as bucket:
                written = {f"after-{number}".encode() for number in range(20)}
                assert not bucket.set_many((key, "v") for key in written)
                owned = {key for key in written if bucket.map.owner(bucket.vbucket_of(key)) == at(one)[0]}
            assert owned
            while owned:
                owned.discard(next_change(stream)[0])
        with tap.connect(one.url, dump=True) as dump:
            assert [message for message in dump if isinstance(message, Mutation)]


# --- collections ------------------------------------------------------------------------------------------------------


def test_a_takeover_of_vbuckets_with_collections_is_refused_before_anything_is_changed(node: testing.Node) -> None:
    with Aware(node.port) as aware:
        assert aware.becomes(manifest(1, carts=8)) == 0
        assert aware.put(b"k", b"v", 8) == 0
    told = "would leave shop.carts behind: TAP has no collections; `headwater move --takeover`"
    with pytest.raises(StatusError, match=told) as refused, tap.connect(node.url, vbuckets=[0, 1], takeover=True) as it:
        list(it)
    assert refused.value.status == Status.NOT_SUPPORTED
    with node.client() as admin:
        assert admin.get_vbucket_state(0) is admin.get_vbucket_state(1) is State.ACTIVE
    with tap.connect(node.url, dump=True) as dump:  # of the default collection, which is what it says
        list(dump)
    with Aware(node.port) as aware:
        assert aware.got(b"k", 8) == b"v"
        assert aware.becomes(manifest(2)) == 0
    with tap.connect(node.url, vbuckets=[15], takeover=True) as stream:
        list(stream)
