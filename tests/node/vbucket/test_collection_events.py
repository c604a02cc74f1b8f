"""The manifest that the system events of a vbucket fold to, at each seqno, and what that lets a reader see."""

from __future__ import annotations

from weakref import ref

import pytest

from headwater.kernels.choices import EVENTS_OF_COLLECTIONS as OF
from headwater.kernels.choices import EVENTS_OF_SCOPES as SCOPE
from headwater.kernels.choices import MODIFICATIONS
from headwater.node.storage.messages import StoredEvent
from headwater.node.vbucket import collection_events
from headwater.node.vbucket.collection_events import PLAIN, VBucketCollections, Wanted
from headwater.wire.manifest import EMPTY, EventKind, ManifestEvent, ManifestFold

ALL = Wanted(aware=True)


def event(seqno: int, kind: int, uid: int, scope: int, collection: int | None = None, name: str = "") -> StoredEvent:
    return StoredEvent(seqno, ManifestEvent(EventKind(kind), uid, scope, collection, name))


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
    assert found.choice(PLAIN, 5).tolist() == found.choice(ALL, 5).tolist() == [0]


def test_a_drop_hides_documents_only_where_the_drop_itself_can_be_told() -> None:
    found = shop()
    assert sorted(found.alive) == [0, 9] and found.manifest.uid == 2
    events = [OF + 8, OF + 9, SCOPE + 8]
    assert found.choice(ALL, 9).tolist() == [0, 8, 9, *events]
    assert found.choice(ALL, 10).tolist() == [0, 9, *events]
    assert found.choice(ALL, 9).tolist() == [0, 8, 9, *events]
    assert found.at(2).uid == 0 and found.at(3).uid == 1
    assert found.dropped().tolist() == [[8, 10]]


def test_filters_choose_documents_and_their_events() -> None:
    found = shop()
    one, both, scope = Wanted(True, frozenset({8})), Wanted(True, frozenset({8, 9})), Wanted(True, scope=8)
    assert found.choice(one, 10).tolist() == [OF + 8]
    assert found.choice(both, 10).tolist() == [9, OF + 8, OF + 9]
    assert found.choice(scope, 10).tolist() == [9, OF + 8, OF + 9, SCOPE + 8]
    assert found.choice(Wanted(True, scope=0), 10).tolist() == [0, SCOPE]
    assert [found.is_over(each, 9) for each in (one, both, scope)] == [False] * 3
    assert [found.is_over(each, 10) for each in (one, both, scope)] == [True, False, False]


@pytest.mark.parametrize("events", range(1, 6))
def test_a_collection_is_shown_from_its_event_on_also_if_somebody_looked_while_that_was_not_on_disk(
    events: int,
) -> None:
    found = VBucketCollections()
    for number in range(events):
        found.add(10 + number, ManifestEvent(EventKind.CREATE_COLLECTION, number, 0, 8 + number, f"c{number}"))
    for seqno in range(9, 10 + events):
        alive = [0, *range(8, 8 + max(0, seqno - 9))]
        assert [each for each in found.choice(ALL, seqno).tolist() if each < OF] == alive


def test_what_is_added_later_is_shown_from_then_on() -> None:
    found = shop()
    before = found.choice(ALL, 20)
    found.add(20, ManifestEvent(EventKind.CREATE_COLLECTION, 3, 8, 10, "c"))
    assert 10 not in before.tolist() and 10 not in found.choice(ALL, 19).tolist()
    assert 10 in found.choice(ALL, 20).tolist() and found.alive == {0: None, 9: None, 10: None}


def test_a_client_without_collections_is_done_when_the_default_one_is_dropped() -> None:
    found = VBucketCollections([event(4, 1, 1, 0, 0)])
    assert (found.is_over(PLAIN, 3), found.is_over(PLAIN, 4)) == (False, True)
    assert found.choice(PLAIN, 4).tolist() == [] and found.choice(PLAIN, 3).tolist() == [0]


def create(number: int) -> ManifestEvent:
    return ManifestEvent(EventKind.CREATE_COLLECTION, number, 0, 8 + number, f"c{number}")


def changed(found: VBucketCollections, numbers: range) -> VBucketCollections:
    for number in numbers:
        found.add(100 + number, create(number))
    return found


