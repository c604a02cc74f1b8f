"""Durable writes of both clients: against real nodes with replicas, and against a node that is scripted."""

import pytest

from headwater import testing
from headwater.client import bulk
from headwater.client.cluster import Cluster
from headwater.client.durability import FEATURES, Durability, DurabilityLevel, as_durability, check_granted, within
from headwater.client.settings import settings_for
from headwater.errors import (
    ConnectionLost,
    DurabilityImpossible,
    KeyExists,
    KeyNotFound,
    LocalProtocolError,
    NotSupported,
    OptionError,
    SyncWriteAmbiguous,
    SyncWriteInProgress,
)
from headwater.testing.peers import Peer, serve
from headwater.transport.blocking import run
from headwater.wire.bootstrap import HelloResponse
from headwater.wire.framing import decode_durability, decode_framing
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

WRITES = (Opcode.SET, Opcode.SETQ)
AMBIGUOUS, IN_PROGRESS = Status.SYNC_WRITE_AMBIGUOUS, Status.SYNC_WRITE_IN_PROGRESS
SHORT = Durability("majority", timeout_seconds=0.2)


# --- real nodes -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair():
    """Two nodes, each with a copy of all 8 vbuckets: a majority is both."""
    with testing.cluster(2, replicas=1, vbuckets=8) as running:
        yield running


@pytest.fixture
def bucket(driver, pair):
    return driver.connect(pair.url, timeout_seconds=60.0)


def key_on(bucket, node: testing.Node) -> str:
    """A key of which the node has the active copy."""
    names = (f"key-{number}" for number in range(1000))
    return next(name for name in names if str(bucket.map.owner(bucket.vbucket_of(name))) == node.address)


@pytest.mark.parametrize("level", [*DurabilityLevel, "majority", "PERSIST_TO_MAJORITY"])
def test_a_durable_document_is_there_when_its_write_returns(bucket, level):
    cas = bucket.set("k", "v", durability=level)
    assert (bucket.get("k").value, bucket.get("k").cas) == (b"v", cas)


def test_every_write_can_be_durable(bucket):
    bucket.delete_many(["all", "counter"])
    bucket.add("all", "b", durability="majority")
    with pytest.raises(KeyExists):
        bucket.add("all", "b", durability="majority")
    bucket.append("all", "c", durability="majority")
    bucket.prepend("all", "a", durability="majority")
    assert bucket.get("all").value == b"abc"
    cas = bucket.replace("all", "{}", durability="majority")
    with pytest.raises(KeyExists):
        bucket.set("all", "x", cas=cas + 1, durability="majority")
    assert bucket.set_json("all", {"a": 1}, cas=cas, durability="majority") == bucket.get("all").cas
    assert bucket.incr("counter", initial=7, durability="majority") == 7
    assert bucket.decr("counter", 2, durability="majority") == 5
    bucket.touch("all", 1000, durability="majority")
    assert bucket.gat("all", 2000, durability="majority").json() == {"a": 1}
    bucket.delete("all", durability="majority")
    with pytest.raises(KeyNotFound):
        bucket.delete("all", durability="majority")


def test_many_durable_documents_go_to_all_nodes_and_failures_come_back_by_key(bucket):
    items = {f"many-{number}": f"value {number}" for number in range(100)}
    assert bucket.set_many(items, durability="majority") == {}
    read = bucket.get_many(items)
    assert {key.decode(): document.text for key, document in read.items()} == items
    failed = bucket.delete_many([*items, "many-none"], durability="persist-to-majority")
    assert list(failed) == [b"many-none"] and isinstance(failed[b"many-none"], KeyNotFound)


def test_a_dead_replica_makes_a_write_ambiguous_and_what_comes_after_it_is_told_by_the_map(driver):
    with testing.cluster(2, replicas=1, vbuckets=8) as running:
        bucket = driver.connect(running.url, timeout_seconds=60.0)
        alive, dead = running.nodes
        key = key_on(bucket, alive)
        bucket.set(key, "before", durability="majority")
        dead.kill()
        with pytest.raises(
            SyncWriteAmbiguous, match=rf'set "{key}".*SYNC_WRITE_AMBIGUOUS \(status 0xa3\).*Read before'
        ):
            bucket.set(key, "after", durability=SHORT)
        assert bucket.get(key).value == b"before", "the node took it back"
        failed = bucket.set_many({key: "many"}, durability=SHORT)
        assert isinstance(failed[key.encode()], SyncWriteAmbiguous) and bucket.get(key).value == b"before"
        bucket.set(key, "plain")
        running.fail_over(dead)
        with pytest.raises(DurabilityImpossible, match="2 of 2 copies must have it, and 1 nodes have one"):
            bucket.set(key, "never", durability="majority")
        assert bucket.get(key).value == b"plain"


