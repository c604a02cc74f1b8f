from pathlib import Path
from typing import Any

import pytest

from headwater.pipelines.table import KEPT, MirrorTable, newest, undone

ROW = (
    "key binary, value binary, vbucket int, seqno bigint, vb_uuid string, cas bigint, rev_seqno bigint, flags bigint, "
)
SCHEMA = ROW + "expiry bigint, datatype int, event string"


def changes(spark: Any, *rows: tuple[str, int, int, str]) -> Any:
    """(key, vbucket, seqno, event or value)"""
    made = []
    for key, vb, seqno, what in rows:
        event, value = (what, None) if what == "deletion" else ("mutation", what.encode())
        made.append((key.encode(), value, vb, seqno, "0" * 16, seqno, 1, 0, 0, 0, event))
    return spark.createDataFrame(made, SCHEMA)


def held(spark: Any, table: MirrorTable) -> dict[bytes, tuple[bytes, int]]:
    rows = spark.read.format("delta").load(table.path).collect()
    return {bytes(row.key): (bytes(row.value), row.seqno) for row in rows}


def test_what_a_rollback_undoes_is_told_by_vbucket() -> None:
    assert undone({7: 3, 2: 10}) == "t.seqno > try_element_at(map(2, 10L, 7, 3L), t.vbucket)"


@pytest.mark.spark
def test_an_older_change_does_nothing_and_a_version_is_written_once(spark: Any, tmp_path: Path) -> None:
    table = MirrorTable(spark, str(tmp_path / "t"))
    table.merge(changes(spark, ("a", 1, 5, "five"), ("b", 1, 6, "six")), {}, KEPT, ("app", 0))
    table.merge(changes(spark, ("a", 1, 9, "deletion")), {}, KEPT, ("app", 0))  # batch 0 is in the table already
    table.merge(changes(spark, ("a", 1, 4, "four"), ("b", 1, 3, "deletion")), {}, KEPT, ("app", 1))
    assert held(spark, table) == {b"a": (b"five", 5), b"b": (b"six", 6)}


@pytest.mark.spark
def test_a_rollback_takes_out_and_puts_back_in_its_own_vbucket_only(spark: Any, tmp_path: Path) -> None:
    table = MirrorTable(spark, str(tmp_path / "t"))
    before = [("kept", 1, 2, "old"), ("lost", 1, 9, "x"), ("overwritten", 1, 8, "x"), ("elsewhere", 2, 9, "y")]
    table.merge(changes(spark, *before), {}, KEPT, ("app", 0))
    replay = [("kept", 1, 2, "old"), ("overwritten", 1, 1, "back"), ("removed", 1, 3, "back"), ("new", 1, 7, "n")]
    table.merge(changes(spark, *replay), {1: 5}, KEPT, ("app", 1))
    assert held(spark, table) == {
        b"kept": (b"old", 2),
        b"overwritten": (b"back", 1),
        b"removed": (b"back", 3),
        b"new": (b"n", 7),
        b"elsewhere": (b"y", 9),
    }


@pytest.mark.spark
def test_of_several_changes_of_a_key_the_newest_counts(spark: Any) -> None:
    rows = newest(changes(spark, ("a", 1, 5, "five"), ("a", 1, 7, "deletion"), ("a", 1, 6, "six"))).collect()
    assert [(row.seqno, row.event) for row in rows] == [(7, "deletion")]
