"""How nodes are started: forked ones cannot be told from plain ones, and end when whoever started them does (Linux)."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from headwater import testing
from headwater.testing import processes
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from tests.node.wire import Client

PLAINLY = {"HEADWATER_TESTING_FORK": "0"}
SECONDS = 120


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[processes.ForkServers]:
    """ForkServers that a test may break."""
    made = processes.ForkServers()
    monkeypatch.setattr(processes, "fork_servers", made)
    yield made
    made.end()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def descriptors(pid: int) -> list[str]:
    """Return the open descriptors, without the numbers of pipes and sockets."""
    names = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            names.append(str(fd.readlink()).partition(":[")[0])
    return sorted(name.replace(str(pid), "PID") for name in names)


def of_node(node: testing.Node) -> list[str]:
    return [name.replace(str(node.data), "") for name in descriptors(node.pid)]


def failure(environment: dict[str, str], **options: object) -> str:
    with pytest.raises(testing.NodeError) as raised, testing.node(environment=environment, **options):
        pass
    return str(raised.value)


def ends(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], SECONDS)[0])


def test_a_node_is_forked_and_works() -> None:
    with testing.node(vbuckets=2) as node, Client(node.port) as client:
        assert processes.fork_servers.current and parent(node.pid) == processes.fork_servers.current.pid
        assert client.ask(Opcode.SET, key=b"k", extras=bytes(8), value=b"v").status == 0
    assert processes.fork_servers.broken == ""


@pytest.mark.parametrize("environment", [{}, PLAINLY], ids=["forked", "plain"])
def test_any_command_can_be_run_like_a_node(environment: dict[str, str], tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+b") as log:
        told = []
        for arguments in (["serve", "--help"], ["move", "--nonsense"]):
            process = processes.start(arguments, {**os.environ, **environment}, log)
            assert process.stdout
            with process.stdout as out:
                told.append(out.read().decode())
            assert process.wait(SECONDS) == (2 if "--nonsense" in arguments else 0)
        log.seek(0)
        assert "Usage: python -m headwater serve" in told[0] and "headwater move" in log.read().decode()


def test_without_forking_it_is_the_plain_command() -> None:
    with testing.node(vbuckets=2, environment=PLAINLY) as node, Client(node.port) as client:
        command = Path(f"/proc/{node.pid}/cmdline").read_bytes().split(b"\0")
        assert parent(node.pid) == os.getpid() and command[1:4] == [b"-m", b"headwater", b"serve"]
        assert client.ask(Opcode.SET, key=b"k", extras=bytes(8), value=b"v").status == 0
        assert node.stop() == 0


def test_a_variable_that_is_read_while_loading_needs_a_process_of_its_own() -> None:
    with testing.node(vbuckets=2), testing.node(vbuckets=2, environment={"PYTHONHASHSEED": "7"}) as other:
        assert parent(other.pid) == os.getpid()


@pytest.mark.parametrize(
    ("environment", "options"),
    [
        ({}, {"vbuckets": 3}),
        ({}, {"log_level": "loud"}),
        ({}, {"host": "203.0.113.1", "insecure": True}),
        ({"HEADWATER_FAILPOINTS": "nowhere=kill"}, {"vbuckets": 2}),
    ],
)
def test_a_start_that_fails_fails_alike(environment: dict[str, str], options: dict[str, object]) -> None:
    forked = failure(environment, **options)
    assert forked == failure(environment | PLAINLY, **options)
    assert "status 0" not in forked and "headwater: " in forked


def test_a_forked_node_has_the_descriptors_of_a_plain_one() -> None:
    with (
        testing.node(vbuckets=2),
        testing.node(vbuckets=2) as forked,
        testing.node(vbuckets=2, environment=PLAINLY) as plain,
    ):
        deadline = time.monotonic() + SECONDS
        # A node that is up still loads what the first scrape wants, and has folders open for a moment; a leak stays.
        while (found := of_node(forked)) != (expected := of_node(plain)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert found == expected


def test_most_of_a_forked_nodes_memory_is_shared() -> None:
    with testing.node(vbuckets=2) as forked, testing.node(vbuckets=2, environment=PLAINLY) as plain:
        assert private(forked.pid) < private(plain.pid) / 2


def private(pid: int) -> int:
    """Memory that only this process has, KiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_forked_node_stops_in_order(number: signal.Signals) -> None:
    with testing.node(vbuckets=2) as node:
        os.kill(node.pid, number)
        assert node.wait() == 0 and node.log == ""


def test_a_node_that_was_killed_has_the_status_of_that() -> None:
    with testing.node(vbuckets=2) as node:
        os.kill(node.pid, signal.SIGKILL)
        assert node.wait() == -signal.SIGKILL and not node.is_running
        node.start()
        assert node.is_running


def test_failpoints_are_those_of_the_start() -> None:
    with testing.node(vbuckets=2, environment={"HEADWATER_FAILPOINTS": "log.before_sync=kill@2"}) as node:
        with Client(node.port) as client:
            client.send(Frame(0x80, Opcode.SET, b"k", bytes(8), b"v").encode())
            assert client.read() is None
        assert node.wait() == -signal.SIGKILL
        node.environment = {}
        node.start()
        with Client(node.port) as client:
            for _ in range(3):
                assert client.ask(Opcode.SET, key=b"k", extras=bytes(8), value=b"v").status == 0


def test_many_threads_may_start_nodes() -> None:
    def one(_: int) -> tuple[int, int, int]:
        with testing.node(vbuckets=1) as node, Client(node.port) as client:
            assert client.ask(Opcode.NOOP).status == 0
            uuid = client.ask(Opcode.GET_FAILOVER_LOG).value[:8]
            return node.pid, node.port, int.from_bytes(uuid)

    with ThreadPoolExecutor(4) as threads:
        pids, _, uuids = zip(*threads.map(one, range(8)), strict=True)
    assert len(set(pids)) == len(set(uuids)) == 8


def test_the_working_directory_is_that_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    node = testing.Node(Path("here"), {"vbuckets": 1}).start()
    assert node.stop() == 0 and (tmp_path / "here").is_dir()


def test_a_fork_server_that_dies_takes_its_nodes_along_and_the_next_start_is_plain(own: processes.ForkServers) -> None:
    with testing.node(vbuckets=1) as node:
        assert own.current
        os.kill(own.current.pid, signal.SIGKILL)
        assert node.wait(SECONDS) == -signal.SIGKILL
        node.start()
        assert own.broken and parent(node.pid) == os.getpid()


DYING = """
import os, sys
from headwater import testing
with testing.node(vbuckets=1) as one, testing.node(vbuckets=1) as other:
    left = os.fork()
    if left == 0:
        os.read(0, 1)  # a process that outlives its parent and has what was open there
        os._exit(0)
    print(one.pid, other.pid, testing.processes.fork_servers.current.pid, left, flush=True)
    os.read(0, 1)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_when_the_test_process_dies_all_that_it_started_ends(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", DYING], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        *pids, left = map(int, process.stdout.readline().split())
        watched = [os.pidfd_open(pid) for pid in pids]
        process.send_signal(number)
        try:
            assert all(map(ends, watched)) and Path(f"/proc/{left}").exists()
        finally:
            for each in watched:
                os.close(each)


def test_a_fork_server_that_did_not_answer_in_time_starts_nothing_later(
    own: processes.ForkServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "ANSWER_SECONDS", 0.001)
    with testing.node(vbuckets=2) as node:
        assert own.broken and own.current and parent(node.pid) == os.getpid()
        assert own.current._process.wait(SECONDS) == -signal.SIGKILL
        assert node.log == ""
