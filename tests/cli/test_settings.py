"""Settings of a command that runs: from a file, and from a profile of it."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from headwater.cli import get
from headwater.cli.app import app
from headwater.cli.settings import Settings
from tests.cli.support import Run


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_a_command_takes_what_the_line_says_then_the_environment_then_the_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("set", "configured", "text")[0] == 0
    file = write(tmp_path / "all.toml", "port = 1\n[get]\njson = true\n[set]\nexpiry = 5\nflags = 7\n")
    status, shown, _ = run("--config", file, "get", "configured")
    assert status == 0 and json.loads(shown)["flags"] == 0
    monkeypatch.setenv("HEADWATER_CONFIG", file)
    assert run("set", "configured", "text", "--flags", "9")[0] == 0
    assert json.loads(run("get", "configured")[1])["flags"] == 9
    assert run("set", "configured", "text")[0] == 0
    told = json.loads(run("get", "configured")[1])
    assert told["flags"] == 7


def test_the_environment_comes_before_the_file(run: Run, tmp_path: Path) -> None:
    # HEADWATER_NODE names the node of the test; the file names one that is not there.
    file = write(tmp_path / "node.toml", "[seqnos]\nnode = 'couchbase://127.0.0.1:1/default'\n")
    assert run("--config", file, "seqnos")[0] == 0
    assert run("--config", file, "seqnos", "--node", "couchbase://127.0.0.1:1/default")[0] == 1


def test_what_a_command_needs_may_be_in_the_file(run: Run, tmp_path: Path) -> None:
    rows = write(tmp_path / "rows.jsonl", '{"id": "configured"}\n')
    file = write(tmp_path / "node.toml", f"[load]\nfile = '{rows}'\nkey = 'id'\ndry-run = true\n")
    assert run("--config", file, "load")[:2] == (0, "1 documents, nothing was stored\n")


def test_a_file_with_faults_is_refused_before_anything_is_done(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path / "node.toml", "[get]\njason = true\n")
    status, shown, problems = run("--config", file, "get", "k")
    assert (status, shown) == (2, "") and "get.jason" in problems and "headwater config check" in problems


def test_a_password_in_a_file_that_others_may_read_is_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    file = write(path, "[get]\npassword = 'secret'\n")
    path.chmod(0o644)
    status, _, problems = run("--config", file, "get", "k")
    assert status == 2 and "chmod 600" in problems and "secret" not in problems


def test_a_profile_is_told_to_the_command_that_runs_and_makes_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("headwater.cli.listed.import_module", _only_get)
    group: Any = typer.main.get_command(app)
    file = tmp_path / "all.toml"
    file.write_text("[profiles.production]\nnode = 'db1'\nuser = 'ann'\n")
    told = Settings(file, "production").defaults(group, "get")
    assert told == {"get": {"node": "couchbase://db1:11210/default", "user": "ann"}}


def _only_get(place: str) -> Any:
    assert place == "headwater.cli.get"
    return get


def test_without_a_file_nothing_is_said() -> None:
    assert Settings().defaults(None, "get") == {} and Settings().path is None
