"""A mirror with Iceberg: whatever happens, readers that are not ours find there what the bucket has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyiceberg.table import StaticTable

from harness.nodes import diverge
from harness.rest_catalog import RestCatalogServer, rest_server
from headwater.errors import ConnectionLost, OptionError, TableError, UnsupportedTable
from headwater.failpoints import armed
from headwater.lake import facts
from headwater.lake.folds import FAN
from headwater.lake.iceberg import entry, publish
from headwater.lake.iceberg.place import FOLDER, PROPERTY
from headwater.lake.layout import FEATURE, VECTORS
from headwater.lake.log import TableLog
from headwater.lake.places import store_of
from headwater.lake.store import Before, TableStore
from headwater.lake.vacuum import vacuum as remove_unneeded
from headwater.pipelines.mirror import MirrorProgress, mirror
from headwater.pipelines.tables import fold, vacuum
from headwater.testing.node import Node, node
from tests.battery import few_of
from tests.lake.iceberg.support import by_duckdb, by_pyiceberg, configure, for_linux, iceberg_of, queried
from tests.pipelines.support import Running, change, documents, table

BOTH, ALONE = "delta,iceberg", "iceberg"
in_each_form = pytest.mark.parametrize("form", [BOTH, ALONE])
POINTS = ("vectors_written", "manifests_written", "before_commit", "after_commit")


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as running, running.client() as client:
        assert client.set_many((f"a{i}", b"one") for i in range(60)) == {}
        yield running


def run(bucket: Node, place: Path, **asked: Any) -> MirrorProgress:
    return mirror(None, bucket.url, place, once=True, workers=0, **({"format": BOTH} | asked))


def rewrite(bucket: Node, value: str) -> None:
    """Store some documents again, and one that comes and goes."""
    with bucket.client() as client:
        assert client.set_many((f"a{i}", value.encode()) for i in range(20)) == {}
        client.set("passing", value)
        client.delete("passing")


def verified(place: Path) -> str:
    """Return the lines of `lake verify`."""
    asked = [sys.executable, "-m", "headwater", "lake", "verify", str(place)]
    return subprocess.run(asked, capture_output=True, text=True, timeout=540, check=True).stdout


def log_of(place: str | Path) -> TableLog:
    log = TableLog(store_of(place))
    log.refresh()
    return log


def check(bucket: Node, place: Path) -> None:
    """Both formats say what the bucket does, and all tables of the mirror are whole in both."""
    assert by_pyiceberg(place) == table(place) == documents(bucket)
    for each in (place, Path(f"{place}_changes"), Path(f"{place}_quarantine")):
        if each.exists():
            assert entry.differences(log_of(each)) == []


@in_each_form
def test_the_table_follows_the_bucket(form: str, bucket: Node, tmp_path: Path) -> None:
    place = tmp_path / "t"
    run(bucket, place, format=form)
    check(bucket, place)
    change(bucket, "two")
    run(bucket, place, format=form)
    check(bucket, place)
    assert verified(place) == f"{len(documents(bucket))} rows: all is well\n"


@for_linux
@in_each_form
def test_duckdb_reads_the_same(form: str, bucket: Node, tmp_path: Path) -> None:
    run(bucket, tmp_path / "t", format=form)
    change(bucket, "two")
    run(bucket, tmp_path / "t", format=form)
    assert by_duckdb(tmp_path / "t") == documents(bucket)


def test_a_table_stays_published_without_the_option_and_one_that_exists_becomes_so(
    bucket: Node, tmp_path: Path
) -> None:
    place = tmp_path / "t"
    run(bucket, place, format="delta", changelog=True)
    assert not (place / FOLDER).exists()
    run(bucket, place, changelog=True)
    check(bucket, place)
    change(bucket, "two")
    run(bucket, place, format="delta", changelog=True)
    check(bucket, place)
    assert log_of(f"{place}_changes").state.properties[PROPERTY] == "true"


@in_each_form
@pytest.mark.parametrize("publishes", [True, False])
def test_what_a_failover_took_back_is_taken_back_in_all(
    form: str, publishes: bool, bucket: Node, tmp_path: Path
) -> None:
    """Also where the batch of the lost branch never came to be published."""
    place = tmp_path / "t"
    run(bucket, place, changelog=True, format=form)

    def lost() -> None:
        change(bucket, "lost")
        if publishes:
            run(bucket, place, changelog=True, format=form)
        else:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(publish, "publish", lambda log: None)
                run(bucket, place, changelog=True, format=form)

    diverge(bucket, lost=lost)
    change(bucket, "won")
    assert run(bucket, place, changelog=True, format=form).rollbacks
    check(bucket, place)
    assert not any(key.startswith(b"lost") for key in by_pyiceberg(place))


KILLED = "import sys; from headwater.pipelines.mirror import mirror; "
KILLED += "mirror(None, *sys.argv[1:3], once=True, changelog=True, workers=0, format=sys.argv[3])"


def killed(bucket: Node, place: str | Path, points: str, form: str) -> int:
    environment = os.environ | {"HEADWATER_FAILPOINTS": points}
    asked = [sys.executable, "-c", KILLED, bucket.url, str(place), form]
    return subprocess.run(asked, env=environment, capture_output=True, timeout=540, check=False).returncode


KILLS = [(point, nth) for point in POINTS for nth in (1, 2) if (point, nth) != ("vectors_written", 2)]
"""The first pass is the change log's, the second the table's; but rows of a change log never die."""


@pytest.mark.parametrize(
    ("form", "point", "nth", "lost"),
    few_of(
        [(form, point, nth, lost) for form in (BOTH, ALONE) for point, nth in KILLS for lost in (True, False)],
        (BOTH, "before_commit", 2, True),
        (ALONE, "after_commit", 2, False),
    ),
)
def test_a_mirror_that_is_killed_between_any_two_files_goes_on(
    form: str, point: str, nth: int, lost: bool, bucket: Node, tmp_path: Path
) -> None:
    """With `lost` the branch that the killed one read is lost before the next run."""
    place = tmp_path / "t"
    run(bucket, place, changelog=True, format=form)
    before = by_pyiceberg(place)

    def kill() -> None:
        change(bucket, "killed")
        assert killed(bucket, place, f"iceberg.{point}=kill@{nth}", form) == -9
        if point != "after_commit" or nth == 1:
            assert by_pyiceberg(place) == before, "readers see the version before, whole"

    if lost:
        diverge(bucket, lost=kill)
        change(bucket, "won")
    else:
        kill()
    run(bucket, place, changelog=True, format=form)
    check(bucket, place)


def test_a_run_that_finds_nothing_to_read_publishes_what_a_killed_one_did_not(bucket: Node, tmp_path: Path) -> None:
    place = tmp_path / "t"
    run(bucket, place)
    change(bucket, "two")
    with armed("iceberg.before_commit=eio"):
        told = run(bucket, place)
    assert told.retries == 1
    assert told.mutations == 0, "the batch was in the table already"
    check(bucket, place)


@in_each_form
def test_a_mirror_that_runs_is_published_with_each_batch_and_its_folds(form: str, bucket: Node, tmp_path: Path) -> None:
    place = tmp_path / "t"
    for number in range(FAN + 1):
        with bucket.client() as client:
            client.set_many((f"a{i}", f"{number}") for i in range(10 * number, 10 * number + 60))
        run(bucket, place, upkeep=False, format=form)
    running = Running(bucket.url, place, format=form)
    try:

        def is_folded() -> bool:
            with bucket.client() as client:
                client.set(os.urandom(8).hex(), "new")  # folds come in between batches
            return any(Path(path).name.startswith("fold") for path in log_of(place).state.files)

        running.wait_until(is_folded)
    finally:
        running.stop()
    run(bucket, place, format=form)
    check(bucket, place)


@in_each_form
def test_tables_are_folded_and_vacuumed_by_hand(form: str, bucket: Node, tmp_path: Path) -> None:
    place = tmp_path / "t"
    for number in range(4):
        rewrite(bucket, f"{number}")
        run(bucket, place, upkeep=False, format=form)
    fold(str(place), lambda done, total: None, everything=True)
    check(bucket, place)
    vacuum(str(place), lambda done, total: None, seconds=3600.0)
    check(bucket, place)


@in_each_form
def test_documents_as_columns_keep_their_numbers_as_fields_come(form: str, bucket: Node, tmp_path: Path) -> None:
    place = tmp_path / "t"
    with bucket.client() as client:
        client.set_many({"j1": '{"n": 1, "tags": ["a"], "at": {"x": 1.5}}', "j2": "no JSON"}.items())
    run(bucket, place, unfold=True, quarantine=True, format=form)
    with bucket.client() as client:
        client.set_many({"j3": '{"n": 3, "more": true, "at": {"x": 2.5, "y": "new"}}', "j1": '{"n": 4}'}.items())
    run(bucket, place, unfold=True, quarantine=True, format=form)
    for each in (place, f"{place}_quarantine"):
        assert entry.differences(log_of(each)) == []
    rows = {row["key"]: row for row in StaticTable.from_metadata(iceberg_of(place)).scan().to_arrow().to_pylist()}
    assert (rows["j1"]["n"], rows["j1"]["tags"], rows["j3"]["n"], rows["j3"]["more"]) == (4, None, 3, True)
    assert rows["j3"]["at"] == {"x": 2.5}
    if sys.platform == "linux":
        assert set(queried(place, "key, n, more")) >= {("j1", 4, None), ("j3", 3, True), ("j2", None, None)}


def test_documents_as_variant_are_refused_before_a_table_is_made(bucket: Node, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTable, match="document: variant"):
        run(bucket, tmp_path / "t", variant=True)
    assert not (tmp_path / "t" / "_delta_log").exists()
    run(bucket, tmp_path / "t", format="delta", variant=True)
    with pytest.raises(UnsupportedTable, match="document: variant"):
        run(bucket, tmp_path / "t")
    run(bucket, tmp_path / "t", format="delta")


def test_a_missing_library_is_said_before_a_table_is_made(
    bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(TableError, match="extra iceberg"):
        run(bucket, tmp_path / "t")
    assert not (tmp_path / "t" / "_delta_log").exists()


@in_each_form
def test_a_table_that_is_written_anew_instead_of_marked_has_no_vectors(form: str, bucket: Node, tmp_path: Path) -> None:
    place = tmp_path / "t"
    run(bucket, place, copy_on_write=True, format=form)
    change(bucket, "two")
    run(bucket, place, copy_on_write=True, format=form)
    check(bucket, place)
    assert list(place.rglob("*.puffin")) == []


@in_each_form
def test_a_table_of_each_collection_is_published(form: str, bucket: Node, tmp_path: Path) -> None:
    mirror(None, bucket.url, tmp_path / "t", once=True, workers=0, format=form, collections="all")
    place = tmp_path / "t" / "_default" / "_default"
    check(bucket, place)


def test_a_commit_whose_answer_is_lost_is_found_and_not_made_twice(
    bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the Delta commit first, then of the Iceberg commit."""
    place = tmp_path / "t"
    run(bucket, place)
    create = TableStore.create
    for suffix in (".json", ".metadata.json"):
        rewrite(bucket, suffix)
        lost = [True]

        def cut_off(
            store: TableStore, path: str, content: bytes, before: Before | None = None, suffix: str = suffix,
            lost: list[bool] = lost,
        ) -> bool:  # fmt: skip
            made = create(store, path, content, before)
            if lost and path.endswith(suffix):
                lost.pop()
                raise ConnectionLost(str(place), "the answer did not come")
            return made

        monkeypatch.setattr(TableStore, "create", cut_off)
        told = run(bucket, place)
        assert (told.retries, told.mutations, lost) == (1, 0, [])
        check(bucket, place)


