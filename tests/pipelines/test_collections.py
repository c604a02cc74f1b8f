"""A table for each collection of a real node: each is what its collection is, whatever comes and goes."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog, load_catalog

from harness.nodes import diverge, until
from harness.rest_catalog import RestCatalogServer, rest_server
from headwater.client import connect
from headwater.errors import HeadwaterError, NoAccess, OptionError, TableError, UnknownCollection, UnknownScope
from headwater.failpoints import armed
from headwater.lake.iceberg import catalogs, entry
from headwater.lake.upkeep import Maintenance
from headwater.pipelines import collections, tables
from headwater.pipelines.collections import ChosenCollections, Tables, recorded
from headwater.pipelines.mirror import STOP_SECONDS, MirrorProgress, mirror
from headwater.pipelines.sink import TableSink
from headwater.spark.nodes import SourceNodes
from headwater.testing.node import Node, node
from headwater.wire.manifest import Collection, CollectionsManifest, Scope
from headwater.wire.opcodes import Opcode
from tests.client.test_made_anew import make, make_anew, url
from tests.lake.iceberg.support import by_pyiceberg, configure
from tests.node.aware import Aware
from tests.node.kv.test_rights_in_places import PASSWORD, give
from tests.pipelines.support import VBUCKETS, becomes, documents, folded, put_into, table, vbucket_of

A, B, AGAIN = 8, 9, 10


def remove(bucket: Node, collection: int, *keys: str) -> None:
    with Aware(bucket.port) as client:
        for key in keys:
            named = bytes((collection,)) + key.encode()
            assert client.ask(Opcode.DELETE, key=named, vbucket=vbucket_of(key)).status == 0


def held(place: Path, name: str) -> dict[str, str]:
    """The documents of a collection's table."""
    found = table(place.joinpath(*name.split(".")))
    return {key.decode(): value.decode() for key, value in found.items()}


@pytest.fixture
def shop() -> Iterator[Node]:
    """A bucket with documents of the same keys in shop.a, shop.b and the default collection."""
    with node(vbuckets=VBUCKETS) as running:
        becomes(running, 1, a=A, b=B)
        for collection, value in ((0, "default"), (A, "a"), (B, "b")):
            put_into(running, collection, *(f"k{n}" for n in range(20)), value=value)
        yield running


def follow(bucket: Node, place: Path, **options: Any) -> MirrorProgress:
    """One run, to the end of what there is."""
    asked: dict[str, Any] = {"once": True, "workers": 0, "upkeep": False}
    if not options.keys() & {"collections", "scope"}:
        asked["collections"] = "all"
    return mirror(None, bucket.url, place, **(asked | options))


def all_of(value: str) -> dict[str, str]:
    return {f"k{n}": value for n in range(20)}


def test_each_collection_has_a_table_of_its_own(shop: Node, tmp_path: Path) -> None:
    told = follow(shop, tmp_path)
    assert (told.mutations, told.deletions, told.rollbacks) == (60, 0, 0)
    tables = {"_default._default": "default", "shop.a": "a", "shop.b": "b"}
    assert {name: held(tmp_path, name) for name in tables} == {name: all_of(value) for name, value in tables.items()}
    put_into(shop, A, "k1", "new", value="later")
    remove(shop, B, "k2")
    told = follow(shop, tmp_path, changelog=True)
    assert (told.mutations, told.deletions) == (2, 1)
    assert held(tmp_path, "shop.a") == all_of("a") | {"k1": "later", "new": "later"}
    assert "k2" not in held(tmp_path, "shop.b")
    assert held(tmp_path, "_default._default") == all_of("default")
    assert folded(tmp_path / "shop" / "a_changes") == table(tmp_path / "shop" / "a")


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({"collections": "shop.b"}, {"shop": ["b"]}),
        ({"collections": "shop.b, _default._default"}, {"_default": ["_default"], "shop": ["b"]}),
        ({"scope": "shop"}, {"shop": ["a", "b"]}),
    ],
)
def test_only_what_was_chosen_has_a_table(
    choice: dict[str, str], wanted: dict[str, list[str]], shop: Node, tmp_path: Path
) -> None:
    follow(shop, tmp_path, **choice)
    assert {scope.name: sorted(path.name for path in scope.iterdir()) for scope in tmp_path.iterdir()} == wanted


