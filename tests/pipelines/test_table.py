"""A table with a record."""

from pathlib import Path

import pytest

from headwater.errors import TableChanged, TableError
from headwater.lake.iceberg.place import CatalogName
from headwater.lake.layout import Formats
from headwater.lake.shape import fields
from headwater.pipelines.table import BEGINNING, CHANGES, DOCUMENTS, Table


def test_a_table_is_made_once_and_found_again(tmp_path: Path) -> None:
    made = Table(tmp_path, "b", DOCUMENTS, fields())
    assert (made.record.batch, made.record.end) == (0, dict(BEGINNING))
    found = Table(tmp_path, "b", DOCUMENTS, fields())
    assert found.log.state.id == made.log.state.id


def test_a_table_of_another_bucket_or_kind_is_refused(tmp_path: Path) -> None:
    Table(tmp_path, "b", DOCUMENTS, fields())
    for bucket, kind in (("other", DOCUMENTS), ("b", CHANGES)):
        with pytest.raises(TableError, match='it has the documents of the bucket "b"'):
            Table(tmp_path, bucket, kind, fields())


def test_each_batch_is_planned_from_the_record_before(tmp_path: Path) -> None:
    first, second = (Table(tmp_path, "b", DOCUMENTS, fields()) for _ in range(2))
    before = first.record.digest
    then = first.commit(before, {"v": 1, "vb": {"0": ["0" * 16, 1]}}, [])
    assert (first.next(then.end).batch, second.refresh()) == (2, then)
    with pytest.raises(TableChanged, match="the table is at batch 1 by now"):
        second.commit(before, then.end, [])


def test_a_table_that_gets_another_name_in_a_catalog_says_what_the_old_one_keeps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def named(name: str) -> None:
        Table(tmp_path, "b", DOCUMENTS, fields(), formats=Formats.ICEBERG, catalog=CatalogName.parse(name))

    named("old:shop.orders")
    named("old:shop.orders")
    assert not caplog.records
    named("new:shop.orders")
    assert caplog.messages == [
        f"{tmp_path}: its name in a catalog becomes new:shop.orders, and the catalog old keeps shop.orders "
        "as it is now: drop that there, without its files"
    ]
