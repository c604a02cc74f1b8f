import datetime

import pyarrow as pa
import pytest

from headwater.lake.shape import KEPT, TableShape, arrow_schema, arrow_type, delta_field, fields, modified_at
from tests.lake.support import rows


def test_the_cas_is_a_time_where_it_is_a_clock() -> None:
    cas = pa.array([1_795_332_751_874_123_456, 7, -1], pa.int64())
    when = datetime.datetime(2026, 11, 22, 7, 32, 31, 874123, datetime.UTC)
    assert modified_at(cas).to_pylist() == [when, None, None]


def test_rows_of_the_source_become_rows_of_the_table() -> None:
    shape = TableShape(fields())
    (row,) = shape.rows(rows(("a", 3, 9, "v"))).to_pylist()
    assert list(row) == list(KEPT)
    assert (row["key"], row["vbucket"], row["seqno"], row["modified_at"].year) == (b"a", 3, 9, 2027)


def test_types_of_delta_are_types_of_arrow() -> None:
    array = {"type": "array", "elementType": "long", "containsNull": True}
    struct = {"type": "struct", "fields": [delta_field("a-b", array)]}
    assert arrow_type(struct) == pa.struct([("a-b", pa.list_(pa.field("element", pa.int64())))])
    assert arrow_schema(fields("string")).field("key").type == pa.string()
    with pytest.raises(KeyError):
        arrow_type({"type": "map"})
