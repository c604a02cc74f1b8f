"""The collections manifest: what it may say, what may follow it, and the events between two (kv.md 4, dcp 2.16)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.wire.manifest import (
    EMPTY,
    Collection,
    CollectionsManifest,
    EventKind,
    ManifestEvent,
    ManifestFold,
    ManifestRefused,
    NoSuchName,
    Scope,
)

DEFAULT: dict[str, Any] = {"uid": "0", "name": "_default", "collections": [{"uid": "0", "name": "_default"}]}
PRINTED = (
    b'{"uid":"a","scopes":[{"uid":"0","name":"_default","collections":[{"uid":"0","name":"_default","history":true},'
    b'{"uid":"8","name":"c1","maxTTL":60,"history":false}]}]}'
)


def manifest(uid: str = "1", *scopes: dict[str, Any], default: dict[str, Any] | None = None) -> CollectionsManifest:
    return CollectionsManifest.decode(json.dumps({"uid": uid, "scopes": [default or DEFAULT, *scopes]}).encode())


def scope(uid: str, name: str, **collections: str) -> dict[str, Any]:
    return {"uid": uid, "name": name, "collections": [{"uid": at, "name": each} for each, at in collections.items()]}


def test_the_manifest_of_the_specification_both_ways() -> None:
    found = CollectionsManifest.decode(PRINTED)
    assert found.encode() == PRINTED
    assert (found.uid, found.by_id()[8][1]) == (10, Collection(8, "c1", 60, history=False))


def test_a_bucket_begins_with_the_default_collection() -> None:
    default = {"uid": "0", "name": "_default", "history": True}
    assert json.loads(EMPTY.encode()) == {"uid": "0", "scopes": [DEFAULT | {"collections": [default]}]}


def test_who_says_nothing_of_a_history_leaves_it_as_it_was_and_a_new_collection_gets_the_default() -> None:
    known = CollectionsManifest.decode(PRINTED)
    bare = json.dumps({"uid": "b", "scopes": [DEFAULT, scope("8", "s", new="9")]}).replace(
        '"collections": [', '"collections": [{"uid": "8", "name": "c1", "maxTTL": 60}, ', 1
    )
    for default in (True, False):
        read = CollectionsManifest.decode(bare.encode(), flags=known.flags(default=default))
        assert {number: each.history for number, (_, each) in read.by_id().items()} == {0: True, 8: False, 9: default}
        known.check_next(read)


def test_a_history_that_is_no_truth_value_is_refused() -> None:
    with pytest.raises(ManifestRefused, match="history 1 is neither true nor false"):
        CollectionsManifest.decode(PRINTED.replace(b"true", b"1"))


def test_a_history_may_change_and_that_is_an_event_behind_those_of_new_collections() -> None:
    before = EMPTY.with_scope("s", 8).with_collection("s", "a", 60, 8)
    after = before.with_history("s", "a", history=False)
    before.check_next(after)
    assert before.with_history("s", "a", history=True) is before and after.uid == before.uid + 1
    assert before.events_to(after) == [
        ManifestEvent(EventKind.MODIFY_COLLECTION, after.uid, 8, 8, "a", 60, history=False)
    ]
    both = CollectionsManifest(after.uid, after.with_collection("s", "b", None, 9, history=False).scopes)
    kinds = [each.kind for each in before.events_to(both)]
    assert kinds == [EventKind.CREATE_COLLECTION, EventKind.MODIFY_COLLECTION]
    assert before.after(*before.events_to(both)) == both
    with pytest.raises(NoSuchName):
        before.with_history("s", "b", history=True)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (b"", "not JSON"),
        (b"[]", "a manifest is"),
        (b'{"uid":"1"}', "a manifest is"),
        (b'{"uid":1,"scopes":[]}', "uid 1 is not a hex number"),
        (b'{"uid":"0x1","scopes":[]}', "is not a hex number"),
        (b'{"uid":"11111111111111111","scopes":[]}', "is not a hex number"),
        (b'{"uid":"1","scopes":[]}', "scope _default"),
        (b'{"uid":"1","scopes":[5]}', "a scope is"),
    ],
)
def test_what_is_no_manifest_is_refused_with_the_reason(told: bytes, why: str) -> None:
    with pytest.raises(ManifestRefused, match=why) as caught:
        CollectionsManifest.decode(told)
    assert not caught.value.stale and not caught.value.breaks


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (scope("8", "_x"), "can't name a scope"),
        (scope("8", "%x"), "can't name a scope"),
        (scope("8", "x" * 252), "can't name a scope"),
        (scope("8", "s", **{"a b": "8"}), "can't name a collection"),
        (scope("8", "s", a="8", b="8"), "several collections have id 8"),
        (scope("0", "s"), "several scopes have id 0"),
        (scope("8", "_default"), "several scopes are named _default"),
        (scope("8", "s", a="7"), "reserved"),
        (scope("7", "s"), "reserved"),
        (scope("8", "s", a="0"), "several collections have id 0"),
        (scope("8", "s", a="100000000"), "is not a hex number"),
        ({"uid": "8", "name": "s", "collections": [{"uid": "8", "name": "a", "maxTTL": -1}]}, "maxTTL"),
        ({"uid": "8", "name": "s", "collections": [{"uid": "8", "name": "a", "maxTTL": 2**31}]}, "maxTTL"),
    ],
)
def test_a_manifest_that_breaks_a_rule_by_itself_is_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ManifestRefused, match=why):
        manifest("1", wrong)


def test_a_manifest_never_goes_back_and_the_same_again_is_fine() -> None:
    first = manifest("5", scope("8", "s", a="8"))
    first.check_next(first)
    for stale in (manifest("4", scope("8", "s", a="8")), manifest("5", scope("8", "s"))):
        with pytest.raises(ManifestRefused, match="not newer") as caught:
            first.check_next(stale)
        assert caught.value.stale


@pytest.mark.parametrize(
    "following",
    [
        manifest("6", scope("8", "t", a="8")),
        manifest("6", scope("8", "s", b="8")),
        manifest("6", scope("9", "t", a="8"), scope("8", "s")),
    ],
)
def test_what_has_an_id_can_not_become_another(following: CollectionsManifest) -> None:
    with pytest.raises(ManifestRefused) as caught:
        manifest("5", scope("8", "s", a="8")).check_next(following)
    assert caught.value.breaks


def test_the_default_collection_may_go_and_never_comes_back() -> None:
    bare = {"uid": "0", "name": "_default", "collections": []}
    without = manifest("2", default=bare)
    EMPTY.check_next(without)
    with pytest.raises(ManifestRefused, match="never comes back"):
        without.check_next(manifest("3"))


def test_only_the_last_event_of_a_change_has_the_new_uid() -> None:
    before = manifest("1", scope("8", "s", a="8"), scope("9", "gone", g="9"))
    after = manifest("2", scope("8", "s", b="a"), scope("a", "new", n="b"))
    assert before.events_to(after) == [
        ManifestEvent(EventKind.DROP_COLLECTION, 1, 8, 8),
        ManifestEvent(EventKind.DROP_COLLECTION, 1, 9, 9),
        ManifestEvent(EventKind.CREATE_SCOPE, 1, 10, name="new"),
        ManifestEvent(EventKind.CREATE_COLLECTION, 1, 8, 10, "b"),
        ManifestEvent(EventKind.CREATE_COLLECTION, 1, 10, 11, "n"),
        ManifestEvent(EventKind.DROP_SCOPE, 2, 9),
    ]


def test_collections_are_made_and_dropped_by_name() -> None:
    made = EMPTY.with_scope("s", 8).with_collection("s", "a", 60, 8)
    assert made.uid == 2 and made.by_id()[8][1].max_ttl == 60
    assert made.without_collection("s", "a").without_scope("s") == CollectionsManifest(4, EMPTY.scopes)
    for refused in (lambda: made.with_scope("s", 9), lambda: made.with_collection("s", "a", None, 9)):
        with pytest.raises(ManifestRefused, match="already exists"):
            refused()
    for missing in (lambda: made.without_scope("t"), lambda: made.without_collection("s", "b")):
        with pytest.raises(NoSuchName, match="is not found"):
            missing()
    with pytest.raises(ManifestRefused, match="not allowed"):
        made.without_scope("_default")


@given(st.lists(st.tuples(st.sampled_from("sct"), st.integers(8, 12), st.booleans()), max_size=20))
def test_the_events_between_two_manifests_lead_from_one_to_the_other(steps: list[tuple[str, int, bool]]) -> None:
    found, told = EMPTY, EMPTY
    for kind, number, drops in steps:
        name = f"{kind}{number}"
        try:
            if kind == "s":
                made = found.without_scope(name) if drops else found.with_scope(name, number)
            elif drops:
                made = found.without_collection("s8", name)
            else:
                made = found.with_collection("s8", name, None, number + (20 if kind == "t" else 0))
        except ManifestRefused:
            continue
        for event in found.events_to(made):
            told = told.after(event)
        found = made
        assert {scope.id: set(scope.collections) for scope in told.scopes} == {
            scope.id: set(scope.collections) for scope in found.scopes
        }
        assert told.uid == found.uid
    assert CollectionsManifest.decode(found.encode()) == found


def plainly_after(manifest: CollectionsManifest, event: ManifestEvent) -> CollectionsManifest:
    """The manifest that an event makes, by looking through all of the old one."""
    uid, scopes = max(manifest.uid, event.manifest_uid), list(manifest.scopes)
    if event.kind is EventKind.CREATE_SCOPE and not any(scope.id == event.scope_id for scope in scopes):
        scopes.append(Scope(event.scope_id, event.name))
    elif event.kind is EventKind.DROP_SCOPE:
        scopes = [scope for scope in scopes if scope.id != event.scope_id]
    elif event.kind is not EventKind.CREATE_SCOPE:
        for at, each in enumerate(scopes):
            if each.id == event.scope_id:
                others = [known for known in each.collections if known.id != event.collection_id]
                if event.kind is EventKind.MODIFY_COLLECTION:
                    scopes[at] = replace(each, collections=tuple(_modified(known, event) for known in each.collections))
                    continue
                if event.kind is not EventKind.DROP_COLLECTION:
                    others.append(Collection(event.collection_id or 0, event.name, event.max_ttl, event.history))
                scopes[at] = Scope(each.id, each.name, tuple(others))
    return CollectionsManifest(uid, tuple(scopes))


def _modified(known: Collection, event: ManifestEvent) -> Collection:
    return replace(known, history=event.history) if known.id == event.collection_id else known


events = st.builds(
    lambda kind, uid, scope, collection, name, ttl, history: ManifestEvent(
        kind, uid, scope, None if "SCOPE" in kind.name else collection, name, ttl, history
    ),
    st.sampled_from(EventKind),
    st.integers(0, 9),
    st.sampled_from([0, 8, 9]),
    st.integers(0, 10),
    st.sampled_from(["a", "b"]),
    st.none() | st.integers(1, 9),
    st.booleans(),
)


@given(st.lists(events, max_size=30), st.integers(0, 30))
def test_events_one_by_one_or_all_at_once_make_the_same_manifest(told: list[ManifestEvent], at: int) -> None:
    expected, fold = EMPTY, ManifestFold(EMPTY.after(*told[:at]))
    for event in told:
        expected = plainly_after(expected, event)
    for event in told[at:]:
        fold.add(event)
    assert fold.manifest == EMPTY.after(*told) == expected and fold.uid == expected.uid
    assert fold.manifest is fold.manifest


def test_an_event_that_fits_nothing_changes_nothing_but_the_uid() -> None:
    assert EMPTY.after(ManifestEvent(EventKind.DROP_COLLECTION, 7, 9, 9)) == CollectionsManifest(7, EMPTY.scopes)
    assert EMPTY.after(ManifestEvent(EventKind.CREATE_SCOPE, 0, 0, name="_default")).scopes == EMPTY.scopes
    assert Scope(8, "s") in EMPTY.after(ManifestEvent(EventKind.CREATE_SCOPE, 1, 8, name="s")).scopes


def test_collections_that_servers_make_for_themselves_may_begin_with_an_underscore() -> None:
    told = '{"uid":"1","scopes":[{"uid":"0","name":"_default"},{"uid":"8","name":"%s","collections":[%s]}]}'
    query = '{"uid":"8","name":"_query"}'
    made = CollectionsManifest.decode((told % ("_system", query)).encode())
    assert made.collection("_system", "_query") is not None
    with pytest.raises(ManifestRefused, match="'_query' can't name a collection"):
        CollectionsManifest.decode((told % ("shop", query)).encode())


class CountingName(str):
    """A name that counts how often it is compared with another one."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountingName.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_names_and_ids_are_told_apart_without_comparing_each_with_all() -> None:
    CountingName.compared = 0
    scopes = tuple(Scope(8 + number, CountingName(f"s{number}")) for number in range(1000))
    CollectionsManifest(1, (EMPTY.scopes[0], *scopes)).check()
    assert CountingName.compared < 5000


def test_more_than_may_be_are_refused_before_one_of_them_is_read() -> None:
    wrong = [{"no": "scope"}] * 5
    with pytest.raises(ManifestRefused, match="0 collections in 5 scopes; 4 of each are allowed"):
        CollectionsManifest.decode(json.dumps({"uid": "1", "scopes": wrong}).encode(), count_max=4)
    filled = [{"uid": "8", "name": "s", "collections": ["no collection"] * 5}]
    with pytest.raises(ManifestRefused, match="5 collections in 1 scopes; 4 of each are allowed"):
        CollectionsManifest.decode(json.dumps({"uid": "1", "scopes": filled}).encode(), count_max=4)
    with pytest.raises(ManifestRefused, match="None can't name a scope"):
        CollectionsManifest.decode(json.dumps({"uid": "1", "scopes": wrong}).encode(), count_max=5)
