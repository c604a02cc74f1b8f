"""`headwater serve` as a process: its one line, its stop, and what kill -9 leaves."""

from __future__ import annotations

import json
import random
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import pack, unpack_from
from threading import Thread
from zlib import crc32

import pytest

from harness.nodes import until
from headwater import testing
from headwater.testing.node import Node
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from tests.node.replication.support import call, put
from tests.node.wire import Client


def test_no_kernel_of_the_node_is_left_to_its_first_use() -> None:
    """A kernel that is not loaded before would be on the event loop's thread, half a second long."""
    script = """if True:
        from headwater.kernels import jit
        from headwater.node import run
        run.warm_up()
        print(*{name.split(".")[2] for name, built in jit.built_kernels() if not built.signatures})
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=True)
    assert set(done.stdout.split()) <= {"ingest", "scan"}  # of tests, and of clients


def test_a_start_that_fails_leaves_nothing_behind_that_ends_the_process_of_its_caller(tmp_path: Path) -> None:
    script = """if True:
        import pathlib, sys
        from headwater import invariants
        from headwater.errors import HeadwaterError
        from headwater.node import run
        from headwater.node.config import NodeConfig
        try:
            run.serve(NodeConfig(data=pathlib.Path(sys.argv[1]), port=int(sys.argv[2])))
        except HeadwaterError:
            print(invariants.listeners)
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-c", script, str(tmp_path), str(taken.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout == "[]\n"


def failover_log(client: Client, vb: int) -> list[tuple[int, int]]:
    value = client.ask(0x96, vbucket=vb).value
    return [unpack_from(">QQ", value, at) for at in range(0, len(value), 16)]


def test_a_graceful_stop_answers_what_it_took_and_history_goes_on() -> None:
    with testing.node(vbuckets=4) as node:
        with Client(node.port) as client:
            client.send(Frame(0x80, 1, b"k", bytes(8), b"last").encode())
            assert client.read() is not None
            before = failover_log(client, 0)
            assert node.stop() == 0
            assert client.read() is None
        node.start()
        with Client(node.port) as client:
            assert client.ask(0, key=b"k").value == b"last" and failover_log(client, 0) == before


def test_every_unclean_stop_begins_a_branch_at_the_high_seqno() -> None:
    with testing.node(vbuckets=2) as node:
        for turn in range(1, 3):
            with Client(node.port) as client:
                assert client.ask(1, key=b"%d" % turn, extras=bytes(8)).status == 0
            node.kill()
            node.start()
            with Client(node.port) as client:
                log = failover_log(client, 0)
                assert len(log) == turn + 1 and log[0][1] == turn


class Writer(Thread):
    """Writes numbered values until the connection dies; knows which were acknowledged."""

    def __init__(self, port: int, name: bytes, vb: int, rng: random.Random) -> None:
        super().__init__()
        self.client = Client(port)
        self.key, self.vb, self.rng = name, vb, rng
        self.acknowledged = self.sent = 0

    def run(self) -> None:
        with suppress(OSError, AssertionError), self.client as client:
            while True:
                burst = self.rng.randrange(1, 200)
                numbers = range(self.sent + 1, self.sent + 1 + burst)
                quiet = [Frame(0x80, 0x11, self.key, bytes(8), b"%d" % n, vbucket=self.vb).encode() for n in numbers]
                self.sent += burst
                client.send(b"".join(quiet) + Frame(0x80, 0x0A).encode())
                assert client.read() is not None
                self.acknowledged = self.sent


@pytest.mark.parametrize("seed", range(3))
def test_kill_9_loses_nothing_that_was_acknowledged_and_invents_nothing(seed: int) -> None:
    rng = random.Random(seed)
    with testing.node(vbuckets=4) as node:
        for _ in range(3):
            writers = [Writer(node.port, b"w%d" % vb, vb, random.Random(rng.random())) for vb in range(4)]
            with Client(node.port) as client:
                start = [int(client.ask(0, key=writer.key, vbucket=writer.vb).value or b"0") for writer in writers]
            for writer, at in zip(writers, start, strict=True):
                writer.sent = writer.acknowledged = at
                writer.start()
            enough = rng.randrange(200, 5000)
            while sum(writer.acknowledged for writer in writers) - sum(start) < enough:
                writers[0].join(0.001)
            node.kill()
            for writer in writers:
                writer.join()
            node.start()
            with Client(node.port) as client:
                for writer in writers:
                    found = int(client.ask(0, key=writer.key, vbucket=writer.vb).value or b"0")
                    assert writer.acknowledged <= found <= writer.sent