def test_two_mirrors_of_one_table_do_not_harm_it(bucket: Node, tmp_path: Path) -> None:
    place = tmp_path / "t"
    run(bucket, place)
    both = [Running(bucket.url, place, format=BOTH, interval_seconds=0.01) for _ in range(2)]
    try:
        for number in range(5):
            rewrite(bucket, f"{number}")
            both[number % 2].wait_until(lambda: table(place) == documents(bucket))
    finally:
        for each in both:
            each.stop()
    run(bucket, place)
    check(bucket, place)


@pytest.mark.spark
@in_each_form
def test_spark_publishes_its_batches_as_well(form: str, spark: Any, bucket: Node, tmp_path: Path) -> None:
    place = tmp_path / "t"
    wanted: dict[str, Any] = {"once": True, "retry_seconds": 240}
    mirror(spark, bucket.url, place, format=form, **wanted)
    check(bucket, place)
    rewrite(bucket, "two")
    mirror(spark, bucket.url, place, **wanted)
    check(bucket, place)
    if form == ALONE:
        for write in (f"DELETE FROM delta.`{place}` WHERE true", f"OPTIMIZE delta.`{place}`"):
            with pytest.raises(Exception, match=FEATURE):
                spark.sql(write)
        return
    spark.sql(f"DELETE FROM delta.`{place}` WHERE seqno % 2 = 0")
    spark.sql(f"OPTIMIZE delta.`{place}`")
    with bucket.client() as client:
        client.set("last", "one")
    mirror(spark, bucket.url, place, **wanted)
    assert entry.differences(log_of(place)) == []
    assert by_pyiceberg(place) == table(place)


