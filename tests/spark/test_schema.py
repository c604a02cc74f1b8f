from pathlib import Path

import pytest

from headwater.errors import OptionError
from headwater.spark.schema import COLUMNS, choose, ddl


def test_the_schema_as_spark_writes_it() -> None:
    assert ddl() == (
        "vbucket int, seqno bigint, vb_uuid string, event string, key binary, value binary, cas bigint, "
        "rev_seqno bigint, flags bigint, expiry bigint, datatype int, snapshot_start bigint, snapshot_end bigint, "
        "modified_at timestamp"
    )
    assert "key string, value binary" in ddl("string", "binary")


def test_a_schema_of_the_user_chooses_columns_in_any_order() -> None:
    assert choose([("seqno", "bigint"), ("key", "string")], "string", "binary") == ("seqno", "key")


@pytest.mark.parametrize("wrong", [("seqno", "int"), ("sequence", "bigint"), ("key", "binary")])
def test_a_column_that_is_not_ours_is_refused_by_name(wrong: tuple[str, str]) -> None:
    with pytest.raises(OptionError, match=f'"{wrong[0]} {wrong[1]}" is not a column of the dcp source: vbucket int'):
        choose([wrong], "string", "binary")


def test_the_guide_explains_every_column() -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "spark.md").read_text(encoding="utf-8")
    for name, (kind, meaning) in COLUMNS.items():
        assert f"| `{name}` | {kind} | {meaning} |" in page
