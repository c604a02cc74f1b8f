"""The demo from beginning to end, in small: a real node killed on the way, a real mirror, a real table."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.spark
@pytest.mark.battery
@pytest.mark.timeout(900)  # a minute, with a Spark of its own
@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_the_demo_ends_with_a_table_that_equals_the_node(form: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headwater", "demo", "--rows", "2000", "--rounds", "2", "--share", "0.1"]
    done = subprocess.run(
        [*command, "--format", form, "--report", str(tmp_path / "report"), "--keep", str(tmp_path / "kept")],
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "the table equals the node"
    assert any(line.startswith("kill -9") for line in lines)
    summary = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert summary["documents in the node"] == summary["documents in the table"] > 1000
    assert "<svg" in (tmp_path / "report" / "report.html").read_text()
    assert {path.name for path in (tmp_path / "kept").iterdir()} >= {"store", "table", "mirror.log"}
