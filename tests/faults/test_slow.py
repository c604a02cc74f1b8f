"""Consumers that never acknowledge: what they keep of compacted files has a bound, and then they are told."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from struct import pack

import pytest

from headwater import testing
from headwater.client import Mutation
from tests.node.wire import Client

VBUCKETS = 2
KEYS = 60
VALUE = bytes(range(256)) * 400  # 100 KiB
KEEP_TOMBSTONES = bytes(7) + b"\1" + bytes(16)
OPEN, STREAM_REQ, STREAM_END, CONTROL = 0x50, 0x53, 0x55, 0x5E
SLOW = 4
ACKNOWLEDGED = pack(">BBHBBHIIQ", 0x80, 0x5D, 0, 4, 0, 0, 4, 0, 0) + pack(">I", 1 << 20)
DEADLINE_SECONDS = 120.0


def overwritten(client: Client, turn: int) -> None:
    """Every key anew, and a compaction."""
    for number in range(KEYS):
        value = b"%d " % turn + VALUE
        assert client.ask(1, key=b"k%d" % number, extras=bytes(8), value=value, vbucket=number % 2).status == 0
    for vb in range(VBUCKETS):
        assert client.ask(0xB3, extras=KEEP_TOMBSTONES, vbucket=vb).status == 0


def removed_files(node: testing.Node) -> set[str]:
    """Segments that have no name any more, and that the node still holds."""
    maps = Path(f"/proc/{node.pid}/maps").read_text().splitlines()
    return {line.split()[5] for line in maps if line.endswith(".log (deleted)")}


def deaf(node: testing.Node) -> Client:
    """A consumer that asked for everything and acknowledges nothing."""
    client = Client(node.port)
    assert client.ask(OPEN, key=b"deaf", extras=pack(">II", 0, 1)).status == 0
    assert client.ask(CONTROL, key=b"connection_buffer_size", value=b"1000").status == 0
    for vb in range(VBUCKETS):
        extras = pack(">IIQQQQQ", 0, 0, 0, (1 << 64) - 1, 0, 0, 0)
        client.send(asked(vb, extras))
    return client


def asked(vb: int, extras: bytes) -> bytes:
    return pack(">BBHBBHIIQ", 0x80, STREAM_REQ, 0, len(extras), 0, vb, len(extras), vb, 0) + extras


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_deaf_consumer_keeps_what_there_was_when_it_began_and_nothing_of_later_compactions() -> None:
    with testing.node(vbuckets=VBUCKETS, segment_mib=48) as node, Client(node.port) as client:
        overwritten(client, 0)
        with deaf(node) as consumer:
            assert consumer.read() is not None
            overwritten(client, 1)
            kept = removed_files(node)
            assert kept  # it may still ask for them
            for turn in range(2, 5):
                overwritten(client, turn)
            until(lambda: removed_files(node) <= kept, "it keeps files that were made after it began")
        until(lambda: not removed_files(node), "it has gone, and so should its files")


def test_a_deaf_consumer_is_told_that_it_is_too_slow_and_its_files_go() -> None:
    with testing.node(vbuckets=VBUCKETS, segment_mib=48, slow_stream_seconds=1) as node, Client(node.port) as client:
        overwritten(client, 0)
        with deaf(node) as consumer:
            assert consumer.read() is not None
            overwritten(client, 1)
            until(lambda: "MiB of files that were compacted for" in node.log, "nobody told it")
            until(lambda: not removed_files(node), "its files are still there")
            consumer.send(ACKNOWLEDGED)  # now it reads on
            ended = set()
            while not ended:
                frame = consumer.read()
                assert frame is not None
                if frame.opcode == STREAM_END:
                    ended.add(int.from_bytes(frame.extras, "big"))
            assert ended == {SLOW}


@pytest.mark.battery
def test_a_consumer_that_was_too_slow_gets_the_rest_when_it_asks_again() -> None:
    """Our client's changes(), read slowly through two compactions, have each key's newest version in the end."""
    with testing.node(vbuckets=VBUCKETS, segment_mib=48, slow_stream_seconds=1) as node, Client(node.port) as writer:
        overwritten(writer, 0)
        found: dict[bytes, bytes] = {}
        with node.client() as bucket:
            changes = bucket.changes(until="now", window_bytes=300_000, batch_bytes=100_000)
            for count, change in enumerate(changes):
                if isinstance(change, Mutation):
                    found[change.key] = change.value[:2]
                if count == 3:
                    overwritten(writer, 1)
                    until(lambda: "streams kept" in node.log, "it was not told that it is too slow")
        assert found.keys() == {b"k%d" % number for number in range(KEYS)}
