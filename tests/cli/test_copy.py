"""The copy command between real nodes. The pipeline itself is tested in tests/pipelines."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwater import testing
from headwater.cli.app import app
from tests.pipelines.buckets import state
from tests.spark.conftest import lent_spark, spark

__all__ = ["lent_spark", "spark"]


@pytest.mark.battery
@pytest.mark.spark
@pytest.mark.usefixtures("lent_spark")
def test_a_copy_that_is_made_once_goes_on_where_its_checkpoint_stands(tmp_path: Path) -> None:
    with testing.node(vbuckets=8) as source, testing.node(vbuckets=8) as target, source.client() as client:
        line = ["copy", source.url, target.url, "--checkpoint", str(tmp_path / "checkpoint"), "--once"]
        client.set_many({"kept": "1", "changed": "1", "dropped": "1"})
        first = CliRunner().invoke(app, line)
        assert (first.exit_code, state(target)) == (0, state(source)), first.output
        client.set("changed", "2")
        client.delete("dropped")
        second = CliRunner().invoke(app, line)
        assert (second.exit_code, state(target)) == (0, state(source)), second.output


@pytest.mark.spark
@pytest.mark.battery
@pytest.mark.timeout(900)  # two starts of a JVM, one after the other
def test_a_copy_that_is_killed_goes_on_where_its_checkpoint_stands(tmp_path: Path) -> None:
    with testing.node(vbuckets=8) as source, testing.node(vbuckets=8) as target, source.client() as client:
        client.set_many({"kept": "1", "changed": "1", "dropped": "1"})
        line = [sys.executable, "-m", "headwater", "copy", source.url, target.url]
        line += ["--checkpoint", str(tmp_path / "checkpoint")]
        process = subprocess.Popen([*line, "--progress", "json"], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        while json.loads(process.stdout.readline())["stored"] < 3:
            assert process.poll() is None
        client.set_many((f"k{i}", "v") for i in range(5000))
        client.set("changed", "2")
        client.delete("dropped")
        process.kill()
        process.communicate(timeout=240)
        done = subprocess.run([*line, "--once"], capture_output=True, text=True, timeout=540, check=False)
        assert done.returncode == 0, done.stderr
        assert state(target) == state(source)


def test_a_wrong_address_is_told_before_spark_starts(tmp_path: Path) -> None:
    nobody = "couchbase://127.0.0.1:1/default"
    result = CliRunner().invoke(app, ["copy", nobody, nobody + "2", "--checkpoint", str(tmp_path / "checkpoint")])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("headwater: 127.0.0.1:1") and result.stderr.count("\n") == 1
    assert not (tmp_path / "checkpoint").exists()
