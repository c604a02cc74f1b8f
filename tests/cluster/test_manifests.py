"""Manifests of several nodes put together: what each has stays, what one dropped goes, and an id has one name."""

from __future__ import annotations

import pytest

from headwater.cluster.manifests import NodeManifest, together
from headwater.errors import ClusterError
from headwater.wire.manifest import EMPTY, CollectionsManifest

from .views import A, B

SHOP = EMPTY.with_scope("shop", 8)


def has(node: object, manifest: CollectionsManifest, next_collection: int = 0, next_scope: int = 9) -> NodeManifest:
    ids = [collection.id for _, collection in manifest.each_collection()]
    return NodeManifest(node, manifest, next_collection or max(8, max(ids) + 1), next_scope)  # type: ignore[arg-type]


def names(made: CollectionsManifest) -> set[str]:
    return {f"{scope.name}.{collection.name}" for scope, collection in made.each_collection()} - {"_default._default"}


def test_the_newest_counts_where_the_others_only_know_less() -> None:
    newest = SHOP.with_collection("shop", "a", None, 8)
    assert together([has(A, SHOP), has(B, newest)]) is newest
    assert together([has(A, EMPTY, next_scope=8), has(B, newest)]) is newest


def test_what_each_made_without_the_other_is_all_kept_and_is_news_to_both() -> None:
    one, other = SHOP.with_collection("shop", "a", None, 8), SHOP.with_collection("shop", "b", None, 9)
    made = together([has(A, one), has(B, other, next_collection=8)])
    assert names(made) == {"shop.a", "shop.b"} and made.uid > one.uid == other.uid
    one.check_next(made)
    other.check_next(made)


def test_what_a_node_with_an_older_manifest_made_by_itself_is_kept_where_the_newest_never_had_it() -> None:
    newest = EMPTY.with_scope("s", 8).with_scope("t", 9).without_scope("t")
    older = EMPTY.with_collection("_default", "y", None, 8)
    made = together([has(A, newest, next_scope=10), has(B, older, next_scope=8)])
    assert names(made) == {"_default.y"} and made.uid > newest.uid and made.scope("s") is not None
    made = together([has(A, older, next_scope=8), has(B, EMPTY.with_scope("u", 8))])
    assert {scope.name for scope in made.scopes} == {"_default", "u"} and names(made) == {"_default.y"}


def test_a_drop_that_a_node_heard_of_by_a_vbucket_is_one_as_well() -> None:
    """That node was never told the id; another one with the same manifest was."""
    before = SHOP.with_collection("shop", "a", None, 8)
    dropped = before.without_collection("shop", "a")
    assert together([has(A, dropped, 8), has(B, dropped, 9), has(B, before)]) == dropped


def test_what_one_dropped_and_another_has_is_not_dropped_with_its_documents_by_itself() -> None:
    before = SHOP.with_collection("shop", "a", None, 8).with_collection("shop", "b", None, 9)
    dropped, went_on = before.without_collection("shop", "a"), before.with_collection("shop", "c", None, 10)
    for newer in (went_on, went_on.with_collection("shop", "d", None, 11)):
        told = [has(A, dropped), has(B, newer)]
        with pytest.raises(ClusterError, match=f"{A} has dropped shop.a, of id 8, or had another under that id"):
            together(told)
        assert names(together(told, [8])) == names(newer) - {"shop.a"}
    with pytest.raises(ClusterError, match=f"{A} has dropped "):
        together([has(A, before.without_scope("shop"), 10), has(B, went_on)])


def test_a_drop_that_others_have_not_heard_of_is_the_newest_manifest() -> None:
    before = SHOP.with_collection("shop", "a", None, 8)
    dropped = before.without_collection("shop", "a")
    assert together([has(A, dropped, 9), has(B, before)]) is dropped


@pytest.mark.parametrize(
    ("one", "other", "problem"),
    [
        (SHOP.with_collection("shop", "a", None, 8), SHOP.with_collection("shop", "b", None, 8), "shop.a and shop.b"),
        (SHOP.with_collection("shop", "a", None, 8), SHOP.with_collection("shop", "a", 60, 8), "shop.a and shop.a"),
        (SHOP.with_scope("x", 9), SHOP.with_scope("y", 9), "the scopes x and y have the same id, 9"),
        (SHOP.with_scope("x", 9), SHOP.with_scope("x", 10), "scopes are named"),
    ],
)
def test_an_id_with_two_names_and_a_name_with_two_ids_are_for_people(
    one: CollectionsManifest, other: CollectionsManifest, problem: str
) -> None:
    with pytest.raises(ClusterError, match=problem):
        together([has(A, one, next_scope=9), has(B, other, next_scope=9)])


def test_what_is_dropped_by_its_id_has_no_name_that_could_contradict() -> None:
    one, other = SHOP.with_collection("shop", "a", None, 8), SHOP.with_collection("shop", "b", None, 8)
    made = together([has(A, one), has(B, other)], [8])
    assert names(made) == set() and made.uid > one.uid
    scopes = together([has(A, SHOP.with_scope("x", 9)), has(B, SHOP.with_scope("y", 9))], (), [9])
    assert [scope.name for scope in scopes.scopes] == ["_default", "shop"]