def test_a_table_of_iceberg_alone_has_the_usual_layout(bucket: Node, tmp_path: Path) -> None:
    """Other files than Iceberg's metadata names are in folders that its removal of orphan files leaves alone, and a
    property forbids that removal."""
    place = tmp_path / "t"
    run(bucket, place, format=ALONE)
    with bucket.client() as client:
        assert client.set_many((f"a{i}", b"two") for i in range(0, 5000, 2)) == {}
    run(bucket, place, format=ALONE)
    with bucket.client() as client:
        assert client.set_many((f"a{i}", b"three") for i in range(0, 5000, 3)) == {}
    run(bucket, place, format=ALONE)
    check(bucket, place)
    assert {path.name for path in place.iterdir()} == {"_delta_log", "_index", VECTORS, "data", "metadata"}
    assert {path.suffix for path in (place / "data").iterdir()} == {".parquet"}
    newest = json.loads((place / "metadata" / "v3.metadata.json").read_text())
    assert newest["location"] == f"file://{place}"
    assert newest["properties"]["gc.enabled"] == "false"


def test_the_table_has_the_time_up_to_which_nothing_is_missing_as_a_property(bucket: Node, tmp_path: Path) -> None:
    place = tmp_path / "t"
    run(bucket, place, format=ALONE)
    newest = json.loads(max((place / "metadata").glob("v*.json"), key=lambda file: file.stat().st_mtime_ns).read_text())
    told = facts.describe(log_of(place))["complete_until"]
    assert told and newest["properties"]["headwater.complete-until"] == told


