"""Backups in an object store, by the commands: whole, cut off, refused, and by two runs at once."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.nodes import until
from headwater.backup.archive import Archive
from headwater.backup.manifest import BACKUPS, MANIFEST
from headwater.backup.place import place_of
from headwater.backup.verify import verify
from headwater.cli.app import app
from headwater.testing import Node, processes
from tests.backup.support import backed_up, fill, held, restored
from tests.battery import few_of
from tests.lake.s3_faults import REFUSED, SLOW_DOWN, faults, on
from tests.lake.s3_server import AUTHORISED, BUCKET, make_bucket, s3_server

DATA, OF_A_BACKUP = r"\.parquet$", MANIFEST.replace(".", r"\.")


def run(*words: object) -> Any:
    return CliRunner().invoke(app, ["backup", *map(str, words)])


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The server, named by the environment; the file is that of its faults."""
    path = tmp_path_factory.mktemp("s3") / "faults.json"
    path.write_text("[]")
    with s3_server(S3_FAULTS=str(path)) as environment, pytest.MonkeyPatch.context() as patch:
        for name, text in environment.items():
            patch.setenv(name, text)
        make_bucket()
        yield path


@pytest.fixture
def place(rules: Path) -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex}/orders"


@pytest.fixture
def begin(bucket: Node, place: str, tmp_path: Path) -> Iterator[Callable[[str], processes.Process]]:
    """Begin a backup in a process of its own, with failpoints; what it says of errors is in `log`."""
    begun = ExitStack()

    def started(points: str) -> processes.Process:
        with (tmp_path / "log").open("wb") as log:
            environment = {**os.environ, "HEADWATER_FAILPOINTS": points}
            process = processes.start(["backup", "create", place, "--node", bucket.url], environment, log)
        assert process.stdout is not None
        begun.enter_context(process.stdout)
        return process

    with begun:
        yield started


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_bucket_is_backed_up_by_url_looked_at_restored_and_pruned(bucket: Node, empty: Node, place: str) -> None:
    fill(bucket, "a")
    first = json.loads(run("create", place, "--node", bucket.url, "--json").stdout)
    fill(bucket, "b")
    second = json.loads(run("create", place, "--node", bucket.url, "--json").stdout)
    assert (first["kind"], second["kind"], second["parent"]) == ("full", "increment", first["id"])
    shown = json.loads(run("list", place, "--json").stdout)
    assert ([each["id"] for each in shown["backups"]], shown["problems"]) == ([first["id"], second["id"]], [])
    assert json.loads(run("verify", place, "--json").stdout)["problems"] == []
    assert run("restore", place, "--node", empty.url).exit_code == 0
    assert held(empty) == held(bucket)
    third = json.loads(run("create", place, "--full", "--node", bucket.url, "--json").stdout)
    gone = json.loads(run("prune", place, "--keep", "1", "--json").stdout)
    assert (gone["removed"], gone["kept"]) == ([first["id"], second["id"]], [third["id"]])
    assert place_of(place).names(BACKUPS) == [third["id"]]
    assert verify(Archive(place_of(place))).problems == []


def test_a_point_in_time_is_restored_by_its_seqnos(bucket: Node, empty: Node, place: str, tmp_path: Path) -> None:
    fill(bucket, "a")
    before = held(bucket)
    with bucket.client() as client:
        (tmp_path / "seqnos").write_text(json.dumps(client.seqnos()))
    backed_up(bucket, place_of(place))
    fill(bucket, "b")
    backed_up(bucket, place_of(place))
    told = run("restore", place, "--seqnos", tmp_path / "seqnos", "--node", empty.url)
    assert (told.exit_code, held(empty) == before) == (0, True)


@pytest.mark.parametrize("step", few_of(["file_written", "before_manifest"], "before_manifest"))
def test_a_backup_that_was_killed_between_two_objects_goes_on(
    step: str, bucket: Node, empty: Node, place: str, begin: Callable[[str], processes.Process]
) -> None:
    fill(bucket, "a")
    assert begin(f"backup.{step}=kill").wait(200) == -signal.SIGKILL
    found = Archive(place_of(place))
    assert (found.backups, len(found.unfinished), verify(found).problems) == ({}, 1, [])
    fill(bucket, "b")
    assert begin("").wait(200) == 0
    whole = Archive(place_of(place))
    assert (whole.unfinished, verify(whole).problems) == ([], [])
    restored(place_of(place), empty)
    assert held(empty) == held(bucket)


