"""Every command that may take long shows how far it is: on a terminal with rate and time left, elsewhere by lines.

The table is complete: a command that is new has no entry, and that fails.
"""

import inspect
import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from headwater import testing
from headwater.cli import meter
from tests.cli.support import Run
from tests.cli.test_forms import ALL

METER = {
    "load": "documents, by how much of the file is read",
    "export": "changes that are read, then documents that are written",
    "backup create": "changes",
    "backup verify": "bytes",
    "backup restore": "changes",
    "replicate": "changes, and how many it is behind",
    "move": "changes, and how many it is behind",
    "cluster rebalance": "vbuckets",
    "lake verify": "files of the table, then changes of the bucket",
    "lake optimize": "files",
    "lake vacuum": "files",
    "lake repair": "files",
}
"""These show a `Meter`, and of this."""
BATCHES = {
    "mirror": "a line a batch: what the table holds, what came to it, the seconds",
    "copy": "a line a batch",
    "invalidate": "a line a batch",
    "publish": "a line a batch",
    "index": "a line a batch",
    "observe": "a live table, elsewhere a line for each prefix of a window",
    "transition": "a line a batch: so many of so many vbuckets",
}
"""These are jobs: `--progress` says how each batch is told, and --metrics-port how far they are behind."""
OUTPUT = {
    "serve": "its line `ready`, lines of compiling before it; then its log",
    "tail": "each change is a line",
    "tap": "each change is a line",
    "demo": "each step of the story is a line",
    "console": "the address to open",
}
"""The output of these tells how far they are."""
SHORT = {
    **dict.fromkeys(("get", "set", "delete"), "one document"),
    **dict.fromkeys(("seqnos", "failover-log", "streams", "cluster status"), "a question to each node"),
    **dict.fromkeys(("bucket list", "bucket quota", "bucket history", "bucket create"), "a word to each node"),
    "bucket drop": "a word to each node, which removes files beside its serving",
    **dict.fromkeys(
        ("collection alter", "collection create", "collection drop", "collection list"), "a word to each node"
    ),
    **dict.fromkeys(("user add", "user list", "user roles", "user password", "user remove"), "a small file, or a node"),
    **dict.fromkeys(("tls ca", "tls node", "tls user", "tls show"), "a certificate"),
    **dict.fromkeys(("config check", "config show"), "a small file"),
    "cluster init": "empty nodes; one that is starting is named while it is waited for",
    "cluster failover": "a map and the states of replicas; nothing is copied",
    "cluster tls": "a map",
    "failover": "states of replicas; nothing is copied",
    "search": "an index is asked, for at most a thousand hits",
    "lake describe": "the table's log, with its checkpoints, and no data",
    "backup list": "manifests, and no data",
    "backup prune": "whole files are removed, a few for each backup",
}
TABLES = (METER, BATCHES, OUTPUT, SHORT)


def module_of(name: str) -> str:
    return inspect.getsource(sys.modules[ALL[name].callback.__module__])


@pytest.mark.parametrize("name", ALL)
def test_every_command_is_in_one_table(name: str) -> None:
    assert sum(name in table for table in TABLES) == 1, f"{name}: how does it show how far it is, or why is it short?"


def test_no_command_of_the_tables_is_gone() -> None:
    assert {name for table in TABLES for name in table} <= set(ALL)


@pytest.mark.parametrize("name", METER)
def test_what_shows_a_meter_makes_one(name: str) -> None:
    assert re.search(r"\bMeter\(", module_of(name))


@pytest.mark.parametrize("name", BATCHES)
def test_a_job_reports_its_batches_as_all_jobs_do(name: str) -> None:
    assert "reporter(" in module_of(name) and "--progress" in {
        text for param in ALL[name].params for text in param.opts
    }


def test_no_command_draws_a_bar_of_its_own() -> None:
    """Such a bar would have no lines where there is no terminal."""
    folder = Path(meter.__file__).parent
    own = [path.name for path in folder.rglob("*.py") if re.search(r"\bprogress\(\w*err|Progress\(", path.read_text())]
    assert sorted(own) == ["screen.py"] and "progress(console" in Path(meter.__file__).read_text()


LINES = (
    ("load", "{rows}", "--key", "id"),
    ("export", "{place}/all.jsonl"),
    ("backup", "create", "{place}/backups"),
    ("backup", "verify", "{place}/backups"),
    ("backup", "restore", "{place}/backups"),
    ("move", "--from", "{address}", "--to", "{other}", "--vbuckets", "0"),
    ("replicate", "{address}", "{other}", "--vbuckets", "1", "--once"),
)


@pytest.fixture
def words(node: testing.Node, tmp_path: Path) -> dict[str, str]:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"id": "{number}"}}\n' for number in range(500)))
    return {"rows": str(rows), "place": str(tmp_path), "address": str(node.address)}


@pytest.mark.parametrize("terminal", [True, False], ids=["on a terminal", "elsewhere"])
def test_rate_and_time_left_are_shown(
    run: Run, words: dict[str, str], terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    if terminal:
        monkeypatch.setattr(meter, "err", lambda: Console(file=screen, force_terminal=True, width=200))
    else:
        monkeypatch.setattr(meter, "LINE_SECONDS", 0.0)
    with testing.node(vbuckets=16, vbucket_state="none") as other:
        for line in LINES:
            screen.truncate(0)
            status, shown, problems = run(*(each.format(**words, other=other.address) for each in line), "--json")
            assert status == 0 and shown.count("\n") == 1, f"{line}: {problems}"
            told = screen.getvalue() if terminal else problems
            assert re.search(r" \d[\d,.]* \w+/s|- \w+/s", told), f"{line}: {told!r}"
            assert ("ETA" in told) if terminal else re.search(r"s left|: 0 ", told), f"{line}: {told!r}"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo terminal")
def test_a_real_terminal_gets_a_bar_and_a_pipe_the_result_alone(node: testing.Node, words: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "headwater", "load", words["rows"], "--key", "id", "--node", node.url]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, env=os.environ | {"TERM": "xterm", "COLUMNS": "200"}
    ) as process:
        os.close(theirs)
        drawn = b""
        while True:
            try:
                if not (part := os.read(ours, 4096)):
                    break
            except OSError:  # Linux says so at the end
                break
            drawn += part
        shown, _ = process.communicate(timeout=240)
    os.close(ours)
    assert process.returncode == 0 and shown.startswith(b"500 documents stored") and shown.count(b"\n") == 1
    assert b"documents/s" in drawn and b"ETA" in drawn