def test_a_name_that_means_nothing_is_told_before_anything_is_made(shop: Node, tmp_path: Path) -> None:
    with pytest.raises(UnknownCollection, match=r"no collection shop\.c "):
        follow(shop, tmp_path / "t", collections="shop.a,shop.c")
    with pytest.raises(UnknownScope, match="no scope sea"):
        follow(shop, tmp_path / "t", scope="sea")
    for wrong in ({"collections": "shop.a", "scope": "shop"}, {"collections": "shop"}, {"collections": ""}):
        with pytest.raises(OptionError):
            follow(shop, tmp_path / "t", **wrong)
    assert not (tmp_path / "t").exists()


def test_a_folder_that_is_a_table_and_a_table_of_a_folder_are_refused(shop: Node, tmp_path: Path) -> None:
    mirror(None, shop.url, tmp_path / "t", once=True, workers=0)
    with pytest.raises(TableError, match="a table itself"):
        follow(shop, tmp_path / "t")
    follow(shop, tmp_path / "u")
    with pytest.raises(OptionError, match=r"saved with: collection shop\.a"):
        mirror(None, shop.url, tmp_path / "u" / "shop" / "a", once=True, workers=0)
    assert table(tmp_path / "t") == documents(shop)


def test_a_plain_table_where_collections_have_theirs_is_refused(shop: Node, tmp_path: Path) -> None:
    follow(shop, tmp_path / "t")
    for place, told in (
        (tmp_path / "t", r"the folder holds 3 tables, _default/_default for one.*mirror with --collections"),
        (tmp_path / "t" / "shop", r"the folder holds 2 tables, a for one"),
        (tmp_path / "t" / "shop" / "a" / "within", r"it lies in the folder of a table, .*/shop/a"),
    ):
        with pytest.raises(TableError, match=told):
            mirror(None, shop.url, place, once=True, workers=0)
    assert not (tmp_path / "t" / "_delta_log").exists()
    with pytest.raises(TableError, match=r"it lies in the folder of a table, .*/t/shop/a"):
        follow(shop, tmp_path / "t" / "shop" / "a" / "within")


@pytest.mark.parametrize("dropped", ["keep", "drop"])
def test_the_table_of_a_dropped_collection_is_kept_or_dropped_as_was_said(
    dropped: str, shop: Node, tmp_path: Path
) -> None:
    follow(shop, tmp_path, changelog=True)
    becomes(shop, 2, b=B)
    put_into(shop, B, "new", value="b")
    for _ in range(2):
        follow(shop, tmp_path, dropped=dropped, changelog=True)
        left = sorted(path.name for path in (tmp_path / "shop").iterdir())
        assert left == (["a", "a_changes", "b", "b_changes"] if dropped == "keep" else ["b", "b_changes"])
    assert held(tmp_path, "shop.b") == all_of("b") | {"new": "b"}
    if dropped == "keep":
        assert held(tmp_path, "shop.a") == all_of("a")


def test_no_table_is_dropped_for_a_user_who_is_shown_a_part_of_the_bucket(tmp_path: Path) -> None:
    whole = {"mirror": "monitor[default],stream[default]", "root": "administer"}
    options = {"user": "mirror", "password": PASSWORD}
    with node(vbuckets=VBUCKETS, environment={"HEADWATER_ADMINISTRATORS": ""}) as bucket:
        becomes(bucket, 1, a=A, b=B)
        put_into(bucket, A, *(f"k{n}" for n in range(20)), value="a")
        give(bucket, whole)
        follow(bucket, tmp_path, dropped="drop", reading=options)
        give(bucket, whole | {"mirror": "stream[default:shop:b]"})
        with pytest.raises(HeadwaterError) as refused:
            follow(bucket, tmp_path, dropped="drop", reading=options, scope="shop")
        assert held(tmp_path, "shop.a") == all_of("a")
        told = rf'"shop.a" is not known to be dropped .*remove the table {re.escape(str(tmp_path))}/shop/a yourself'
        assert re.search(told, str(refused.value))
        give(bucket, whole)
        follow(bucket, tmp_path, dropped="drop", reading=options)
        assert held(tmp_path, "shop.a") == all_of("a")


