"""Cut the power under a node and under a mirror's table, again and again:

    python -m harness.power_cuts --cuts 1000 --seed 1 --only node

The disk is a FUSE file system that keeps synced data, and a random part of the rest. Every ten seconds a line has the
number of cuts. A lost or invented document, a refused start, or a table that differs from its bucket ends the run with
a line that describes it, and status 1. It needs root, /dev/fuse and mfusepy.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.checker import Violation
from harness.lake_faults.judge import Wrong
from harness.power_cuts.lake import CutTable
from harness.power_cuts.mounted import mounted, why_not
from harness.power_cuts.nodes import CutNode
from headwater import testing

TOLD_SECONDS = 10.0
LAKE_SHARE = 5
"""The number of cuts under a node for each cut under a table."""


def main(argv: Sequence[str] | None = None) -> int:
    """Read the arguments and run; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.power_cuts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cuts", type=int, default=100, help="under the node; a fifth as many under the table")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("node", "lake"))
    arguments = parser.parse_args(argv)
    if why := why_not():
        print(f"no power cuts: {why}")
        return 2
    kinds = {"node": (_node, arguments.cuts), "lake": (_lake, -(-arguments.cuts // LAKE_SHARE))}
    for name, (run, cuts) in kinds.items():
        if arguments.only in (None, name) and not _ends_well(name, run, cuts, arguments.seed):
            return 1
    return 0


def _ends_well(name: str, run: Callable[[Path, int, int], None], cuts: int, seed: int) -> bool:
    try:
        with tempfile.TemporaryDirectory(prefix="power-cuts-") as folder:
            run(Path(folder), cuts, seed)
    except (Violation, Wrong, testing.NodeError) as error:
        print(f"{name}: BROKEN by seed {seed}: {error}", flush=True)
        return False
    return True


def _node(folder: Path, cuts: int, seed: int) -> None:
    (folder / "disk").mkdir()
    with mounted(folder / "disk") as disk:
        node = CutNode(disk, folder / "disk", seed)
        try:
            _rounds("node", node, cuts)
            node.end()
        finally:
            node.close()
        print(f"node: {node.summary()}: nothing lost, nothing made up", flush=True)


def _lake(folder: Path, cuts: int, seed: int) -> None:
    (folder / "disk").mkdir()
    with mounted(folder / "disk") as disk, testing.node(vbuckets=4) as node:
        table = CutTable(disk, folder / "disk" / "lake" / "table", node, seed)
        _rounds("lake", table, cuts)
        print(f"lake: {table.summary()}: each time the table was the bucket", flush=True)


def _rounds(name: str, cut: CutNode | CutTable, cuts: int) -> None:
    reported_at = time.monotonic()
    while cut.cuts.total() < cuts:
        cut.round()
        if time.monotonic() > reported_at + TOLD_SECONDS:
            reported_at = time.monotonic()
            print(f"{name}: {cut.summary()}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
