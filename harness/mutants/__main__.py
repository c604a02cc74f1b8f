"""Plant a bug in a copy of the product, and see that a judge finds it; then the next:

    python -m harness.mutants                            all, over 200 seeds each at most
    python -m harness.mutants --quickest 5               those that are known to be found in the shortest time
    python -m harness.mutants --only fsync-left-out --seeds 50 --from-seed 7

The seed that is known to find a mutant comes first, then the others in order. After a find, the same seed is run
without the bug: a judge that fails then as well has found nothing. At the end there is a table. Mutants whose judge
can't work on this machine are listed with the reason, and not counted. Status 1: a mutant survived, a patch does not
apply any more, or nothing was tried.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.mutants.judges import why_not_here
from harness.mutants.patches import ROOT, Mutant, Stale, every, planted

__all__ = ["QUICKEST", "Trial", "judged", "main", "quickest", "table", "tried"]

SEEDS_MAX: Final = 200
QUICKEST: Final = 5
"""The number of mutants that the ordinary tests plant."""
MUTANT_SECONDS_MAX: Final = 1800.0
_SEED: Final = re.compile(r"^seed (\d+)$", re.MULTILINE)
_FOUND: Final = re.compile(r"^found (\d+) ([\d.]+): (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome of one mutant.

    Attributes:
        seed: the seed that found it; None if it survived. seeds: the number of seeds tried.
        seconds: the judge's, start included.
        remark: the judge's message, or why the mutant could not be judged.
    """

    mutant: Mutant
    seed: int | None
    seeds: int
    seconds: float
    remark: str


def main(argv: Sequence[str] | None = None) -> int:
    """Read the arguments and run; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quickest", type=int, metavar="COUNT", help="only so many, the quickest first")
    parser.add_argument("--only", metavar="NAME", action="append", help="only this one; may be given again")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="of each mutant, at most")
    parser.add_argument("--from-seed", type=int, help="the first seed, in place of the one that is known")
    arguments = parser.parse_args(argv)
    trials: list[Trial] = []
    left_out = 0
    for mutant in _chosen(every(), arguments.only, arguments.quickest):
        if why := why_not_here(mutant.judge):
            left_out += 1
            print(f"{mutant.name} is not tried, for its judge {mutant.judge} can't work here: {why}", flush=True)
            continue
        known = mutant.seed if arguments.from_seed is None else None
        first = arguments.from_seed or 0
        others = [number for number in range(first, first + arguments.seeds) if number != known]
        seeds = others if known is None else [known, *others]
        trials.append(tried(mutant, seeds[: arguments.seeds]))
        print(_row(trials[-1]), flush=True)
    print("\n".join(["", *table(trials)]))
    found = sum(trial.seed is not None for trial in trials)
    print(f"\n{found} of {len(trials)} found" + (f", {left_out} not tried" if left_out else ""))
    return int(found < len(trials) or not trials)


def quickest(mutants: Iterable[Mutant], count: int) -> list[Mutant]:
    """Return the mutants that are known to be found in the shortest time, the quickest first."""
    return sorted(mutants, key=lambda mutant: mutant.seconds)[:count]


def _chosen(mutants: list[Mutant], only: Sequence[str] | None, count: int | None) -> list[Mutant]:
    if unknown := set(only or ()) - {mutant.name for mutant in mutants}:
        raise SystemExit(f"there is no mutant {', '.join(sorted(unknown))}; the names are in harness/mutants/patches")
    chosen = [mutant for mutant in mutants if not only or mutant.name in only]
    return chosen if count is None else quickest(chosen, count)


def tried(mutant: Mutant, seeds: Sequence[int], *, is_controlled: bool = True) -> Trial:
    """Plant a bug, and let its judge look for it.

    Args:
        is_controlled: True to run the seed that found it without the bug as well, which must find nothing.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        try:
            source = planted(mutant, Path(folder))
        except Stale as error:
            return Trial(mutant, None, 0, 0.0, str(error))
        output = judged(mutant.judge, seeds, source)
    seconds = time.monotonic() - began
    found = _FOUND.search(output)
    if found is None:
        return Trial(mutant, None, len(seeds), seconds, output.strip().rpartition("\n")[2] or "the judge said nothing")
    seed = int(found[1])
    if is_controlled and _FOUND.search(control := judged(mutant.judge, [seed], ROOT / "src")):
        return Trial(mutant, None, seeds.index(seed) + 1, seconds, f"found without the bug as well: {control.strip()}")
    return Trial(mutant, seed, seeds.index(seed) + 1, seconds, found[3])


def judged(judge: str, seeds: Iterable[int], source: Path) -> str:
    """Return the output of a judge in a process of its own, which imports the product from `source`.

    A seed during which that process is ended by a signal counts as found, too.
    """
    command = [sys.executable, "-m", "harness.mutants.judges", judge, "--seeds", ",".join(map(str, seeds))]
    environment = os.environ | {"PYTHONPATH": str(source)}
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=MUTANT_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the judge was not done in {MUTANT_SECONDS_MAX:.0f} s"
    return done.stdout + _ended(done, time.monotonic() - began)


def _ended(done: subprocess.CompletedProcess[str], seconds: float) -> str:
    """Return the line of a seed whose process was ended by a signal; "" if the process came to its end."""
    seeds = _SEED.findall(done.stdout)
    if done.returncode >= 0 or not seeds:
        return ""
    ended = signal.Signals(-done.returncode)
    why = "it came to no end" if ended is signal.SIGPROF else f"its process was ended by {ended.name}"
    return f"found {seeds[-1]} {seconds:.1f}: {why}\n"


def table(trials: Iterable[Trial]) -> list[str]:
    """Return the lines of the table."""
    head = "| mutant | the bug | breaks | judge | seed | seeds | seconds |"
    return [head, "|---|---|---|---|---|---|---|", *map(_row, trials)]


def _row(trial: Trial) -> str:
    mutant, seed = trial.mutant, "survived" if trial.seed is None else trial.seed
    told = f" {trial.remark}" if trial.seed is None else ""
    bug = f"| {mutant.name} | {mutant.title} | {mutant.breaks} | {mutant.judge} "
    return f"{bug}| {seed} | {trial.seeds} | {trial.seconds:.0f} |{told}"


if __name__ == "__main__":
    sys.exit(main())