def test_a_kept_table_whose_collection_is_not_shown_any_more_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a server that lets everybody have its statistics; headwater's nodes refuse such a user those."""
    whole = {"mirror": "monitor[default],stream[default]", "root": "administer"}
    options = {"user": "mirror", "password": PASSWORD}
    problems: list[str] = []
    with node(vbuckets=VBUCKETS, environment={"HEADWATER_ADMINISTRATORS": ""}) as bucket:
        becomes(bucket, 1, a=A, b=B)
        put_into(bucket, A, *(f"k{n}" for n in range(20)), value="a")
        put_into(bucket, B, "k", value="b")
        give(bucket, whole)
        follow(bucket, tmp_path, reading=options, progress=lambda done: problems.append(done.problem))
        assert set(problems) == {""}
        give(bucket, whole | {"mirror": "stream[default:_default]"})
        with pytest.raises(NoAccess, match="STAT needs monitor"):
            follow(bucket, tmp_path, reading=options, scope="shop")
        monkeypatch.setattr(SourceNodes, "observe", lambda nodes, idle=False: {})
        follow(bucket, tmp_path, reading=options, scope="shop", progress=lambda done: problems.append(done.problem))
        assert held(tmp_path, "shop.a") == all_of("a")
        (told,) = {problem for problem in problems if problem}
        assert " is not known to be dropped" in told and "the tables of shop.a, shop.b stand still" in told


@pytest.mark.parametrize("dropped", ["keep", "drop"])
def test_a_collection_that_was_made_again_begins_anew(dropped: str, shop: Node, tmp_path: Path) -> None:
    follow(shop, tmp_path, json=True, quarantine=True)
    becomes(shop, 2, b=B)
    becomes(shop, 3, a=AGAIN, b=B)
    put_into(shop, AGAIN, "only", value='{"n": 1}')
    follow(shop, tmp_path, dropped=dropped, json=True, quarantine=True)
    assert list(table(tmp_path / "shop" / "a")) == ["only"]
    assert table(tmp_path / "shop" / "a_quarantine") == {}
    aside = sorted(path.name for path in (tmp_path / "shop").iterdir() if "." in path.name)
    assert aside == (["a.dropped-8", "a.dropped-8_quarantine"] if dropped == "keep" else [])
    put_into(shop, AGAIN, "more", value='{"n": 2}')
    follow(shop, tmp_path, dropped=dropped, json=True, quarantine=True)
    assert sorted(table(tmp_path / "shop" / "a")) == ["more", "only"]


@pytest.mark.parametrize("dropped", ["keep", "drop"])
def test_a_table_whose_id_is_another_collections_in_a_bucket_made_anew_begins_anew(
    dropped: str, shop: Node, tmp_path: Path
) -> None:
    """The mirror of all collections ended: the table's offset named a collection that it was not told to read."""
    make(shop, VBUCKETS, "a")
    for names in (("a",), ("b", "a")):
        if len(names) > 1:
            make_anew(shop, VBUCKETS, *names)
        with connect(url(shop)) as client:
            for name in names:
                client.collection(f"shop.{name}").set(f"{name} of {len(names)}", "v")
        mirror(None, url(shop), tmp_path, once=True, workers=0, collections="all", dropped=dropped, retry_seconds=0.0)
    assert held(tmp_path, "shop.a") == {"a of 2": "v"} and held(tmp_path, "shop.b") == {"b of 2": "v"}
    aside = [path.name for path in (tmp_path / "shop").iterdir() if "." in path.name]
    assert aside == (["a.dropped-8"] if dropped == "keep" else [])


class CutOffError(BaseException):
    """Stands for the end of the process."""


def end_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process end at this step, from 0, of putting tables away: each folder that is moved is one, and each that
    is removed, of which half is gone then."""
    move, remove, done = Path.rename, shutil.rmtree, list[str]()

    def moved(self: Path, target: Path) -> Path:
        if self.is_dir():
            if len(done) == step:
                raise CutOffError
            done.append(self.name)
        return move(self, target)

    def removed(path: Path) -> None:
        if len(done) == step:
            remove(path / "_delta_log")
            raise CutOffError
        done.append(path.name)
        remove(path)

    monkeypatch.setattr(Path, "rename", moved)
    monkeypatch.setattr(shutil, "rmtree", removed)


@pytest.mark.parametrize(("dropped", "step"), [("keep", 1), ("keep", 2), ("drop", 1), ("drop", 3), ("drop", 5)])
def test_a_run_that_ends_while_it_puts_a_table_away_is_gone_on_with(
    dropped: str, step: int, shop: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables beside the old one were taken for the new one's: the change log told of documents of a collection that
    is gone, and the quarantine ended the mirror for good."""
    asked = {"dropped": dropped, "json": True, "quarantine": True, "changelog": True}
    follow(shop, tmp_path, **asked)
    becomes(shop, 2, b=B)
    becomes(shop, 3, a=AGAIN, b=B)
    put_into(shop, AGAIN, "only", value='{"n": 1}')
    with monkeypatch.context() as until_then:
        end_at(step, until_then)
        with pytest.raises(CutOffError):
            follow(shop, tmp_path, **asked)
    follow(shop, tmp_path, **asked)
    place = tmp_path / "shop" / "a"
    assert list(table(place)) == ["only"] and table(f"{place}_quarantine") == {}
    assert folded(f"{place}_changes") == {b"only": b'{"n": 1}'}
    aside = sorted(path.name for path in (tmp_path / "shop").iterdir() if "." in path.name)
    kept = ["a.dropped-8", "a.dropped-8_changes", "a.dropped-8_quarantine"]
    assert aside == (kept if dropped == "keep" else [])


