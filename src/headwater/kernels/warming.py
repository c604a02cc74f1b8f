"""Builds every kernel of the package at once: `python -m headwater.kernels.warming`, or `kernels.warm()`.

With names of modules as arguments: compiles these first, and prints the name of each, for a node that waits for them
(node/process/machine_code.py).

numba compiles a kernel at its first call with arguments of a type; a first request should not wait these seconds. So
servers and the set-up of a checkout call `warm()` first. With the cache of an earlier process it only loads.

Every module with kernels has a function `warm_up()` that calls them with almost empty arguments of the real types, or
gives such arguments to `builds.prepare`. A test checks that every kernel is warmed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from headwater.kernels import builds
from headwater.kernels.sources import PACKAGE

NOT_KERNELS = frozenset({*builds.SHARED, "batches", "intrinsics", "warming"})


@dataclass(frozen=True, slots=True)
class Warmed:
    """The cost of warming a module.

    Attributes:
        module: its short name.
        seconds: time of loading or compiling, imports included.
        compiled, loaded: number of kernels compiled, and number loaded from the cache.
    """

    module: str
    seconds: float
    compiled: int
    loaded: int


def kernel_modules() -> list[str]:
    """Return the short names of the modules that define kernels, in order."""
    names = (path.stem for path in PACKAGE.glob("*.py"))
    return sorted(name for name in names if name not in NOT_KERNELS and not name.startswith("__"))


def warm(report: Callable[[str], None] | None = None) -> list[Warmed]:
    """Compile or load all kernels; `report` gets a line for each module and one for all."""
    if not builds.compiling():
        return []
    results = []
    for name in kernel_modules():
        results.append(_warm_module(name))
        if report is not None and (results[-1].compiled or results[-1].loaded):
            report(f"kernels.{name}: {_summary(results[-1:])}")
    if report is not None:
        report(f"kernels: {_summary(results)}, kept in {builds.cache_folder() or 'no cache: none can be written'}")
    return results


def _warm_module(name: str) -> Warmed:
    before, start = _counts(), time.perf_counter()
    module = importlib.import_module(f"headwater.kernels.{name}")
    warm_up = getattr(module, "warm_up", None)
    if warm_up is not None:
        warm_up()
    after = _counts()
    return Warmed(name, time.perf_counter() - start, after[0] - before[0], after[1] - before[1])


def _counts() -> tuple[int, int]:
    """Return (compiled, loaded), numbers of signatures so far. numba counts a compilation as a miss of its cache."""
    from headwater.kernels import jit  # noqa: PLC0415 - imports numba

    stats = [built.stats for _, built in jit.built_kernels()]
    compiled = sum(sum(stat.cache_misses.values()) for stat in stats)
    return compiled, sum(sum(stat.cache_hits.values()) for stat in stats)


def _summary(warmed: list[Warmed]) -> str:
    seconds = sum(each.seconds for each in warmed)
    compiled, loaded = sum(each.compiled for each in warmed), sum(each.loaded for each in warmed)
    parts = [f"{compiled} compiled"] if compiled else []
    parts += [f"{loaded} loaded"] if loaded or not parts else []
    return f"{', '.join(parts)} in {seconds:.2f} s"


def serve_a_node(names: list[str], niceness: int) -> None:
    """Compile these modules, then all others, and print the name of each when it is done; stop if the pipe is
    closed.
    """
    os.nice(niceness)
    for name in [*names, *(module for module in kernel_modules() if module not in names)]:
        _warm_module(name)
        print(name, flush=True)


def main() -> None:
    """Compile or load all kernels, and report the time."""
    parser = argparse.ArgumentParser(prog="python -m headwater.kernels.warming", description=main.__doc__)
    parser.add_argument("--niceness", type=int, default=0, help="how much lower the priority is")
    parser.add_argument("modules", nargs="*", help="compile these first, and print the name of each that is done")
    arguments = parser.parse_args()
    if arguments.modules:
        serve_a_node(arguments.modules, arguments.niceness)
    else:
        warm(print)


if __name__ == "__main__":
    main()
