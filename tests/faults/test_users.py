"""Users that come, go and change while a node runs, and a node that nobody has given any."""

from __future__ import annotations

import base64
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from headwater import client, testing
from headwater.errors import AuthError, TransportError
from headwater.testing.node import Node
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.faults.test_roles import PRODUCER, login
from tests.node.replication.support import Line, until

HEADWATER = Path(sys.executable).with_name("headwater")
PASSWORD = "correct horse"


def user(node: Node | Path, *arguments: str, said: str = "") -> subprocess.CompletedProcess[str]:
    """Run `headwater user`, with a password on standard input."""
    data = node.data if isinstance(node, Node) else node
    command = [HEADWATER, "user", *arguments, "--data", data]
    return subprocess.run(command, input=said, capture_output=True, text=True, timeout=240, check=False)


def added(node: Node | Path, name: str, roles: str) -> None:
    done = user(node, "add", name, "--roles", roles, said=f"{PASSWORD}\n")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def node() -> Iterator[Node]:
    with testing.node(vbuckets=4, user="root", environment={"HEADWATER_PASSWORD": "root-s3cret"}) as running:
        yield running


def lets_in(node: Node, name: str, password: str = PASSWORD) -> bool:
    with Line(node.port) as line:
        return line.call(Opcode.SASL_AUTH, b"PLAIN", b"\0" + name.encode() + b"\0" + password.encode()).status == 0


def test_a_list_that_is_lost_is_missed_at_the_next_start_and_lets_nobody_in() -> None:
    """On the loopback everybody could do everything, and nothing said that there had been users."""
    with testing.node(vbuckets=4) as node:
        added(node, "ann", "administer")
        until(lambda: lets_in(node, "ann"), "the node has taken the user up")
        until(lambda: b'"users": true' in (node.data / "MANIFEST").read_bytes(), "the store knows that there are users")
        node.stop()
        (node.data / "USERS").unlink()
        with pytest.raises(testing.NodeError, match="though this store has users: put it back, or begin anew"):
            node.start()
        added(node, "bea", "administer")
        node.start()
        assert lets_in(node, "bea") and not lets_in(node, "ann")


def test_programs_that_go_on_with_the_password_of_yesterday_keep_nobody_out(node: Node) -> None:
    """A scrape, a console and a job, all of the address of those who know the new one."""
    over, refused = threading.Event(), []

    def scrape() -> None:
        login = base64.b64encode(b"root:yesterday's").decode()
        asked = urllib.request.Request(
            f"http://127.0.0.1:{node.port}/metrics", headers={"Authorization": f"Basic {login}"}
        )
        while not over.wait(0.1):
            with suppress(OSError, urllib.error.HTTPError), urllib.request.urlopen(asked, timeout=60):
                pass

    def job() -> None:
        while not over.wait(0.1):
            try:
                client.connect(node.url, "root", "yesterday's").close()
            except (AuthError, TransportError) as error:
                refused.append(error)

    programs = [threading.Thread(target=each, daemon=True) for each in (*[scrape] * 10, *[job] * 4)]
    for program in programs:
        program.start()
    try:
        until(lambda: len(refused) > 8, "the address is known for wrong logins")
        for _ in range(5):
            with client.connect(node.url, "root", "root-s3cret") as bucket:
                bucket.set(b"k", b"v")
    finally:
        over.set()
        for program in programs:
            program.join()
    assert "login refused: wrong name or password (user 'root')" in node.log


def test_a_user_that_is_added_comes_in_without_a_restart_and_its_password_is_nowhere(node: Node) -> None:
    added(node, "ann", "read,write")
    until(lambda: lets_in(node, "ann"), "the node has taken the user up")
    with client.connect(node.url, "ann", PASSWORD) as bucket:  # SCRAM
        bucket.set(b"k", b"v")
        assert bucket.get(b"k").value == b"v"
    assert not lets_in(node, "ann", "wrong")
    files = [each for each in node.data.rglob("*") if each.is_file()]
    assert node.data / "USERS" in files
    assert not any(PASSWORD.encode() in file.read_bytes() for file in files) and PASSWORD not in node.log
    assert (node.data / "USERS").stat().st_mode & 0o077 == 0


def test_users_outlive_a_restart_and_a_crash(node: Node) -> None:
    added(node, "ann", "read")
    node.kill()
    node.start()
    assert lets_in(node, "ann")


