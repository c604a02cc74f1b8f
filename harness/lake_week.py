"""Weeks of a mirror in minutes: its log without its rows, under a clock that is an argument.

Each batch gives every file of the table another deletion vector, as random updates do, and every eighth replaces the
oldest file. For each checkpoint a line has the number of removals so far and in it, its size, and the cost of writing
it and of a start from it:

    python -m harness.lake_week --batches 8000 --files 20
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.lake import upkeep
from headwater.lake.commit import Record
from headwater.lake.log import Action, DataFile, TableLog, creation, removal
from headwater.lake.shape import fields
from headwater.lake.store import TableStore
from headwater.lake.vacuum import DAY

WEEKS = 2
STATS = '{"numRecords":9,"minValues":{"vbucket":0},"maxValues":{"vbucket":9}}'


@dataclass(frozen=True)
class Checkpoint:
    """A written checkpoint, and its cost.

    Attributes:
        batches: the number of batches so far. removed: the number of removals of all of them.
        kept: removals in the checkpoint.
        size: of the checkpoint, bytes.
        written, started: CPU seconds for writing it, and for a start from it.
        memory: of this process, MiB.
    """

    batches: int
    removed: int
    kept: int
    size: int
    written: float
    started: float
    memory: int


class Weeks:
    """A table with commits under a clock of its own.

    Args:
        place: an empty folder.
        files: the number of the table's files.
        seconds: between two batches.
    """

    def __init__(self, place: Path, files: int, seconds: float) -> None:
        self.place, self._files, self._seconds = place, files, seconds
        self.log, self.now, self.batches, self.removed = TableLog(TableStore(place)), time.time(), 0, 0
        self.log.commit([*creation(fields(), {}, "b"), Record("b", {}).to_action()], "CREATE TABLE")

    def batch(self) -> None:
        """Commit a batch."""
        state, self.batches = self.log.state, self.batches + 1
        self.now += self._seconds
        actions: list[Action] = [Record("b", {"n": self.batches}, self.batches).to_action()]
        aged = list(state.files.values())
        if self.batches % 8 == 0 or len(aged) < self._files:
            actions.append(self._added())
        leaving = aged[: max(0, len(aged) + len(actions) - 1 - self._files)]
        for file in aged:
            actions.append(removal(file, int(self.now * 1000)))
            actions += [] if file in leaving else [self._revised(file)]
        self.removed += len(aged)
        if not self.log.commit(actions, "MIRROR"):
            raise RuntimeError("somebody else commits to this table")

    def checkpoint(self) -> Checkpoint:
        """Write a checkpoint, and start from it."""
        began = time.process_time()
        path = upkeep.checkpoint(self.log, self.now)
        written = time.process_time()
        fresh = TableLog(self.log.store)
        fresh.refresh()
        started = time.process_time()
        size, kept = (self.place / path).stat().st_size, fresh.count_removals()
        costs = written - began, started - written
        return Checkpoint(self.batches, self.removed, kept, size, *costs, _memory())

    def _added(self) -> Action:
        path = f"part-{self.batches:032x}.parquet"
        (self.place / path).touch()
        return {"add": {"path": path, "size": 1, "stats": STATS, "partitionValues": {}, "dataChange": True}}

    def _revised(self, file: DataFile) -> Action:
        body = {"storageType": "i", "pathOrInlineDv": f"{self.batches:0120}", "sizeInBytes": 96, "cardinality": 9}
        return {"add": file.add | {"deletionVector": body}}


def weeks(place: Path, batches: int, files: int, every: int = upkeep.CHECKPOINT_EVERY) -> Iterator[Checkpoint]:
    """Yield the figures of each checkpoint of two weeks."""
    table = Weeks(place, files, WEEKS * 7 * DAY / batches)
    for number in range(1, batches + 1):
        table.batch()
        if number % every == 0:
            yield table.checkpoint()


def _memory() -> int:
    pages: Any = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096 >> 20


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each of some checkpoints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--batches", type=int, default=8000)
    parser.add_argument("--files", type=int, default=20)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place:
        for number, seen in enumerate(weeks(Path(place), options.batches, options.files)):
            if number % max(1, options.batches // 1000) == 0:
                sys.stdout.write(f"{seen}\n")


if __name__ == "__main__":
    main()