def test_other_requests_do_not_wait_behind_a_durable_write():
    """A node does the requests of a connection in order: a read behind a write that waits would wait as long."""
    import asyncio  # noqa: PLC0415

    from headwater.client import aio  # noqa: PLC0415

    async def race(url: str, dead: testing.Node, key: str) -> list[str]:
        order = []
        async with aio.connect(url, timeout_seconds=60.0) as client:
            await client.set(key, "v", durability="majority")
            dead.kill()

            async def write() -> None:
                with pytest.raises(SyncWriteAmbiguous):
                    await client.set(key, "after", durability=Durability("majority", 2.0))
                order.append("write")

            async def read() -> None:
                await asyncio.sleep(0)
                assert (await client.get(key)).value == b"v"
                order.append("read")

            await asyncio.gather(write(), read())
        return order

    with testing.cluster(2, replicas=1, vbuckets=8) as running:
        with running.client() as client:
            key = key_on(client, running.nodes[0])
        assert asyncio.run(race(running.url, running.nodes[1], key)) == ["read", "write"]


# --- scripted ---------------------------------------------------------------------------------------------------------


class Durable(Peer):
    """Answers writes by a list for their key: a status, or None to hang up without an answer."""

    said: dict[bytes, list[int | None]]
    grants: frozenset[int] | None = None

    def answers(self, request: Frame):
        if request.opcode == Opcode.HELLO and self.grants is not None:
            self.seen.append(request)
            yield response(request, value=HelloResponse(features=list(self.grants)).frame().value)
        elif request.opcode in WRITES:
            self.seen.append(request)
            left = self.said.get(request.key, [])
            status = left.pop(0) if left else Status.SUCCESS
            if status is None:
                raise OSError("hung up")
            if status or request.opcode == Opcode.SET:
                yield response(request, status, cas=5)
        else:
            yield from super().answers(request)

    def writes(self) -> list[Frame]:
        return [request for request in self.seen if request.opcode in WRITES]


def scripted(**said: list[int | None]) -> Durable:
    peer = Durable(vbuckets=1)
    peer.said = {key.encode(): statuses for key, statuses in said.items()}
    return peer


def test_a_request_names_its_level_and_a_time_that_ends_before_the_operation(driver):
    peer = scripted()
    with serve(peer) as address:
        client = driver.connect(address, timeout_seconds=10.0)
        client.set("k", "v", durability="persist-to-majority")
        client.set("k", "v", durability=Durability(DurabilityLevel.MAJORITY, timeout_seconds=0.258))
        client.set("k", "v")
    long, short, plain = peer.writes()
    assert (long.magic, short.magic, plain.magic, plain.framing) == (0x08, 0x08, 0x80, b"")
    assert short.framing == b"\x13\x01\x01\x02"
    level, timeout_ms = decode_durability(decode_framing(long.framing)[0].data)
    assert level == 3 and timeout_ms is not None and 8000 < timeout_ms <= 9000


@pytest.mark.parametrize("answer", [AMBIGUOUS, None])
def test_a_write_of_which_nobody_knows_whether_it_happened_is_sent_once_and_never_called_done(driver, answer):
    peer = scripted(k=[answer])
    with serve(peer) as address:
        client = driver.connect(address, timeout_seconds=10.0)
        error = SyncWriteAmbiguous if answer else ConnectionLost
        with pytest.raises(error, match="may or may not have happened" if answer else "was stored is not known"):
            client.set("k", "v", durability="majority")
        assert client.set("k", "w", durability="majority") == 5, "the next one finds its way"
    assert [request.value for request in peer.writes()] == [b"v", b"w"]


@pytest.mark.parametrize("answer", [AMBIGUOUS, None])
def test_many_writes_are_not_repeated_either(driver, answer):
    peer = scripted(b=[answer])
    with serve(peer) as address:
        client = driver.connect(address, timeout_seconds=10.0)
        items = {"a": "1", "b": "2", "c": "3"}
        if answer is None:
            with pytest.raises(ConnectionLost, match="was stored is not known"):
                client.set_many(items, durability="majority")
        else:
            failed = client.set_many(items, durability="majority")
            assert list(failed) == [b"b"] and isinstance(failed[b"b"], SyncWriteAmbiguous)
    sent = [request.key for request in peer.writes()]
    assert sent == ([b"a", b"b"] if answer is None else [b"a", b"b", b"c"])
    assert {request.magic for request in peer.writes()} == {0x08}


def test_a_write_that_meets_another_one_is_sent_again_until_it_is_taken(driver):
    peer = scripted(k=[IN_PROGRESS, Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS, Status.ETMPFAIL])
    with serve(peer) as address:
        assert driver.connect(address, timeout_seconds=60.0).set("k", "v", durability="majority") == 5
    assert len(peer.writes()) == 4


def test_a_write_that_meets_another_one_for_too_long_says_how_often_it_was_tried(driver):
    peer = scripted(k=[IN_PROGRESS] * 999)
    with serve(peer) as address:
        client = driver.connect(address, timeout_seconds=0.5)
        with pytest.raises(SyncWriteInProgress, match=r'set "k".*\(\d+ attempts in \d\.\d s\).*status 0xa2'):
            client.set("k", "v", durability="majority")