def test_a_user_that_is_removed_is_cut_off_and_stays_out(node: Node) -> None:
    added(node, "ann", "read")
    until(lambda: lets_in(node, "ann"), "the node has taken the user up")
    with login(node, "ann", PASSWORD) as line:
        assert user(node, "remove", "ann").returncode == 0
        with pytest.raises((ConnectionError, EOFError, AssertionError)):
            while True:
                line.call(Opcode.NOOP)
                time.sleep(0.05)
    assert not lets_in(node, "ann")


def test_a_right_that_is_taken_away_is_gone_from_open_connections_and_streams(node: Node) -> None:
    added(node, "ann", "read,write,stream")
    until(lambda: lets_in(node, "ann"), "the node has taken the user up")
    with login(node, "ann", PASSWORD) as line, login(node, "ann", PASSWORD) as stream:
        assert line.call(Opcode.SET, b"k", b"v", bytes(8)).status == 0
        assert stream.call(Opcode.DCP_OPEN, b"s", b"", PRODUCER).status == 0
        assert user(node, "roles", "ann", "read").returncode == 0
        until(lambda: line.call(Opcode.SET, b"k", b"v", bytes(8)).status == Status.EACCESS, "it may write no more")
        assert line.call(Opcode.GET, b"k").value == b"v"
        with pytest.raises((ConnectionError, EOFError, AssertionError)):
            while True:
                stream.call(Opcode.NOOP)
                time.sleep(0.05)
        assert user(node, "roles", "ann", "write").returncode == 0
        until(lambda: line.call(Opcode.GET, b"k").status == Status.EACCESS, "it may read no more")
        assert line.call(Opcode.SET, b"k", b"v", bytes(8)).status == 0


def test_a_password_that_is_changed_is_the_only_one(node: Node) -> None:
    added(node, "ann", "read")
    until(lambda: lets_in(node, "ann"), "the node has taken the user up")
    assert user(node, "password", "ann", said="another one\n").returncode == 0
    until(lambda: lets_in(node, "ann", "another one"), "the new one is taken")
    assert not lets_in(node, "ann")
    with pytest.raises(AuthError):
        client.connect(node.url, "ann", PASSWORD)


def test_a_role_for_another_bucket_opens_nothing_here(node: Node) -> None:
    added(node, "ann", "administer:orders")
    until(lambda: lets_in(node, "ann"), "the node has taken the user up")
    with login(node, "ann", PASSWORD) as line:
        assert line.call(Opcode.GET, b"k").status == Status.NO_BUCKET, "what she may read is elsewhere"
        assert line.call(Opcode.SELECT_BUCKET, b"default").status == Status.EACCESS
        assert line.call(Opcode.LIST_BUCKETS).value == b""


def test_a_node_that_got_its_first_user_wants_logins_from_then_on_and_without_any_left_too(tmp_path: Path) -> None:
    with testing.node(vbuckets=4) as node, Line(node.port) as before:
        assert before.call(Opcode.SET, b"k", b"v", bytes(8)).status == 0
        added(node, "ann", "administer")
        until(lambda: lets_in(node, "ann"), "the node has taken the user up")
        until(lambda: before.call(Opcode.GET, b"k").status == Status.EACCESS, "who has not logged in is a stranger now")
        assert user(node, "remove", "ann").returncode == 1
        assert user(node, "remove", "ann", "--force").returncode == 0
        node.restart()
        with Line(node.port) as line:
            assert line.call(Opcode.GET, b"k").status == Status.EACCESS


def test_a_damaged_file_of_users_stops_a_start_and_changes_nothing_in_a_running_node(node: Node) -> None:
    added(node, "ann", "read")
    until(lambda: lets_in(node, "ann"), "the node has taken the user up")
    file = node.data / "USERS"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"ann", b"eve"))
    until(lambda: "USERS" in node.log, "the node has seen it")
    assert lets_in(node, "ann") and not lets_in(node, "eve")
    assert user(node, "add", "bob", said="x\n").returncode == 1
    node.stop()
    with pytest.raises(testing.NodeError, match="checksum of the file of users"):
        node.start()
    file.write_bytes(whole)
    node.start()
    assert lets_in(node, "ann")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_without_users_no_network_is_listened_to(tmp_path: Path, host: str) -> None:
    command = [HEADWATER, "serve", "--port", "0", "--vbuckets", "4", "--host", host, "--data", tmp_path / "data"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2
    assert "headwater user add" in done.stderr and "--insecure" in done.stderr
    assert "ready" not in done.stdout
