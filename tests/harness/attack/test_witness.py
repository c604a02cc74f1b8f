"""A witness tells what a node's turns, memory and bystander were like."""

from __future__ import annotations

import mmap
import os

from harness.attack.guest import Guest
from harness.attack.witness import MIB, Row, Witness, loop_seconds, resident
from headwater import testing
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode


def test_a_row_takes_the_worse_of_each() -> None:
    row = Row("x", turn_seconds=1.0, peak_bytes=5, unserved=1)
    row.add(Row("x", turn_seconds=0.5, late_seconds=2.0, peak_bytes=7, unserved=2))
    assert (row.turn_seconds, row.late_seconds, row.peak_bytes, row.unserved) == (1.0, 2.0, 7, 3)


def test_memory_and_time_of_a_process_are_told() -> None:
    before, busy = resident(os.getpid()), loop_seconds(os.getpid())
    with mmap.mmap(
        -1, 32 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    ) as kept:  # pages of its own: what an allocator has kept would not be new
        kept.write(os.urandom(32 * MIB))
        assert resident(os.getpid()) - before > 24 * MIB and loop_seconds(os.getpid()) > busy


def test_what_happens_in_a_block_is_in_its_row() -> None:
    with testing.node(vbuckets=16, loop_watch_ms=2) as node:
        witness = Witness(node, lambda: Guest(node.port)).start()
        with witness.measure("noops") as row, Guest(node.port) as guest:
            guest.say(Frame(0x80, Opcode.STAT, b"vbucket-details").encode() * 200)
            guest.settle()
        witness.stop()
        assert (
            row.late_seconds >= row.own_seconds > 0
            and row.peak_bytes > MIB
            and row.unserved == 0
            and row.waited_seconds > 0
        )


def test_a_node_that_is_gone_is_told_of_and_ends_no_witness() -> None:
    with testing.node(vbuckets=16, loop_watch_ms=2) as node:
        witness = Witness(node, lambda: Guest(node.port)).start()
        with witness.measure("killed") as row:
            node.kill()
        witness.stop()
        assert not node.is_running and row.turn_seconds == 0