def test_an_older_value_does_not_follow_one_that_may_have_happened(driver):
    """The first is put off, the second ambiguous: sent again, the first would replace what may be there."""
    peer = scripted(k=[IN_PROGRESS, AMBIGUOUS])
    with serve(peer) as address:
        client = driver.connect(address, timeout_seconds=10.0)
        failed = client.set_many([("k", "old"), ("k", "new")], durability="majority")
    assert [request.value for request in peer.writes()] == [b"old", b"new"]
    assert isinstance(failed[b"k"], SyncWriteAmbiguous)


def test_a_few_durable_writes_go_out_together(driver):
    peer = scripted()
    with serve(peer) as address:
        items = {f"k{number}": "v" for number in range(2 * bulk.DURABLE_CHUNK + 1)}
        assert driver.connect(address, timeout_seconds=10.0).set_many(items, durability=SHORT) == {}
    assert sum(request.opcode == Opcode.NOOP for request in peer.seen) == 3
    assert {request.framing for request in peer.writes()} == {b"\x13\x01\x00\xc8"}


def test_a_server_that_knows_no_durable_writes_is_not_sent_one(driver):
    peer = scripted()
    peer.grants = frozenset({0x07})
    with serve(peer) as address:
        client = driver.connect(address, timeout_seconds=10.0)
        with pytest.raises(NotSupported, match=r'set "k": .* knows no durable writes; leave durability out'):
            client.set("k", "v", durability="majority")
        with pytest.raises(NotSupported, match=r'setq "k": .* knows no durable writes'):
            client.set_many({"k": "v"}, durability="majority")
        assert client.set("k", "v") == 5
    assert len(peer.writes()) == 1


def test_plain_writes_ask_for_nothing_new_and_durable_ones_have_their_own_connection(driver):
    peer = scripted()
    with serve(peer) as address:
        client = driver.connect(address, timeout_seconds=10.0)
        client.set("k", "v")
        assert peer.connections == 1
        client.set("k", "v", durability="majority")
        client.set("k", "v", durability="majority")
        assert peer.connections == 2
    hellos = [request.value for request in peer.seen if request.opcode == Opcode.HELLO]
    wanted = b"".join(code.to_bytes(2) for code in FEATURES)
    assert [hello.endswith(wanted) for hello in hellos] == [False, True]


def test_a_closed_client_writes_nothing(driver):
    with serve(scripted()) as address:
        client = driver.connect(address, timeout_seconds=10.0)
        client.set("k", "v", durability="majority")
        client.close()
        with pytest.raises(LocalProtocolError, match="this client was closed"):
            client.set("k", "v", durability="majority")


def test_a_client_that_says_no_hello_has_no_durable_writes():
    with pytest.raises(OptionError, match="hello=False"):
        Cluster(settings_for("127.0.0.1:1", hello=False)).for_durable_writes()


@pytest.mark.parametrize(
    ("level", "seconds", "told"),
    [
        ("most", None, "durability"),
        (4, None, "durability"),
        ("majority", 0.0, "0.001 to 65.534 seconds"),
        ("majority", 65.6, "0.001 to 65.534 seconds"),
    ],
)
def test_what_can_not_be_asked_for_is_refused_here(level, seconds, told):
    with pytest.raises(OptionError, match=told):
        Durability(level, seconds)


def test_a_time_as_long_as_the_operation_is_refused():
    with pytest.raises(OptionError, match="less than 10 s, the timeout_seconds of the client"):
        as_durability(Durability("majority", 10.0), 10.0)
    assert as_durability(None, 10.0) is None
    assert as_durability(2, 10.0) == Durability(DurabilityLevel.MAJORITY_AND_PERSIST_TO_ACTIVE)


def test_the_time_of_an_attempt_is_that_which_is_left():
    asked = Frame(0x08, Opcode.SET, framing=Durability("majority", 5.0).framing())
    assert within(asked, 100.0).framing == b"\x13\x01\x13\x88"
    assert within(asked, 1.0).framing == b"\x13\x01\x03\x84"
    assert within(asked, -1.0).framing == b"\x13\x01\x00\x01"


def test_both_features_are_needed():
    check_granted(frozenset(FEATURES), "set", "node")
    for feature in FEATURES:
        with pytest.raises(NotSupported):
            check_granted(frozenset({feature}), "set", "node")


def test_a_map_that_is_newer_is_shared():
    peer = scripted()
    with serve(peer) as address:
        cluster = Cluster(settings_for(address))
        run(cluster.connect())
        twin = cluster.for_durable_writes()
        assert twin is cluster.for_durable_writes() and twin.map is cluster.map
        cluster.close()
        with pytest.raises(LocalProtocolError):
            twin.check_open()
