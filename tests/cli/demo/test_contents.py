from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from headwater import testing
from headwater.cli.demo import contents
from headwater.cli.failures import CommandError
from headwater.lake.layout import OF_ICEBERG
from tests.lake.support import Table


def test_the_node_holds_what_was_stored_and_not_deleted() -> None:
    with testing.node(vbuckets=4) as node, node.client() as client:
        client.set_many({"a": "1", "b": "2", "c": "3"})
        client.set("a", "again")
        client.delete("b")
        assert contents.of_node(client) == {b"a": b"again", b"c": b"3"}


def test_a_table_of_iceberg_holds_what_duckdb_reads_in_it(tmp_path: Path) -> None:
    table = Table(tmp_path, OF_ICEBERG)
    table.take(("a", 0, 1, "1"), ("b", 0, 2, "2"), ("c", 0, 3, "3"))
    table.take(("b", 0, 4, None), ("c", 0, 5, "4"))
    assert contents.of_table(tmp_path, contents.TableFormat.ICEBERG) == {b"a": b"1", b"c": b"4"}


def test_a_key_that_has_two_rows_is_not_taken_for_one(tmp_path: Path) -> None:
    rows = pa.table({"key": pa.array([b"a", b"a"]), "value": pa.array([b"1", b"2"])})
    deltalake.write_deltalake(tmp_path, rows)
    with pytest.raises(CommandError, match="2 rows have 1 different keys"):
        contents.of_table(tmp_path)


def test_the_table_holds_what_another_implementation_reads_in_it(tmp_path: Path) -> None:
    rows = pa.table({"key": pa.array([b"a", b"b"]), "value": pa.array([b"1", b"2"]), "seqno": [1, 2]})
    deltalake.write_deltalake(tmp_path, rows)
    assert contents.of_table(tmp_path) == {b"a": b"1", b"b": b"2"}
