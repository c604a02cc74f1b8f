"""Which collections are read: names to ids, ids to names, and positions that go on with the same choice only."""

from __future__ import annotations

import json

import pytest

from headwater.client.collections import (
    DEFAULT_COLLECTION,
    CollectionName,
    CollectionNames,
    Collections,
    StreamedCollections,
    check_start,
    covering,
    manifest_of,
    newest_manifest,
    resolve,
)
from headwater.errors import ConnectionLost, HeadwaterError, OptionError, UnknownCollection, UnknownScope
from headwater.protocol.dcp.coverage import Coverage
from headwater.protocol.dcp.position import Position, load_positions, save_positions
from headwater.transport.blocking import run
from headwater.wire.manifest import EMPTY, UID_MAX, Collection, CollectionsManifest, EventKind, Scope
from tests.client.seeds import cluster, two_that_know

DEFAULT = EMPTY.scopes[0]
SHOP = Scope(8, "shop", (Collection(8, "orders"), Collection(9, "carts", 60)))
MANIFEST = CollectionsManifest(0xC, (DEFAULT, SHOP))


@pytest.mark.parametrize(
    ("collections", "scope", "coverage"),
    [
        ("all", None, Coverage(12)),
        (["all"], None, Coverage(12)),
        (["shop.orders"], None, Coverage(12, collections=(8,))),
        (("shop.carts", "shop.orders", "shop.carts"), None, Coverage(12, collections=(8, 9))),
        ("shop.carts, _default._default", None, Coverage(12, collections=(0, 9))),
        (".", None, Coverage(12, collections=(0,))),
        (None, "shop", Coverage(12, scope=8)),
        (None, "_default", Coverage(12, scope=0)),
        (Coverage(3, scope=1), None, Coverage(3, scope=1)),
    ],
)
def test_names_are_found_in_the_manifest(collections: Collections, scope: str | None, coverage: Coverage) -> None:
    assert resolve(MANIFEST, collections, scope) == coverage


@pytest.mark.parametrize(
    ("collections", "scope", "error", "told"),
    [
        (["shop.shoes"], None, UnknownCollection, r"no collection shop\.shoes .*manifest c.* orders, carts"),
        (["sea.shells"], None, UnknownScope, r"no scope sea .*_default, shop"),
        (None, "sea", UnknownScope, r"no scope sea"),
        (["orders"], None, OptionError, r'like "scope\.collection", with one dot'),
        (["a.b.c"], None, OptionError, r"with one dot"),
        ([], None, OptionError, r'"all", or names'),
        ("", None, OptionError, r'"all", or names'),
        (["shop.orders", "all"], None, OptionError, r"with one dot"),
    ],
)
def test_a_name_that_is_not_there_is_told_with_those_that_are(
    collections: Collections, scope: str | None, error: type[HeadwaterError], told: str
) -> None:
    with pytest.raises(error, match=told):
        resolve(MANIFEST, collections, scope)


def test_names_come_from_the_manifest_and_from_events_and_never_go() -> None:
    names = CollectionNames(MANIFEST)
    assert names.of(0) == DEFAULT_COLLECTION
    assert names.of(9) == CollectionName(9, 8, "shop", "carts") and names.of(9).path == "shop.carts"
    assert names.of(10) == CollectionName(10, None, None, None) and names.of(10).path == "0xa"
    names.see(EventKind.CREATE_SCOPE, 11, None, "sea")
    names.see(EventKind.CREATE_COLLECTION, 11, 10, "shells")
    names.see(EventKind.DROP_COLLECTION, 8, 8, "")
    names.learn(EMPTY)
    assert (names.of(10).path, names.of(8).path, names.scope(11)) == ("sea.shells", "shop.orders", "sea")


def test_a_newer_manifest_takes_away_what_is_gone_and_an_older_one_does_not() -> None:
    streamed = StreamedCollections(Coverage(12, collections=(8, 9)), CollectionNames(MANIFEST))
    assert not streamed.apply_manifest(CollectionsManifest(11, (DEFAULT,)))
    less = CollectionsManifest(13, (DEFAULT, Scope(8, "shop", (Collection(9, "carts", 60),))))
    assert streamed.apply_manifest(less)
    assert (streamed.dropped, streamed.is_over) == ((8,), False)
    assert json.loads(streamed.value()) == {"uid": "c", "collections": ["9"]}
    assert streamed.apply_manifest(CollectionsManifest(14, (DEFAULT,)))
    assert (streamed.dropped, streamed.is_over) == ((8, 9), True)


