"""Tables by their names in a catalog, with a real Spark: found, made, and refused by name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headwater.errors import OptionError, TableError, UnsupportedTable
from headwater.lake.log import TableLog
from headwater.lake.store import TableStore
from headwater.pipelines.catalog import NamedTable, located
from headwater.pipelines.jobs import Mirror
from headwater.pipelines.mirror import MirrorProgress, mirror, opened
from headwater.pipelines.sink import TableSink
from headwater.pipelines.table_names import parse_name, quoted
from headwater.testing.node import Node, node
from tests.guides.blocks import blocks
from tests.pipelines.support import becomes, change, documents, put_into, table


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("orders", ("orders",)),
        ("shop.orders", ("shop", "orders")),
        ("lake.shop.orders", ("lake", "shop", "orders")),
        ("lake.`a.b`.`c``d`", ("lake", "a.b", "c`d")),
        ("lake.größe.名", ("lake", "größe", "名")),
    ],
)
def test_a_name_is_split_at_its_dots(text: str, parts: tuple[str, ...]) -> None:
    assert parse_name(text) == parts
    assert parse_name(quoted(parts)) == parts


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", "a b", "`a", "a`b`", "``", "a.b "])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"is not a name such as catalog\.schema\.name"):
        parse_name(text)


def test_worker_processes_have_no_catalog_and_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"the local engine has no catalog; give the table's folder with --to"):
        mirror(None, "couchbase://127.0.0.1:1/default", table="lake.shop.orders", once=True)
    with pytest.raises(OptionError, match="or give its name in a catalog, with --table"):
        mirror(None, "couchbase://127.0.0.1:1/default", once=True)


def test_a_name_is_looked_up_once_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropped between two attempts, it would have a new table made at another place, without a word."""
    place = str(tmp_path / "orders")
    TableSink(place, "default")
    catalog = {"": place}

    def create(line: str) -> None:
        catalog[""] = line.partition("LOCATION '")[2].removesuffix("'")

    monkeypatch.setattr(NamedTable, "_registered_place", lambda self, end: catalog.get(end))
    monkeypatch.setattr(NamedTable, "_schema_place", lambda self: str(tmp_path / "warehouse"))
    monkeypatch.setattr(NamedTable, "_explained", lambda self, end="": nullcontext())
    named = NamedTable(cast("Any", SimpleNamespace(sql=create)), "hive.shop.orders")
    job, seen = Mirror("couchbase://127.0.0.1:1/default", table="hive.shop.orders"), set[str]()
    assert opened(named, job, seen).place == place
    del catalog[""]
    assert opened(named, job, seen).place == catalog[""] == place
    assert not (tmp_path / "warehouse").exists()
    catalog[""] = "/elsewhere"
    with pytest.raises(TableError, match="the catalog has a table of this name at /elsewhere, and this one lies at"):
        opened(named, job, seen)


@pytest.mark.parametrize("location", ["", "hdfs://n/lake", "dbfs:/lake", "wasbs://c@a/lake"])
def test_a_location_that_nobody_here_reaches_is_refused(location: str) -> None:
    with pytest.raises(TableError, match=f'^shop.t: the catalog has it at "{location}", .*: choose another place'):
        located("shop.t", location)


def test_a_location_is_written_as_places_are() -> None:
    assert (
        located("t", "file:/lake/a b") == located("t", "file:///lake/a b") == located("t", "/lake/a b") == "/lake/a b"
    )
    assert located("t", "file:/lake/100%20") == "/lake/100%20"
    assert located("t", "file:/lake/100%20", encoded=True) == "/lake/100 "
    assert located("t", "s3://lake/t/") == "s3://lake/t"


# --------------------------------------------------------------------------- with a session


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as running, running.client() as client:
        assert client.set_many((f"a{i}", b"one") for i in range(60)) == {}
        yield running


@pytest.fixture
def schema(spark: Any, tmp_path: Path) -> Iterator[str]:
    """A schema of Spark's own catalog, which is in memory."""
    name = f"s{uuid.uuid4().hex[:8]}"
    spark.sql(f"CREATE SCHEMA {name} LOCATION '{tmp_path / 'lake house'}'")
    yield name
    spark.sql(f"DROP SCHEMA {name} CASCADE")


def begin(spark: Any, bucket: Node, name: str, to: Path | None = None, **shape: bool) -> TableSink:
    """A mirror's start: what is asked of the catalog, and of nobody else."""
    return opened(NamedTable(spark, name, to), Mirror(bucket.url, to, table=name, **shape))


def fill(bucket: Node, place: str | Path, **shape: bool) -> MirrorProgress:
    return mirror(None, bucket.url, place, once=True, workers=0, upkeep=False, **shape)


def read(spark: Any, name: str) -> dict[bytes, bytes]:
    return {bytes(row.key): bytes(row.value) for row in spark.table(name).collect()}


