"""Whether the collections of two nodes can be of one bucket."""

import pytest

from headwater.protocol.one_bucket import contradiction, is_alike, why_not_from
from headwater.wire.manifest import EMPTY, Collection, CollectionsManifest, Scope

SHOP = EMPTY.with_scope("shop", 8).with_collection("shop", "carts", None, 8)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (EMPTY.with_scope("other", 9).with_collection("other", "things", None, 8), "have the same id, 8"),
        (EMPTY.with_scope("shop", 8).with_collection("shop", "carts", 60, 8), "both have a manifest 2"),
        (EMPTY.with_scope("other", 8).with_collection("other", "things", None, 9).with_scope("x", 9), "scope 8"),
    ],
)
def test_ids_that_mean_two_things_contradict_either_way(other: CollectionsManifest, told: str) -> None:
    assert told in contradiction(SHOP, other) and told in contradiction(other, SHOP)


def test_what_is_only_behind_or_told_in_another_order_is_of_one_bucket() -> None:
    later = SHOP.with_collection("shop", "orders", None, 9).without_collection("shop", "carts")
    assert contradiction(SHOP, later) == contradiction(later, SHOP) == contradiction(EMPTY, later) == ""
    two = (Collection(9, "b"), Collection(8, "a"))
    scopes = (Scope(8, "s", two), Scope(0, "_default"))
    assert contradiction(CollectionsManifest(3, scopes), CollectionsManifest(3, _turned(scopes))) == ""


def _turned(scopes: tuple[Scope, ...]) -> tuple[Scope, ...]:
    return tuple(Scope(scope.id, scope.name, scope.collections[::-1]) for scope in scopes[::-1])


def test_a_newer_manifest_without_a_collection_would_drop_it() -> None:
    newer = SHOP.with_scope("x", 9).without_collection("shop", "carts")
    assert "shop.carts would be dropped" in why_not_from(SHOP, newer)
    assert why_not_from(newer, SHOP) == why_not_from(SHOP, EMPTY) == ""


def test_a_server_that_says_nothing_of_histories_names_the_same_collections() -> None:
    """A follower of one that leaves the word out could otherwise never connect again."""
    plain = SHOP.with_history("shop", "carts", history=False)
    other = CollectionsManifest(plain.uid, SHOP.scopes)  # read from a text without the word
    assert contradiction(plain, other) == contradiction(other, plain) == ""
    assert not is_alike(plain, other)
