from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from headwater.client.befores import COLUMNS as BEFORE_COLUMNS
from headwater.errors import OptionError
from headwater.kernels.columns import SCHEMA
from headwater.spark.columns import RowMaker
from headwater.spark.offsets import U64_MAX
from headwater.spark.planner import Range
from headwater.spark.schema import COLUMNS, OF_BEFORES, types
from tests.spark.model import branch_of

LOG = ((0xB, 5), (0xA, 0))


def records(*rows: dict[str, Any]) -> pa.RecordBatch:
    """A client's batch; what a row does not say is 0 or empty."""
    blank = {field.name: b"" if field.type == pa.binary() else 0 for field in SCHEMA} | {"opcode": 0x57}
    return pa.RecordBatch.from_pylist([blank | row for row in rows], schema=SCHEMA)


def maker(*names: str, key: str = "binary", value: str = "binary", end: int = 100) -> RowMaker:
    made = RowMaker(names or tuple(COLUMNS), key, value)
    made.expect(Range(3, 0xB, 0, end, end), LOG, end)
    return made


TYPES = {"int": IntegerType(), "bigint": LongType(), "string": StringType(), "binary": BinaryType()}
TYPES["timestamp"] = TimestampType()


def test_records_that_sdks_keep_of_transactions_are_left_out_unless_wanted() -> None:
    some = records(*({"vbucket": 3, "seqno": n, "key": key} for n, key in enumerate([b"a", b"_txn:atr-7", b"_txn"], 1)))
    for wanted, keys in ((True, [b"a", b"_txn:atr-7", b"_txn"]), (False, [b"a", b"_txn"])):
        made = RowMaker(("key",), "binary", "binary", wanted)
        made.expect(Range(3, 0xB, 0, 100, 100), LOG, 100)
        assert made.rows(some).column("key").to_pylist() == keys
        assert made.last_of(3) == 3  # what is left out was read


def test_the_batches_are_what_spark_expects_of_this_schema() -> None:
    for formats in (("binary", "binary"), ("string", "binary"), ("string", "string")):
        told = StructType([StructField(name, TYPES[kind]) for name, kind in types(*formats).items()])
        assert RowMaker(tuple(COLUMNS), *formats).schema == to_arrow_schema(told, timezone="UTC")


def test_what_a_change_replaced_has_the_types_that_spark_expects() -> None:
    kinds = {"seqno": "bigint", "rev_seqno": "bigint", "cas": "bigint", "flags": "bigint", "expiry": "bigint"}
    version = StructType([StructField(name, TYPES[kind]) for name, kind in (kinds | {"datatype": "int"}).items()])
    told = StructType([StructField("before", version.add("value", "string"))])
    told = told.add("before_known", "boolean").add("operation", "string")
    assert RowMaker(tuple(OF_BEFORES), "binary", "string").schema == to_arrow_schema(told, timezone="UTC")
    assert told["before"].dataType.simpleString() == types("binary", "string", befores=True)["before"]


def test_a_replaced_version_that_is_no_text_is_named() -> None:
    numbers = dict.fromkeys(("seqno", "rev_seqno", "cas", "flags", "expiry", "datatype"), 1)
    blank = {field.name: b"" if field.type == pa.binary() else 0 for field in SCHEMA}
    row = blank | {"vbucket": 3, "seqno": 2, "before": numbers | {"value": b"\xff"}}
    rows = pa.RecordBatch.from_pylist([row], schema=pa.schema([*SCHEMA, BEFORE_COLUMNS[0]]))
    with pytest.raises(OptionError, match="the value of vbucket 3, seqno 2 is not UTF-8"):
        maker("before", value="string").rows(rows)


def test_a_change_becomes_a_row() -> None:
    change = {"vbucket": 3, "seqno": 7, "key": b"k", "value": b"v", "cas": 9, "flags": 2**32 - 1, "expiry": 2**32 - 1}
    change |= {"rev_seqno": 4, "datatype": 1, "snapshot_start": 6, "snapshot_end": 8}
    (row,) = maker().rows(records(change)).to_pylist()
    assert row == change | {"event": "mutation", "vb_uuid": "000000000000000b", "modified_at": None}
    assert list(row) == list(COLUMNS)


