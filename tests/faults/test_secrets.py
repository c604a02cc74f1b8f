"""Passwords on the command line and in connection strings: they are taken, and shown to nobody."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater import client, testing
from headwater.errors import HeadwaterError
from headwater.testing.node import Node
from tests.faults.test_roles import private

HEADWATER = Path(sys.executable).with_name("headwater")
SECRET = "s3cret/%@"
ESCAPED = "s3cret%2F%25%40"


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with testing.node(vbuckets=4, user="ann", environment={"HEADWATER_PASSWORD": SECRET}) as running:
        yield running


@pytest.fixture
def url(node: Node) -> str:
    return node.url.replace("://", f"://ann:{ESCAPED}@")


def run(*words: str, **options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HEADWATER, *words],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        **options,  # type: ignore[call-overload]
    )


def test_a_connection_string_with_a_name_and_a_password_is_taken(node: Node, url: str) -> None:
    with client.connect(url) as bucket:
        bucket.set(b"k", b"v")
    got = run("get", "k", "--node", url)
    assert (got.returncode, got.stdout) == (0, "v"), got.stderr
    with pytest.raises(HeadwaterError) as caught:
        client.connect(url.replace("s3cret", "wr0ng"))
    assert "wr0ng" not in repr(caught.value) and "wr0ng" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ("get", "k", "{url}"),
        ("get", "k", "--node", "{url}", "--user", "bob"),
        ("get", "k", "--node", "ftp://ann:s3cret@host/b"),
        ("tail", "{url}", "{url}"),
        ("cluster", "status", "ann:s3cret@127.0.0.1:1"),
        ("replicate", "couchbase://ann:s3cret@127.0.0.1:1", "couchbase://ann:s3cret@127.0.0.1:1"),
        ("serve", "--port", "ann:s3cret@x://ann:s3cret@host"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_no_complaint_repeats_a_password(url: str, words: tuple[str, ...]) -> None:
    told = run(*(word.format(url=url) for word in words))
    assert told.returncode in (1, 2)
    assert "s3cret" not in told.stderr + told.stdout, told.stderr


@pytest.mark.parametrize("how", ["url", "option", "equals"])
def test_who_looks_at_the_processes_of_the_machine_sees_no_password(node: Node, url: str, how: str) -> None:
    words = {
        "url": ["--node", url],
        "option": ["--node", node.url, "--user", "ann", "--password", SECRET],
        "equals": ["--node", node.url, "--user", "ann", f"--password={SECRET}"],
    }[how]
    with client.connect(url) as bucket:
        bucket.set(b"seen", b"v")
    with subprocess.Popen([HEADWATER, "tail", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline(), "it has logged in, and shows changes"
        shown = Path(f"/proc/{follower.pid}/cmdline").read_bytes()
        follower.terminate()
    assert b"s3cret" not in shown and b"tail" in shown and b"--node" in shown


def test_a_password_comes_from_a_file_or_standard_input(node: Node, tmp_path: Path) -> None:
    file = private(tmp_path / "password", f"{SECRET}\n")
    login = ("--node", node.url, "--user", "ann", "--password-file")
    with client.connect(node.url, "ann", SECRET) as bucket:
        bucket.set(b"k", b"v")
    assert run("get", "k", *login, str(file)).stdout == "v"
    assert run("get", "k", *login, "-", input=f"{SECRET}\n").stdout == "v"
    file.chmod(0o644)
    refused = run("get", "k", *login, str(file))
    assert refused.returncode == 2 and "chmod 600" in refused.stderr


def test_who_gives_two_passwords_is_asked_which(node: Node, url: str) -> None:
    refused = run("get", "k", "--node", url, "--user", "ann", "--password", "other")
    assert refused.returncode == 2 and "only once" in refused.stderr
