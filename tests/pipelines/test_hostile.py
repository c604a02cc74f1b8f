"""Documents with hostile names and values, mirrored and read by the readers of tables: all of them find every value."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql.variant_utils import VariantUtils

from headwater.lake.log import TableLog
from headwater.lake.places import store_of
from headwater.lake.unfold import REST, field_of
from headwater.pipelines.mirror import mirror
from headwater.testing.node import node
from tests.pipelines.hostile import Documents, expected, same, told

COUNT, SEED = 500, 20_261_124
Rows = list[dict[str, Any]]


class Mirrored(NamedTuple):
    """A table, and the text of each document that it must have."""

    place: Path
    texts: Mapping[str, str]


def mirrored(place: Path, **shape: bool) -> Mirrored:
    """Mirror hostile documents; some are overwritten and some deleted, so that files have dead rows."""
    made = Documents(SEED)
    texts = {f"k{number}": made.text() for number in range(COUNT)}
    with node(vbuckets=4) as bucket, bucket.client() as client:
        for number in range(0, COUNT, 100):
            client.set_many(list(texts.items())[number : number + 100])
            mirror(None, bucket.url, place, once=True, workers=0, **shape)
        texts |= {f"k{number}": made.text() for number in range(0, COUNT, 7)}
        client.set_many(texts.items())
        client.delete_many([f"k{number}" for number in range(0, COUNT, 11)])
        mirror(None, bucket.url, place, once=True, workers=0, **shape)
    return Mirrored(place, {key: text for key, text in texts.items() if int(key[1:]) % 11})


@pytest.fixture(scope="module")
def unfolded(tmp_path_factory: pytest.TempPathFactory) -> Mirrored:
    return mirrored(tmp_path_factory.mktemp("unfolded"), json=True)


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Mirrored:
    return mirrored(tmp_path_factory.mktemp("variant"), variant=True)


def check_columns(table: Mirrored, rows: Rows) -> None:
    """Each value of each document is in its field's column, or in `_rest`."""
    log = TableLog(store_of(table.place))
    columns = {field_of(column): column["name"] for column in log.refresh().fields}
    assert {row["key"] for row in rows} == table.texts.keys() and len(rows) == len(table.texts)
    missing = [
        (name, value, row.get(columns.get(name, "")), row[REST])
        for row in rows
        for name, value in expected(table.texts[row["key"]]).items()
        if not same(row.get(columns.get(name, "")), value)
        and not same(json.loads(row[REST] or "{}").get(told(name)), value)
    ]
    assert not missing, missing[:5]
    assert all(bytes(row["value"]).decode() == table.texts[row["key"]] for row in rows)


def by_delta_rs(place: Path) -> Rows:
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(place))
    return pa.table(query.execute("SELECT * FROM t").read_all()).to_pylist()


def by_polars(place: Path) -> Rows:
    return pl.read_delta(str(place)).to_dicts()


def by_duckdb(place: Path, columns: str = "*") -> Rows:
    """DuckDB with its extension, which comes as a package: nothing is fetched."""
    import duckdb_extension_delta  # noqa: PLC0415

    (extension,) = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
    with duckdb.connect() as connection:
        connection.execute(f"LOAD '{extension}'")
        found = connection.execute(f"SELECT {columns} FROM delta_scan('{place}')")
        names = [each[0] for each in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


for_linux = pytest.mark.skipif(sys.platform != "linux", reason="the package of DuckDB's extension is for Linux")


@pytest.mark.parametrize("read", [by_delta_rs, by_polars, pytest.param(by_duckdb, marks=for_linux)])
def test_every_value_is_found_in_a_column_or_in_rest(unfolded: Mirrored, read: Callable[[Path], Rows]) -> None:
    check_columns(unfolded, read(unfolded.place))


@pytest.mark.parametrize("read", [by_delta_rs, by_polars])
def test_every_value_is_found_in_the_two_halves_of_a_variant(variant: Mirrored, read: Callable[[Path], Rows]) -> None:
    halves = {row["key"]: row["document"] for row in read(variant.place)}
    check_documents(
        variant,
        {key: half and VariantUtils.to_python(half["value"], half["metadata"]) for key, half in halves.items()},
    )


@for_linux
def test_every_value_is_found_in_a_variant_by_duckdb(variant: Mirrored) -> None:
    rows = by_duckdb(variant.place, "key, CAST(document AS JSON) AS document")
    check_documents(variant, {row["key"]: row["document"] and json.loads(with_zeros(row["document"])) for row in rows})


def with_zeros(text: str) -> str:
    """JSON as DuckDB writes a VARIANT's decimals, `.5`, and as JSON has them."""
    parts = re.compile(r'"(?:[^"\\]|\\.)*"|(?<!\d)\.')
    return parts.sub(lambda part: part[0] if part[0].startswith('"') else "0.", text)


@pytest.mark.spark
def test_every_value_is_found_by_spark(unfolded: Mirrored, variant: Mirrored, spark: Any) -> None:
    rows = spark.read.format("delta").load(str(unfolded.place)).collect()
    check_columns(unfolded, [row.asDict(recursive=True) for row in rows])
    found = spark.read.format("delta").load(str(variant.place)).selectExpr("key", "to_json(document)").collect()
    check_documents(variant, {key: text and json.loads(text) for key, text in found})


def check_documents(table: Mirrored, found: Mapping[str, Any]) -> None:
    """Each document is whole, but for those with a number that no VARIANT holds."""
    assert found.keys() == table.texts.keys()
    wanted = {key: wanted_of(text) for key, text in table.texts.items()}
    wrong = [(key, found[key], wanted[key]) for key in found if not same(found[key], wanted[key])]
    assert not wrong, wrong[:3]
    assert sum(each is None for each in wanted.values()) < COUNT / 3


def wanted_of(text: str) -> Any:
    try:
        return told(json.loads(text, parse_float=finite, parse_int=finite))
    except ValueError:
        return None


def finite(digits: str) -> float:
    """A number, for the sake of what is equal to it; ValueError for one beyond a double."""
    if math.isinf(number := float(digits)):
        raise ValueError
    return number
