"""The positions that `tail --positions` keeps cover what was printed, wherever the command was ended."""

import errno
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from harness.nodes import until
from headwater import testing
from headwater.cli.stopping import Stopped
from headwater.client import load_positions
from tests.cli.support import Run

KEYS = 40


@pytest.fixture(scope="module")
def filled() -> Iterator[testing.Node]:
    with testing.node(vbuckets=4) as running, running.client() as bucket:
        bucket.set_many({f"kept-{number}": "v" for number in range(KEYS)})
        yield running


def keys(output: str) -> list[str]:
    return [line.split()[2] for line in output.splitlines() if " mutation " in line]


@pytest.mark.parametrize(
    "ended", [Stopped(signal.SIGTERM), OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
)
def test_a_change_whose_line_was_not_written_is_printed_by_the_next_run(
    run: Run, filled: testing.Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ended: BaseException
) -> None:
    command = ("tail", "--once", "--positions", str(tmp_path / "audit.json"), "--node", filled.url)
    echo, lines = typer.echo, 0

    def ends_at_the_eighth(*arguments: object, **options: object) -> None:
        nonlocal lines
        lines += 1
        if lines == 8:
            raise ended
        echo(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr("headwater.cli.tail.typer.echo", ends_at_the_eighth)
        status, first, _ = run(*command)
    assert status != 0 and len(keys(first)) == 7
    status, second, _ = run(*command)
    assert status == 0 and sorted(keys(first) + keys(second)) == sorted(f"kept-{number}" for number in range(KEYS))


def test_positions_of_vbuckets_that_are_left_out_stay_in_the_file(
    run: Run, filled: testing.Node, tmp_path: Path
) -> None:
    kept = tmp_path / "audit.json"
    command = ("tail", "--once", "--positions", str(kept), "--node", filled.url)
    assert len(keys(run(*command)[1])) == KEYS
    before = load_positions(kept.read_text("utf-8"))
    assert run(*command, "--vbuckets", "0") == (0, "", "")
    assert load_positions(kept.read_text("utf-8")) == before
    assert run(*command) == (0, "", "")


def test_vbuckets_that_the_file_does_not_have_begin_where_from_says(
    run: Run, filled: testing.Node, tmp_path: Path
) -> None:
    command = ("tail", "--once", "--positions", str(tmp_path / "audit.json"), "--node", filled.url)
    assert run(*command, "--vbuckets", "0")[0] == 0
    last = run("tail", "--once", "--vbuckets", "1", "--node", filled.url)[1].splitlines()[-1]
    seqno = int(last.split()[0].removeprefix("1:"))
    assert run(*command, "--vbuckets", "1", "--from", str(seqno - 1))[1].splitlines() == [last]


def test_vbuckets_of_another_choice_of_collections_get_no_place_in_the_file(run: Run, tmp_path: Path) -> None:
    with testing.node(vbuckets=2) as node:
        assert run("collection", "create", "shop.orders", "--node", node.url)[0] == 0
        command = ("tail", "--once", "--positions", str(tmp_path / "audit.json"), "--node", node.url)
        assert run(*command, "--vbuckets", "0")[0] == 0
        status, _, problem = run(*command, "--vbuckets", "1", "--collection", "shop.orders")
        assert status == 2 and "what the positions were saved with: the whole bucket" in problem


def test_what_passes_without_a_line_moves_the_positions_while_tail_goes_on(
    filled: testing.Node, tmp_path: Path
) -> None:
    kept = tmp_path / "audit.json"
    command = ("tail", "--positions", str(kept), "--key", "none", "--node", filled.url)
    process = subprocess.Popen([sys.executable, "-m", "headwater", *command], stdout=subprocess.DEVNULL)
    try:
        with filled.client() as bucket:
            high = sum(bucket.seqnos().values())
        until(lambda: kept.exists() and _seqnos(kept) == high, "positions at the high seqnos")
    finally:
        process.kill()
        process.wait()


def _seqnos(kept: Path) -> int:
    return sum(position.seqno for position in load_positions(kept.read_text("utf-8")).values())


def test_every_change_is_printed_however_often_the_command_is_stopped(tmp_path: Path) -> None:
    count, runs, output = 5000, 4, ""
    with testing.node(vbuckets=4) as node:
        with node.client() as bucket:
            bucket.set_many({f"k{number}": "v" * 100 for number in range(count)})
        command = [sys.executable, "-m", "headwater", "tail", "--positions", str(tmp_path / "audit.json")]
        command += ["--node", node.url]
        for _ in range(runs):
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                output += "".join(process.stdout.readline() for _ in range(200))
                process.send_signal(signal.SIGTERM)
                output += process.stdout.read()
            assert process.returncode == 0
        assert len(keys(output)) < count, "the command was stopped while it printed"
        output += subprocess.check_output([*command, "--once"], text=True)
    assert set(keys(output)) == {f"k{number}" for number in range(count)}
    assert len(keys(output)) - count <= runs, "a stop repeats the line that was being written, if any"
