"""Run simulated worlds, seed after seed, for as long as one likes:

    python -m harness.world --minutes 10 --seed 1
    python -m harness.world --seed 17 --seeds 1 --without 0-3,7     one of them again, without some of its faults
    python -m harness.world --faults                                how often each fault comes in 200, and each pair

A failure is printed with its seed, and shrunk to fewer faults; status 1, as when the two judges of the clients'
histories disagree.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from multiprocessing import get_context

from harness.numbers import numbers_of
from harness.world.meetings import told
from harness.world.plan import plan_of
from harness.world.run import WorldOutcome
from harness.world.second import BothJudges
from harness.world.shrinking import run_seed, shrink

OPERATIONS, PLANS = 1000, 200
WORLDS_OF_A_PROCESS = 15
"""How many worlds a process runs before another one replaces it: it keeps 50 to 100 MiB of each, in pieces too small to
be given back.
"""
TOLD_SECONDS = 30.0


def main(argv: Sequence[str] | None = None) -> int:
    """Read the arguments and run; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.world", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1, help="the first")
    parser.add_argument("--seeds", type=int, default=0, help="how many, whatever time they take; 0: as --minutes says")
    parser.add_argument("--operations", type=int, default=OPERATIONS, help="of each history")
    parser.add_argument("--without", default="", help="numbers of steps to leave out, as 0-3,7")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--times", action="store_true", help="with a reader that says until when it has everything")
    parser.add_argument("--as-it-is", action="store_true", help="do not make a failure smaller")
    parser.add_argument("--faults", action="store_true", help="run nothing: count the faults and their pairs")
    arguments = parser.parse_args(argv)
    if arguments.faults:
        seeds_told = range(arguments.seed, arguments.seed + (arguments.seeds or PLANS))
        print(told(plan_of(seed, arguments.operations) for seed in seeds_told))
        return 0
    left_out = numbers_of(arguments.without) if arguments.without else ()
    begun = told_at = time.monotonic()
    seeds = operations = failed = 0
    counts: Counter[str] = Counter()
    judges = BothJudges()
    for outcome in _outcomes(arguments, left_out, begun):
        seeds, operations = seeds + 1, operations + len(outcome.history.operations)
        counts.update(outcome.counts)
        judges.add(outcome)
        if outcome.broken:
            failed += 1
            _tell(outcome, arguments.operations, None if arguments.as_it_is or left_out else TOLD_SECONDS)
        if time.monotonic() > told_at + TOLD_SECONDS:
            told_at = time.monotonic()
            print(_line(seeds, operations, failed, told_at - begun), flush=True)
    print(_line(seeds, operations, failed, time.monotonic() - begun), flush=True)
    print("  " + ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())), flush=True)
    judges.finish()
    for line in judges.disagreements:
        print(f"the judges disagree: {line}", flush=True)
    print(f"  {judges}", flush=True)
    return 1 if failed or judges.disagreements else 0


def _line(seeds: int, operations: int, failed: int, seconds: float) -> str:
    each = 60 * seeds / seconds if seconds else 0.0
    return f"{seeds} seeds, {operations:,} operations, {failed} broken; {each:.0f} seeds a minute"


def _outcomes(arguments: argparse.Namespace, left_out: Sequence[int], begun: float) -> Iterator[WorldOutcome]:
    """Yield the outcomes of the runs as they end."""
    seeds = iter(range(arguments.seed, arguments.seed + (arguments.seeds or 1 << 40)))
    if arguments.jobs == 1 or arguments.seeds == 1:
        for seed in seeds:
            if not arguments.seeds and time.monotonic() > begun + 60 * arguments.minutes:
                return
            yield run_seed(seed, arguments.operations, left_out, times=arguments.times)
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, mp_context=context, max_tasks_per_child=WORLDS_OF_A_PROCESS) as pool:
        waiting: set[Future[WorldOutcome]] = set()
        while True:
            is_time = bool(arguments.seeds) or time.monotonic() < begun + 60 * arguments.minutes
            while is_time and len(waiting) < 2 * arguments.jobs and (number := next(seeds, None)) is not None:
                waiting.add(
                    pool.submit(partial(run_seed, times=arguments.times), number, arguments.operations, left_out)
                )
            if not waiting:
                return
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for each in done:
                yield each.result()


def _tell(outcome: WorldOutcome, operations: int, smaller: float | None) -> None:
    """Print a failure and the command that repeats it; made smaller if there is time for it."""
    seed = outcome.plan.seed
    print(f"seed {seed} broke a promise (digest {outcome.digest}):\n{outcome.broken}\n{outcome.trace}", flush=True)
    again = f"python -m harness.world --seed {seed} --seeds 1 --operations {operations}"
    again += " --times" if outcome.plan.has_times else ""
    print(f"  again: {again}", flush=True)
    if smaller is None:
        return
    gone, less = shrink(outcome)
    if gone:
        numbers = ",".join(map(str, gone))
        print(f"  smaller: {again} --without {numbers}\n{less.broken}", flush=True)
    for step in less.plan.steps:
        print(f"    {step}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