def test_a_scope_is_over_when_it_is_gone_and_the_bucket_never() -> None:
    of_scope, whole = (
        StreamedCollections(Coverage(12, scope=8), CollectionNames()),
        StreamedCollections(Coverage(12), CollectionNames()),
    )
    for streamed, is_over in ((of_scope, True), (whole, False)):
        assert streamed.apply_manifest(CollectionsManifest(13, (DEFAULT,))) == is_over == streamed.is_over
        assert streamed.dropped == ()


# --------------------------------------------------------------------------- positions

COVERAGES = [
    None,
    Coverage(12),
    Coverage(12, scope=8),
    Coverage(12, collections=(8,)),
    Coverage(12, collections=(8, 9)),
]


@pytest.mark.parametrize("coverage", COVERAGES)
def test_a_position_is_saved_with_its_choice_and_loaded_as_it_was(coverage: Coverage | None) -> None:
    position = Position(3, 0xAB, 5, 5, 5, ((0xAB, 0),), coverage)
    assert Position.from_json(position.to_json()) == position
    assert load_positions(save_positions({3: position})) == {3: position}
    assert ("collections" in position.to_json()) == (coverage is not None)


@pytest.mark.parametrize("held", COVERAGES)
@pytest.mark.parametrize("asked", COVERAGES)
def test_saved_positions_are_gone_on_from_with_the_same_choice_only(
    held: Coverage | None, asked: Coverage | None
) -> None:
    start = {3: Position(3, 0xAB, 5, 5, 5, coverage=held)}
    if held == asked:
        check_start(start, asked, MANIFEST)
    else:
        with pytest.raises(OptionError, match="the positions were saved with"):
            check_start(start, asked, MANIFEST)


def test_from_the_beginning_everything_may_be_chosen() -> None:
    check_start({3: Position.beginning(3)}, Coverage(12, collections=(8,)), MANIFEST)
    check_start({3: Position.beginning(3)}, None, EMPTY)
    made = covering({3: Position.beginning(3)}, Coverage(12))
    assert made[3].coverage == Coverage(12)


def test_what_was_dropped_since_may_be_left_out_and_what_was_made_again_may_not_take_its_place() -> None:
    start = {3: Position(3, 0xAB, 5, 5, 5, coverage=Coverage(12, collections=(8, 9)))}
    less = CollectionsManifest(13, (DEFAULT, Scope(8, "shop", (Collection(9, "carts", 60),))))
    check_start(start, resolve(less, ["shop.carts"], None), less)
    again = CollectionsManifest(14, (DEFAULT, Scope(8, "shop", (Collection(9, "carts", 60), Collection(10, "orders")))))
    with pytest.raises(OptionError, match=r"shop\.carts, one that is gone .id 0x8.;.*another collection, read it from"):
        check_start(start, resolve(again, ["shop.orders", "shop.carts"], None), again)


def test_a_manifest_that_went_backwards_is_said_to_be_of_another_bucket() -> None:
    start = {3: Position(3, 0xAB, 5, 5, 5, coverage=Coverage(12, collections=(8,)))}
    older = CollectionsManifest(2, (DEFAULT, Scope(8, "shop", (Collection(9, "orders"),))))
    with pytest.raises(OptionError, match="manifest c, newer than 2: is it the same bucket"):
        check_start(start, resolve(older, ["shop.orders"], None), older)


OLDER = CollectionsManifest(0xB, (DEFAULT,))


def test_the_newest_manifest_is_that_of_all_owners_and_not_of_those_that_happen_to_answer() -> None:
    with two_that_know(OLDER, None) as (first, second):
        bucket = cluster("{}:{}".format(*first.address), timeout_seconds=0.3)
        run(bucket.connect())
        assert run(manifest_of(bucket, UID_MAX)) == OLDER
        with pytest.raises(ConnectionLost):
            run(newest_manifest(bucket))
        assert run(newest_manifest(bucket, [0])) == OLDER  # the other one has no say in vbucket 0
        second.manifest = MANIFEST
        assert run(newest_manifest(bucket)) == MANIFEST
        bucket.close()
