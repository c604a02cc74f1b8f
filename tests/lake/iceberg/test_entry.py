"""Functions that the rest of the lake calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headwater.errors import TableError
from headwater.lake.iceberg import entry
from tests.lake.iceberg.support import published
from tests.lake.support import Table

IMPORTED = """
import sys
from headwater.lake import commit
print([name for name in ("fastavro", "headwater.lake.iceberg.publish") if name in sys.modules])
"""


def test_a_table_that_is_not_published_needs_no_library() -> None:
    run = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_library_that_is_missing_is_named_with_what_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = published(tmp_path)
    monkeypatch.setitem(sys.modules, "fastavro", None)
    for call in (entry.publish, entry.differences):
        with pytest.raises(TableError, match="the extra iceberg brings: pip install fastavro"):
            call(table.log)
    with pytest.raises(TableError, match="fastavro"):
        entry.check_columns(str(tmp_path), table.log.state.fields)


@pytest.mark.parametrize(("value", "is_so"), [("true", True), ("TRUE", True), ("false", False), ("", False)])
def test_the_property_says_so_in_any_case(value: str, is_so: bool, tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.log.state.metadata["configuration"] = {"headwater.iceberg": value}
    assert entry.is_published(table.log.state) is is_so