@pytest.mark.spark
def test_a_table_is_made_found_again_and_read_by_its_name(
    spark: Any, bucket: Node, schema: str, tmp_path: Path
) -> None:
    made = begin(spark, bucket, f"spark_catalog.{schema}.orders", changelog=True).place
    assert made == str(tmp_path / "lake house" / "orders")
    assert followed(made).state.version == 0  # to have a name cost the table no commit
    fill(bucket, made, changelog=True)
    change(bucket, "two")
    assert begin(spark, bucket, f"{schema}.orders", changelog=True).place == made  # the session's catalog
    spark.sql(f"USE {schema}")
    try:
        assert begin(spark, bucket, "orders").place == made
    finally:
        spark.sql("USE default")
    fill(bucket, made, changelog=True)
    assert read(spark, f"{schema}.orders") == documents(bucket)
    assert spark.table(f"{schema}.orders_changes").count() == 60 + 70
    shown = spark.sql(f"SHOW TABLES IN {schema}").collect()  # views of the session are shown in every schema
    assert {row.tableName for row in shown if not row.isTemporary} == {"orders", "orders_changes"}


def followed(place: str) -> TableLog:
    log = TableLog(TableStore(place))
    log.refresh()
    return log


@pytest.mark.battery
@pytest.mark.spark
def test_the_quarantine_has_a_name_and_new_fields_are_columns_at_once(spark: Any, bucket: Node, schema: str) -> None:
    place = begin(spark, bucket, f"{schema}.orders", unfold=True, quarantine=True).place
    fill(bucket, place, json=True, quarantine=True)
    with bucket.client() as client:
        client.set("new", b'{"n": 1}')
    fill(bucket, place, json=True, quarantine=True)
    assert [row.n for row in spark.table(f"{schema}.orders").where("key = 'new'").collect()] == [1]
    assert spark.table(f"{schema}.orders_quarantine").count() == 60


