"""Progress is printed as text, as JSON or not at all; a problem goes to stderr."""

import json
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from headwater.cli.app import app
from headwater.cli.reporting import ProgressFormat, metered, reporter
from headwater.errors import OptionError, OutputLost
from headwater.pipelines.attempts import Attempts
from headwater.pipelines.jobs import BucketCopy, CopyProgress, DeclaredJob, Invalidation, Publish, TextIndex

WELL, ILL = CopyProgress(batches=3), CopyProgress(batches=3, problem="node: reset")


def line(progress: CopyProgress) -> str:
    return f"batch {progress.batches}"


@pytest.mark.parametrize(
    ("shown", "progress", "out", "err"),
    [
        (ProgressFormat.TEXT, WELL, "batch 3\n", ""),
        (ProgressFormat.TEXT, ILL, "", "headwater: node: reset; trying again\n"),
        (ProgressFormat.JSON, ILL, json.dumps(ILL.to_json()) + "\n", ""),
        (ProgressFormat.NONE, WELL, "", ""),
        (ProgressFormat.NONE, ILL, "", ""),
    ],
)
def test_progress_is_printed_as_it_was_asked_for(
    shown: ProgressFormat, progress: CopyProgress, out: str, err: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter(shown, line)(progress)
    assert capsys.readouterr() == (out, err)


@pytest.mark.parametrize("shown", [ProgressFormat.TEXT, ProgressFormat.JSON])
def test_lines_that_nobody_can_have_end_the_job(shown: ProgressFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w", buffering=1, encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        attempts = Attempts(CopyProgress(), reporter(shown, line), stop=lambda: False, retry_seconds=60.0)
        with pytest.raises(OutputLost, match="No space left on device"):
            attempts.run(attempts.batch_done)
        monkeypatch.undo()
        with suppress(OSError):
            full.close()
    assert attempts.progress.retries == 0


def test_with_a_port_progress_is_told_and_served(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[CopyProgress] = []
    with metered("copy", "0", told.append) as asked:
        said = capsys.readouterr().err
        assert said.startswith("headwater: metrics at http://127.0.0.1:") and said.endswith("/metrics\n")
        asked["progress"](CopyProgress(stored=7))
        asked["watch"].batch(0.5)
        with urllib.request.urlopen(said.split()[-1], timeout=60) as answer:
            text = answer.read().decode()
    assert [progress.stored for progress in told] == [7]
    assert 'headwater_job_rows_total{job="copy",kind="stored"} 7.0' in text
    assert 'headwater_job_batch_seconds_count{job="copy"} 1.0' in text


def test_without_a_port_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with metered("copy", None, print) as asked:
        assert asked == {"progress": print}
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("address", ["", "a", "1:", "65536", "127.0.0.1:-1"])
def test_what_is_no_port_is_refused(address: str) -> None:
    with pytest.raises(OptionError, match="a port, or HOST:PORT"), metered("copy", address, print):
        pass


@pytest.mark.parametrize(
    ("job", "places", "what"),
    [
        ("index", ["b"], "the index is level with the bucket"),
        ("copy", ["couchbase://127.0.0.1:1/c", "--checkpoint", "b"], "all that the source has was copied before"),
        ("publish", ["--to", "kafka://127.0.0.1:1/changes"], "the topic has all changes of the bucket"),
        ("invalidate", ["redis://127.0.0.1:1", "--checkpoint", "b"], "nothing has changed since the last run"),
    ],
)
def test_a_job_that_finds_nothing_to_do_says_so(
    job: str, places: list[str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headwater.cli.jobs.check_answers", lambda *asked, **more: None)
    monkeypatch.setattr("headwater.pipelines.caches.open_cache", lambda *asked: SimpleNamespace(close=lambda: None))
    batches = [0, 1, 0]

    def work(job: DeclaredJob[Any]) -> None:
        for _ in range(batches.pop()):
            job.progress(CopyProgress())

    monkeypatch.setattr(f"headwater.pipelines.{job}.work", work)
    for kind in (BucketCopy, Invalidation, Publish, TextIndex):
        monkeypatch.setattr(kind, "line", lambda job, progress: line(progress))

    def told(*words: str) -> tuple[str, str]:
        done = CliRunner().invoke(app, [job, "couchbase://127.0.0.1:1/b", *places, *words])
        assert done.exit_code == 0, done.output
        return done.stdout, done.stderr

    assert told("--once") == ("", f"headwater: nothing to do: {what}\n")
    assert told("--once") == ("batch 0\n", "") and told("--once", "--progress", "none") == ("", "")
