"""The manifest that the system events of a vbucket fold to, at each seqno, and what that lets a reader see."""

from __future__ import annotations

import pytest

from headwater.kernels.choices import EVENTS_OF_COLLECTIONS as OF
from headwater.kernels.choices import EVENTS_OF_SCOPES as SCOPE
from headwater.node.vbucket.collection_events import PLAIN, VBucketCollections, Wanted, event_of, message_of
from headwater.wire.dcp import SystemEvent
from headwater.wire.manifest import EventKind, ManifestEvent

ALL = Wanted(aware=True)


def event(seqno: int, kind: int, uid: int, scope: int, collection: int | None = None, name: str = "") -> SystemEvent:
    return SystemEvent(
        by_seqno=seqno,
        event=kind,
        version=0,
        key=name.encode(),
        manifest_uid=uid,
        scope_id=scope,
        collection_id=collection,
    )


def shop() -> VBucketCollections:
    """Scope 8 at seqno 1, collections 8 at 2 and 9 at 3; 8 is dropped at 10."""
    return VBucketCollections(
        [
            event(1, 3, 0, 8, name="shop"),
            event(2, 0, 0, 8, 8, "a"),
            event(3, 0, 1, 8, 9, "b"),
            event(10, 1, 2, 8, 8),
        ]
    )


def test_without_events_there_is_the_default_collection() -> None:
    found = VBucketCollections()
    assert found.alive == {0: None} and found.manifest.uid == 0 and found.dropped().tolist() == []
    assert found.shown(PLAIN, 5).tolist() == found.shown(ALL, 5).tolist() == [0]


def test_a_drop_hides_documents_only_where_the_drop_itself_can_be_told() -> None:
    found = shop()
    assert sorted(found.alive) == [0, 9] and found.manifest.uid == 2
    events = [OF + 8, OF + 9, SCOPE + 8]
    assert found.shown(ALL, 9).tolist() == [0, 8, 9, *events]
    assert found.shown(ALL, 10).tolist() == [0, 9, *events]
    assert found.shown(ALL, 9).tolist() == [0, 8, 9, *events]
    assert found.at(2).uid == 0 and found.at(3).uid == 1
    assert found.dropped().tolist() == [[8, 10]]


def test_filters_choose_documents_and_their_events() -> None:
    found = shop()
    one, both, scope = Wanted(True, frozenset({8})), Wanted(True, frozenset({8, 9})), Wanted(True, scope=8)
    assert found.shown(one, 10).tolist() == [OF + 8]
    assert found.shown(both, 10).tolist() == [9, OF + 8, OF + 9]
    assert found.shown(scope, 10).tolist() == [9, OF + 8, OF + 9, SCOPE + 8]
    assert found.shown(Wanted(True, scope=0), 10).tolist() == [0, SCOPE]
    assert [found.is_over(each, 9) for each in (one, both, scope)] == [False] * 3
    assert [found.is_over(each, 10) for each in (one, both, scope)] == [True, False, False]


@pytest.mark.parametrize("events", range(1, 6))
def test_a_collection_is_shown_from_its_event_on_also_if_somebody_looked_while_that_was_not_on_disk(
    events: int,
) -> None:
    found = VBucketCollections()
    for number in range(events):
        found.add(event(10 + number, 0, number, 0, 8 + number, f"c{number}"))
    for seqno in range(9, 10 + events):
        alive = [0, *range(8, 8 + max(0, seqno - 9))]
        assert [each for each in found.shown(ALL, seqno).tolist() if each < OF] == alive


def test_what_is_added_later_is_shown_from_then_on() -> None:
    found = shop()
    before = found.shown(ALL, 20)
    found.add(event(20, 0, 3, 8, 10, "c"))
    assert 10 not in before.tolist() and 10 not in found.shown(ALL, 19).tolist()
    assert 10 in found.shown(ALL, 20).tolist() and found.alive == {0: None, 9: None, 10: None}


def test_a_client_without_collections_is_done_when_the_default_one_is_dropped() -> None:
    found = VBucketCollections([event(4, 1, 1, 0, 0)])
    assert (found.is_over(PLAIN, 3), found.is_over(PLAIN, 4)) == (False, True)
    assert found.shown(PLAIN, 4).tolist() == [] and found.shown(PLAIN, 3).tolist() == [0]


def test_a_message_and_its_event_are_the_same_both_ways() -> None:
    for told in (
        ManifestEvent(EventKind.CREATE_COLLECTION, 3, 8, 9, "a", 60),
        ManifestEvent(EventKind.DROP_SCOPE, 4, 8),
    ):
        message = message_of(told)
        assert event_of(SystemEvent.decode(message.encode())) == told
        assert message.version == (told.max_ttl is not None)