def test_what_can_not_start_says_so_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for arguments, told in (
            (["--port", "0", "--data", "/proc/nowhere"], "/proc/nowhere"),
            (["--port", str(port), "--data", "/proc/nowhere"], f"127.0.0.1:{port}"),  # before a store is opened
            (["--port", "0", "--http-port", str(port), "--data", "/proc/nowhere"], f"127.0.0.1:{port}"),
            (["--port", "0", "--data", "s3://lake/store"], "headwater backup create s3://lake/store"),
            (["--vbuckets", "5"], "a power of two"),
            (["--nonsense", "1"], "--nonsense"),
        ):
            command = [sys.executable, "-m", "headwater", "serve", *arguments]
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
            assert done.returncode in (1, 2) and told in done.stderr and "Traceback" not in done.stderr
            assert len(done.stderr.strip().splitlines()) == 1


def test_a_log_of_json_says_in_json_why_a_node_can_not_start() -> None:
    command = [sys.executable, "-m", "headwater", "serve", "--log-format", "json", "--port", "0", "--data"]
    done = subprocess.run([*command, "/proc/nowhere"], check=False, capture_output=True, text=True, timeout=240)
    (line,) = done.stderr.splitlines()
    told = json.loads(line)
    assert (done.returncode, told["event"], told["level"]) == (1, "node.refused", "error")
    assert "/proc/nowhere" in told["message"]


@pytest.mark.parametrize("crashed", [False, True], ids=["stopped in order", "killed"])
@pytest.mark.parametrize("cause", ["port", "map"])
def test_starts_that_are_refused_leave_the_store_as_it_was(cause: str, crashed: bool) -> None:
    """Positions of consumers must outlive the attempts of a supervisor, again and again."""
    with testing.node(vbuckets=2) as node:
        with Client(node.port) as client:
            assert client.ask(1, key=b"k", extras=bytes(8)).status == 0
            before = failover_log(client, 0)
        if crashed:
            node.kill()
        else:
            node.stop()
        files = contents(node.data)
        with socket.socket() as taken:
            if cause == "port":
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                taken.bind(("127.0.0.1", node.port))
                taken.listen()
            else:
                (node.data / "CLUSTER_MAP").write_bytes(b"not what was written")
            for _ in range(3):
                with pytest.raises(testing.NodeError, match=r"already in use|CLUSTER_MAP"):
                    node.start()
        (node.data / "CLUSTER_MAP").unlink(missing_ok=True)
        assert contents(node.data) == files
        node.start()
        with Client(node.port) as client:
            log = failover_log(client, 0)
            assert log[-len(before) :] == before and len(log) == len(before) + crashed


def contents(folder: Path) -> dict[str, int]:
    """A checksum of every file, but for the lock, in which the last process left its number."""
    return {path.name: crc32(path.read_bytes()) for path in folder.iterdir() if path.name != "LOCK"}