@pytest.mark.parametrize(
    "path",
    few_of([DATA, OF_A_BACKUP, r"archive\.json$"], OF_A_BACKUP),
    ids=["a file", "the manifest", "the index"],
)
def test_where_a_put_is_refused_no_half_backup_verifies(
    path: str, rules: Path, bucket: Node, empty: Node, place: str
) -> None:
    fill(bucket, "a")
    backed_up(bucket, place_of(place))
    fill(bucket, "b")
    with faults(rules, on("PUT", path, **REFUSED)):
        told = run("create", place, "--node", bucket.url)
    assert told.exit_code == 1
    assert f"{place}: the store refuses" in told.stderr
    assert "look at the credentials" in told.stderr
    looked = json.loads(run("verify", place, "--json").stdout)
    finished = path.startswith("archive")  # its manifest is there, only its name in the index is not
    assert (looked["backups"], looked["problems"]) == (1 + finished, [])
    assert run("create", place, "--node", bucket.url).exit_code == 0
    restored(place_of(place), empty)
    assert held(empty) == held(bucket)


def test_a_store_that_is_slow_and_asks_for_patience_is_waited_for(
    rules: Path, bucket: Node, empty: Node, place: str
) -> None:
    fill(bucket, "a")
    busy = on("PUT", DATA, times=1, **SLOW_DOWN)
    with faults(rules, busy, on("PUT", "orders", seconds=0.2), on("GET", DATA, seconds=0.2)):
        assert run("create", place, "--node", bucket.url).exit_code == 0
        assert json.loads(run("verify", place, "--json").stdout)["problems"] == []
        restored(place_of(place), empty)
    assert held(empty) == held(bucket)


def test_of_two_runs_at_once_one_makes_the_backup_and_the_other_says_so(
    bucket: Node, empty: Node, place: str, tmp_path: Path, begin: Callable[[str], processes.Process]
) -> None:
    """The first stands still with a file in place that nothing names yet; the second takes its backup for dead."""
    fill(bucket, "a")
    first = begin("backup.file_written=stop")
    until(lambda: is_stopped(first.pid), "the first stands still")
    fill(bucket, "b")
    made = backed_up(bucket, place_of(place))
    first.send_signal(signal.SIGCONT)
    assert first.wait(200) == 1
    assert "another run has taken this backup over" in (tmp_path / "log").read_text()
    whole = Archive(place_of(place))
    assert (list(whole.backups), verify(whole).problems) == ([made.id], [])
    restored(place_of(place), empty)
    assert held(empty) == held(bucket)


def test_a_bucket_that_is_not_there_is_said_to_be_missing(rules: Path, bucket: Node) -> None:
    for words in (("list",), ("verify",), ("create", "--node", bucket.url)):
        told = run(words[0], "s3://nowhere/orders", *words[1:])
        assert told.exit_code == 1
        assert "s3://nowhere/orders: there is no such bucket" in told.stderr


def test_credentials_that_are_wrong_or_missing_are_a_line(bucket: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(**AUTHORISED) as environment:
        for name, text in environment.items():
            monkeypatch.setenv(name, text)
        told = run("list", f"s3://{BUCKET}/orders")
        assert (told.exit_code, "look at the credentials" in told.stderr) == (1, True)


@pytest.mark.parametrize(("url", "library"), [("gs://b/orders", "gcsfs"), ("abfs://c/orders", "adlfs")])
def test_a_store_whose_library_is_missing_says_what_to_install(url: str, library: str) -> None:
    told = run("list", url)
    assert told.exit_code == 2
    missing = f"possible without {library}: pip install {library}"
    assert told.stderr.strip() == f'headwater: option "place": "{url}" is not {missing}'


def test_options_behind_a_question_mark_are_not_passed_over() -> None:
    told = run("list", f"s3://{BUCKET}/orders?endpoint_override=127.0.0.1:9000")
    assert (told.exit_code, "AWS_ENDPOINT_URL" in told.stderr) == (2, True)
