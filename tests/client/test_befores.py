"""The versions that changes replaced, as a drain hands them out: of a node, and of servers that can't say."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from harness.nodes import call
from headwater import client, testing
from headwater.client import Before, Deletion, Expiration, Lack, Mutation
from headwater.client.changes import Change
from headwater.errors import NotSupported
from headwater.testing.node import Node
from headwater.testing.peers import Peer, history, serve
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

KEEPS_TOMBSTONES = (1).to_bytes(8) + bytes(16)
"""Of COMPACT_DB: those that are younger than Unix second 1."""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A node whose document `k` was created, updated, deleted, created again and deleted, and `e` ran out."""
    with testing.node(vbuckets=4) as running:
        with client.connect(running.url) as bucket:
            bucket.set("k", b'{"city":"Ulm"}', flags=7)
            bucket.set("k", b'{"city":"Bonn"}')
            bucket.delete("k")
            bucket.set("k", b"again")
            bucket.set("other", b"x" * 400_000)
            bucket.set("other", b"y")
        yield running


def changes(node: Node, **options: object) -> list[Change]:
    with client.connect(node.url) as bucket, bucket.changes(until="now", before=True, **options) as read:  # type: ignore[arg-type]
        return [event for event in read if isinstance(event, Mutation | Deletion | Expiration)]


def test_each_change_has_the_version_that_it_replaced(node: Node) -> None:
    create, update, delete, again = (change for change in changes(node) if change.key == b"k")
    assert (create.operation, create.before) == ("create", None)
    assert update.operation == "update" and isinstance(update.before, Before)
    assert (update.before.json(), update.before.flags) == ({"city": "Ulm"}, 7)
    assert (update.before.seqno, update.before.cas, update.before.rev_seqno) == (create.seqno, create.cas, 1)
    assert delete.operation == "delete" and isinstance(delete.before, Before)
    assert delete.before.json() == {"city": "Bonn"}
    assert (again.operation, again.before) == ("create", None)


def test_large_versions_come_whole(node: Node) -> None:
    _, update = (change for change in changes(node, batch_bytes=1000) if change.key == b"other")
    assert isinstance(update.before, Before) and update.before.value == b"x" * 400_000


def test_without_values_there_is_still_what_is_known_of_it(node: Node) -> None:
    update = [change for change in changes(node, no_value=True) if change.key == b"k"][1]
    assert isinstance(update.before, Before) and (update.before.value, update.before.flags) == (b"", 7)


def test_who_did_not_ask_is_told_so(node: Node) -> None:
    with client.connect(node.url) as bucket, bucket.changes(until="now", history=True) as read:
        events = [event for event in read if isinstance(event, Mutation)]
    assert {event.before for event in events} == {Lack.NOT_REQUESTED} and events[0].operation is None


@pytest.mark.parametrize("collections", [None, "all"])
def test_a_batch_has_it_in_columns(node: Node, collections: str | None) -> None:
    with (
        client.connect(node.url) as bucket,
        bucket.batches(until="now", before=True, collections=collections) as batches,
    ):
        table = pa.Table.from_batches([batch.records for batch in batches if len(batch)])
    table.validate(full=True)
    assert table.schema.names[-3:] == ["before", "before_known", "operation"]
    rows = [row for row in table.to_pylist() if row["key"] == b"k"]
    assert [row["operation"] for row in rows] == ["create", "update", "delete", "create"]
    assert all(row["before_known"] for row in rows)
    assert [row["before"] and row["before"]["value"] for row in rows] == [
        None,
        b'{"city":"Ulm"}',
        b'{"city":"Bonn"}',
        None,
    ]
    assert rows[1]["before"] == {
        "seqno": rows[0]["seqno"],
        "rev_seqno": 1,
        "cas": rows[0]["cas"],
        "flags": 7,
        "expiry": 0,
        "datatype": 1,
        "value": b'{"city":"Ulm"}',
    }


def test_where_it_is_not_kept_that_is_told_in_each_form() -> None:
    with testing.node(vbuckets=1) as running, client.connect(running.url) as bucket:
        bucket.set("k", "1")
        bucket.delete("k")
        bucket.set("j", "1")
        bucket.set("j", "2")
        assert call(running, Opcode.COMPACT_DB, extras=KEEPS_TOMBSTONES).status == Status.SUCCESS
        delete, mutation = changes(running)
        assert (delete.before, delete.operation) == (Lack.NOT_KEPT, "delete")
        assert (mutation.before, mutation.operation) == (Lack.NOT_KEPT, None)
        with bucket.batches(until="now", before=True) as batches:
            rows = [row for batch in batches for row in batch.records.to_pylist()]
    assert [(row["before"], row["before_known"], row["operation"]) for row in rows] == [
        (None, False, "delete"),
        (None, False, None),
    ]


class Refusing(Peer):
    """A server that refuses a control."""

    refused = b"headwater_before"

    def answers(self, request: Frame) -> Iterator[Frame]:
        if (request.opcode, request.key) == (Opcode.DCP_CONTROL, self.refused):
            yield response(request, Status.EINVAL)
        else:
            yield from super().answers(request)


@pytest.mark.parametrize("control", [b"headwater_before", b"change_streams"])
def test_a_server_that_does_not_know_it_is_named(control: bytes) -> None:
    peer = Refusing(histories={0: history(3)})
    peer.refused = control
    with (
        serve(peer) as address,
        client.connect(f"couchbase://{address}/default", vbuckets=1) as bucket,
        bucket.changes(until="now", before=True) as feed,
        pytest.raises(NotSupported) as refused,
    ):
        list(feed)
    said = str(refused.value)
    assert said.count(f"before: {address}") == 1 and "\n" not in said


def test_changes_wait_for_copies_with_what_they_replaced(node: Node) -> None:
    """`min_persisted` sorts the rows anew."""
    seen = {change.seqno: change for change in changes(node, min_persisted="majority") if change.key == b"k"}
    assert [change.operation for _, change in sorted(seen.items())] == ["create", "update", "delete", "create"]


def test_streams_of_several_workers_come_with_it_through_a_small_window() -> None:
    """Messages of another worker wait for the window: a change is never parted from what it replaced."""
    with testing.node(vbuckets=8, workers=2) as running, client.connect(running.url) as bucket:
        for value in (b"1" * 3000, b"2" * 3000, b"3"):
            for number in range(40):
                bucket.set(f"key-{number}", value)
        seen: dict[bytes, list[bytes]] = {}
        for change in changes(running, window_bytes=4000):
            versions = seen.setdefault(change.key, [])
            held = change.before.value if isinstance(change.before, Before) else change.before
            assert held == (versions[-1] if versions else None)
            versions.append(change.value)
    assert {tuple(versions) for versions in seen.values()} == {(b"1" * 3000, b"2" * 3000, b"3")} and len(seen) == 40
