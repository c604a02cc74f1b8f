"""A mirror with --widen: whoever can read the table finds the numbers of the documents, of all files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable, QueryBuilder
from polars import scan_delta
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable

from harness.nodes import diverge
from harness.rest_catalog import rest_server
from headwater import failpoints
from headwater.errors import CatalogAway, OptionError
from headwater.lake.log import TableLog
from headwater.lake.places import store_of
from headwater.lake.shape import TYPE_CHANGES, WIDENING
from headwater.pipelines.mirror import mirror
from headwater.pipelines.tables import fold
from headwater.testing.node import Node, node
from tests.battery import few_of
from tests.lake.iceberg.support import configure, for_linux, iceberg_of, queried
from tests.lake.support import restore

FORMS: list[dict[str, Any]] = [{}, {"format": "delta,iceberg"}, {"format": "iceberg"}, {"copy_on_write": True}]
in_each_form = pytest.mark.parametrize("form", FORMS, ids=["delta", "both", "iceberg", "copies"])


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as running:
        put(running, *({"n": number, "x": number} for number in range(8)))
        yield running


def put(bucket: Node, *documents: dict[str, Any], first: int = 0) -> None:
    with bucket.client() as client:
        stored = ((f"k{first + n}", json.dumps(document).encode()) for n, document in enumerate(documents))
        assert client.set_many(stored) == {}


def run(bucket: Node, place: Path, **asked: Any) -> None:
    mirror(None, bucket.url, place, once=True, workers=0, **({"unfold": True, "widen": True} | asked))


def documents(bucket: Node) -> dict[str, dict[str, Any]]:
    with bucket.client() as client:
        keys = [f"k{n}" for n in range(24)]
        return {key.decode(): json.loads(item.value) for key, item in client.get_many(keys).items()}


def as_documents(rows: list[tuple[Any, ...]]) -> dict[str, dict[str, Any]]:
    """Rows of (key, n, x, _rest) as the documents that they came from."""
    read = {
        key: {name: value for name, value in (("n", n), ("x", x)) if value is not None} | json.loads(rest or "{}")
        for key, n, x, rest in rows
    }
    assert len(read) == len(rows), "a key has two rows"
    return read


def by_delta(place: Path) -> dict[str, dict[str, Any]]:
    import duckdb_extension_delta  # noqa: PLC0415

    (extension,) = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
    with duckdb.connect() as connection:
        connection.execute(f"LOAD '{extension}'")
        query = f"SELECT key, n, x, _rest FROM delta_scan('{place}')"
        return as_documents(connection.execute(query).fetchall())


def check(bucket: Node, place: Path, form: dict[str, Any]) -> None:
    """All readers that can read the table find what the bucket has."""
    expected = documents(bucket)
    assert by_delta(place) == expected
    if "iceberg" in form.get("format", ""):
        names = ("key", "n", "x", "_rest")
        read = StaticTable.from_metadata(iceberg_of(place)).scan(selected_fields=names).to_arrow().to_pylist()
        assert as_documents([tuple(row[name] for name in names) for row in read]) == expected
        assert as_documents(queried(place, ", ".join(names))) == expected


def kinds(place: Path) -> dict[str, str]:
    state = TableLog(store_of(place)).refresh()
    return {column["name"]: column["type"] for column in state.fields if column["name"] in ("n", "x")}


@for_linux
@in_each_form
def test_wider_numbers_widen_their_columns_and_older_files_stay_readable(
    form: dict[str, Any], bucket: Node, tmp_path: Path
) -> None:
    place = tmp_path / "t"
    run(bucket, place, **form)
    assert kinds(place) == {"n": "integer", "x": "integer"}
    check(bucket, place, form)
    before = {*TableLog(store_of(place)).refresh().files}
    put(bucket, {"n": 1 << 40, "x": 1.5}, {"n": -5, "x": 3}, first=6)
    put(bucket, {"n": 1, "x": 0.25}, first=8)
    run(bucket, place, **form)
    double = "integer" if "format" in form else "double"  # which Iceberg's readers could not read
    assert kinds(place) == {"n": "long", "x": double}
    if "copy_on_write" not in form:
        assert before & {*TableLog(store_of(place)).refresh().files}, "a file of 32 bits is still there"
    check(bucket, place, form)
    fold(str(place), lambda done, total: None, everything=True)
    check(bucket, place, form)
    put(bucket, {"n": 2, "x": 2}, {"n": 1 << 62, "x": 7.5}, first=0)
    mirror(None, bucket.url, place, once=True, workers=0)  # once it began, a table goes on
    check(bucket, place, form)


KILLED = "import sys, json; from headwater.pipelines.mirror import mirror; "
KILLED += "mirror(None, *sys.argv[1:3], once=True, workers=0, unfold=True, widen=True, **json.loads(sys.argv[3]))"
POINTS = ("files_written", "before_commit", "after_commit")


def killed(bucket: Node, place: Path, point: str, form: dict[str, Any]) -> int:
    environment = os.environ | {"HEADWATER_FAILPOINTS": f"lake.{point}=kill"}
    asked = [sys.executable, "-c", KILLED, bucket.url, str(place), json.dumps(form)]
    return subprocess.run(asked, env=environment, capture_output=True, timeout=540, check=False).returncode


@for_linux
@pytest.mark.parametrize(
    ("form", "point"),
    few_of(
        [(form, point) for form in FORMS for point in POINTS],
        (FORMS[0], "files_written"),
        (FORMS[1], "after_commit"),
        (FORMS[3], "before_commit"),
    ),
)
def test_a_batch_that_widens_is_in_the_table_whole_or_not_at_all(
    form: dict[str, Any], point: str, bucket: Node, tmp_path: Path
) -> None:
    place = tmp_path / "t"
    run(bucket, place, **form)
    put(bucket, {"n": 1 << 40, "x": 1.5}, first=6)
    assert killed(bucket, place, point, form) == -9
    assert kinds(place)["n"] == ("long" if point == "after_commit" else "integer")
    put(bucket, {"n": 3, "x": 4}, first=7)
    run(bucket, place, **form)
    assert kinds(place)["n"] == "long"
    check(bucket, place, form)


@for_linux
@in_each_form
def test_a_failover_takes_back_the_rows_and_leaves_the_column_wide(
    form: dict[str, Any], bucket: Node, tmp_path: Path
) -> None:
    place = tmp_path / "t"
    run(bucket, place, **form)

    def lost() -> None:
        put(bucket, *({"n": 1 << 40, "x": 1.5} for _ in range(8)))
        run(bucket, place, **form)

    diverge(bucket, lost=lost)
    put(bucket, {"n": 9, "x": 9})
    run(bucket, place, **form)
    assert kinds(place)["n"] == "long"
    check(bucket, place, form)


@for_linux
@for_linux
def test_a_catalog_that_is_away_while_a_column_gets_wider_has_the_type_and_the_rows_later(
    bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, form = tmp_path / "t", {"format": "iceberg", "catalog": "tests:shop.t"}

    def kind_in_catalog() -> str:
        return str(server.metadata("t").schema().find_type("n"))

    with rest_server() as server:
        configure(monkeypatch, "tests", type="rest", uri=server.url)
        run(bucket, place, **form)
        put(bucket, {"n": 1 << 40}, first=6)
        monkeypatch.setitem(failpoints.ACTIONS, "leave", lambda name: setattr(server, "is_away", True))
        with failpoints.armed("iceberg.before_catalog=leave"), pytest.raises(CatalogAway):
            run(bucket, place, **form, retry_seconds=0)
        check(bucket, place, form)
        assert (kinds(place)["n"], kind_in_catalog()) == ("long", "int")
        server.is_away = False
        put(bucket, {"n": 1 << 41}, first=7)
        run(bucket, place, **form)
        assert kind_in_catalog() == "long"
        table = load_catalog("tests", type="rest", uri=server.url).load_table("shop.t")
        rows = table.scan(selected_fields=("key", "n", "x", "_rest")).to_arrow().to_pylist()
        assert as_documents([(row["key"], row["n"], row["x"], row["_rest"]) for row in rows]) == documents(bucket)


def test_a_table_that_was_put_back_to_before_it_was_widened_is_widened_again(bucket: Node, tmp_path: Path) -> None:
    place = tmp_path / "t"
    run(bucket, place)
    log = TableLog(store_of(place))
    version, metadata = log.refresh().version, log.state.metadata
    put(bucket, {"n": 1 << 40, "x": 1.5}, first=6)
    run(bucket, place)
    log.refresh()
    restore(log, version)
    log.refresh()
    assert log.commit([{"metaData": metadata}], "SET TBLPROPERTIES")
    assert kinds(place)["n"] == "integer"
    run(bucket, place)
    assert kinds(place) == {"n": "long", "x": "double"}
    check(bucket, place, {})


@for_linux
def test_an_unfolded_table_begins_and_its_columns_of_64_bits_stay(bucket: Node, tmp_path: Path) -> None:
    place = tmp_path / "t"
    run(bucket, place, widen=False)
    assert WIDENING not in TableLog(store_of(place)).refresh().protocol["writerFeatures"]
    put(bucket, {"n": 1.5, "m": 1}, first=0)
    run(bucket, place, quarantine=True)
    put(bucket, {"n": 1, "m": 2.5}, first=1)
    run(bucket, place)
    columns = {column["name"]: column for column in TableLog(store_of(place)).refresh().fields}
    assert (columns["n"]["type"], columns["m"]["type"]) == ("long", "double")
    assert columns["m"]["metadata"][TYPE_CHANGES] == [{"fromType": "integer", "toType": "double"}]


def test_the_option_is_refused_without_columns_before_a_table_is_made(bucket: Node, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="given with --unfold"):
        run(bucket, tmp_path / "t", unfold=False)
    assert not (tmp_path / "t").exists()


def test_delta_rs_and_polars_refuse_such_a_table(bucket: Node, tmp_path: Path) -> None:
    """The guide says so; once they read it, the guide is to be changed."""
    place = tmp_path / "t"
    run(bucket, place)
    with pytest.raises(Exception, match="TypeWidening"):
        QueryBuilder().register("t", DeltaTable(place)).execute("SELECT * FROM t").read_all()
    with pytest.raises(Exception, match="typeWidening"):
        scan_delta(str(place)).collect()


@pytest.mark.spark
@pytest.mark.battery
def test_spark_reads_all_files_and_widens_columns_itself(spark: Any, bucket: Node, tmp_path: Path) -> None:
    place = tmp_path / "t"

    def seen() -> dict[str, dict[str, Any]]:
        rows = spark.sql(f"SELECT key, n, x, _rest FROM delta.`{place}`").collect()
        return as_documents([tuple(row) for row in rows])

    mirror(spark, bucket.url, place, once=True, unfold=True, widen=True)
    put(bucket, {"n": 1 << 40, "x": 5}, first=6)
    mirror(spark, bucket.url, place, once=True)
    assert kinds(place) == {"n": "long", "x": "integer"} and seen() == documents(bucket)
    spark.sql(f"ALTER TABLE delta.`{place}` ALTER COLUMN x TYPE double")
    put(bucket, {"n": 2, "x": 1.5}, first=7)
    mirror(spark, bucket.url, place, once=True)
    assert kinds(place) == {"n": "long", "x": "double"} and seen() == documents(bucket)
    spark.sql(f"OPTIMIZE delta.`{place}`")
    put(bucket, {"n": 3, "x": 2.5}, first=8)
    mirror(None, bucket.url, place, once=True, workers=0)
    fold(str(place), lambda done, total: None, everything=True)
    assert seen() == documents(bucket) == by_delta(place)
