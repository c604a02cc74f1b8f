"""A mirror into a table on a disk whose power is cut again and again.

A round: some documents change, a mirror runs in a process of its own until the power is gone or it is done, the disk is
cut. If the mirror was done before the cut, the remaining table must have every change. Then a mirror runs to its end,
after which the table must equal the bucket, as read by Polars, a foreign reader.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Final

from harness.lake_faults import judge
from harness.power_cuts.mounted import PowerCutDisk
from harness.power_cuts.nodes import LOSSES
from headwater import client, testing
from headwater.errors import HeadwaterError
from headwater.pipelines.mirror import mirror

__all__ = ["CutTable"]

PATIENCE_SECONDS: Final = 60.0
KEYS: Final = 80
CHANGES_MAX: Final = (5, 20, 60, 150)
_CONTEXT = multiprocessing.get_context("forkserver")


def _mirror(url: str, place: Path, *, is_kept_up: bool) -> None:
    """Run a mirror to its end; status 3 if it fails."""
    try:
        mirror(None, url, place, once=True, changelog=True, workers=0, retry_seconds=0, upkeep=is_kept_up)
    except (HeadwaterError, OSError):
        raise SystemExit(3) from None


class CutTable:
    """A table on a disk, of a node that has another one.

    Attributes:
        cuts: the number of cuts by the step at which they came.
    """

    def __init__(self, disk: PowerCutDisk, place: Path, node: testing.Node, seed: int) -> None:
        self.cuts = Counter[str]()
        self._disk, self._place, self._node = disk, place, node
        self._random = Random(seed)  # noqa: S311 - must be repeatable
        self._written = 0
        _CONTEXT.set_forkserver_preload(["headwater.pipelines.mirror", "headwater.pipelines.tasks"])

    def round(self) -> None:
        """Change documents, mirror, cut, compare.

        Raises:
            Wrong: the table lost a change that was reported as written, or is not the bucket.
        """
        self._change()
        self._disk.cut_at(self._random.randint(1, self._random.choice(CHANGES_MAX)))
        status = self._run()
        self._disk.freeze()
        self._disk.restore(seed=self._random.getrandbits(32), lose=self._random.choice(LOSSES))
        self.cuts["after it was done" if status == 0 else "at work"] += 1
        if status == 0:
            self._compare()
        if (status := self._run()) != 0:
            raise judge.Wrong(f"a mirror into what a power cut left ended with status {status}")
        self._compare()

    def summary(self) -> str:
        """Return the counts, in a line."""
        met = ", ".join(f"{count} {what}" for what, count in sorted(self.cuts.items()))
        return f"{self.cuts.total()} cuts ({met}), {self._written:,} changes"

    def _change(self) -> None:
        with client.connect(self._node.url) as bucket:
            for _ in range(self._random.choice((1, 3, 20, 60))):
                self._written += 1
                key = b"k%d" % self._random.randrange(KEYS)
                if self._random.random() < 0.3:
                    bucket.delete_many([key])
                else:
                    bucket.set(key, b"%d." % self._written + self._random.randbytes(self._random.choice((0, 10, 200))))

    def _run(self) -> int:
        kept_up = {"is_kept_up": self._random.random() < 0.5}
        process = _CONTEXT.Process(target=_mirror, args=(self._node.url, self._place), kwargs=kept_up)
        process.start()
        end = time.monotonic() + PATIENCE_SECONDS
        while process.is_alive() and time.monotonic() < end and not self._disk.is_frozen():
            process.join(0.005)
        if self._disk.is_frozen():
            process.kill()
        process.join(PATIENCE_SECONDS)
        if process.exitcode is None:
            process.kill()
            raise judge.Wrong(f"a mirror did not end in {2 * PATIENCE_SECONDS:.0f} s")
        return process.exitcode

    def _compare(self) -> None:
        with client.connect(self._node.url) as bucket:
            there = judge.of_nodes(bucket)
        judge.compare(judge.of_table(self._place), there)