def test_a_table_is_moved_beside_one_of_the_same_id_of_a_bucket_that_was_there_before(
    shop: Node, tmp_path: Path
) -> None:
    before = tmp_path / "shop" / "a.dropped-8"
    before.mkdir(parents=True)
    (before / "mine").touch()
    follow(shop, tmp_path)
    becomes(shop, 2, b=B)
    becomes(shop, 3, a=AGAIN, b=B)
    put_into(shop, AGAIN, "only")
    follow(shop, tmp_path, retry_seconds=0.0)
    assert list(before.iterdir()) == [before / "mine"]
    assert held(tmp_path, "shop.a") == {"only": "{}"}
    assert len(table(tmp_path / "shop" / "a.dropped-8-2")) == 20


def test_a_name_whose_collection_was_dropped_may_still_be_given(shop: Node, tmp_path: Path) -> None:
    follow(shop, tmp_path, collections="shop.a,shop.b")
    becomes(shop, 2, b=B)
    assert follow(shop, tmp_path, collections="shop.a,shop.b").mutations == 0
    assert held(tmp_path, "shop.a") == all_of("a")


def test_nor_does_it_end_a_mirror_that_dropped_the_table_and_starts_again(shop: Node, tmp_path: Path) -> None:
    asked = {"collections": "shop.a,shop.b", "dropped": "drop"}
    follow(shop, tmp_path, **asked)
    becomes(shop, 2, b=B)
    for n in range(2):
        put_into(shop, B, f"n{n}")
        assert follow(shop, tmp_path, **asked).mutations == 1
    assert not (tmp_path / "shop" / "a").exists()
    with pytest.raises(UnknownCollection, match=r"no collection shop\.c "):
        follow(shop, tmp_path, **(asked | {"collections": "shop.a,shop.b,shop.c"}))
    becomes(shop, 3, a=AGAIN, b=B)
    put_into(shop, AGAIN, "only")
    follow(shop, tmp_path, **asked)
    assert held(tmp_path, "shop.a") == {"only": "{}"}


def test_the_table_of_a_collection_called_like_a_change_log_is_not_dropped_with_another(
    shop: Node, tmp_path: Path
) -> None:
    becomes(shop, 2, a=A, b=B, a_changes=AGAIN)
    put_into(shop, AGAIN, "mine")
    follow(shop, tmp_path)
    becomes(shop, 3, b=B, a_changes=AGAIN)
    follow(shop, tmp_path, dropped="drop")
    assert sorted(path.name for path in (tmp_path / "shop").iterdir()) == ["a_changes", "b"]
    assert held(tmp_path, "shop.a_changes") == {"mine": "{}"}


def test_a_failover_takes_back_what_the_lost_branch_had_in_each_table(shop: Node, tmp_path: Path) -> None:
    follow(shop, tmp_path)

    def lost() -> None:
        for collection in (0, A, B):
            put_into(shop, collection, "k1", "lost", value="lost")
        remove(shop, A, "k2")
        follow(shop, tmp_path)
        assert held(tmp_path, "shop.a")["lost"] == "lost"

    diverge(shop, lost=lost)
    put_into(shop, B, *(f"won{n}" for n in range(40)), value="b")  # the branch is as long by others' changes as it was
    assert follow(shop, tmp_path).rollbacks > 0
    assert held(tmp_path, "shop.a") == all_of("a")
    assert held(tmp_path, "_default._default") == all_of("default")
    assert held(tmp_path, "shop.b") == all_of("b") | {f"won{n}": "b" for n in range(40)}