def test_a_table_of_iceberg_alone_goes_on_without_the_option(bucket: Node, tmp_path: Path) -> None:
    place = tmp_path / "t"
    run(bucket, place, format=ALONE, changelog=True)
    change(bucket, "two")
    run(bucket, place, format="delta", changelog=True)
    check(bucket, place)
    assert not (place / FOLDER).exists()
    assert facts.describe(log_of(place))["formats"] == ["iceberg"]


@pytest.mark.parametrize(("first", "then", "advice"), [
    ("delta", ALONE, f"with --format {BOTH}"), (BOTH, ALONE, "another place"), (ALONE, BOTH, "with --format iceberg"),
])  # fmt: skip
def test_a_table_keeps_its_layout(first: str, then: str, advice: str, bucket: Node, tmp_path: Path) -> None:
    run(bucket, tmp_path / "t", format=first)
    with pytest.raises(TableError, match=advice):
        run(bucket, tmp_path / "t", format=then)


def test_a_folder_with_the_files_of_an_iceberg_table_is_refused(bucket: Node, tmp_path: Path) -> None:
    for form in (ALONE, "delta"):
        place = tmp_path / form
        (place / "metadata").mkdir(parents=True)
        (place / "metadata" / "00000-a.metadata.json").write_text("{}")
        with pytest.raises(TableError, match="no log of a table here, but there are metadata/00000-a"):
            run(bucket, place, format=form)


def test_other_writers_of_delta_refuse_a_table_of_iceberg_alone(bucket: Node, tmp_path: Path) -> None:
    place = tmp_path / "t"
    run(bucket, place, format=ALONE)
    before = by_pyiceberg(place)
    theirs = deltalake.DeltaTable(str(place))
    with pytest.raises(Exception, match=FEATURE):
        theirs.delete()
    with pytest.raises(Exception, match=FEATURE):
        theirs.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert entry.differences(log_of(place)) == []
    assert by_pyiceberg(place) == table(place) == before


def test_a_vacuum_removes_what_no_snapshot_needs(bucket: Node, tmp_path: Path) -> None:
    """Data files of failed attempts and vectors that were replaced, and nothing else."""
    place = tmp_path / "t"
    with bucket.client() as client:
        assert client.set_many((f"a{i}", b"one") for i in range(5000)) == {}
    for number in range(4):
        with bucket.client() as client:
            assert client.set_many((f"a{i}", f"{number}") for i in range(number, 5000, 3)) == {}
        run(bucket, place, format=ALONE, upkeep=False)
    failed = place / "data" / "part-failed.parquet"
    failed.write_bytes(b"half")
    vectors = len(list((place / VECTORS).iterdir()))
    log = log_of(place)
    gone = remove_unneeded(log, 3600.0, time.time() + 10 * 86_400)
    assert not failed.exists()
    assert len(list((place / VECTORS).iterdir())) < vectors
    assert {path.partition("/")[0] for path in gone} == {"data", VECTORS}
    check(bucket, place)


