"""The mirror command: a Delta table beside a real node. The pipeline itself is tested in tests/pipelines."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwater import testing
from headwater.cli import jobs as cli
from headwater.cli.app import app
from headwater.cli.demo.contents import of_table
from headwater.pipelines import collections as by_collection
from headwater.pipelines import mirror as one_table
from headwater.pipelines.jobs import Mirror
from headwater.pipelines.mirror import MirrorProgress
from tests.pipelines.support import becomes, put_into, table


def command(url: str, table: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "headwater", "mirror", url, "--to", str(table), *options]


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.battery])])
@pytest.mark.timeout(900)  # on Spark two starts of a JVM, one after the other
def test_a_mirror_that_was_stopped_goes_on_where_its_table_stands(engine: str, tmp_path: Path) -> None:
    table = tmp_path / "table"
    with testing.node(vbuckets=8) as node, node.client() as client:
        client.set_many({"kept": "1", "changed": "1", "dropped": "1"})
        following = command(node.url, table, "--engine", engine, "--progress", "json")
        process = subprocess.Popen(following, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        while json.loads(process.stdout.readline())["changes"] < 3:
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=240)
        assert process.returncode == 0, log

        client.set("changed", "2")
        client.delete("dropped")
        done = subprocess.run(
            command(node.url, table, "--engine", engine, "--once"),
            capture_output=True,
            text=True,
            timeout=540,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "the table holds 5 changes, 1 stored and 1 deleted" in done.stdout
    assert of_table(table) == {b"kept": b"1", b"changed": b"2"}


def test_the_first_command_of_the_guide_works_in_an_empty_folder(tmp_path: Path) -> None:
    with testing.node(vbuckets=8) as node, node.client() as client:
        client.set_many({"a": "1", "b": "2"})
        asked = command(node.url, Path("lake/default"), "--once", "--engine", "local")
        asked[asked.index("lake/default")] = "./lake/default"
        done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("batch 1: the table holds 2 changes, 2 stored and 0 deleted in ")
    assert done.stdout.count("\n") == 1, "of a batch that brings nothing there is no line"
    assert of_table(tmp_path / "lake" / "default") == {b"a": b"1", b"b": b"2"}
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]


@pytest.mark.parametrize("place", ["webhdfs://lake/t", "hdfs:///lake/t"])
def test_a_place_that_is_no_folder_is_refused_in_one_line(place: str) -> None:
    with testing.node(vbuckets=2) as node:
        asked = ["mirror", node.url, "--to", place, "--engine", "local"]
        result = CliRunner().invoke(app, asked)
    assert result.exit_code == 2
    assert (
        result.stderr == f'headwater: option "to": "{place}" is not a folder, or a url of s3:, gs: or abfss:; '
        "HDFS and others can be mounted\n"
    )


def test_a_wrong_address_is_told_before_spark_starts(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["mirror", "couchbase://127.0.0.1:1/default", "--to", str(tmp_path / "table")])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("headwater: 127.0.0.1:1") and result.stderr.count("\n") == 1
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--dropped", "drop"], 'option "dropped": "drop" is not given with --collections or --scope'),
        (["--collections", "a.b", "--scope", "a"], 'option "scope": "a" is not given without collections'),
        (["--collections", "shop"], 'option "collection": "shop" is not a name like "scope.collection", with one dot'),
        (
            ["--scope", "shop", "--table", "c.s.t"],
            "in Spark SQL: CREATE TABLE ... USING delta LOCATION 'FOLDER/SCOPE/COLLECTION'",
        ),
    ],
)
def test_a_choice_of_collections_that_makes_no_sense_is_refused_before_anybody_is_asked(
    options: list[str], told: str, tmp_path: Path
) -> None:
    asked = ["mirror", "couchbase://127.0.0.1:1/b", "--to", str(tmp_path / "t"), *options]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 2
    assert told in result.stderr
    assert not (tmp_path / "t").exists()


def test_json_goes_on_to_unfold_and_says_its_name_of_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[bool] = []
    monkeypatch.setattr(cli, "check_answers", lambda *_, **__: None)
    monkeypatch.setattr(one_table, "work", lambda job: begun.append(job.unfold or job.json))
    line = ["mirror", "couchbase://127.0.0.1:1/b", "--to", str(tmp_path / "t"), "--engine", "local"]
    assert "--unfold" in CliRunner().invoke(app, [*line, "--json"]).stderr
    assert CliRunner().invoke(app, [*line, "--unfold"]).stderr == ""
    assert begun == [True, True]


def test_each_collection_has_a_table_and_each_line_says_whose_it_is(tmp_path: Path) -> None:
    with testing.node(vbuckets=4) as node:
        becomes(node, 1, a=8)
        put_into(node, 8, "k", value='{"n": 1}')
        options = ["--engine", "local", "--once", "--collections", "shop.a", "--unfold"]
        result = CliRunner().invoke(app, ["mirror", node.url, "--to", str(tmp_path), *options])
    assert result.exit_code == 0, result.output
    assert "of shop.a: the tables hold" in result.output
    assert table(tmp_path / "shop" / "a", "n") == {"k": {"n": 1}}


@pytest.mark.parametrize(
    ("choice", "what"),
    [([], "the table is level with the bucket"), (["--scope", "shop"], "each table is level with its collection")],
)
def test_a_run_that_finds_nothing_to_do_says_so(
    choice: list[str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "check_answers", lambda *asked, **more: None)
    batches = [0, 1, 0]

    def work(job: Mirror) -> None:
        for _ in range(batches.pop()):
            job.progress(MirrorProgress())

    monkeypatch.setattr(by_collection if choice else one_table, "work", work)

    def told(*words: str) -> tuple[str, str]:
        given = ["mirror", "couchbase://127.0.0.1:1/b", "--to", str(tmp_path / "t"), *choice, *words]
        done = CliRunner().invoke(app, given)
        assert done.exit_code == 0, done.output
        return done.stdout, done.stderr

    assert told("--once") == ("", f"headwater: nothing to do: {what}\n")
    assert told("--once")[0].startswith("batch 0") and told("--once", "--progress", "none") == ("", "")