def test_a_node_whose_output_takes_no_line_serves_and_begins_no_branch(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [
        sys.executable,
        "-m",
        "headwater",
        "serve",
        "--port=0",
        "--vbuckets=1",
        "--log-level=info",
        f"--data={tmp_path / 'data'}",
    ]
    for starts in (1, 2):
        with Path("/dev/full").open("w") as full, log.open("ab") as errors:
            process = subprocess.Popen(command, stdout=full, stderr=errors)
        try:
            until(lambda starts=starts: log.read_text().count("ready on") == starts, "it serves")
            with Client(int(re.findall(r"ready on [0-9.]+:([0-9]+)", log.read_text())[-1])) as client:
                branches = len(failover_log(client, 0))
        finally:
            process.terminate()
            status = process.wait(60)
        assert (branches, status) == (1, 0)
    assert "the line ready is not written: No space left on device" in log.read_text()


def test_an_address_that_is_taken_is_named() -> None:
    with testing.node(vbuckets=1) as first, pytest.raises(testing.NodeError, match="Address already in use"):
        other = testing.Node(first.data.with_name("other"), {"vbuckets": 1})
        other.port = first.port
        other.start()


def test_a_store_that_another_process_has_open_is_named() -> None:
    with testing.node(vbuckets=1) as first, pytest.raises(testing.NodeError, match=f"process {first.pid} has this"):
        testing.Node(first.data, {"vbuckets": 1}).start()


def test_a_lock_file_that_was_removed_lets_no_second_node_in() -> None:
    with testing.node(vbuckets=1) as first:
        (first.data / "LOCK").unlink()
        with pytest.raises(testing.NodeError, match="another process has this store open"):
            testing.Node(first.data, {"vbuckets": 1}).start()
        with Client(first.port) as client:
            assert client.ask(1, key=b"k", extras=bytes(8)).status == 0
        assert first.restart().is_running


def test_nobody_but_its_user_may_read_a_store() -> None:
    with testing.node(vbuckets=1) as node:
        with Client(node.port) as client:
            assert client.ask(1, key=b"k", extras=bytes(8)).status == 0
            assert client.ask(0xB3, extras=bytes(24)).status == 0
        modes = {path.name: path.stat().st_mode & 0o777 for path in (node.data, *node.data.iterdir())}
        assert modes == {**dict.fromkeys(modes, 0o600), node.data.name: 0o700}


# --------------------------------------------------------------------------- after a crash


def last_batch_end(segment: Path) -> int:
    """Where the bytes end that were written to a segment."""
    return len(segment.read_bytes().rstrip(b"\0"))


def test_after_a_crash_the_log_says_where_a_torn_end_was_cut_and_how_much_of_it(tmp_path: Path) -> None:
    running = Node(tmp_path / "data", {"vbuckets": 1, "segment_mib": 48})
    running.start()
    try:
        put(running, 0, "kept", b"1")
        (segment,) = running.data.glob("*.log")
        kept = last_batch_end(segment)
        running.kill()
        with segment.open("r+b") as file:  # a batch of which a part came to the disk
            file.seek(kept)
            file.write(b"\x42" * 100)
        running.start()
        line = f"WARNING {segment}: byte {kept}: the last write was cut off by a crash: 100 bytes of it are removed"
        until(lambda: line in running.log, "it is told")
        assert call(running, Opcode.GET, b"kept").value == b"1"
        running.kill()
        running.start()
        assert running.log.count("was cut off by a crash") == 1
    finally:
        running.kill()


def test_a_node_that_is_up_has_loaded_what_an_upgrade_may_replace_under_it(tmp_path: Path) -> None:
    """The files of another release may stand in the place of its own by the time that something is first asked for."""
    loaded = "import 'headwater.node.rest.metrics'"
    command = [sys.executable, "-v", "-m", "headwater", "serve", "--port", "0", "--data", str(tmp_path / "data")]
    log = tmp_path / "said"
    with log.open("w") as told, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=told, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("ready ")
            until(lambda: loaded in log.read_text(), "the metrics are loaded")
        finally:
            process.terminate()
            assert process.wait(60) == 0


SERVE_BROKEN = """if True:
    import sys
    from headwater.node import main
    from headwater.kernels import index
    from headwater.node.storage.columns import Index
    from headwater.node.streams.snapshot import SnapshotSender

    check, move = Index.check, SnapshotSender.move

    def check_wrong(self):
        if self.rows(0) > 1:  # as if memory had lost what is on disk
            self.table[0, index.DURABLE_ROWS] = self.rows(0) + 1
        check(self)

    def move_wrong(self, *arguments):
        moved = move(self, *arguments)
        return moved._replace(last_seqno=self.last_seqno + 1)

    {patch}
    sys.exit(main.serve(sys.argv[1:]))
"""


@contextmanager
def broken_node(folder: Path, patch: str) -> Iterator[tuple[subprocess.Popen[str], int, Path]]:
    """A node that breaks a rule of its own: its process, its port, and what it says on stderr."""
    command = [sys.executable, "-c", SERVE_BROKEN.format(patch=patch), "--port", "0", "--vbuckets", "2"]
    command += ["--data", str(folder / "data")]
    told = folder / "said"
    with (
        told.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline().split()[1].rpartition(":")[2]), told
        finally:
            process.kill()


def test_a_node_whose_index_breaks_an_invariant_ends_with_a_line_and_acknowledges_nothing(tmp_path: Path) -> None:
    with broken_node(tmp_path, "Index.check = check_wrong") as (process, port, told), Client(port) as client:
        assert client.ask(0x01, key=b"a", extras=bytes(8), value=b"1").status == 0
        client.send(Frame(0x80, 0x01, key=b"b", extras=bytes(8), value=b"2").encode())
        assert client.read() is None
        assert process.wait(60) == 1
        lines = [line for line in told.read_text().splitlines() if " CRITICAL " in line]
        assert len(lines) == 1 and "vbucket 0: 3 rows are durable, 1 were frozen: a rule of headwater's own" in lines[0]
    running = Node(tmp_path / "data", {"vbuckets": 2})
    running.start()
    try:
        with Client(running.port) as client:
            assert client.ask(0x00, key=b"a").value == b"1"
            assert client.ask(0x00, key=b"b").status == 1
    finally:
        running.stop()


def test_an_invariant_of_one_stream_ends_its_connection_and_no_other(tmp_path: Path) -> None:
    with broken_node(tmp_path, "SnapshotSender.move = move_wrong") as (process, port, told), Client(port) as client:
        for number in range(100):
            assert client.ask(0x01, key=b"%d" % number, extras=bytes(8), value=b"1").status == 0
        with Client(port) as reader:
            assert reader.ask(Opcode.DCP_OPEN, key=b"reader", extras=pack(">II", 0, 1)).status == 0
            extras = pack(">II5Q", 0, 0, 0, (1 << 64) - 1, 0, 0, 0)
            assert reader.ask(Opcode.DCP_STREAM_REQ, extras=extras).status == 0
            seen = []
            while (frame := reader.read()) is not None:
                seen.append(frame.opcode)
            assert Opcode.DCP_MUTATION not in seen
        until(lambda: "the session failed" in told.read_text(), "it is told")
        assert "seqno 101 of a snapshot to 100: a rule of headwater's own" in told.read_text()
        assert client.ask(0x00, key=b"1").value == b"1" and process.poll() is None
