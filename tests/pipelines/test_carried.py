"""The collections of a copy's target, between real nodes and without Spark: made, dropped, and never mixed up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import OptionError
from headwater.pipelines.carried import FILE, Carried, CarriedCollections, CarriedFile, choice
from headwater.spark.settings import parse, parse_write
from headwater.testing.node import Node, node
from tests.node.kv.test_rights_in_places import PASSWORD, give
from tests.pipelines.buckets import create


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Node, Node]]:
    with node(vbuckets=2) as source, node(vbuckets=2) as target:
        yield source, target


@pytest.fixture
def pair(running: tuple[Node, Node]) -> tuple[Node, Node]:
    for bucket in running:
        with bucket.client() as client:
            there = [scope.name for scope in client.manifest().scopes if scope.id]
        create(bucket, drop=there)
    return running


def names(bucket: Node) -> set[str]:
    with bucket.client() as client:
        return {
            f"{scope.name}.{collection.name}"
            for scope, collection in client.manifest().each_collection()
            if collection.id
        }


def ids(bucket: Node, *paths: str) -> tuple[int, ...]:
    with bucket.client() as client:
        found = [client.manifest().collection(*path.split(".")) for path in paths]
    return tuple(sorted(each.id for each in found if each))


def settle(
    pair: tuple[Node, Node], place: Path, *, dropped: Any = "keep", check: Any = lambda: None, **asked: str
) -> tuple[int, ...]:
    """One look of a copy that was started again."""
    source, target = pair
    into, file = asked.pop("into", None), CarriedFile(place)
    reading = parse({"url": source.url, **asked})
    carried = choice(file.load(), asked, into, reading)
    file.save(carried)
    (place / "offsets").mkdir(exist_ok=True)
    login = {name: asked[name] for name in ("user", "password") if name in asked}
    reading = parse({"url": source.url, **login, **carried.options()})
    made = CarriedCollections(
        reading, parse_write({"url": target.url, "withMeta": "true"}), carried, file, dropped, check
    )
    try:
        return made.settle()
    finally:
        made.close()


def test_what_the_target_lacks_is_made_with_its_longest_life_and_what_is_chosen_only(
    pair: tuple[Node, Node], tmp_path: Path
) -> None:
    source, target = pair
    create(source, "shop.orders", "shop.carts", "audit.log")
    create(target, "theirs.alone", "shop.carts")
    assert settle(pair, tmp_path / "a", scope="shop") == ids(source, "shop.orders", "shop.carts")
    assert names(target) == {"theirs.alone", "shop.carts", "shop.orders"}
    assert settle(pair, tmp_path / "b") == (0, *ids(source, "shop.orders", "shop.carts", "audit.log"))
    assert "audit.log" in names(target)


def test_a_copy_of_one_collection_may_go_into_another(pair: tuple[Node, Node], tmp_path: Path) -> None:
    source, target = pair
    create(source, "shop.orders", "shop.carts")
    settle(pair, tmp_path, collections="shop.orders", into="archive.old")
    assert names(target) == {"archive.old"}
    with pytest.raises(OptionError, match=r"begun with: archive\.old"):
        settle(pair, tmp_path, collections="shop.orders", into="archive.new")
    for several in ({}, {"collections": "all"}, {"collections": "shop.orders,shop.carts"}, {"scope": "shop"}):
        with pytest.raises(OptionError, match="one name in --collections"):
            settle(pair, tmp_path / "new", into="archive.old", **several)


def test_what_is_dropped_at_the_source_goes_from_the_target_when_that_was_said(
    pair: tuple[Node, Node], tmp_path: Path
) -> None:
    source, target = pair
    create(source, "shop.orders", "shop.carts")
    create(target, "shop.theirs")
    for place in ("keep", "drop"):
        settle(pair, tmp_path / place)
    create(source, drop=["shop.carts"])
    settle(pair, tmp_path / "keep")
    assert names(target) == {"shop.orders", "shop.carts", "shop.theirs"}
    assert settle(pair, tmp_path / "drop", dropped="drop") == (0, *ids(source, "shop.orders"))
    assert names(target) == {"shop.orders", "shop.theirs"}


@pytest.mark.parametrize("dropped", ["keep", "drop"])
def test_nothing_is_dropped_or_forgotten_for_a_user_who_is_shown_a_part_of_the_source(
    dropped: str, pair: tuple[Node, Node], tmp_path: Path
) -> None:
    target = pair[1]
    whole = "monitor[default],stream[default]"
    with node(vbuckets=2, environment={"HEADWATER_ADMINISTRATORS": ""}) as source:
        create(source, "shop.orders", "shop.carts")
        give(source, {"copier": whole, "root": "administer"})
        asked = {"user": "copier", "password": PASSWORD, "collections": "shop.orders,shop.carts"}
        chosen = settle((source, target), tmp_path, dropped=dropped, **asked)
        noted = CarriedFile(tmp_path).load()
        if dropped == "keep":
            create(target, drop=["shop.carts"])  # a copy that forgets it would begin it in the middle
        there = names(target)
        give(source, {"copier": "stream[default:shop:orders]", "root": "administer"})
        with pytest.raises(OptionError, match=r'"shop\.carts" is not known .*the role stream in the whole bucket'):
            settle((source, target), tmp_path, dropped=dropped, **asked)
        assert names(target) == there and CarriedFile(tmp_path).load() == noted
        give(source, {"copier": whole, "root": "administer"})
        if dropped == "drop":
            assert settle((source, target), tmp_path, dropped=dropped, **asked) == chosen


def test_a_collection_that_was_made_again_does_not_meet_the_documents_of_before(
    pair: tuple[Node, Node], tmp_path: Path
) -> None:
    source, target = pair
    create(source, "shop.orders")
    for place in ("keep", "drop"):
        settle(pair, tmp_path / place)
    before = ids(target, "shop.orders")
    create(source, "shop.orders", drop=["shop.orders"])
    with pytest.raises(OptionError, match=r"headwater collection drop shop\.orders"):
        settle(pair, tmp_path / "keep")
    assert ids(target, "shop.orders") == before
    settle(pair, tmp_path / "drop", dropped="drop")
    assert ids(target, "shop.orders") > before
    create(target, drop=["shop.orders"])
    settle(pair, tmp_path / "keep")  # as it was told
    assert names(target) == {"shop.orders"}


def test_a_collection_that_somebody_dropped_at_the_target_is_not_quietly_begun_in_the_middle(
    pair: tuple[Node, Node], tmp_path: Path
) -> None:
    source, target = pair
    create(source, "shop.orders")
    settle(pair, tmp_path)
    create(target, drop=["shop.orders"])
    with pytest.raises(OptionError, match="not at the target any more"):
        settle(pair, tmp_path)


def test_a_collection_that_somebody_made_again_at_the_target_is_not_quietly_begun_in_the_middle(
    pair: tuple[Node, Node], tmp_path: Path
) -> None:
    source, target = pair
    create(source, "shop.orders", "shop.carts")
    settle(pair, tmp_path, scope="shop")
    settle(pair, tmp_path)
    create(target, "shop.orders", drop=["shop.orders"])
    with pytest.raises(OptionError, match=r'"shop\.orders" is not at the target any more.*made again there'):
        settle(pair, tmp_path)
    (tmp_path / "old").mkdir()
    carried = CarriedFile(tmp_path).load()
    assert carried is not None
    CarriedFile(tmp_path / "old").save(replace(carried, filled={}))  # an older release noted none
    settle(pair, tmp_path / "old")
    create(target, "shop.orders", drop=["shop.orders"])
    with pytest.raises(OptionError, match="made again there"):
        settle(pair, tmp_path / "old")


@pytest.mark.parametrize("dropped", ["keep", "drop"])
def test_a_collection_that_somebody_made_again_at_the_target_is_not_dropped_for_that_of_before(
    dropped: str, pair: tuple[Node, Node], tmp_path: Path
) -> None:
    source, target = pair
    create(source, "shop.orders")
    settle(pair, tmp_path, dropped=dropped)
    create(target, "shop.orders", drop=["shop.orders"])
    theirs = ids(target, "shop.orders")
    create(source, "shop.orders", drop=["shop.orders"])
    assert settle(pair, tmp_path, dropped=dropped) == (0, *ids(source, "shop.orders"))
    assert ids(target, "shop.orders") == theirs


def test_a_copy_goes_on_with_the_choice_that_it_began_with(pair: tuple[Node, Node], tmp_path: Path) -> None:
    reading = parse({"url": pair[0].url})
    file = CarriedFile(tmp_path)
    assert choice(file.load(), {}, None, reading).collections == "all"
    file.save(Carried("shop.orders", None, "archive.old", 0x1F, {"archive.old": 0x2A}))
    assert CarriedFile(tmp_path).load() == Carried("shop.orders", None, "archive.old", 31, {"archive.old": 42})
    assert choice(file.load(), {}, None, reading) == file.load()
    (tmp_path / FILE).unlink()
    (tmp_path / "offsets").mkdir()
    told = choice(file.load(), {}, None, reading)
    assert told == Carried() and not told.chooses  # of before collections were copied: the default one alone


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 2}', '{"format": 1, "known": {"a": "x"}}'])
def test_a_damaged_file_is_told_and_not_taken_for_a_new_copy(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(OptionError, match="checkpoint"):
        CarriedFile(tmp_path).load()


def test_a_checkpoint_elsewhere_needs_spark(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="a folder of this machine"):
        CarriedFile(f"s3a://{tmp_path.name}/x").load()


def test_who_may_not_make_collections_is_told_what_to_do(pair: tuple[Node, Node], tmp_path: Path) -> None:
    create(pair[0], "shop.orders")
    users = tmp_path / "users"
    users.write_text("alice:alice-s3cret\nbob:bob-s3cret\n")
    users.chmod(0o600)
    with node(vbuckets=2, users_file=users, administrators="alice") as target:
        writing = parse_write({"url": target.url, "withMeta": "true", "user": "bob", "password": "bob-s3cret"})
        reading = parse({"url": pair[0].url, "collections": "all"})
        made = CarriedCollections(reading, writing, Carried("all"), CarriedFile(tmp_path), "keep", lambda: None)
        with pytest.raises(OptionError, match=r"shop\.orders.* is not made at the target .*headwater collection"):
            made.settle()
        made.close()


@pytest.mark.parametrize("begun", [{}, {"scope": "shop"}, {"collections": "shop.orders,shop.carts"}])
def test_another_choice_is_refused_before_a_batch_is_repeated_with_it_and_changes_nothing(
    pair: tuple[Node, Node], tmp_path: Path, begun: dict[str, str]
) -> None:
    source, target = pair
    create(source, "shop.orders", "shop.carts", "audit.log")
    chosen = settle(pair, tmp_path, **begun)
    there, noted = names(target), CarriedFile(tmp_path).load()
    for other in ({"collections": "shop.orders"}, {"collections": "audit.log"}, {"scope": "audit"}):
        with pytest.raises(OptionError, match=r"was begun with: .*another checkpoint for another choice"):
            settle(pair, tmp_path, dropped="drop", **other)
    assert names(target) == there and CarriedFile(tmp_path).load() == noted
    assert settle(pair, tmp_path) == chosen


def test_names_are_left_out_once_their_collections_are_gone(pair: tuple[Node, Node], tmp_path: Path) -> None:
    source, target = pair
    create(source, "shop.orders", "shop.carts")
    settle(pair, tmp_path, collections="shop.orders,shop.carts")
    settle(pair, tmp_path, collections="shop.carts, shop.orders")
    create(source, drop=["shop.carts"])
    assert settle(pair, tmp_path, dropped="drop", collections="shop.orders") == ids(source, "shop.orders")
    assert names(target) == {"shop.orders"}


def test_a_name_that_was_none_is_put_right_with_the_same_checkpoint(pair: tuple[Node, Node], tmp_path: Path) -> None:
    create(pair[0], "shop.orders")
    assert settle(pair, tmp_path, collections="shop.ordrs") == ()
    assert settle(pair, tmp_path, collections="shop.orders") == ids(pair[0], "shop.orders")


def test_nothing_is_dropped_for_a_source_that_was_made_anew_while_the_copy_runs(
    pair: tuple[Node, Node], tmp_path: Path
) -> None:
    source, target = pair
    create(source, "shop.orders")
    settle(pair, tmp_path)
    create(source, drop=["shop.orders"])

    def another() -> None:
        raise OptionError("checkpoint", "here", "made anew")

    with pytest.raises(OptionError, match="made anew"):
        settle(pair, tmp_path, dropped="drop", check=another)
    assert names(target) == {"shop.orders"}


def test_a_collection_that_goes_into_another_takes_not_the_place_of_the_one_before(
    pair: tuple[Node, Node], tmp_path: Path
) -> None:
    source, target = pair
    create(source, "shop.orders", "shop.carts")
    settle(pair, tmp_path, collections="shop.orders", into="archive.old")
    before = ids(target, "archive.old")
    with pytest.raises(OptionError, match=r"begun with: shop\.orders.*another checkpoint"):
        settle(pair, tmp_path, dropped="drop", collections="shop.carts", into="archive.old")
    assert ids(target, "archive.old") == before
