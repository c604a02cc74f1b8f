"""Run the benchmarks: `python -m benchmarks.run [--results FILE] [NAME ...]`; all of them unless named.

A benchmark is a module bench_NAME.py beside this file with a function `main()` that calls `harness.measure`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from pathlib import Path

from benchmarks import harness


def names() -> list[str]:
    """Return the names of all benchmarks."""
    return sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks that are named, or all; return 0 when all of them ran."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Measure what headwater claims.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {', '.join(names())}; all unless given")
    parser.add_argument("--results", type=Path, metavar="FILE", help="append every figure as a line of JSON")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(names())):
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(names())}")
    harness.results_to(options.results)
    os.environ.setdefault("HEADWATER_TESTING_FORK", "0")  # nodes as an operator starts them
    failed: list[str] = []
    for name in options.names or names():
        print(f"-- {name}", flush=True)
        if not ran(name):
            failed.append(name)
    if failed:
        print(f"FAILED: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


def ran(name: str) -> bool:
    """Run one benchmark; after an error print it and return False, so that the others still give their figures."""
    try:
        importlib.import_module(f"benchmarks.bench_{name}").main()
    except Exception:
        traceback.print_exc()
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
