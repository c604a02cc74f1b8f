"""The commands against a real node."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from typer.testing import CliRunner

from headwater import testing
from headwater.cli.app import app


class Run(Protocol):
    def __call__(self, *arguments: str, stdin: bytes | None = None) -> tuple[int, str, str]: ...


@pytest.fixture(scope="module")
def node() -> Iterator[testing.Node]:
    with testing.node(vbuckets=16) as running:
        yield running


@pytest.fixture
def run(node: testing.Node, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line against the node; returns (status, stdout, stderr)."""
    monkeypatch.setenv("HEADWATER_NODE", node.url)

    def invoke(*arguments: str, stdin: bytes | None = None) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, list(arguments), input=stdin)
        return result.exit_code, result.stdout, result.stderr

    return invoke


def test_what_is_set_is_got_byte_for_byte(run: Run) -> None:
    assert run("set", "greeting", "hello  wörld")[0] == 0
    assert run("get", "greeting") == (0, "hello  wörld\n", "")


def test_a_value_is_read_from_stdin(run: Run) -> None:
    run("set", "piped", "-", stdin=b"line 1\nline 2")
    assert run("get", "piped")[1] == "line 1\nline 2\n"


def test_json_output_carries_cas_and_flags(run: Run) -> None:
    _, told, _ = run("set", "flagged", "v", "--flags", "7")
    assert json.loads(run("get", "--json", "flagged")[1]) == {
        "key": "flagged",
        "cas": int(told.split()[1]),
        "flags": 7,
        "value": "v",
    }


def test_a_stale_cas_is_refused_with_status_1(run: Run) -> None:
    run("set", "guarded", "new")
    status, shown, told = run("set", "guarded", "newer", "--cas", "1")
    assert (status, shown) == (1, "") and told.startswith("headwater: ") and told.count("\n") == 1
    assert run("get", "guarded")[1] == "new\n"


def test_what_is_deleted_is_gone(run: Run) -> None:
    run("set", "doomed", "v")
    assert run("delete", "doomed")[0] == 0
    assert run("get", "doomed")[0] == 1 and run("delete", "doomed")[0] == 1


def test_a_loaded_file_is_stored_row_by_row(run: Run, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("id,n\n" + "".join(f"k{number},{number}\n" for number in range(300)))
    status, told, _ = run("load", str(rows), "--key", "id", "--prefix", "row:")
    assert status == 0 and told.startswith("300 documents stored in ")
    assert json.loads(run("get", "row:k299")[1]) == {"id": "k299", "n": 299}


def test_a_file_that_is_broken_in_the_middle_is_told(run: Run, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": 1}\n{"n": 2}\n')
    status, _, told = run("load", str(rows), "--key", "id")
    assert status == 1 and f"{rows}, line 2: has no field 'id'" in told and told.count("\n") == 1


def test_seqnos_and_failover_logs_are_shown(run: Run) -> None:
    run("set", "counted", "v")
    plain = dict(line.split() for line in run("seqnos")[1].splitlines())
    assert len(plain) == 16 and sum(map(int, plain.values())) > 0
    assert json.loads(run("seqnos", "--json", "--vbuckets", "0-3")[1]) == {name: int(plain[name]) for name in "0123"}
    vb_uuid, seqno = run("failover-log", "3")[1].split()
    assert len(vb_uuid) == 16 and seqno == "0"
    assert json.loads(run("failover-log", "3", "--json")[1]) == [{"vb_uuid": vb_uuid, "seqno": 0}]


def test_tail_shows_each_kind_of_change_once(run: Run) -> None:
    run("set", "tailed", '{"a": 1}')
    run("set", "binary", "-", stdin=b"\xff\x00")
    run("set", "dropped", "v")
    run("delete", "dropped")
    rows = [json.loads(line) for line in run("tail", "--once", "--json")[1].splitlines()]
    by_key = {row["key"]: row for row in rows}
    assert len(by_key) == len(rows)
    assert (by_key["tailed"]["event"], by_key["tailed"]["value"]) == ("mutation", {"a": 1})
    assert by_key["binary"]["base64"] == "/wA="
    assert by_key["dropped"]["event"] == "deletion" and "value" not in by_key["dropped"]


def test_tail_for_people_cuts_long_values_and_can_leave_them_out(run: Run) -> None:
    run("set", "long", "x" * 200)
    line = next(line for line in run("tail", "--once")[1].splitlines() if " long " in line)
    assert line.endswith("x" * 160 + "... (40 bytes more)")
    short = next(line for line in run("tail", "--once", "--keys-only")[1].splitlines() if line.endswith(" long"))
    assert short.split()[1:] == ["mutation", "long"]


def test_tail_from_now_shows_nothing_older(run: Run) -> None:
    run("set", "older", "v")
    assert run("tail", "--from", "now", "--once") == (0, "", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_tail_follows_until_a_signal_and_ends_well(node: testing.Node, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "headwater", "tail", "--node", node.url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with node.client() as client:
        client.set("followed", str(number))
    assert process.stdout is not None
    while "followed" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (0, "")


def test_serve_says_ready_keeps_what_it_was_given_and_stops_in_order(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "headwater",
        "serve",
        "--port",
        "0",
        "--vbuckets",
        "4",
        "--data",
        str(tmp_path / "s"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    ready = process.stdout.readline().split()
    assert ready[0] == "ready"
    environment = {**os.environ, "HEADWATER_NODE": f"couchbase://{ready[1]}/default"}
    stored = [sys.executable, "-m", "headwater", "set", "k", "v"]
    assert subprocess.run(stored, env=environment, capture_output=True, timeout=60, check=False).returncode == 0
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (0, "")


def test_a_port_that_is_taken_is_told_in_one_line(node: testing.Node, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headwater", "serve", "--port", str(node.port), "--data", str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "port" in done.stderr and done.stdout == ""
    assert done.stderr.startswith("headwater: ") and done.stderr.count("\n") == 1


def test_a_store_that_is_in_use_is_told_in_one_line(node: testing.Node) -> None:
    command = [sys.executable, "-m", "headwater", "serve", "--port", "0", "--data", str(node.data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stderr.startswith("headwater: ") and done.stderr.count("\n") == 1
