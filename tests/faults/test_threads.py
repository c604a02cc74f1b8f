"""A system that lets a node start no thread for a while: writes are answered, and all is well afterwards."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwater import testing
from tests.node.wire import Client

STACK_BYTES = 8 << 20  # what a new thread asks for
SLACK_BYTES = 6 << 20
COMPACT = bytes(7) + b"\1" + bytes(16)


@contextmanager
def no_new_thread(pid: int) -> Iterator[None]:
    """No address space for another thread's stack, as under `ulimit -v`; a limit of processes (pids.max) has the same
    effect, and needs another right."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_AS)
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize() + SLACK_BYTES, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, (soft, hard))


def test_the_first_write_needs_no_new_thread() -> None:
    with testing.node(vbuckets=4, segment_mib=48) as node:
        with no_new_thread(node.pid), Client(node.port) as client:
            assert client.ask(1, key=b"k", extras=bytes(8), value=b"v").status == 0
        with Client(node.port) as client:
            assert client.ask(1, key=b"k", extras=bytes(8), value=b"w").status == 0
        assert node.stop() == 0
        node.start()
        with Client(node.port) as client:
            assert client.ask(0, key=b"k").value == b"w"


def test_a_compaction_that_gets_no_thread_is_refused_or_done_and_the_next_one_is_done() -> None:
    with testing.node(vbuckets=4, segment_mib=48) as node:
        with Client(node.port) as client:
            for turn in range(30):
                assert client.ask(1, key=b"k", extras=bytes(8), value=b"%d" % turn * 1000).status == 0
        with no_new_thread(node.pid), Client(node.port) as client:
            assert client.ask(0xB3, extras=COMPACT).status in (0, 0x86)
        with Client(node.port) as client:
            assert client.ask(0xB3, extras=COMPACT).status == 0
            assert client.ask(1, key=b"k", extras=bytes(8), value=b"last").status == 0
        assert len(list(node.data.glob("*.log"))) == 2  # what compaction wrote, and the open one
        assert node.stop() == 0
