"""The demo of a failover: two real nodes, a real mirror without Spark, the operator's commands as processes."""

import subprocess
import sys
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest

from headwater.cli.demo import command
from headwater.cli.demo.command import StoryName
from headwater.cli.demo.contents import TableFormat
from headwater.cli.demo.failover import ADDED, DELETED, OVERWRITTEN, RolledBackRows, show, undone
from headwater.cli.extras import advice
from tests.battery import few_of


@pytest.mark.parametrize("form", few_of(TableFormat, TableFormat.ICEBERG))
def test_the_demo_undoes_what_was_lost_and_ends_with_a_table_that_equals_the_node(
    form: TableFormat, tmp_path: Path
) -> None:
    words = ["demo", "failover", "--keep", str(tmp_path / "kept"), "--format", form]
    command = [sys.executable, "-m", "headwater", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "the table equals the node"
    assert f"  {len(ADDED)} rows only the lost branch had" in lines
    assert f"  {len(OVERWRITTEN)} rows it had overwritten" in lines
    assert f"  {len(DELETED)} rows it had deleted" in lines
    assert "    order:0: lost is kept again" in lines
    assert {path.name for path in (tmp_path / "kept").iterdir()} >= {"A", "B", "table", "table_changes", "mirror.log"}


def test_a_library_that_is_missing_is_told_before_anything_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name in ("deltalake", "duckdb") else find_spec(name))
    for story, form in product(StoryName, TableFormat):
        with pytest.raises(ModuleNotFoundError, match=r"deltalake|duckdb") as missing:
            command.demo(story, form=form)
        assert "the extra `demo`" in (advice(missing.value) or "")


def test_each_kind_of_row_that_was_undone_is_told() -> None:
    found = undone({b"a": b"lost", b"b": b"1", b"c": b"1"}, {b"b": b"2", b"c": b"1", b"d": b"1"})
    assert found == RolledBackRows((b"a",), ((b"b", b"1", b"2"),), (b"d",))
    assert show(found) == [
        *("  1 row only the lost branch had", "    a"),
        *("  1 row it had overwritten", "    b: 1 is 2 again"),
        *("  1 row it had deleted", "    d"),
    ]
    assert show(undone({b"%d" % n: b"" for n in range(5)}, {}))[:5] == [
        *("  5 rows only the lost branch had", "    0", "    1", "    2", "    ..."),
    ]