def test_a_mirror_that_is_told_to_stop_does_not_wait_long_for_upkeep(
    shop: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []
    close = Maintenance.close

    def noted(table: Maintenance, *, finish: bool = False, seconds: float | None = None) -> None:
        waits.append(seconds)
        close(table, finish=finish, seconds=seconds)

    monkeypatch.setattr(Maintenance, "close", noted)
    told: list[MirrorProgress] = []
    mirror(None, shop.url, tmp_path, scope="shop", workers=0, progress=told.append, stop=lambda: bool(told))
    assert waits and set(waits) == {STOP_SECONDS}


def test_another_buckets_table_is_not_dropped(shop: Node, tmp_path: Path) -> None:
    follow(shop, tmp_path)
    gone = CollectionsManifest(9, (Scope(0, "_default", (Collection(0, "_default"),)),))
    with pytest.raises(TableError, match='of the bucket "default", not "other"'):
        Tables(tmp_path, "other", "drop").settle(gone, ChosenCollections(), lambda *_: gone)
    assert recorded(str(tmp_path / "shop" / "a")) is not None
    older = CollectionsManifest(0, gone.scopes)
    assert Tables(tmp_path, "default", "drop").settle(older, ChosenCollections(), lambda *_: gone) == []
    chosen = ChosenCollections.of("shop.a", None)
    assert len(Tables(tmp_path, "default", "drop").settle(gone, chosen, lambda *_: gone)) == 1
    assert held(tmp_path, "shop.b") == all_of("b")


def test_a_collection_that_is_dropped_while_it_is_read_ends_no_mirror_whatever_its_engine_says(
    shop: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's errors are none of ours: they have ours in their text."""
    engine_of = collections.engine_of

    def made(spark: Any, sink: TableSink, *told: Any) -> Any:
        engine = engine_of(spark, sink, *told)
        if sink.place.endswith("shop/a"):

            def follow(**_: Any) -> None:
                becomes(shop, 2, b=B)
                raise RuntimeError("headwater.errors.UnknownCollection: UNKNOWN_COLLECTION: it is gone")

            engine.follow = follow
        return engine

    monkeypatch.setattr(collections, "engine_of", made)
    follow(shop, tmp_path, retry_seconds=0.0)
    assert held(tmp_path, "shop.b") == all_of("b")


class Running:
    """A mirror of all collections, in a thread."""

    def __init__(self, bucket: Node, place: Path, **options: Any) -> None:
        self.progress, self._ended = MirrorProgress(), threading.Event()
        self.failure: BaseException | None = None
        asked = {"once": False, "interval_seconds": 0.05, "stop": self._ended.is_set} | options
        self._thread = threading.Thread(target=self._run, args=(bucket, place, asked))
        self._thread.start()

    def _run(self, bucket: Node, place: Path, asked: dict[str, Any]) -> None:
        try:
            follow(bucket, place, **asked)
        except BaseException as error:
            self.failure = error

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(240)
        assert not self._thread.is_alive()
        assert self.failure is None


def test_a_running_mirror_follows_what_is_made_written_dropped_and_made_again(shop: Node, tmp_path: Path) -> None:
    running = Running(shop, tmp_path, dropped="drop", upkeep=True)

    def has(name: str, **wanted: str) -> bool:
        assert running.failure is None
        begun = tmp_path.joinpath(*name.split("."), "_delta_log", f"{0:020}.json").exists()  # its folder comes before
        return begun and held(tmp_path, name) == wanted

    try:
        until(lambda: has("shop.b", **all_of("b")), "shop.b is mirrored")
        put_into(shop, B, "k1", value="later")
        until(lambda: has("shop.b", **(all_of("b") | {"k1": "later"})), "a change of shop.b")
        becomes(shop, 2, a=A, b=B, c=AGAIN)
        put_into(shop, AGAIN, "one")
        until(lambda: has("shop.c", one="{}"), "a collection that was made while it ran")
        becomes(shop, 3, b=B, c=AGAIN)
        until(lambda: not (tmp_path / "shop" / "a").exists(), "shop.a is dropped")
        becomes(shop, 4, b=B, c=AGAIN, a=11)
        put_into(shop, 11, "again")
        until(lambda: has("shop.a", again="{}"), "shop.a was made again")
    finally:
        running.stop()
    assert held(tmp_path, "_default._default") == all_of("default")


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch) -> Iterator[RestCatalogServer]:
    """A REST catalog that pyiceberg's settings know as `tests`."""
    with rest_server() as server:
        configure(monkeypatch, "tests", type="rest", uri=server.url)
        yield server


NESTED: dict[str, Any] = {"format": "iceberg", "catalog": "tests:lake"}


def in_catalog(server: RestCatalogServer, name: str) -> dict[str, str]:
    """The documents of a table as the catalog has it."""
    found = by_pyiceberg(server.tables[name].removeprefix("file://"))
    return {key.decode(): value.decode() for key, value in found.items()}


@pytest.mark.parametrize(("named", "prefix"), [("tests", ""), ("tests:lake", "lake.shop."), ("tests:a.b", "a.b.shop.")])
def test_a_catalog_has_a_table_for_each_collection_in_a_namespace_for_each_scope(
    named: str, prefix: str, shop: Node, tmp_path: Path, catalog: RestCatalogServer
) -> None:
    asked: dict[str, Any] = {"format": "iceberg", "catalog": named, "scope": "shop", "changelog": True}
    follow(shop, tmp_path, **asked)
    assert sorted(catalog.tables) == [f"{prefix}{name}" for name in ("a", "a_changes", "b", "b_changes")]
    put_into(shop, A, "k1", "new", value="later")
    follow(shop, tmp_path, **asked)
    assert in_catalog(catalog, f"{prefix}a") == all_of("a") | {"k1": "later", "new": "later"}
    assert in_catalog(catalog, f"{prefix}b") == all_of("b")


def test_a_collection_that_is_made_again_has_a_new_table_in_the_catalog(
    shop: Node, tmp_path: Path, catalog: RestCatalogServer
) -> None:
    follow(shop, tmp_path, **NESTED, changelog=True)
    before = catalog.metadata("lake.shop.a").table_uuid
    becomes(shop, 2, b=B)
    becomes(shop, 3, a=AGAIN, b=B)
    put_into(shop, AGAIN, "k1", value="again")
    follow(shop, tmp_path, **NESTED, changelog=True)
    assert in_catalog(catalog, "lake.shop.a") == {"k1": "again"} == held(tmp_path, "shop.a")
    assert catalog.metadata("lake.shop.a").table_uuid != before
    assert "lake.shop.a_changes" in catalog.tables and in_catalog(catalog, "lake.shop.b") == all_of("b")
    # What was moved aside knows the name no more: its upkeep would put it over the new table.
    aside = tables.open_table(str(tmp_path / "shop" / f"a.dropped-{A:x}"))[0]
    assert entry.catalog_of(aside.state) is None


def test_a_dropped_collection_leaves_the_catalog_with_its_table_and_stays_with_it(
    shop: Node, tmp_path: Path, catalog: RestCatalogServer
) -> None:
    follow(shop, tmp_path, **NESTED)
    becomes(shop, 2, b=B)
    follow(shop, tmp_path, **NESTED)
    assert in_catalog(catalog, "lake.shop.a") == all_of("a")
    follow(shop, tmp_path, **NESTED, dropped="drop")
    assert sorted(catalog.tables) == ["lake._default._default", "lake.shop.b"]
    assert not (tmp_path / "shop" / "a").exists()


def test_a_run_that_ends_between_the_catalog_and_the_folder_is_gone_on_with(
    shop: Node, tmp_path: Path, catalog: RestCatalogServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow(shop, tmp_path, **NESTED)
    becomes(shop, 2, b=B)
    becomes(shop, 3, a=AGAIN, b=B)
    put_into(shop, AGAIN, "k1", value="again")
    with monkeypatch.context() as broken:
        broken.setattr(Tables, "_free_name", lambda *given: 1 / 0)
        with pytest.raises(HeadwaterError, match="division by zero"):
            follow(shop, tmp_path, **NESTED)
    assert "lake.shop.a" not in catalog.tables and held(tmp_path, "shop.a") == all_of("a")
    follow(shop, tmp_path, **NESTED)
    assert in_catalog(catalog, "lake.shop.a") == {"k1": "again"}


def test_a_table_is_not_put_away_while_its_catalog_is_away(
    shop: Node, tmp_path: Path, catalog: RestCatalogServer
) -> None:
    follow(shop, tmp_path, **NESTED)
    becomes(shop, 2, b=B)
    catalog.is_away = True
    with pytest.raises(HeadwaterError, match="catalog tests"):
        follow(shop, tmp_path, **NESTED, dropped="drop", retry_seconds=0)
    assert held(tmp_path, "shop.a") == all_of("a")
    catalog.is_away = False
    follow(shop, tmp_path, **NESTED, dropped="drop")
    assert "lake.shop.a" not in catalog.tables


def test_a_table_of_somebody_elses_stays_in_the_catalog(shop: Node, tmp_path: Path, catalog: RestCatalogServer) -> None:
    follow(shop, tmp_path, **NESTED)
    catalog.tables["lake.shop.a"] = others = catalog.tables["lake.shop.b"]
    becomes(shop, 2, b=B)
    follow(shop, tmp_path, **NESTED, dropped="drop")
    assert catalog.tables["lake.shop.a"] == others and not (tmp_path / "shop" / "a").exists()


@pytest.mark.parametrize("step", ["_is_beside", "leave_catalog"])
def test_a_mirror_that_is_slow_to_put_a_table_away_leaves_the_next_ones_in_the_catalog(
    step: str, shop: Node, tmp_path: Path, catalog: RestCatalogServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another mirror puts the table away and makes the next one, behind this one's look or before its first drop."""
    follow(shop, tmp_path, **NESTED, changelog=True)
    becomes(shop, 3, a=AGAIN, b=B)
    put_into(shop, AGAIN, "k1", value="again")
    part: Any = collections if step == "_is_beside" else entry
    whole = getattr(part, step)

    def overtaken(given: Any) -> Any:
        monkeypatch.setattr(part, step, whole)
        follow(shop, tmp_path, **NESTED, changelog=True)
        return whole(given)

    monkeypatch.setattr(part, step, overtaken)
    place = str(tmp_path / "shop" / "a")
    record = recorded(place)
    assert record is not None and Tables(tmp_path, record.bucket)._put_away(place, A) == []
    assert {"lake.shop.a", "lake.shop.a_changes"} <= catalog.tables.keys()
    assert in_catalog(catalog, "lake.shop.a") == {"k1": "again"} == held(tmp_path, "shop.a")
    assert entry.catalog_of(tables.open_table(place)[0].state) is not None


@pytest.mark.parametrize("dropped", ["keep", "drop"])
def test_a_collection_that_is_made_again_behind_a_publication_that_was_cut_off_begins_anew(
    dropped: str, shop: Node, tmp_path: Path, catalog: RestCatalogServer
) -> None:
    """The old table's log is a version ahead of what readers of Iceberg see when it is put away."""
    follow(shop, tmp_path, **NESTED)
    put_into(shop, A, "k1", value="later")
    with armed("iceberg.before_commit=eio"), pytest.raises(HeadwaterError, match="injected"):
        follow(shop, tmp_path, **NESTED | {"collections": "shop.a", "retry_seconds": 0})
    assert held(tmp_path, "shop.a")["k1"] == "later" and in_catalog(catalog, "lake.shop.a") == all_of("a")
    becomes(shop, 2, b=B)
    becomes(shop, 3, a=AGAIN, b=B)
    put_into(shop, AGAIN, "k1", value="again")
    follow(shop, tmp_path, **NESTED, dropped=dropped)
    assert in_catalog(catalog, "lake.shop.a") == {"k1": "again"} == held(tmp_path, "shop.a")
    aside = tmp_path / "shop" / f"a.dropped-{A:x}"
    assert aside.exists() is (dropped == "keep")
    if dropped == "keep":
        entry.publish(tables.open_table(str(aside))[0])
        assert by_pyiceberg(aside)[b"k1"] == b"later"
        assert in_catalog(catalog, "lake.shop.a") == {"k1": "again"}


@pytest.mark.parametrize("status", [403, 503])
def test_a_catalog_that_does_not_drop_a_table_holds_that_collection_alone(
    status: int, shop: Node, tmp_path: Path, catalog: RestCatalogServer
) -> None:
    follow(shop, tmp_path, **NESTED)
    becomes(shop, 3, a=AGAIN, b=B)
    put_into(shop, AGAIN, "k1", value="again")
    put_into(shop, B, "k1", value="later")
    catalog.fails["lake.shop.a"] = status
    with pytest.raises(HeadwaterError, match="catalog tests"):
        follow(shop, tmp_path, **NESTED, retry_seconds=0)
    assert held(tmp_path, "shop.a") == all_of("a")
    assert in_catalog(catalog, "lake.shop.b") == all_of("b") | {"k1": "later"} == held(tmp_path, "shop.b")
    catalog.fails.clear()
    follow(shop, tmp_path, **NESTED)
    assert in_catalog(catalog, "lake.shop.a") == {"k1": "again"} == held(tmp_path, "shop.a")


def test_a_table_in_a_catalog_that_left_the_configuration_holds_that_collection_alone(
    shop: Node, tmp_path: Path, catalog: RestCatalogServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow(shop, tmp_path, **NESTED)
    becomes(shop, 3, a=AGAIN, b=B)
    put_into(shop, B, "k1", value="later")

    def renamed(name: str) -> Catalog:
        if name == "tests":
            raise ValueError("URI missing, please provide using --uri")
        return load_catalog(name, type="rest", uri=catalog.url)

    monkeypatch.setattr(catalogs, "load_catalog", renamed)
    told: list[str] = []
    asked = NESTED | {"catalog": "new:lake", "progress": lambda progress: told.append(progress.problem)}
    with pytest.raises(HeadwaterError, match="URI missing"):
        follow(shop, tmp_path, **asked, retry_seconds=0)
    assert held(tmp_path, "shop.b") == all_of("b") | {"k1": "later"}
    assert told[-1].startswith("shop.a is held up: catalog tests: ValueError: URI missing")


@pytest.mark.parametrize("status", [403, 503])
def test_a_running_mirror_goes_on_without_the_table_that_a_catalog_holds_up(
    status: int, shop: Node, tmp_path: Path, catalog: RestCatalogServer
) -> None:
    follow(shop, tmp_path, **NESTED)
    catalog.fails["lake.shop.a"] = status
    put_into(shop, A, "k1", value="held up")
    told = [""]
    running = Running(shop, tmp_path, **NESTED, progress=lambda progress: told.append(progress.problem))
    try:
        for value in ("one", "two"):
            put_into(shop, B, "k1", value=value)
            until(lambda: in_catalog(catalog, "lake.shop.b")["k1"] == value, "shop.b goes on")  # noqa: B023
            until(lambda: told[-1].startswith("shop.a is held up: catalog tests"), "the reason is said")
            assert in_catalog(catalog, "lake.shop.a") == all_of("a")
        catalog.fails.clear()
        until(lambda: in_catalog(catalog, "lake.shop.a")["k1"] == "held up", "shop.a goes on")
        until(lambda: told[-1] == "", "nothing is held up")
    finally:
        running.stop()


def test_a_mirror_of_which_all_tables_are_held_up_ends_as_that_of_one_table_does(
    shop: Node, tmp_path: Path, catalog: RestCatalogServer
) -> None:
    asked: dict[str, Any] = NESTED | {"collections": "shop.a,shop.b", "once": False}
    catalog.fails = {"lake.shop.a": 403, "lake.shop.b": 403}
    with pytest.raises(HeadwaterError, match="ForbiddenError"):
        follow(shop, tmp_path, **asked)
    catalog.fails = {"lake.shop.a": 503, "lake.shop.b": 503}
    with pytest.raises(HeadwaterError, match="catalog tests"):
        follow(shop, tmp_path, **asked, retry_seconds=0.2)


def test_a_run_to_the_end_that_waits_for_a_catalog_reads_the_other_collections_once(
    shop: Node, tmp_path: Path, catalog: RestCatalogServer
) -> None:
    """Each batch of the others would renew its patience, and a busy bucket keep it from ever ending."""
    catalog.fails["lake.shop.a"] = 503

    def busy(progress: MirrorProgress) -> None:
        put_into(shop, B, "k1", value=f"{progress.retries}")
        if progress.retries == 2:
            catalog.fails.clear()

    progress = follow(shop, tmp_path, **NESTED, progress=busy)
    assert (progress.retries, in_catalog(catalog, "lake.shop.a")) == (2, all_of("a"))
    assert in_catalog(catalog, "lake.shop.b") == all_of("b") | {"k1": "0"}


@pytest.mark.parametrize("named", ["", ":lake", "tests:", "tests:a..b"])
def test_a_catalog_without_a_name_is_refused(named: str, shop: Node, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="such as prod or prod:lake"):
        follow(shop, tmp_path / "t", format="iceberg", catalog=named)
    assert not (tmp_path / "t").exists()