def test_the_time_of_a_change_is_its_cas_unless_that_is_no_clock() -> None:
    cas = 1_700_000_000_123_456_789
    rows = records(*({"vbucket": 3, "seqno": n + 1, "cas": each} for n, each in enumerate((cas, 7, U64_MAX))))
    times = maker("modified_at").rows(rows).column(0).to_pylist()
    assert times == [datetime(2023, 11, 14, 22, 13, 20, 123456, UTC), None, None]


def test_deletions_and_expirations_have_a_name_and_no_value_unless_they_carry_one() -> None:
    rows = records(
        {"vbucket": 3, "seqno": 1, "opcode": 0x58},
        {"vbucket": 3, "seqno": 2, "opcode": 0x59, "value": b"xattrs"},
        {"vbucket": 3, "seqno": 3},
    )
    made = maker("event", "value").rows(rows).to_pylist()
    assert [(row["event"], row["value"]) for row in made] == [
        ("deletion", None),
        ("expiration", b"xattrs"),
        ("mutation", b""),
    ]


def test_numbers_of_64_bits_keep_their_bits() -> None:
    (row,) = (
        maker("cas", "rev_seqno")
        .rows(records({"vbucket": 3, "seqno": 1, "cas": U64_MAX, "rev_seqno": 1 << 63}))
        .to_pylist()
    )
    assert row == {"cas": -1, "rev_seqno": -(1 << 63)}
    assert row["cas"] & U64_MAX == U64_MAX


def test_rows_beyond_the_range_wait_for_their_batch() -> None:
    rows = [{"vbucket": 3, "seqno": seqno} for seqno in (99, 100, 101)]
    assert maker("seqno").rows(records(*rows)).column("seqno").to_pylist() == [99, 100]


def test_rows_of_another_branch_than_planned_are_left_to_the_planner() -> None:
    made = RowMaker(("seqno",), "binary", "binary")
    made.expect(Range(3, 0xA, 0, 100, 100), LOG, 5)
    assert made.rows(records(*({"vbucket": 3, "seqno": s} for s in (4, 5, 6)))).column("seqno").to_pylist() == [4, 5]


@given(st.lists(st.tuples(st.sampled_from([3, 4]), st.integers(1, 12)), max_size=30))
def test_every_row_has_the_uuid_of_the_branch_that_wrote_it(places: list[tuple[int, int]]) -> None:
    logs = {3: LOG, 4: ((0xC, 9), (0xB, 9), (0xA, 2), (0x9, 0))}
    made = RowMaker(("vbucket", "seqno", "vb_uuid"), "binary", "binary")
    for vb, log in logs.items():
        made.expect(Range(vb, log[0][0], 0, 7, 7), log, U64_MAX)
    rows = made.rows(records(*({"vbucket": vb, "seqno": seqno} for vb, seqno in places))).to_pylist()
    assert [row["vb_uuid"] for row in rows] == [f"{branch_of(logs[vb], seqno):016x}" for vb, seqno in places]


def test_a_rollback_row_says_where_to_return_to_and_nothing_of_a_document() -> None:
    parts = [Range(3, 0xB, 40, 60, 60, rollback=True), Range(4, 0xB, 1, 2, 2)]
    (row,) = maker().rollbacks(parts).to_pylist()
    filled = {"vbucket": 3, "seqno": 40, "vb_uuid": "000000000000000b", "event": "rollback"}
    assert row == dict.fromkeys(COLUMNS) | filled | {"snapshot_start": 40, "snapshot_end": 40}


def test_what_is_not_text_is_named_with_its_place() -> None:
    rows = records({"vbucket": 3, "seqno": 8, "key": b"fine"}, {"vbucket": 3, "seqno": 9, "key": b"\xff"})
    with pytest.raises(OptionError, match="the key of vbucket 3, seqno 9 is not UTF-8"):
        maker("key", key="string").rows(rows)


def test_a_batch_without_wanted_rows_is_an_empty_batch() -> None:
    assert maker(end=0).rows(records({"vbucket": 3, "seqno": 1})).num_rows == 0
    assert maker().rows(records()).num_rows == 0


def test_the_memory_of_numbers_is_not_copied() -> None:
    batch = records({"vbucket": 3, "seqno": 1, "cas": 5})
    row = maker("cas").rows(batch)
    assert np.shares_memory(row.column("cas").to_numpy(), batch.column("cas").to_numpy())