def test_vbuckets_with_the_same_events_hold_them_once_and_fold_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,000 collections in 1,024 vbuckets: as many events as collections, and not a million."""
    folded = 0

    class Counting(ManifestFold):
        def add(self, event: ManifestEvent) -> None:
            nonlocal folded
            folded += 1
            super().add(event)

    monkeypatch.setattr("headwater.wire.manifest.ManifestFold", Counting)
    vbuckets = [changed(VBucketCollections(), range(50)) for _ in range(20)]
    assert {id(vbucket.manifest) for vbucket in vbuckets} == {id(vbuckets[0].manifest)}
    assert {id(vbucket.alive) for vbucket in vbuckets} == {id(vbuckets[0].alive)}
    assert {id(vbucket.choice(ALL, 200)) for vbucket in vbuckets} == {id(vbuckets[0].choice(ALL, 200))}
    assert folded == 50 and len(vbuckets[0].alive) == 51
    following = vbuckets[0].manifest.with_collection("_default", "more", None, 99)
    assert {id(vbucket.steps_to(following)) for vbucket in vbuckets} == {id(vbuckets[0].steps_to(following))}
    assert folded == 50


def test_one_more_event_is_folded_behind_those_that_were(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (changed(VBucketCollections(), range(50)) for _ in range(2))
    assert len(one.alive) == len(other.alive) == 51
    calls: list[int] = []
    after = type(EMPTY).after
    monkeypatch.setattr(type(EMPTY), "after", lambda base, *events: calls.append(len(events)) or after(base, *events))
    for found in (one, other):
        assert len(changed(found, range(50, 51)).alive) == 52
    assert calls == [1]


def test_a_history_that_no_vbucket_has_any_more_is_forgotten() -> None:
    found = changed(VBucketCollections(), range(3))
    assert len(found.alive) == 4
    end = ref(found._row)
    del found
    assert end() is None
    assert create(0) not in (collection_events.NO_EVENTS._following or {})


def test_vbuckets_whose_histories_part_tell_their_own() -> None:
    one, other = changed(VBucketCollections(), range(3)), changed(VBucketCollections(), range(2))
    other.add(103, ManifestEvent(EventKind.DROP_COLLECTION, 3, 0, 8))
    assert sorted(one.alive) == [0, 8, 9, 10] and sorted(other.alive) == [0, 9]
    assert one.dropped().tolist() == [] and other.dropped().tolist() == [[8, 103]]
    assert sorted(one.at(101).by_id()) == sorted(other.at(101).by_id()) == [0, 8, 9]
    assert (one.uid, other.uid, other.manifest.uid) == (2, 3, 3)


def given(number: int, *, history: bool, kind: EventKind = EventKind.MODIFY_COLLECTION) -> ManifestEvent:
    return ManifestEvent(kind, 1, 0, number, f"c{number}", None, history)


def spans(of: VBucketCollections, after: int, last: int) -> list[tuple[int, int, list[int]]]:
    return [(span.after, span.last, span.collections.tolist()) for span in of.plain_spans(after, last)]


def test_a_collection_has_a_history_or_not_from_the_event_on_that_says_so() -> None:
    found = VBucketCollections()
    found.add(5, given(8, history=True, kind=EventKind.CREATE_COLLECTION))
    assert spans(found, 0, 100) == [] and found.has_history(ALL, 0, 100)
    found.add(10, given(8, history=False))
    found.add(20, given(9, history=False, kind=EventKind.CREATE_COLLECTION))
    found.add(30, given(8, history=True))
    assert spans(found, 0, 10) == []
    assert spans(found, 0, 100) == [(10, 20, [8]), (20, 30, [8, 9]), (30, 100, [9])]
    assert spans(found, 12, 25) == [(12, 20, [8]), (20, 25, [8, 9])]
    assert spans(found, 30, 100) == spans(found, 30, 100) == [(30, 100, [9])]
    only = {number: Wanted(aware=True, collections=frozenset({number})) for number in (0, 8, 9)}
    assert [found.has_history(only[8], *each) for each in ((0, 15), (10, 20), (12, 18), (25, 31))] == [1, 0, 0, 1]
    assert [found.has_history(only[each], 20, 100) for each in only] == [True, True, False]
    assert found.has_history(PLAIN, 40, 50)
    found.add(50, given(0, history=False))
    assert spans(found, 50, 60) == [(50, 60, [0, 9])] and not found.has_history(PLAIN, 50, 60)
    assert not found.manifest.by_id()[0][1].history


def test_a_collection_without_a_history_counts_from_its_creation_and_to_its_drop() -> None:
    found = VBucketCollections()
    found.add(10, given(8, history=False, kind=EventKind.CREATE_COLLECTION))
    found.add(15, given(9, history=True, kind=EventKind.CREATE_COLLECTION))
    found.add(20, ManifestEvent(EventKind.DROP_COLLECTION, 3, 0, 8))
    found.add(90, given(9, history=True))
    assert spans(found, 0, 100) == [(10, 15, [8]), (15, 20, [8])]
    only = {number: Wanted(aware=True, collections=frozenset({number})) for number in (8, 9)}
    assert [found.has_history(only[8], *each) for each in ((0, 18), (10, 18), (5, 9))] == [False, False, True]
    assert found.has_history(only[9], 0, 18)
    assert found.has_history(only[9], 0, 15), "it was created by the newest change"


def test_others_collections_without_a_history_are_not_in_the_way() -> None:
    found = VBucketCollections()
    found.add(5, given(8, history=False, kind=EventKind.CREATE_COLLECTION))
    found.add(6, given(9, history=True, kind=EventKind.CREATE_COLLECTION))
    only = {number: Wanted(aware=True, collections=frozenset({number})) for number in (8, 9)}
    assert [len(found.plain_spans_of(each, 6, 10)) for each in (ALL, only[8], only[9], PLAIN)] == [1, 1, 0, 0]


def test_modifications_are_shown_to_who_knows_them_while_the_collection_is_there() -> None:
    found = VBucketCollections()
    found.add(5, given(8, history=True, kind=EventKind.CREATE_COLLECTION))
    found.add(6, given(8, history=False))
    flat = Wanted(aware=True, modifications=True)
    assert found.choice(ALL, 6).tolist() == [0, 8, OF + 8]
    assert found.choice(flat, 6).tolist() == [0, 8, OF + 8, MODIFICATIONS, MODIFICATIONS + 8]
    found.add(7, ManifestEvent(EventKind.DROP_COLLECTION, 2, 0, 8))
    assert found.choice(flat, 7).tolist() == [0, OF + 8, MODIFICATIONS]
