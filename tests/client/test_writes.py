"""Writes of all kinds in one run, over both clients, against a real node; and refusals that pass, scripted."""

import datetime
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from headwater import testing
from headwater.client import Client, Write, WriteWithMeta, bulk, connect
from headwater.client.bulk import BulkItem
from headwater.client.cluster import Cluster
from headwater.client.routing import Address, map_of_one
from headwater.client.settings import settings_for
from headwater.client.writes import write_many
from headwater.errors import (
    ConnectionLost,
    InvalidArguments,
    KeyExists,
    KeyNotFound,
    OptionError,
    TemporaryFailure,
    TooBig,
)
from headwater.testing.embedded import embedded
from headwater.testing.faults import FaultyDisk
from headwater.testing.peers import Peer, serve
from headwater.transport.backoff import Backoff
from headwater.transport.blocking import run
from headwater.wire.datatype import Datatype
from headwater.wire.documents import Set
from headwater.wire.header import Frame, response
from headwater.wire.meta import MetaOption, SetWithMeta
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

HOUR_FROM_2100 = 4_102_444_800 + 3600


@pytest.fixture(scope="module")
def node():
    with testing.node(vbuckets=16) as running:
        yield running


@pytest.fixture
def bucket(driver, node):
    return driver.connect(f"couchbase://{node.address}/default")


def newest(node, key: bytes):
    with node.client() as client, client.changes(until="now", markers=False) as changes:
        return [change for change in changes if getattr(change, "key", None) == key][-1]


def test_each_write_has_flags_and_an_expiry_of_its_own(bucket, node):
    assert bucket.write_many([Write("a", "1", 7, HOUR_FROM_2100), Write("b", b"2"), Write("c", "3", 9)]) == {}
    found = {key: (newest(node, key).value, newest(node, key).flags, newest(node, key).expiry) for key in (b"a", b"c")}
    assert found == {b"a": (b"1", 7, HOUR_FROM_2100), b"c": (b"3", 9, 0)}


def test_writes_of_one_key_are_carried_out_in_their_order(bucket):
    assert bucket.write_many([Write("o", "1"), Write("o", None), Write("o", "2")]) == {}
    assert bucket.get("o").value == b"2"
    assert bucket.write_many([Write("o", "3"), Write("o", None)]) == {}
    assert bucket.get_many(["o"]) == {}


def test_a_failure_comes_back_by_its_place_and_the_others_are_carried_out(bucket):
    old = bucket.set("cas", "1")
    new = bucket.set("cas", "2")
    failed = bucket.write_many(
        [Write("cas", "3", cas=old), Write("cas", "4", cas=new), Write("never", None), Write("cas", None, cas=old)]
    )
    assert {place: type(error) for place, error in failed.items()} == {0: KeyExists, 2: KeyNotFound, 3: KeyExists}
    assert bucket.get("cas").value == b"4"


def test_a_document_is_stored_as_it_is_elsewhere_and_only_if_it_is_ahead(bucket, node):
    ahead = WriteWithMeta("m", "5", flags=3, expiry=HOUR_FROM_2100, cas=500, rev_seqno=5)
    assert bucket.write_many([ahead]) == {}
    stored = newest(node, b"m")
    assert (stored.value, stored.flags, stored.expiry) == (b"5", 3, HOUR_FROM_2100)
    assert (stored.cas, stored.rev_seqno) == (500, 5)
    behind = WriteWithMeta("m", "4", flags=0, expiry=0, cas=900, rev_seqno=4)
    assert [type(error) for error in bucket.write_many([ahead, behind]).values()] == [KeyExists, KeyExists]
    gone = WriteWithMeta("m", None, flags=0, expiry=1_700_000_000, cas=600, rev_seqno=6)
    assert bucket.write_many([gone]) == {}
    assert (newest(node, b"m").rev_seqno, type(newest(node, b"m")).__name__) == (6, "Deletion")
    forced = WriteWithMeta("m", "2", flags=0, expiry=0, cas=200, rev_seqno=2, force=True)
    assert bucket.write_many([forced]) == {}
    assert (newest(node, b"m").rev_seqno, newest(node, b"m").value) == (2, b"2")


def test_extended_attributes_travel_with_metadata_where_they_were_agreed_on(driver, bucket, node):
    attributes = (12).to_bytes(4) + (8).to_bytes(4) + b"_sync\x001\x00"
    datatype = Datatype.XATTR | Datatype.JSON
    write = WriteWithMeta("x", attributes + b"{}", 0, 0, cas=500, rev_seqno=5, datatype=datatype, force=True)
    assert [type(error) for error in bucket.write_many([write]).values()] == [InvalidArguments]
    assert driver.connect(f"couchbase://{node.address}/default", xattrs=True).write_many([write]) == {}
    assert bucket.get("x").value == b"{}"


def test_what_can_not_be_asked_is_a_failure_of_that_write_alone(bucket):
    impossible = [Write("", "1"), Write("k", "1", flags=1 << 32), Write("k", None, cas=-1), Write("k" * 251, "1")]
    failed = bucket.write_many([*impossible, Write("possible", "1")])
    assert [type(failed[place]) for place in range(4)] == [OptionError] * 4
    assert (len(failed), bucket.get("possible").value) == (4, b"1")


def test_the_extras_of_a_write_with_metadata_are_those_of_its_declaration():
    item = WriteWithMeta("k", "v", 1, 2, cas=3, rev_seqno=4, force=True).item(0)
    declared = SetWithMeta(key=b"k", flags=1, expiration=2, rev_seqno=4, stored_cas=3, options=MetaOption.FORCE)
    assert item.extras == declared.frame().extras


