"""Where the files of an Iceberg table lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.errors import OptionError
from headwater.lake.iceberg.place import CatalogName, IcebergPlace, data_location, location_of, path_of, place_of, uri
from headwater.lake.layout import OF_DELTA, OF_ICEBERG
from headwater.lake.log import data_file
from headwater.lake.objects import ObjectStore
from headwater.lake.store import TableStore
from tests.lake.support import Table


def test_the_iceberg_table_of_a_table_is_beside_its_files_or_has_its_folder(tmp_path: Path) -> None:
    store = TableStore(tmp_path)
    beside, alone = (IcebergPlace(store, layout.iceberg) for layout in (OF_DELTA, OF_ICEBERG))
    assert (beside.location, beside.own) == (f"file://{tmp_path}/_iceberg", "_iceberg/metadata")
    assert (alone.location, alone.own) == (f"file://{tmp_path}", "metadata")
    assert alone.file_of(3) == "metadata/v3.metadata.json"
    assert alone.hint == "metadata/version-hint.text"
    assert place_of(Table(tmp_path, OF_ICEBERG).log).folder == ""


def test_a_location_of_a_file_leads_back_to_its_path(tmp_path: Path) -> None:
    store = TableStore(tmp_path)
    assert uri(store, "data/a.parquet") == f"file://{tmp_path}/data/a.parquet"
    assert path_of(store, uri(store, "data/a.parquet")) == "data/a.parquet"
    assert path_of(store, "s3://elsewhere/a") == uri(store, "s3://elsewhere/a") == "s3://elsewhere/a"


def test_a_data_file_that_the_log_has_as_a_url_has_the_location_of_its_path(tmp_path: Path) -> None:
    add = {"size": 1, "partitionValues": {}}
    for path in ("data/a%20b.parquet", f"file://{tmp_path}/data/a b.parquet", f"{tmp_path}/data/a b.parquet"):
        assert (
            data_location(TableStore(tmp_path), data_file(add | {"path": path}))
            == f"file://{tmp_path}/data/a b.parquet"
        )


def test_an_object_store_is_its_own_scheme() -> None:
    pytest.importorskip("s3fs")
    store = ObjectStore("s3://bucket/table")
    assert location_of(store) == "s3://bucket/table"
    assert data_location(store, data_file({"path": "data/a.parquet", "size": 1})) == "s3://bucket/table/data/a.parquet"


def test_a_name_in_a_catalog_is_the_catalogs_and_the_tables() -> None:
    named = CatalogName.parse("prod:shop.eu.orders")
    assert named == CatalogName("prod", ("shop", "eu", "orders"))
    assert (str(named), named.dotted) == ("prod:shop.eu.orders", "shop.eu.orders")
    assert str(named.neighbour("_changes")) == "prod:shop.eu.orders_changes"


@pytest.mark.parametrize("text", ["", "prod", "prod:", "prod:orders", ":shop.orders", "prod:shop.", "prod:.orders"])
def test_another_form_of_such_a_name_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"such as prod:shop\.orders"):
        CatalogName.parse(text)
