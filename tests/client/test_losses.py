"""Deletions that a node purged before a drain came to them: the drain says of which vbuckets, or reads those again."""

from __future__ import annotations

from typing import Any

import pytest

from harness.nodes import call
from headwater import client, testing
from headwater.client import DataLoss, Deletion, DeletionsPurged, Mutation, Position, RollbackRequired
from headwater.client.losses import explained
from headwater.client.options import DrainOptions
from headwater.errors import OptionError, TransportError
from headwater.testing.node import Node
from headwater.wire.opcodes import Opcode
from tests.node.aware import Aware

VBUCKETS = 4
WITH_DELETIONS = bytes(16) + b"\1" + bytes(7)


@pytest.fixture
def away():
    """A node, where a reader stands who has been away, and up to where deletions of what he holds were purged."""
    with testing.node(vbuckets=VBUCKETS) as running, running.client() as writer:
        writer.set_many((f"a{i}", "v") for i in range(40))
        with writer.changes(until="now") as changes:
            held = folded(changes)
            positions = changes.positions
        writer.delete_many(f"a{i}" for i in range(20))
        writer.set_many((f"b{i}", "v") for i in range(40))
        for vbucket in range(VBUCKETS):
            assert call(running, Opcode.COMPACT_DB, extras=WITH_DELETIONS, vbucket=vbucket).status == 0
        told = writer.vbucket_stats("vbucket-seqno")
        yield running, positions, held, {vb: int(told[vb]["purge_seqno"]) for vb in range(VBUCKETS)}


def folded(events: Any, held: dict[tuple[int, bytes], bytes] | None = None) -> dict[tuple[int, bytes], bytes]:
    """The documents of a reader who applies what he is told."""
    held = {} if held is None else dict(held)
    for event in events:
        match event:
            case Mutation():
                held[event.vbucket, event.key] = event.value
            case Deletion():
                held.pop((event.vbucket, event.key), None)
            case DeletionsPurged():
                held = {place: value for place, value in held.items() if place[0] != event.vbucket}
    return held


def documents(running: Node) -> dict[tuple[int, bytes], bytes]:
    with running.client() as reader, reader.changes(until="now") as changes:
        return folded(changes)


@pytest.mark.parametrize("read", ["changes", "batches"])
def test_a_drain_ends_with_the_vbuckets_whose_deletions_it_missed(driver, away, read):
    running, positions, _, purged = away
    reader = driver.connect(running.url)
    with getattr(reader, read)(positions, until="now") as feed, pytest.raises(DataLoss) as caught:
        list(feed)
    assert caught.value.purged.items() <= purged.items() and caught.value.vbucket in caught.value.purged
    assert caught.value.common == 0 and caught.value.requested == positions[caught.value.vbucket].seqno
    assert isinstance(caught.value, RollbackRequired) and "deletions were purged" in str(caught.value)
    assert caught.value.purged == purged, "no stream was opened: all of them are known to be lost"


def test_a_reader_who_reads_again_is_told_where_and_ends_with_what_there_is(driver, away):
    running, positions, held, purged = away
    reader = driver.connect(running.url)
    with reader.changes(positions, until="now", on_data_loss="read_again") as changes:
        events = list(changes)
        ends = changes.positions
    told = {event.vbucket: (event.seqno, event.purge_seqno) for event in events if isinstance(event, DeletionsPurged)}
    assert told == {vb: (positions[vb].seqno, purged[vb]) for vb in range(VBUCKETS)}
    assert folded(events, held) == documents(running) != folded([], held)
    with reader.changes(ends, until="now") as changes:
        assert not [change for change in changes if isinstance(change, Mutation | Deletion)]


def test_batches_that_are_read_again_say_before_which_row(driver, away):
    running, positions, _, purged = away
    reader = driver.connect(running.url)
    rows, losses = 0, []
    with reader.batches(positions, until="now", on_data_loss="read_again") as batches:
        for batch in batches:
            assert all(row <= len(batch) for row, _ in batch.data_losses)
            losses += [loss for _, loss in batch.data_losses]
            rows += len(batch)
    assert {loss.vbucket: loss.purge_seqno for loss in losses} == purged and rows == len(documents(running))


def test_a_reader_who_stands_behind_the_purge_or_at_the_beginning_lost_nothing(driver, away):
    running, positions, _, purged = away
    fine = {vb: Position.beginning(vb) for vb in range(VBUCKETS - 1)}
    fine[3] = Position.after(3, purged[3], running_log(running, 3))
    reader = driver.connect(running.url)
    with reader.changes(fine, until="now") as changes:
        list(changes)
    with reader.changes(fine | {1: positions[1]}, until="now") as changes, pytest.raises(DataLoss) as caught:
        list(changes)
    assert caught.value.purged == {1: purged[1]}


def running_log(running: Node, vbucket: int) -> Any:
    with running.client() as reader:
        return reader.failover_log(vbucket)


def test_a_node_that_does_not_say_what_it_purged_leaves_it_at_the_rollback(monkeypatch):
    failure = RollbackRequired(3, 10, 0)

    def silent(*_):
        raise TransportError("gone")
        yield

    monkeypatch.setattr("headwater.client.losses.Operations.vbucket_stats", silent)
    with pytest.raises(StopIteration) as told:
        next(explained(None, failure, {3: 10}))
    assert told.value.value is failure


def test_a_choice_that_there_is_not_is_refused():
    with pytest.raises(OptionError, match="one of raise, read_again"):
        DrainOptions(on_data_loss="ignore")
    with pytest.raises(OptionError, match="min_persisted"):
        DrainOptions(on_data_loss="read_again", min_persisted=1)
    assert client.DataLoss is DataLoss


@pytest.mark.parametrize("purged_again", [False, True])
def test_a_first_reading_that_is_cut_goes_on_below_the_purge_unless_there_was_another(driver, purged_again):
    """A reader inside of its first snapshot stands below the purge seqno and yet missed no deletion: it has no
    document of before. It quotes the purge seqno that the marker told, and is sent back only if that has risen."""
    with testing.node(vbuckets=1) as running, running.client() as writer:
        writer.set_many((f"a{i}", bytes(1000)) for i in range(200))
        writer.delete_many(f"a{i}" for i in range(100))
        purge(running)
        reader = driver.connect(running.url)
        options = {"name": "reader", "collections": "all", "batch_bytes": 8000, "window_bytes": 16_000}
        with reader.batches(until="now", **options) as batches:
            seen = keys_of(next(batches))
            place = batches.positions[0]
            assert 0 < place.seqno < place.snapshot_end, "the first snapshot is held in part"
            with Aware(running.port) as twin:
                twin.opens(b"reader")  # who opens a second connection of a name ends the first (dcp 2.1)
            if purged_again:
                writer.delete_many([seen[0].decode()])
                writer.set("last", b"v")
                purge(running)
                with pytest.raises(DataLoss):
                    list(batches)
                return
            for batch in batches:
                seen += keys_of(batch)
        assert sorted(seen) == sorted(b"a%d" % i for i in range(100, 200))


def purge(running: Node) -> None:
    assert call(running, Opcode.COMPACT_DB, extras=WITH_DELETIONS, vbucket=0).status == 0


def keys_of(batch: Any) -> list[bytes]:
    opcodes, keys = (batch.records[name].to_pylist() for name in ("opcode", "key"))
    return [key for opcode, key in zip(opcodes, keys, strict=True) if opcode == Opcode.DCP_MUTATION]
