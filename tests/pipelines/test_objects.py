"""Mirrors whose table lies on an object store, S3 in a process of its own: what tables of a folder go through, too."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable, QueryBuilder
from typer.testing import CliRunner

from harness.nodes import diverge
from headwater.cli.app import app
from headwater.errors import ConnectionLost, TableError
from headwater.lake import folds, upkeep
from headwater.lake.iceberg.entry import differences, is_published
from headwater.lake.log import TableLog
from headwater.lake.objects import ObjectStore
from headwater.lake.places import store_of
from headwater.lake.store import Before
from headwater.lake.vacuum import vacuum
from headwater.pipelines import attempts
from headwater.pipelines.collections import ChosenCollections, Tables
from headwater.pipelines.mirror import MirrorProgress, mirror
from headwater.testing.node import Node, node
from headwater.wire.manifest import CollectionsManifest
from tests.lake.s3_server import BUCKET, make_bucket, options_of, s3_server
from tests.node.aware import manifest
from tests.pipelines.support import VBUCKETS, becomes, change, documents, folded, put_into, seqnos, table

pytestmark = pytest.mark.slow  # it begins early: nothing may be left to one worker at the end


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    with s3_server() as names, pytest.MonkeyPatch.context() as patch:
        for name, text in names.items():
            patch.setenv(name, text)
        make_bucket()
        yield names


@pytest.fixture
def place(environment: dict[str, str]) -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex}/orders"


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as running, running.client() as client:
        assert client.set_many((f"a{i}", b"one") for i in range(60)) == {}
        yield running


def run(bucket: Node, place: str, **asked: Any) -> MirrorProgress:
    return mirror(None, bucket.url, place, once=True, changelog=True, workers=0, **asked)


def is_equal(bucket: Node, place: str) -> None:
    assert table(place) == documents(bucket) == folded(f"{place}_changes")


def test_a_mirror_begins_goes_on_and_has_nothing_to_do(bucket: Node, place: str) -> None:
    assert run(bucket, place).changes == seqnos(bucket)
    change(bucket, "two")
    told = run(bucket, place)
    assert (told.mutations, told.deletions) == (50, 20)
    is_equal(bucket, place)
    assert run(bucket, place).mutations == 0


@pytest.mark.parametrize("form", ["delta,iceberg", "iceberg"])
def test_both_formats_lie_on_the_store(form: str, bucket: Node, place: str) -> None:
    run(bucket, place, format=form)
    change(bucket, "two")
    run(bucket, place)
    is_equal(bucket, place)
    for each in (place, f"{place}_changes"):
        log = TableLog(store_of(each))
        log.refresh()
        assert is_published(log.state) and differences(log) == []
        vacuum(log, 3600.0)
        assert differences(log) == []


def test_worker_processes_reach_the_store_too(bucket: Node, place: str) -> None:
    mirror(None, bucket.url, place, once=True, workers=2)
    change(bucket, "two")
    mirror(None, bucket.url, place, once=True, workers=2)
    assert table(place) == documents(bucket)


@pytest.mark.spark
@pytest.mark.battery
@pytest.mark.timeout(600)
def test_spark_goes_on_with_the_same_table_and_needs_no_library_for_the_store(bucket: Node, place: str) -> None:
    run(bucket, place)
    change(bucket, "two")
    asked = [sys.executable, "-m", "headwater", "mirror", bucket.url, "--to", place, "--once", "--changelog"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0 and "50 stored and 20 deleted" in done.stdout, done.stderr
    is_equal(bucket, place)


def test_delta_rs_reads_the_same(bucket: Node, place: str) -> None:
    run(bucket, place)
    change(bucket, "two")
    run(bucket, place)
    read = DeltaTable(place, storage_options=options_of(place))
    query = "select key, value from t"
    found = QueryBuilder().register("t", read).execute(query).read_all()
    rows = [(bytes(row["key"]), bytes(row["value"])) for row in found.to_struct_array().to_pylist()]
    assert len(rows) == len(dict(rows)) and dict(rows) == documents(bucket)


def test_a_lost_branch_is_taken_back(bucket: Node, place: str) -> None:
    run(bucket, place)

    def lost() -> None:
        change(bucket, "lost")
        run(bucket, place)
        is_equal(bucket, place)

    diverge(bucket, lost=lost)
    change(bucket, "won")
    assert run(bucket, place).rollbacks == 4
    is_equal(bucket, place)


@pytest.mark.battery
def test_a_table_is_folded_verified_and_vacuumed_by_hand(bucket: Node, place: str) -> None:
    for n in range(3):
        with bucket.client() as client:
            client.set_many((f"a{i}", f"{n}".encode()) for i in range(n * 20, 60))
        run(bucket, place, upkeep=False)

    def told(*words: str) -> Any:
        return CliRunner().invoke(app, ["lake", *words])

    assert "folded 3 files: the table had 3 and has 1" in told("optimize", place, "--all").stdout
    assert "all is well" in told("verify", place, "--bucket", bucket.url).stdout
    store = store_of(place)
    before = len(store.list())
    # A day later: what was folded is removed, what the table needs is not.
    gone = vacuum(TableLog(store), 3600.0, now=max(file.modified for file in store.list()) + 7200)
    assert len(gone) >= 3 and len(store.list()) < before
    is_equal(bucket, place)
    assert "all is well" in told("verify", place, "--bucket", bucket.url).stdout


def test_a_mirror_folds_and_checkpoints_on_the_way(bucket: Node, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "CHECKPOINT_EVERY", 5)
    with bucket.client() as client:
        client.set_many((f"b{i}", b"two") for i in range(30))
    mirror(None, bucket.url, place, once=True, workers=0, reading={"maxChangesPerTrigger": "8"})
    assert table(place) == documents(bucket)
    log = TableLog(store_of(place))
    assert len(log.refresh().files) < folds.FAN
    assert any(".checkpoint." in file.path for file in log.store.list("_delta_log"))


@pytest.mark.battery
@pytest.mark.parametrize(
    ("point", "left"),
    [
        ("lake.files_written=kill", 50),
        ("lake.log_committed=kill", 50),
        ("lake.before_commit=kill@2", 50),  # the first is the change log's
        ("lake.after_commit=kill@2", 0),
    ],
)
def test_a_mirror_that_is_killed_goes_on_where_its_table_stands(
    bucket: Node, place: str, point: str, left: int
) -> None:
    run(bucket, place)
    change(bucket, "killed")
    killed = "import sys; from headwater.pipelines.mirror import mirror; "
    killed += "mirror(None, *sys.argv[1:], once=True, changelog=True, workers=0)"
    asked = [sys.executable, "-c", killed, bucket.url, place]
    environment = os.environ | {"HEADWATER_FAILPOINTS": point}
    done = subprocess.run(asked, env=environment, capture_output=True, timeout=540, check=False)
    assert done.returncode == -9, done.stderr
    assert run(bucket, place).mutations == left
    is_equal(bucket, place)


def test_a_commit_whose_answer_is_lost_is_found_and_not_made_twice(
    bucket: Node, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(bucket, place)
    change(bucket, "two")
    create, lost = ObjectStore.create, [True]

    def cut_off(store: ObjectStore, path: str, content: bytes, before: Before | None = None) -> bool:
        made = create(store, path, content, before)
        if lost and store.root == place:
            lost.pop()
            raise ConnectionLost(place, "the answer did not come")
        return made

    monkeypatch.setattr(ObjectStore, "create", cut_off)
    told = run(bucket, place)
    assert (told.retries, told.mutations) == (1, 0)
    is_equal(bucket, place)


LIBRARY = "org.apache.hadoop:hadoop-aws:3.5.0," + ",".join(
    f"software.amazon.awssdk:{part}:2.35.4"
    for part in ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
)
"""The library without the 686 MB of all of Amazon's services, which it names."""

