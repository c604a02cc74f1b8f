"""The messages in a log besides documents: events and those of durable writes, in the order of their seqnos."""

from __future__ import annotations

from headwater.node.storage import messages
from headwater.node.storage.messages import events_of, messages_of
from headwater.node.storage.records import event_parts
from headwater.node.storage.store import Store
from headwater.testing.faults import FaultyDisk
from headwater.wire.dcp import Abort, Prepare
from headwater.wire.manifest import EventKind, ManifestEvent
from tests.node.storage.model import open_store

VB = 1


def kinds(store: Store) -> list[str]:
    events, messages = events_of(store.index, store.slots, VB), messages_of(store.index, store.slots, VB)
    return [type(each).__name__ for each in (*events, *messages)]


def test_documents_alone_tell_nothing() -> None:
    store = open_store(FaultyDisk())
    store.staging.mutation(VB, b"k", b"v", cas=1, rev_seqno=1)
    assert kinds(store) == []


def test_events_and_messages_come_in_order_of_each_key_the_newest() -> None:
    store = open_store(FaultyDisk())
    event = ManifestEvent(EventKind.CREATE_COLLECTION, 1, 0, 8)
    store.staging.event(VB, event_parts(event), cas=1)
    for key in (b"\0a", b"\0b"):
        store.prepares.stage(VB, Prepare(by_seqno=0, rev_seqno=1, durability_level=1, key=key, value=b"", cas=1))
    store.prepares.stage_abort(VB, Abort(key=b"\0a", prepared_seqno=2, abort_seqno=0), 50)
    assert kinds(store) == ["StoredEvent", "Prepare", "Abort"]


def test_more_than_a_look_has_room_for_are_all_told() -> None:
    store = open_store(FaultyDisk())
    for number in range(messages.ROWS_FIRST + 1):
        message = Prepare(by_seqno=0, rev_seqno=1, durability_level=1, key=b"\0%d" % number, value=b"", cas=1)
        store.prepares.stage(VB, message)
    assert kinds(store) == ["Prepare"] * (messages.ROWS_FIRST + 1)


def test_an_event_that_is_the_same_in_two_vbuckets_is_one_object_wherever_it_came_from() -> None:
    store = open_store(FaultyDisk())
    event = ManifestEvent(EventKind.CREATE_COLLECTION, 1, 0, 8, "carts")
    store.staging.mutation(0, b"k", b"v", cas=1, rev_seqno=1)
    store.staging.event(0, event_parts(event), cas=1)
    store.staging.event(VB, event_parts(event), seqno=7, cas=1)  # as a replica is sent it
    (mine,), (theirs,) = (list(events_of(store.index, store.slots, vb)) for vb in (0, VB))
    assert (mine.seqno, theirs.seqno) == (2, 7)
    assert mine.event is theirs.event and mine.event == event
