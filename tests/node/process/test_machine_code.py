"""A node serves while its kernels are compiled: with real processes and a cache that lacks some, and by parts."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.nodes import until
from headwater import testing
from headwater.kernels import cached, jit
from headwater.node.process import machine_code
from headwater.testing.node import Node
from tests.node.rest.test_metrics import fetch, scrape
from tests.node.wire import Client

COMPILED, WAITING = (("headwater_kernels", (("state", state),)) for state in ("compiled", "waiting"))


@dataclass
class HeldBack:
    """A cache of kernels without that of `execute`, which nobody can compile while we hold its lock."""

    home: Path
    _entries: list[Path]
    _lock: int

    @property
    def environment(self) -> dict[str, str]:
        return {"HEADWATER_CACHE": str(self.home), "HEADWATER_TESTING_FORK": "0"}

    def let_go(self) -> None:
        """As if it had been compiled."""
        (folder,) = self.home.iterdir()
        for entry in self._entries:
            shutil.copy(entry, folder)
        fcntl.flock(self._lock, fcntl.LOCK_UN)


@pytest.fixture
def held_back(tmp_path: Path) -> Iterator[HeldBack]:
    for name in machine_code.MODULES:
        machine_code.warm_up(name)
    whole = jit.cache_folder()
    assert whole is not None
    entries = [path for path in whole.iterdir() if path.name.startswith("execute.") and path.suffix != ".lock"]
    folder = tmp_path / "cache" / whole.name
    shutil.copytree(whole, folder, ignore=lambda *_: [entry.name for entry in entries])
    (index,) = (entry for entry in entries if entry.suffix == ".nbi")
    lock = os.open(folder / index.with_suffix(".lock").name, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield HeldBack(folder.parent, entries, lock)
    os.close(lock)


def documents_are_kept(node: Node, key: bytes) -> None:
    with Client(node.port) as client:
        assert client.ask(1, key=key, extras=bytes(8), value=b'{"a": 1}').status == 0
        assert client.ask(0, key=key).value == b'{"a": 1}'
        assert client.ask(2, key=key, extras=bytes(8), value=b"added").status == 2
        assert client.ask(4, key=key).status == 0
        assert client.ask(0, key=key).status == 1
        assert client.ask(10).status == 0


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def test_a_first_start_answers_before_its_kernels_are_compiled_and_uses_them_when_they_are(held_back: HeldBack) -> None:
    with testing.node(vbuckets=1, environment=held_back.environment) as node:
        documents_are_kept(node, b"plainly")
        before = scrape(node)
        assert before[WAITING] == 1 and before[COMPILED] > 20
        assert '"ready": true' in fetch(node, "/readyz")[2] and '"kernels_waiting": 1' in fetch(node, "/readyz")[2]
        assert "until the others are, the node is slower" in node.log
        held_back.let_go()
        until(lambda: scrape(node)[WAITING] == 0, "all kernels are there")
        documents_are_kept(node, b"compiled")
        after = scrape(node)
        sets = ("headwater_requests_total", (("opcode", "SET"), ("status", "SUCCESS")))
        assert (before[sets], after[sets]) == (1, 2)
        until(lambda: f"{after[COMPILED]:.0f} of {after[COMPILED]:.0f} kernels compiled" in node.log, "that is told")
        until(lambda: children(node.pid) == [], "the helper has ended")


def test_a_first_start_with_a_log_of_json_tells_of_compiling_in_json(held_back: HeldBack) -> None:
    held_back.let_go()
    (folder,) = held_back.home.iterdir()
    for entry in folder.glob("json.*"):  # one of those that a node compiles itself, before it serves
        entry.unlink()
    with testing.node(vbuckets=1, environment=held_back.environment, log_format="json") as node:
        told = [json.loads(line) for line in node.log.splitlines()]
    assert told[0]["event"] == "kernels.compiling" and "once" in told[0]["message"]


@pytest.mark.skipif(sys.platform != "linux", reason="finds the helper in /proc")
def test_a_node_whose_helper_is_killed_takes_the_kernels_in_by_itself(held_back: HeldBack) -> None:
    with testing.node(vbuckets=1, environment=held_back.environment) as node:
        (helper,) = children(node.pid)
        os.kill(helper, signal.SIGKILL)
        until(lambda: "ended with status -9; the node compiles what is left itself" in node.log, "that is told")
        documents_are_kept(node, b"plainly")
        held_back.let_go()
        until(lambda: scrape(node)[WAITING] == 0, "all kernels are there")
        documents_are_kept(node, b"compiled")


@pytest.mark.skipif(sys.platform != "linux", reason="finds the helper in /proc")
def test_a_stop_does_not_wait_for_kernels_and_leaves_no_process(held_back: HeldBack) -> None:
    with testing.node(vbuckets=1, environment=held_back.environment) as node:
        (helper,) = children(node.pid)
        assert node.stop() == 0
        until(lambda: not Path(f"/proc/{helper}").exists(), "the helper is gone")
        assert "kernels.failed" not in node.log and "ended with status" not in node.log


# ------------------------------------------------------------------ by parts


class Code(machine_code.MachineCode):
    """One whose helper is a command of ours, or nothing."""

    command: tuple[str, ...] = ()

    def _started(self) -> subprocess.Popen[str] | None:
        if not self.command:
            return None
        return subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)

    def finished(self) -> None:
        if self._thread is not None:
            self._thread.join(60)
            assert not self._thread.is_alive()


@contextmanager
def kernels(monkeypatch: pytest.MonkeyPatch, *there: str) -> Iterator[list[tuple[str, bool]]]:
    """Modules of kernels that stand for themselves; yields which were compiled here, and whether requests could have
    been answered in that thread without them."""
    found, compiled = set(there), list[tuple[str, bool]]()

    def warm_up(name: str) -> None:
        compiled.append((name, cached.does_without()))
        found.add(name)

    monkeypatch.setattr(machine_code, "missing", lambda names: [name for name in names if name not in found])
    monkeypatch.setattr(machine_code, "warm_up", warm_up)
    yield compiled
    assert not cached.serving


def test_where_all_kernels_are_in_the_cache_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    with kernels(monkeypatch, *machine_code.MODULES) as compiled:
        code = Code()
        code.command = ("/does/not/exist",)
        code.begin()
        code.stop()
    assert compiled == []


def test_without_a_helper_the_node_compiles_all_itself_the_first_ones_before_it_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with kernels(monkeypatch) as compiled:
        code = Code()
        code.begin()
        assert [name for name, _ in compiled[: len(machine_code.FIRST)]] == list(machine_code.FIRST)
        code.finished()
        code.stop()
    assert compiled == [(name, False) for name in machine_code.MODULES]


def test_what_a_helper_made_and_could_not_keep_is_compiled_by_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    with kernels(monkeypatch, *set(machine_code.MODULES) - {"execute", "tap"}) as compiled:
        code = Code()
        code.command = (sys.executable, "-c", "print('execute'); print('another'); print('tap')")
        code.begin()
        code.finished()
        code.stop()
    assert compiled == [("execute", False), ("tap", False)]


def test_a_stop_leaves_the_rest_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    with kernels(monkeypatch, *machine_code.FIRST) as compiled:
        code = Code()
        code.command = (sys.executable, "-c", "import time; time.sleep(600)")
        code.begin()
        assert cached.serving
        code.stop()
        code.finished()
    assert compiled == []


def test_a_helper_that_cannot_be_started_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/does/not/exist")
    with kernels(monkeypatch, *machine_code.FIRST) as compiled:
        code = machine_code.MachineCode()
        code.begin()
        while len(compiled) < len(machine_code.MODULES) - len(machine_code.FIRST):
            assert code._thread is not None
            code._thread.join(60)
        code.stop()
    assert "no process can be started to compile kernels" in caplog.text


def test_a_kernel_that_cannot_be_compiled_leaves_the_node_serving(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with kernels(monkeypatch, *machine_code.FIRST):
        monkeypatch.setattr(machine_code, "warm_up", lambda name: 1 // 0)
        code = Code()
        code.begin()
        code.finished()
        code.stop()
    assert "kernels can't be compiled; the node stays slower" in caplog.text


def test_each_module_that_a_node_uses_is_in_the_list() -> None:
    script = """if True:
        import sys
        from headwater.node import server, run
        print(*(name.rpartition(".")[2] for name in sys.modules if name.startswith("headwater.kernels.")))
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=True)
    built = {name.split(".")[2] for name, _ in jit.built_kernels()}
    assert set(done.stdout.split()) & built - {"scan"} <= set(machine_code.MODULES)  # which is of clients
