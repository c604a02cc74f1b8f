from headwater.kernels.batches import SCHEMA
from headwater.lake.shape import CHANGES, KEPT, SOURCE
from headwater.spark.columns import ARROW
from headwater.spark.schema import COLUMNS
from headwater.wire.event_columns import BATCH, EVENT_COLUMNS, SHOWN


def test_the_order_of_a_batch_is_a_format() -> None:
    numbers = ["vbucket", "opcode", "seqno", "rev_seqno", "cas", "flags", "expiry", "datatype"]
    assert list(BATCH) == [*numbers, "snapshot_start", "snapshot_end", "key", "value"]
    assert {field.name: str(field.type) for field in SCHEMA} == BATCH


def test_the_order_of_a_table_and_its_change_log_is_a_format() -> None:
    middle = ("cas", "rev_seqno", "flags", "expiry", "datatype")
    assert tuple(KEPT) == ("key", "value", "vbucket", "seqno", "vb_uuid", *middle, "modified_at")
    assert ("vbucket", "seqno", "vb_uuid", "event", "key", "value", *middle) == SOURCE
    assert tuple(CHANGES) == (*SOURCE, "snapshot_start", "snapshot_end", "modified_at", "batch")
    assert {kind for kind, _ in KEPT.values()} | set(CHANGES.values()) <= {
        *("binary", "string", "integer", "long", "timestamp"),
    }


def test_every_column_is_somewhere_and_means_something_in_spark() -> None:
    assert SHOWN == ("vbucket", "seqno", "cas", "rev_seqno", "flags", "expiry")
    for column in EVENT_COLUMNS:
        assert column.batch or column.spark
        assert bool(column.spark) == bool(column.meaning) == (column.name in COLUMNS)
        assert not column.spark or column.spark in ARROW
