"""A node whose disk is cut again and again, while two writers write, a follower follows and it compacts.

A round is a life of the node, which starts on the remaining data of the cut before; another cut may come while it
starts. The node is checked against the ledger (checker.py): all acknowledged writes are there, of the others the first
that were sent may be, and no change that a reader saw is gone. A start that is refused while the power is on ends the
run.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from pathlib import Path
from random import Random
from threading import Thread
from typing import Final

from harness.checker import Ledger, Violation
from harness.nodes import Line
from harness.power_cuts.mounted import PowerCutDisk
from harness.workload import Follower, Writer, everything, read_back
from headwater import testing
from headwater.wire.opcodes import Opcode

__all__ = ["CutNode"]

VBUCKETS: Final = 8
LIFE_SECONDS_MAX: Final = 20.0
LOSSES: Final = (0.0, 0.2, 0.5, 0.8, 1.0)
CHANGES_MAX: Final = (5, 40, 200, 800)
KEEP_TOMBSTONES: Final = bytes(7) + b"\1" + bytes(16)
"""The extras of COMPACT_DB that purge what was deleted before 1970."""


class _Compacting(Thread):
    """A thread that compacts again and again, until the connection ends."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.done = 0
        self._port = port

    def run(self) -> None:
        with contextlib.suppress(OSError, AssertionError, EOFError), Line(self._port) as line:
            while line.call(Opcode.COMPACT_DB, extras=KEEP_TOMBSTONES).status == 0:
                self.done += 1


class CutNode:
    """A node on a disk, with its clients.

    Attributes:
        ledger: of its writers and readers.
        cuts: the number of cuts by the step at which they came. compactions: their number.
    """

    def __init__(self, disk: PowerCutDisk, place: Path, seed: int) -> None:
        self.ledger = Ledger()
        self.cuts = Counter[str]()
        self.compactions = 0
        self._disk = disk
        self._random = Random(seed)  # noqa: S311 - must be repeatable
        self._node = testing.Node(place, {"vbuckets": VBUCKETS, "segment_mib": 48})
        self._node.start()
        self._follower = Follower(self.ledger, self._node.url)
        self._follower.start()

    def round(self) -> None:
        """Write until the power is gone, and check the remaining data.

        Raises:
            Violation: something is lost or invented.
            NodeError: a start was refused while the power was on.
        """
        self._disk.cut_at(self._random.randint(1, self._random.choice(CHANGES_MAX)))
        self._write()
        self._cut("at work")
        while not self._start():
            self._cut("while it started")
        self.ledger.settle(everything(self._node.url))
        self._change_followers()

    def end(self) -> None:
        """Compare all documents, by streams and by reads, with those of the ledger and the follower."""
        self._follower.stop()
        self._follower.catch_up()
        there = {(change.vbucket, change.key): change for change in everything(self._node.url)}
        if self._follower.held != there:
            raise Violation(
                f"the follower holds {len(self._follower.held)} keys, the node {len(there)}, and they differ"
            )
        read_back(self._node.url, there)

    def close(self) -> None:
        """End the node."""
        self._node.kill()
        self._node.let_go()

    def summary(self) -> str:
        """Return the counts, in a line."""
        met = ", ".join(f"{count} {what}" for what, count in sorted(self.cuts.items()))
        counts = f"{self.ledger.acknowledged:,} writes acknowledged, {self.ledger.observations:,} changes shown"
        return f"{self.cuts.total()} cuts ({met}), {counts}, {self.compactions} compactions"

    def _write(self) -> None:
        writers = [
            Writer(self.ledger, number, self._node.port, vbuckets=VBUCKETS, random=Random(self._random.random()))  # noqa: S311
            for number in range(2)
        ]
        compacting = _Compacting(self._node.port)
        for thread in (*writers, compacting):
            thread.start()
        end = time.monotonic() + LIFE_SECONDS_MAX
        while not self._disk.is_frozen() and time.monotonic() < end:
            writers[0].join(0.002)
        self._disk.freeze()
        self._node.kill()
        for writer in writers:
            writer.end()
        compacting.join()
        self.compactions += compacting.done

    def _start(self) -> bool:
        """Start on the remaining data; return False if the power was cut meanwhile."""
        if self._random.random() < 0.2:
            self._disk.cut_at(self._random.randint(1, 12))
        try:
            self._node.start()
        except testing.NodeError:
            if not self._disk.is_frozen():
                raise
            return False
        return not self._disk.is_frozen()

    def _cut(self, met: str) -> None:
        self._node.kill()
        self._disk.restore(seed=self._random.getrandbits(32), lose=self._random.choice(LOSSES))
        self.cuts[met] += 1

    def _change_followers(self) -> None:
        """Let, in most rounds, another follower continue from the saved positions of the one before."""
        if self._random.random() < 0.8:
            self._follower.stop()
            self._follower = Follower(self.ledger, self._node.url, self._follower.saved, self._follower.held)
            self._follower.start()
