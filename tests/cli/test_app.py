"""All commands: their help, and how they end when they cannot do what was asked."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import pytest
import typer
from packaging.requirements import Requirement
from typer.testing import CliRunner

import headwater
from headwater.cli.app import app
from tests.client.seeds import refusing_port

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_the_version_is_printed() -> None:
    assert invoke("--version") == (0, f"headwater {headwater.__version__}\n", "")


def test_without_a_command_the_commands_are_listed() -> None:
    status, shown, _ = invoke()
    assert status == 0 and all(command in shown for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples_in_its_help(command: str) -> None:
    status, shown, _ = invoke(command, "--help")
    assert status == 0 and "Examples:" in shown and f"$ headwater {command}" in shown


def every_command(group: Any = None, name: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of each command, those in groups too."""
    for each, command in (group or typer.main.get_command(app)).commands.items():
        yield from every_command(command, (*name, each)) if hasattr(command, "commands") else [(*name, each)]


@pytest.mark.parametrize("command", sorted(every_command()), ids=" ".join)
def test_a_switch_shows_no_type_in_the_help(command: tuple[str, ...]) -> None:
    """typer 0.29 writes <bool> behind each; pyproject.toml names the versions this was looked at with."""
    status, shown, _ = invoke(*command, "--help")
    assert status == 0 and "<bool>" not in shown and "--help" in shown


def test_the_version_of_typer_is_one_that_the_help_was_looked_at_with() -> None:
    (asked,) = (each for each in requires("headwater") or () if each.startswith("typer"))
    assert Requirement(asked).specifier.contains(version("typer")) and "<" in asked


@pytest.mark.parametrize("group", ["cluster", "lake", "user", "tls", "backup", "collection"])
def test_a_group_without_a_command_shows_its_help_and_nothing_else(group: str) -> None:
    status, shown, told = invoke(group)
    assert status == 2 and f"headwater {group}" in shown + told
    assert not (shown + told).rstrip().endswith("--help")


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("get",),
        ("get", "k", "--colour", "red"),
        ("tail", "--vbuckets", "0-1024"),
        ("failover-log", "1024"),
        ("load", "no-such-file.csv", "--key", "id"),
        ("load", __file__, "--format", "xml"),
        ("set", "k", "v", "--expiry", "soon"),
        ("demo", "--rows", "1"),
        ("move", "--from", "a:1", "--to", "a:1"),
        ("move", "--from", "a:1", "--to", "b:1", "--takeover", "--follow"),
        ("replicate", "a:1", "a:1"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_told_in_one_line_with_status_2(arguments: tuple[str, ...]) -> None:
    status, shown, told = invoke(*arguments)
    assert (status, shown) == (2, "")
    assert told.startswith("headwater: ") and told.count("\n") == 1 and "--help" in told


@pytest.mark.parametrize(
    "arguments",
    [("get", "k"), ("set", "k", "v"), ("delete", "k"), ("seqnos",), ("failover-log", "0"), ("tail", "--once")],
    ids=" ".join,
)
def test_a_node_that_does_not_answer_is_told_in_one_line_with_status_1(arguments: tuple[str, ...]) -> None:
    address = refusing_port()
    status, shown, told = invoke(*arguments, "--node", f"couchbase://{address}/default")
    assert (status, shown) == (1, "")
    assert told.startswith("headwater: ") and address in told and told.count("\n") == 1


def test_a_url_that_is_none_is_told_in_one_line() -> None:
    status, _, told = invoke("get", "k", "--node", "http://[")
    assert status in (1, 2) and told.count("\n") == 1 and told.startswith("headwater: ")


def test_an_unusable_option_of_serve_is_told_in_one_line(tmp_path: Path) -> None:
    status, _, told = invoke("serve", "--vbuckets", "1000", "--data", str(tmp_path / "s"))
    assert status in (1, 2) and "1000" in told and told.count("\n") == 1


def test_the_light_commands_begin_without_the_heavy_libraries() -> None:
    check = (
        "import sys, headwater.cli.app\n"
        "print(*sorted({'numba', 'pyarrow', 'pyspark', 'pandas', 'matplotlib'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("set key - --node 127.0.0.1:1 <&-", "headwater: Bad file descriptor\n"),  # it is no empty document
        ("config show >&-", "headwater: Bad file descriptor\n"),
        ("config show > /dev/full", "headwater: No space left on device\n"),
        ("get key --node 127.0.0.1:1 2>&-", ""),
    ],
)
def test_what_was_closed_before_the_start_is_an_error_of_one_line(words: str, told: str) -> None:
    command = f"{sys.executable} -m headwater {words}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", told)


def test_a_terminal_that_is_not_utf_8_shows_what_it_has_no_letter_for_by_number(tmp_path: Path) -> None:
    (tmp_path / "\u20ac.toml").write_text("port = 0\n")
    command = [sys.executable, "-m", "headwater", "config", "show", "\u20ac.toml", "--changed"]
    surrounding = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, cwd=tmp_path, env=surrounding, capture_output=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, b"") and b"\\u20ac.toml:1" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("words", [("get", "k"), ("tail", "--once"), ("tap", "--dump")], ids=" ".join)
def test_a_signal_before_the_work_is_done_ends_with_one_line_and_its_own_status(
    words: tuple[str, ...], number: signal.Signals
) -> None:
    """A listener that never answers keeps it waiting; the signal comes when it has connected."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(120)
        url = f"couchbase://127.0.0.1:{silent.getsockname()[1]}/default"
        command = [sys.executable, "-m", "headwater", *words, "--node", url]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        connection, _ = silent.accept()
        with connection:
            process.send_signal(number)
            shown, told = process.communicate(timeout=240)
    assert process.returncode == 128 + number and shown == ""
    assert told == f"headwater: stopped by {number.name}\n"