STORED = (Opcode.SETQ, Opcode.SETQ_WITH_META)


class Scripted(Peer):
    """Refuses quiet writes as it is told, by value."""

    said: dict[bytes, list[int]]

    def answers(self, request: Frame):
        if request.opcode not in STORED:
            yield from super().answers(request)
            return
        self.seen.append(request)
        left = self.said.get(request.value, [])
        if status := left.pop(0) if left else Status.SUCCESS:
            yield response(request, status)


def sent(said: dict[bytes, list[int]], *writes: Write | WriteWithMeta):
    node = Scripted(vbuckets=4)
    node.said = said
    with serve(node) as address:
        cluster = Cluster(settings_for(address, timeout_seconds=60.0))
        run(cluster.connect())
        failed = run(write_many(cluster, writes))
        cluster.close()
    return [request.value for request in node.seen if request.opcode in STORED], failed


def test_a_write_under_a_condition_does_not_make_one_before_it_void():
    values, failed = sent(
        {b"1": [Status.ETMPFAIL], b"2": [Status.ETMPFAIL, Status.KEY_EEXISTS]}, Write("k", "1"), Write("k", "2", cas=5)
    )
    assert values == [b"1", b"2", b"1", b"2"]
    assert {place: type(error) for place, error in failed.items()} == {1: KeyExists}


def test_what_is_refused_for_good_leaves_the_one_before_it_to_be_tried_again():
    values, failed = sent({b"1": [Status.ETMPFAIL], b"2": [Status.E2BIG]}, Write("k", "1"), Write("k", "2"))
    assert values == [b"1", b"2", b"1"]
    assert {place: type(error) for place, error in failed.items()} == {1: TooBig}


class FullForAMoment:
    """A node in this process whose disk is full until a client waits to ask again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disk = FaultyDisk()
        monkeypatch.setattr(bulk, "for_requests", self._freed)

    def _freed(self) -> Backoff:
        self.disk.capacity = None
        return Backoff(0.0005, 0.02)

    def fill(self, bucket: Client) -> None:
        """Take the room away, and write until the node says so."""
        self.disk.capacity = 1 << 30
        self.disk.capacity -= self.disk.free(Path("/"))
        for size in (64 << 10, 1 << 10, 0):  # a large document may be refused where a small one has room
            with suppress(TemporaryFailure):
                for number in count():
                    bucket.set(f"filler {size} {number}", bytes(size))


@pytest.mark.parametrize(
    ("writes", "failed", "there"),
    [
        ([Write("k", "v1"), Write("k", None)], {1: KeyNotFound}, None),
        ([Write("k", "v1"), Write("k", None), Write("k", "v2")], {1: KeyNotFound}, b"v2"),
        ([WriteWithMeta("k", "9", 0, 0, 900, 9), WriteWithMeta("k", None, 0, 0, 800, 8)], {}, b"9"),
        ([WriteWithMeta("k", "8", 0, 0, 800, 8), WriteWithMeta("k", None, 0, 0, 900, 9)], {0: KeyExists}, None),
    ],
)
def test_a_disk_that_is_full_for_a_moment_takes_deletions_and_the_order_of_a_key_is_kept(
    monkeypatch: pytest.MonkeyPatch,
    writes: list[Write | WriteWithMeta],
    failed: dict[int, type],
    there: bytes | None,
) -> None:
    full = FullForAMoment(monkeypatch)
    with (
        embedded(disk=full.disk) as node,
        connect(f"127.0.0.1:{node.port}", timeout_seconds=0.5) as impatient,
        connect(f"127.0.0.1:{node.port}", timeout_seconds=60.0) as bucket,
    ):
        full.fill(impatient)
        found = bucket.write_many(writes)
        full.disk.capacity = None
        assert {place: type(error) for place, error in found.items()} == failed
        assert {key: document.value for key, document in bucket.get_many(["k"]).items()} == (
            {} if there is None else {b"k": there}
        )


def test_a_forced_write_that_was_put_off_does_not_follow_a_later_one():
    forced = [WriteWithMeta("k", value, 0, 0, 900, int(value), force=True) for value in ("9", "8")]
    values, failed = sent({b"9": [Status.ETMPFAIL]}, *forced)
    assert (values, failed) == ([b"9", b"8"], {})


def test_what_was_put_off_later_outlives_what_is_answered_late():
    """Another task may have read the answers to a chunk whose connection is gone when the next one is to be sent."""
    cluster = Cluster(settings_for("127.0.0.1:1"))
    cluster._map = map_of_one(Address("127.0.0.1", 1), 1)
    writer = bulk.BulkWriter(cluster, Set)
    first, second = BulkItem(b"k", value=b"1", order=0), BulkItem(b"k", value=b"2", order=1)
    writer._postpone(second, ConnectionLost("node:1", "gone"))
    writer._sort([first], {})
    assert [item.value for item, _ in writer._put_off_so_far()] == [b"2"]


def test_an_expiry_of_months_in_seconds_is_refused_and_as_a_timedelta_taken() -> None:
    with pytest.raises(OptionError, match="timedelta"):
        Write("k", "v", expiry=60 * 86_400).item(0)
    assert Write("k", "v", expiry=datetime.timedelta(seconds=90)).item(0).extras[4:] == (90).to_bytes(4, "big")
