"""Write tables of every kind, read each with every reader, and keep what was seen:

    python -m harness.readers setup                    install the readers that need an environment of their own
    python -m harness.readers run                      all of it, into harness/readers/results.json
    python -m harness.readers run --only polars --kinds variant

A cell that is not right is printed. What was seen is kept after each reader, unless only some kinds are written.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.readers.environments import READERS, Reader, python_of, setup, versions_of
from harness.readers.kinds import KINDS, Kind, written
from harness.readers.matrix import ABSENT, REFUSES, RIGHT, Cell, cells

RESULTS = Path(__file__).with_name("results.json")
OURSELVES = "headwater"


def run(readers: Sequence[Reader], kinds: tuple[Kind, ...], folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the versions of the readers and all cells, again after each reader with what it adds."""
    tables = list(written(folder, kinds))
    found = [
        Cell(table.kind, table.form, OURSELVES, table.form, REFUSES, table.refused) for table in tables if table.refused
    ]
    for number, reader in enumerate(readers, 1):
        for cell in cells([reader], tables, folder):
            found.append(cell)
            if cell.outcome != RIGHT:
                print(
                    f"{cell.reader} ({cell.reads}), {cell.kind}, {cell.form}: {cell.outcome} {cell.words}", flush=True
                )
        print(f"{reader.name} ({reader.form}) has read {len(tables)} tables", flush=True)
        yield {"versions": _versions(readers[:number]), "cells": [asdict(each) for each in found]}


def keep(place: Path, results: dict[str, Any]) -> None:
    """Put results into a file, in place of those of the same readers; those of others stay."""
    before = json.loads(place.read_text()) if place.exists() else {"versions": [], "cells": []}
    order = [OURSELVES, *(f"{reader.name} {reader.form}" for reader in READERS)]

    def rank(each: dict[str, str]) -> int:
        name = each["reader"] if each["reader"] == OURSELVES else f"{each['reader']} {each['reads']}"
        return order.index(name)

    mine = {rank(each) for part in results.values() for each in part}
    merged = {
        part: sorted([*(each for each in before[part] if rank(each) not in mine), *results[part]], key=rank)
        for part in results
    }
    place.write_text(json.dumps(merged, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _versions(readers: Sequence[Reader]) -> list[dict[str, str]]:
    return [
        {"reader": reader.name, "reads": reader.form, "versions": versions_of(reader, python) if python else ABSENT}
        for reader in readers
        for python in [python_of(reader)]
    ]


def main(given: Sequence[str] | None = None) -> int:
    """Read the arguments and run; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.readers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["setup", "run"])
    parser.add_argument("--only", default="", help="readers whose name has this")
    parser.add_argument("--kinds", default="", help="kinds whose name has this")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where what was seen is kept")
    asked = parser.parse_args(given)
    if asked.what == "setup":
        setup()
        return 0
    readers = [reader for reader in READERS if asked.only.lower() in f"{reader.program}, {reader.name}".lower()]
    kinds = tuple(kind for kind in KINDS if asked.kinds in kind.name)
    with tempfile.TemporaryDirectory(prefix="headwater-readers-") as folder:
        for results in run(readers, kinds, Path(folder).resolve()):
            if not asked.kinds:
                keep(asked.results, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
