"""Witnesses of a node during attacks: its memory, its event loop, and a bystander who must be served.

The node reports how late its loop was (STAT loop). The bystander, a connection that sends a no-op and reads its
document again and again, measures how long it waits, and how much processor time the loop's thread uses meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from harness.attack.guest import Guest
from headwater.testing.node import Node, NodeError
from headwater.wire.opcodes import Opcode

MIB = 1 << 20
PAGE_BYTES = 4096
PAUSE_SECONDS = 0.002
# A node that is gone ends its watchers; whoever gave it its work notices that by himself.
GONE = (OSError, NodeError)
BYSTANDERS_KEY = b"the bystander's"
BYSTANDERS_VBUCKET = 9


@dataclass(slots=True)
class Row:
    """The cost of one attack.

    Attributes:
        turn_seconds, late_seconds: the longest turn of the loop, in processor time and in wall time.
        own_seconds: the same in wall time, without the time in which the loop's thread waited for a processor.
        waited_seconds, waited_busy_seconds: the bystander's longest wait, and the loop's processor time in it.
        peak_bytes: resident memory without files. unserved: how often the bystander got no answer.
    """

    name: str
    turn_seconds: float = 0.0
    late_seconds: float = 0.0
    own_seconds: float = 0.0
    waited_seconds: float = 0.0
    waited_busy_seconds: float = 0.0
    peak_bytes: int = 0
    unserved: int = 0

    def add(self, other: Row) -> None:
        """Keep the worse of each value of two rows."""
        self.turn_seconds = max(self.turn_seconds, other.turn_seconds)
        self.late_seconds = max(self.late_seconds, other.late_seconds)
        self.own_seconds = max(self.own_seconds, other.own_seconds)
        self.waited_seconds = max(self.waited_seconds, other.waited_seconds)
        self.waited_busy_seconds = max(self.waited_busy_seconds, other.waited_busy_seconds)
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)
        self.unserved += other.unserved


def resident(pid: int) -> int:
    """Return the bytes of memory that a process uses, without pages of files, which the system can take back."""
    pages, of_files = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
    return (int(pages) - int(of_files)) * PAGE_BYTES


def loop_seconds(pid: int) -> float:
    """Return the processor time of a process's first thread, which runs a node's loop."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


class Witness:
    """A watch over one node from `start` to `stop`.

    Args:
        admit: returns a connection that may read documents.
    """

    def __init__(self, node: Node, admit: Callable[[], Guest]) -> None:
        self.node = node
        self._admit = admit
        self._row = Row("")
        self._over = threading.Event()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._weigh, self._stand_by)]
        self._asker = admit()

    def start(self) -> Witness:
        """Store the bystander's document, and begin to watch."""
        self._asker.ask(Opcode.SET, BYSTANDERS_KEY, bytes(8), b"here", BYSTANDERS_VBUCKET)
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Stop watching."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._asker.__exit__(None, None, None)

    @contextmanager
    def measure(self, name: str) -> Iterator[Row]:
        """Measure the node during a block; the yielded row is complete when the block has ended."""
        self._stat("loop reset")
        row = self._row = Row(name, peak_bytes=resident(self.node.pid))
        yield row
        statistics = self._stat("loop reset")
        row.turn_seconds = int(statistics.get("ep_loop_busy_max", 0)) / 1e6
        row.late_seconds = int(statistics.get("ep_loop_late_max", 0)) / 1e6
        row.own_seconds = int(statistics.get("ep_loop_own_max", 0)) / 1e6

    def stat(self, name: str) -> int:
        """Return the value of a general statistic of the node, an integer."""
        return int(self._stat("").get(name, 0))

    def _stat(self, group: str) -> dict[str, str]:
        """Return a group of the node's statistics; empty if the node is gone."""
        statistics: dict[str, str] = {}
        if not self.node.is_running:
            return statistics
        answer = self._asker.ask(Opcode.STAT, group.encode())
        while answer is not None and answer.key:
            statistics[answer.key.decode("latin-1")] = answer.value.decode("latin-1")
            answer = self._asker.hear()
        if answer is None:
            self._row.unserved += 1
            self._asker.__exit__(None, None, None)
            with suppress(OSError):
                self._asker = self._admit()
        return statistics

    def _weigh(self) -> None:
        with suppress(*GONE):
            while not self._over.wait(PAUSE_SECONDS):
                self._row.peak_bytes = max(self._row.peak_bytes, resident(self.node.pid))

    def _stand_by(self) -> None:
        with suppress(*GONE):
            while not self._over.is_set():
                with self._admit() as guest:
                    self._ask_again_and_again(guest)

    def _ask_again_and_again(self, guest: Guest) -> None:
        """Send the bystander's requests until one fails, or the watch ends."""
        while not self._over.wait(PAUSE_SECONDS):
            begun, busy, row = time.perf_counter(), loop_seconds(self.node.pid), self._row
            served = guest.settle() and guest.ask(Opcode.GET, BYSTANDERS_KEY, vbucket=BYSTANDERS_VBUCKET) is not None
            row.waited_seconds = max(row.waited_seconds, time.perf_counter() - begun)
            row.waited_busy_seconds = max(row.waited_busy_seconds, loop_seconds(self.node.pid) - busy)
            if not served and not self._over.is_set():
                row.unserved += 1
                return
