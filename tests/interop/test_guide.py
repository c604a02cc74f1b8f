"""The programs of docs/howto/clients.md, as printed: of each line only the node's port is another."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headwater import testing
from headwater.testing.node import Node
from tests.guides.blocks import blocks
from tests.interop.toolchains import (
    GO,
    JAVA,
    NODE,
    needs,
    pinned,
    printed_go,
    printed_java,
    printed_node,
    python_version,
)

HERE = Path(__file__).parent
PAGE = "docs/howto/clients.md"
WHAT = "the program of the guide, as printed"
SECONDS_MAX = 240.0
pytestmark = [pytest.mark.interop]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with testing.node(vbuckets=64) as node:
        yield node


def printed(language: str, word: str, node: Node) -> str:
    """The block of that language in which a word stands, for this node."""
    (found,) = [block.text for block in blocks(PAGE) if block.language == language and word in block.text]
    assert "11210" in found
    return found.replace("127.0.0.1:11210", node.address).replace('"127.0.0.1", 11210', f'"{node.host}", {node.port}')


def run(command: list[str], folder: Path) -> str:
    """Run a program to its end; what it printed."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def apple(node: Node) -> bytes | None:
    """The document that each of them stores."""
    with node.client() as bucket:
        return bucket.get("apple").value


@pytest.mark.battery
@needs(GO)
@pytest.mark.program("Go SDK gocb", pinned(HERE / "gocb", "github.com/couchbase/gocb/v2"), WHAT)
def test_the_go_program_stores_and_reads(node: Node, tmp_path: Path) -> None:
    command = printed_go(printed("go", "gocb.Connect", node), HERE / "gocb", tmp_path)
    assert run(command, tmp_path) == "<nil> map[colour:green]\n"
    assert apple(node) == b'{"colour":"green"}'


@pytest.mark.battery
@needs(JAVA)
@pytest.mark.program("Java SDK", pinned(HERE / "java_sdk", "java-client"), WHAT)
def test_the_java_program_stores_and_reads(node: Node, tmp_path: Path) -> None:
    command = printed_java(printed("java", "class Documents", node), HERE / "java_sdk", tmp_path)
    assert run(command, tmp_path).splitlines()[-1] == '{"colour":"green"}'
    assert apple(node) == b'{"colour":"green"}'


@pytest.mark.battery
@needs(NODE)
@pytest.mark.program("Node.js SDK", pinned(HERE / "node_sdk", "couchbase"), WHAT)
def test_the_node_program_stores_and_reads(node: Node, tmp_path: Path) -> None:
    command = printed_node(printed("js", "couchbase", node), HERE / "node_sdk", "documents.js", tmp_path)
    assert run(command, tmp_path) == "{ colour: 'green' }\n"
    assert apple(node) == b'{"colour":"green"}'


@pytest.mark.program("pymemcache", python_version("pymemcache"), WHAT)
def test_the_program_for_memcached_stores_and_reads(node: Node, tmp_path: Path) -> None:
    pytest.importorskip("pymemcache")
    shown = run([sys.executable, "-c", printed("python", "pymemcache", node)], tmp_path)
    assert re.fullmatch(r"b'green' \(b'green', b'\d+'\)\n", shown)
    assert apple(node) == b"green"


def follows(command: list[str], node: Node, folder: Path) -> None:
    """A follower tells what there was, what comes, and what goes; told by lines of its stdout."""
    keys = [f"fruit-{number}" for number in range(50)]
    with node.client() as bucket:
        bucket.set_many((key, "sweet") for key in keys)
    log = folder / "shown"
    with (
        log.open("wb") as shown,
        (folder / "errors").open("wb") as errors,
        subprocess.Popen(command, cwd=folder, stdout=shown, stderr=errors) as process,
        closing(_Killed(process)),
    ):
        wait_for(lambda: lines(log) >= {f"{key} = sweet" for key in keys}, folder)
        with node.client() as bucket:
            bucket.set("late", "sour")
            bucket.delete(keys[0])
        wait_for(lambda: lines(log) >= {"late = sour", f"{keys[0]} deleted"}, folder)
        assert process.poll() is None


class _Killed:
    """Ends a process that does not end by itself."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.close: Callable[[], None] = process.kill


def lines(log: Path) -> set[str]:
    return set(log.read_text("utf-8", "replace").splitlines())


def wait_for(condition: Callable[[], bool], folder: Path) -> None:
    until = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < until, (folder / "errors").read_text("utf-8", "replace")[-4000:]
        time.sleep(0.05)


@pytest.mark.battery
@needs(JAVA)
@pytest.mark.program("Java dcp-client", pinned(HERE / "java_dcp_client", "dcp-client"), WHAT)
def test_the_java_program_follows(node: Node, tmp_path: Path) -> None:
    command = printed_java(printed("java", "class Changes", node), HERE / "java_dcp_client", tmp_path)
    follows(command, node, tmp_path)


@pytest.mark.battery
@needs(GO)
@pytest.mark.program("go-dcp", pinned(HERE / "go_dcp", "github.com/Trendyol/go-dcp"), WHAT)
def test_the_go_program_follows(node: Node, tmp_path: Path) -> None:
    command = printed_go(printed("go", "dcp.NewDcp", node), HERE / "go_dcp", tmp_path)
    follows(command, node, tmp_path)