BY_NAME = """
import json, sys
from headwater.pipelines.mirror import mirror
from headwater.pipelines.session import local_session
from headwater.testing.node import node
place, library = sys.argv[1:]
library = {"spark.jars.packages": library, "spark.jars.excludes": "software.amazon.awssdk:bundle"}
asked = {"once": True, "changelog": True, "retry_seconds": 240}
spark = local_session("by-name", settings=library, quiet=True, memory="512m")
with node(vbuckets=4) as bucket, bucket.client() as client:
    client.set_many((f"k{i}", "v") for i in range(50))
    mirror(spark, bucket.url, place, table="default.orders", **asked)
    client.set("k1", "w")
    client.delete("k2")
    done = mirror(spark, bucket.url, table="spark_catalog.default.orders", **asked)
    rows = {bytes(row.key).decode(): bytes(row.value).decode() for row in spark.table("default.orders").collect()}
    changes = spark.table("default.orders_changes").count()
    where = spark.sql("DESCRIBE DETAIL default.orders").collect()[0].location
    print(json.dumps([done.mutations, done.deletions, rows, changes, where]))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.battery
@pytest.mark.timeout(1800)
def test_a_table_on_the_store_is_made_followed_and_read_by_its_name(place: str) -> None:
    asked = [sys.executable, "-c", BY_NAME, place, LIBRARY]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=1700, check=False)
    assert done.returncode == 0, done.stderr
    mutations, deletions, rows, changes, where = json.loads(done.stdout.splitlines()[-1])
    assert rows == {f"k{i}": "w" if i == 1 else "v" for i in range(50) if i != 2}
    assert (mutations, deletions, changes, where) == (1, 1, 52, place)


@pytest.fixture
def shop() -> Iterator[Node]:
    """A bucket with documents of the same keys in shop.a and shop.b, one of them no JSON."""
    with node(vbuckets=VBUCKETS) as running:
        becomes(running, 1, a=8, b=9)
        for collection in (8, 9):
            put_into(running, collection, *(f"k{n}" for n in range(20)))
            put_into(running, collection, "odd", value="no JSON")
        yield running


def follow(bucket: Node, place: str, **asked: Any) -> MirrorProgress:
    shape = {"json": True, "quarantine": True, "changelog": True}
    given: dict[str, Any] = {"scope": "shop", "once": True, "workers": 0, "upkeep": False, "retry_seconds": 0}
    return mirror(None, bucket.url, place, **(given | shape | asked))


def tables(place: str) -> list[str]:
    return [name for name in store_of(f"{place}/shop").folders() if not name.endswith(("_changes", "_quarantine"))]


@pytest.mark.battery
def test_each_collection_has_a_table_a_log_and_a_quarantine_on_the_store(shop: Node, place: str) -> None:
    assert follow(shop, place, workers=2).mutations == 42
    put_into(shop, 8, "k1", value='{"n": 1}')
    put_into(shop, 9, "k1", "odd", value="no JSON either")
    told = follow(shop, place)
    assert (told.mutations, told.quarantined) == (3, 2)
    a, b = (table(f"{place}/shop/{name}") for name in "ab")
    assert (a["k1"], a["odd"]) == (b'{"n": 1}', b"no JSON") and b["k1"] == b["odd"] == b"no JSON either"
    aside = {name: sorted(table(f"{place}/shop/{name}_quarantine")) for name in "ab"}
    assert aside == {"a": [b"odd"], "b": [b"k1", b"odd"]}
    assert folded(f"{place}/shop/a_changes") == {key.encode(): value for key, value in a.items()}
    verified = CliRunner().invoke(app, ["lake", "verify", f"{place}/shop/b"])
    assert verified.stdout == "21 rows: all is well\n", verified.stderr
    with pytest.raises(TableError, match="the folder holds 6 tables, a for one"):
        run(shop, f"{place}/shop")
    with pytest.raises(TableError, match="a table itself"):
        follow(shop, f"{place}/shop/a")


@pytest.mark.spark
@pytest.mark.battery
@pytest.mark.timeout(1200)
def test_spark_mirrors_collections_into_the_store_and_goes_on(shop: Node, place: str) -> None:
    asked = [sys.executable, "-m", "headwater", "mirror", shop.url, "--to", place, "--once", "--scope", "shop"]
    asked += ["--json", "--quarantine", "--changelog", "--retry", "240"]

    def told() -> str:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=540, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    assert "42 stored and 0 deleted" in told()
    put_into(shop, 8, "k1", value='{"n": 1}')
    put_into(shop, 9, "odd", value="no JSON either")
    assert "2 stored and 0 deleted" in told()
    a, b = (table(f"{place}/shop/{name}") for name in "ab")
    assert (a["k1"], b["odd"]) == (b'{"n": 1}', b"no JSON either") and len(a) == len(b) == 21
    assert sorted(table(f"{place}/shop/b_quarantine")) == [b"odd"]
    assert folded(f"{place}/shop/a_changes") == {key.encode(): value for key, value in a.items()}


@pytest.mark.battery
def test_a_dropped_collections_table_stays_on_the_store_or_goes_as_was_said(shop: Node, place: str) -> None:
    follow(shop, place)
    becomes(shop, 2, b=9)
    follow(shop, place)
    assert tables(place) == ["a", "b"] and len(table(f"{place}/shop/a")) == 21
    follow(shop, place, dropped="drop")
    assert store_of(f"{place}/shop").folders() == ("b", "b_changes", "b_quarantine")


@pytest.mark.battery
def test_one_that_was_made_again_begins_anew_on_the_store_if_the_old_one_may_go(shop: Node, place: str) -> None:
    follow(shop, place)
    becomes(shop, 2, a=10, b=9)
    put_into(shop, 10, "only")
    with pytest.raises(TableError, match="can't be moved aside: mirror with --dropped drop, or into another place"):
        follow(shop, place)
    assert len(table(f"{place}/shop/a")) == 21
    follow(shop, place, dropped="drop")
    assert list(table(f"{place}/shop/a")) == ["only"] and table(f"{place}/shop/a_quarantine") == {}
    assert len(table(f"{place}/shop/b")) == 21


@pytest.mark.parametrize(
    "removed",
    [
        pytest.param(1, marks=pytest.mark.battery),
        4,
        *(pytest.param(each, marks=pytest.mark.battery) for each in (6, 9)),
    ],
)
def test_a_table_that_was_half_removed_when_the_store_went_away_is_removed_by_the_next_run(
    shop: Node, place: str, removed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow(shop, place, changelog=False)
    becomes(shop, 2, b=9)
    remove, left = ObjectStore.remove, [removed]

    def cut_off(store: ObjectStore, path: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise ConnectionLost(place, "the store is away")
        remove(store, path)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "remove", cut_off)
        with pytest.raises(ConnectionLost):
            follow(shop, place, changelog=False, dropped="drop")
    assert any(name.startswith("a") for name in store_of(f"{place}/shop").folders())
    follow(shop, place, changelog=False, dropped="drop")
    assert store_of(f"{place}/shop").folders() == ("b", "b_quarantine")


def test_a_node_that_knows_nothing_of_a_collection_yet_is_no_reason_to_remove_its_table(shop: Node, place: str) -> None:
    follow(shop, place)
    becomes(shop, 2, b=9)
    older = CollectionsManifest.decode(manifest(2, b=9))
    follow(shop, place, dropped="drop")
    becomes(shop, 3, a=10, b=9)
    put_into(shop, 10, "only")
    follow(shop, place, dropped="drop")
    assert Tables(place, "default", "drop").settle(older, ChosenCollections.of(None, "shop"), lambda *_: older) == []
    assert list(table(f"{place}/shop/a")) == ["only"]
    assert list(folded(f"{place}/shop/a_changes")) == [b"only"]


def test_two_mirrors_of_one_table_do_not_harm_it(bucket: Node, place: str) -> None:
    for n in range(3):
        with bucket.client() as client:
            client.set_many((f"a{i}", f"{n}".encode()) for i in range(200))
        runs = [
            threading.Thread(target=mirror, args=(None, bucket.url, place), kwargs={"once": True, "workers": 0})
            for _ in range(2)
        ]
        for run in runs:
            run.start()
        for run in runs:
            run.join()
        assert table(place) == documents(bucket)


def test_of_two_commits_of_one_version_one_is_made(bucket: Node, place: str) -> None:
    run(bucket, place)
    one, two = TableLog(store_of(place)), TableLog(store_of(place))
    one.refresh(), two.refresh()
    assert [one.commit([], "FIRST"), two.commit([], "SECOND")] == [True, False]
    assert b"FIRST" in store_of(place).read(f"_delta_log/{one.state.version:020d}.json")


def test_a_bucket_that_is_not_there_ends_a_mirror_at_once(bucket: Node, environment: dict[str, str]) -> None:
    told: list[MirrorProgress] = []
    with pytest.raises(Exception, match="s3://nowhere/t: there is no such bucket"):
        run(bucket, "s3://nowhere/t", progress=told.append)
    assert told == []


def test_a_store_that_is_away_is_waited_for_as_long_as_one_is_told(
    bucket: Node, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(bucket, place)
    with socket.create_server(("127.0.0.1", 0)) as refusing:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{refusing.getsockname()[1]}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    told: list[MirrorProgress] = []
    passed = SimpleNamespace(monotonic=lambda: time.monotonic() + 600 * len(told), sleep=time.sleep)
    monkeypatch.setattr(attempts, "time", passed)  # ten minutes with each try that it tells of
    with pytest.raises(ConnectionLost, match="Could not connect"):
        run(bucket, place, retry_seconds=900.0, progress=told.append)
    assert [each.retries for each in told][-1] == len(told) == 2