@pytest.mark.spark
def test_a_folder_with_a_mirrors_table_gets_a_name_as_does_one_whose_run_died_before_it_had(
    spark: Any, bucket: Node, schema: str, tmp_path: Path
) -> None:
    place = tmp_path / "it's 100%20" / "t"
    fill(bucket, place)
    assert begin(spark, bucket, f"{schema}.orders", place).place == str(place)
    assert read(spark, f"{schema}.orders") == documents(bucket)
    spark.sql(f"DROP TABLE {schema}.orders")  # the name; the documents stay
    assert begin(spark, bucket, f"{schema}.orders", place).record.batch > 0
    with pytest.raises(OptionError, match=r"where the catalog has spark_catalog\..*\.orders, .*/t: leave it out"):
        begin(spark, bucket, f"{schema}.orders", tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.spark
def test_the_name_is_looked_up_at_each_start(spark: Any, bucket: Node, schema: str, tmp_path: Path) -> None:
    first = begin(spark, bucket, f"{schema}.orders").place
    fill(bucket, tmp_path / "moved")
    spark.sql(f"DROP TABLE {schema}.orders")
    spark.sql(f"CREATE TABLE {schema}.orders USING delta LOCATION '{tmp_path / 'moved'}'")
    assert begin(spark, bucket, f"{schema}.orders").place == str(tmp_path / "moved") != first


def refuses(spark: Any, bucket: Node, name: str, told: str, error: type[Exception] = TableError, **asked: Any) -> None:
    with pytest.raises(error, match=told) as refused:
        begin(spark, bucket, name, **asked)
    assert "\n" not in str(refused.value)


@pytest.mark.spark
def test_what_is_no_table_of_deltas_is_refused_by_name(spark: Any, bucket: Node, schema: str, tmp_path: Path) -> None:
    spark.sql(f"CREATE VIEW {schema}.v AS SELECT 1 AS key")
    spark.sql(f"CREATE TABLE {schema}.p (key BINARY) USING parquet")
    refuses(spark, bucket, f"{schema}.v", rf"^spark_catalog\.{schema}\.v: it is a view")
    refuses(spark, bucket, f"{schema}.p", rf"^spark_catalog\.{schema}\.p: it is a table of parquet, not of Delta's")
    assert not list((tmp_path / "lake house").rglob("_delta_log"))
    spark.sql(f"CREATE TABLE {schema}.o_changes (key BINARY) USING parquet")
    refuses(spark, bucket, f"{schema}.o", r"\.o_changes: it is a table of parquet", changelog=True)


@pytest.mark.spark
def test_a_table_of_somebody_else_or_with_features_that_are_not_known_is_refused_by_name(
    spark: Any, bucket: Node, schema: str
) -> None:
    spark.sql(f"CREATE TABLE {schema}.theirs (key BINARY) USING delta")
    refuses(spark, bucket, f"{schema}.theirs", rf"^spark_catalog\.{schema}\.theirs \(.*\): its protocol is reader 1")
    log = followed(begin(spark, bucket, f"{schema}.ours").place)
    feature = {"writerFeatures": [*log.state.protocol["writerFeatures"], "icebergWriterCompatV1"]}
    log.commit([{"protocol": log.state.protocol | feature}], "UPGRADE PROTOCOL")
    refuses(
        spark, bucket, f"{schema}.ours", r"\.ours \(.*\): the table feature icebergWriterCompatV1", UnsupportedTable
    )


@pytest.mark.spark
def test_catalogs_and_schemas_that_are_not_there_are_told_with_those_that_are(
    spark: Any, bucket: Node, schema: str, capfd: pytest.CaptureFixture[str]
) -> None:
    refuses(spark, bucket, "spark_catalog.nowhere.t", r'has no schema "nowhere" \(of \d+ there .*CREATE SCHEMA')
    refuses(spark, bucket, "nowhere.shop.t", r'no catalog "nowhere" \(of 1 there is spark_catalog\).*--conf spark\.sql')
    refuses(spark, bucket, f"{schema}.`../t`", "no folder can be called like that")
    assert capfd.readouterr().err == ""  # nor does Spark say anything
    refuses(spark, bucket, f"spark_catalog.{schema}.a.t", r"^spark_catalog\.s\w+\.a\.t: ")


@pytest.mark.spark
def test_names_beside_it_that_are_other_tables_are_refused(
    spark: Any, bucket: Node, schema: str, tmp_path: Path
) -> None:
    fill(bucket, tmp_path / "other")
    spark.sql(f"CREATE TABLE {schema}.o_changes USING delta LOCATION '{tmp_path / 'other'}'")
    refuses(spark, bucket, f"{schema}.o", r"o_changes: the catalog has a table of this name at .*other", changelog=True)


@pytest.mark.spark
@pytest.mark.parametrize("scheme", ["s3", "s3a", "gs"])
def test_a_library_that_spark_lacks_for_the_store_is_told(spark: Any, schema: str, scheme: str) -> None:
    place = f"{scheme}://lake/orders"
    made = SimpleNamespace(place=place, changes=None, quarantine=None)
    told = rf"^spark_catalog\.{schema}\.o: Spark lacks a library \(.*FileSystem\); .*spark\.jars\.packages"
    with pytest.raises(TableError, match=told) as refused:
        NamedTable(spark, f"{schema}.o", place).register(cast("TableSink", made))
    assert "\n" not in str(refused.value)


@pytest.mark.spark
@pytest.mark.battery
def test_the_table_of_a_collection_gets_a_name_as_any_other(spark: Any, schema: str, tmp_path: Path) -> None:
    with node(vbuckets=4) as running:
        becomes(running, 1, orders=8)
        put_into(running, 8, *(f"k{n}" for n in range(20)))
        mirror(None, running.url, tmp_path / "store", scope="shop", once=True, workers=0)
        (guide,) = (block.text for block in blocks("docs/howto/mirror.md") if block.text.startswith("CREATE TABLE"))
        made = guide.replace("default.orders", f"{schema}.orders").replace("/mnt/lake/store", f"{tmp_path}/store")
        spark.sql(made)
        assert {bytes(row.key) for row in spark.table(f"{schema}.orders").collect()} == {b"k%d" % n for n in range(20)}
        put_into(running, 8, "later")
        mirror(None, running.url, tmp_path / "store", scope="shop", once=True, workers=0)
        assert spark.table(f"{schema}.orders").count() == 21


@pytest.mark.spark
def test_a_name_in_memory_does_not_last(spark: Any) -> None:
    assert not NamedTable(spark, "spark_catalog.a.b").lasts
    assert NamedTable(spark, "unity.a.b").lasts


@pytest.mark.battery
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_a_metastore_on_disk_knows_the_table_from_one_run_to_the_next(bucket: Node, tmp_path: Path) -> None:
    """Hive's metastore in Derby: commands of their own, each with a JVM that opens it."""
    derby = f"jdbc:derby:;databaseName={tmp_path / 'metastore'};create=true"
    conf = ["spark.sql.catalogImplementation=hive", f"spark.sql.warehouse.dir={tmp_path / 'warehouse'}"]
    conf += [f"spark.hadoop.javax.jdo.option.ConnectionURL={derby}"]
    conf += ["spark.driver.extraJavaOptions=-Dderby.system.durability=test"]  # it would sync for minutes on a busy disk
    given = [word for setting in conf for word in ("--conf", setting)]

    def headwater(*words: str, status: int = 0) -> str:
        asked = [sys.executable, "-m", "headwater", *words, *given]
        done = subprocess.run(
            asked, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=540, check=False
        )
        assert done.returncode == status, done.stderr
        return done.stdout if not status else done.stderr

    name = "spark_catalog.default.orders"
    assert "60 stored" in headwater("mirror", bucket.url, "--table", name, "--once")
    change(bucket, "two")
    assert "50 stored and 20 deleted" in headwater("mirror", bucket.url, "--table", "default.orders", "--once")
    told = json.loads(headwater("lake", "describe", "--table", name))
    assert (told["rows"], told["place"]) == (70, str(tmp_path / "warehouse" / "orders"))
    assert table(told["place"]) == documents(bucket)
    missing = headwater("lake", "verify", "--table", "default.nothing", status=1)
    assert re.search(r"(?m)^headwater: spark_catalog\.default\.nothing: the catalog has no table of this name", missing)