def test_a_name_in_a_catalog_of_sparks_is_no_place_of_a_table_of_iceberg(bucket: Node) -> None:
    with pytest.raises(OptionError, match="table of Delta"):
        mirror(None, bucket.url, None, table="spark_catalog.default.t", format=ALONE)


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch) -> Iterator[RestCatalogServer]:
    """A REST catalog that is called `tests`."""
    with rest_server() as server:
        configure(monkeypatch, "tests", type="rest", uri=server.url)
        yield server


def in_catalog(server: RestCatalogServer, name: str) -> dict[bytes, bytes]:
    """Key to value, as readers see a table who know the catalog only."""
    rows = StaticTable.from_metadata(server.tables[name]).scan(selected_fields=("key", "value")).to_arrow().to_pylist()
    read = {row["key"]: row["value"] for row in rows}
    assert len(read) == len(rows), "a key has two rows"
    return read


@in_each_form
def test_a_catalog_follows_a_mirror_and_the_tables_beside_it(
    form: str, bucket: Node, tmp_path: Path, catalog: RestCatalogServer
) -> None:
    place = tmp_path / "t"
    asked: dict[str, Any] = {"changelog": True, "unfold": True, "quarantine": True}
    run(bucket, place, format=form, catalog="tests:shop.orders", **asked)
    change(bucket, "two")
    run(bucket, place, format="delta", **asked)
    assert catalog.tables.keys() == {"orders", "orders_changes", "orders_quarantine"}
    assert {key.encode() for key in in_catalog(catalog, "orders")} == documents(bucket).keys()
    for end in ("", "_changes", "_quarantine"):
        assert entry.differences(log_of(f"{place}{end}")) == []
    assert facts.describe(log_of(place))["catalog"] == "tests:shop.orders"


def test_what_a_failover_took_back_is_taken_back_in_the_catalog(
    bucket: Node, tmp_path: Path, catalog: RestCatalogServer
) -> None:
    asked: dict[str, Any] = {"format": ALONE, "catalog": "tests:shop.orders"}
    run(bucket, tmp_path / "t", **asked)

    def lost() -> None:
        change(bucket, "lost")
        run(bucket, tmp_path / "t", **asked)

    diverge(bucket, lost=lost)
    change(bucket, "won")
    assert run(bucket, tmp_path / "t", **asked).rollbacks
    assert in_catalog(catalog, "orders") == documents(bucket)


def test_a_catalog_that_is_away_is_waited_for_and_no_batch_is_done_twice(
    bucket: Node, tmp_path: Path, catalog: RestCatalogServer
) -> None:
    asked: dict[str, Any] = {"format": ALONE, "catalog": "tests:shop.orders", "retry_seconds": 120}
    run(bucket, tmp_path / "t", **asked)
    change(bucket, "two")
    catalog.refuses = 3
    told = run(bucket, tmp_path / "t", **asked)
    assert (told.retries, catalog.refuses) == (3, 0)
    assert in_catalog(catalog, "orders") == documents(bucket)
    rewrite(bucket, "three")
    catalog.loses = 1
    told = run(bucket, tmp_path / "t", **asked)
    assert (told.retries, told.mutations) == (1, 0), "the batch was in the table already"
    assert in_catalog(catalog, "orders") == documents(bucket)


@pytest.mark.parametrize(("more", "reason"), [
    ({"format": "delta"}, "given with --format iceberg"),
    ({"format": ALONE, "catalog": "tests"}, r"such as prod:shop\.orders"),
])  # fmt: skip
def test_a_catalog_that_can_not_follow_is_refused_before_a_table_is_made(
    more: dict[str, str], reason: str, bucket: Node, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=reason):
        run(bucket, tmp_path / "t", **({"catalog": "tests:shop.orders"} | more))
    assert not (tmp_path / "t").exists()


def test_the_missing_library_of_catalogs_is_said(bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(TableError, match="extra catalog"):
        run(bucket, tmp_path / "t", format=ALONE, catalog="tests:shop.orders")
