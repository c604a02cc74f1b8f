import datetime

import pyarrow as pa
import pytest

from headwater.client import Write, WriteWithMeta
from headwater.errors import OptionError
from headwater.spark import schema
from headwater.spark.rows import Row, check_columns, rows
from headwater.wire.datatype import Datatype

SOURCE = list(schema.types().items())


def test_columns_are_taken_in_any_order_and_those_of_the_history_passed_over() -> None:
    found = check_columns([("seqno", "bigint"), ("value", "string"), ("key", "binary")], with_meta=False)
    assert found == ("key", "value")
    assert check_columns([("key", "binary"), ("deleted", "boolean")], with_meta=False) == ("key", "deleted")


def test_a_frame_of_the_source_is_written_with_meta_as_it_is() -> None:
    names = check_columns(SOURCE, with_meta=True)
    assert names == ("key", "value", "event", "expiry", "flags", "cas", "rev_seqno", "datatype")
    with pytest.raises(OptionError, match="with withMeta=true both are stored as they are; else drop rev_seqno"):
        check_columns(SOURCE, with_meta=False)


@pytest.mark.parametrize(
    ("columns", "with_meta", "told"),
    [
        ([("value", "string")], False, "key is missing"),
        ([("key", "string")], False, "value is missing"),
        ([("key", "int"), ("value", "string")], False, r'"key int" is not possible: key is binary or string'),
        ([("key", "string"), ("value", "struct<a:int>")], False, "value is binary or string"),
        ([("key", "string"), ("value", "string"), ("expire", "bigint")], False, r"did you mean expiry\?"),
        ([("key", "string"), ("value", "string"), ("expiry", "double")], False, "expiry is bigint or int or timestamp"),
        ([("key", "string"), ("value", "string"), ("cas", "bigint")], True, "rev_seqno is missing with withMeta"),
        ([("key", "string"), ("event", "string"), ("deleted", "boolean")], False, "keep one of them"),
    ],
)
def test_a_column_that_is_missing_unknown_or_of_another_type_is_named(
    columns: list[tuple[str, str]], with_meta: bool, told: str
) -> None:
    with pytest.raises(OptionError, match=told):
        check_columns(columns, with_meta=with_meta)


def test_a_row_asks_for_a_write() -> None:
    moment = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
    assert Row("k", "v", expiry=moment, flags=7, cas=-1).write() == Write("k", "v", 7, 4_102_444_800, (1 << 64) - 1)
    assert Row(b"k", b"v").write() == Write(b"k", b"v")
    assert Row(b"k", b"v", deleted=True, cas=5).write() == Write(b"k", None, cas=5)
    assert Row(b"k", None, event="expiration").write() == Write(b"k", None)


def test_a_row_of_another_bucket_keeps_revision_cas_expiry_and_attributes() -> None:
    kept = Row(b"k", b"v", event="mutation", expiry=1_700_000_000, flags=1, cas=-2, rev_seqno=9, datatype=5)
    assert kept.write_with_meta() == WriteWithMeta(
        b"k", b"v", 1, 1_700_000_000, (1 << 64) - 2, 9, datatype=Datatype.XATTR
    )
    gone = Row(b"k", None, event="expiration", expiry=1_700_000_000, cas=3, rev_seqno=10)
    assert gone.write_with_meta() == WriteWithMeta(b"k", None, 0, 1_700_000_000, 3, 10, deletes=True, expired=True)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (Row(None, b"v"), "a key: it is null"),
        (Row(b"k", None), "deletions are told by"),
        (Row(b"k", b"v", expiry=60), r"seconds from now are unix_timestamp\(\) \+ n"),
        (Row(b"k", None, event="rollback"), "headwater copy"),
        (Row(b"k", b"v", datatype=4), "extended attributes are written withMeta only"),
    ],
)
def test_what_can_not_be_written_says_so(row: Row, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        row.write()


def test_an_arrow_batch_becomes_rows() -> None:
    batch = pa.RecordBatch.from_pydict({"flags": [1, None], "key": [b"a", b"b"]})
    assert list(rows(batch, ("key", "flags"))) == [Row(b"a", flags=1), Row(b"b")]


def test_scope_and_collection_go_together_and_name_where_a_row_goes() -> None:
    columns = [("key", "binary"), ("value", "binary"), ("collection", "string")]
    with pytest.raises(OptionError, match="scope and collection go together"):
        check_columns(columns, with_meta=False)
    assert check_columns([*columns, ("scope", "string")], with_meta=False) == ("key", "value", "scope", "collection")
    paths = [Row(scope="shop", collection="a").path, Row(scope="shop").path, Row().path]
    assert paths == ["shop.a", "shop._default", None]
