"""Run the model-based test of a cluster for as long as one likes:

    python -m harness.simulation --minutes 30 --seed 1

Round after round with the next seed, each a number of examples. Every half minute a line says how many there were. A
failure ends the run, with its seed and the smallest steps that were found; status 1.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from harness.simulation.machine import ClusterMachine

ROUND_EXAMPLES = 50
TOLD_SECONDS = 30.0


def main(argv: Sequence[str] | None = None) -> int:
    """Read the arguments and run; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.simulation", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--steps", type=int, default=50, help="of an example, at most")
    arguments = parser.parse_args(argv)
    begun = told = time.monotonic()
    number = arguments.seed
    while time.monotonic() < begun + 60 * arguments.minutes:
        if not _round(number, arguments.steps):
            return 1
        number += 1
        if time.monotonic() > told + TOLD_SECONDS:
            told = time.monotonic()
            _tell(f"{(told - begun) / 60:.1f} min, seeds {arguments.seed} to {number - 1}")
    _tell(f"{arguments.minutes:g} minutes, seeds {arguments.seed} to {number - 1}: nothing found", rules=True)
    return 0


def _round(number: int, steps: int) -> bool:
    """Run one seed's examples; return False if one of them failed."""
    chosen = settings(
        max_examples=ROUND_EXAMPLES,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    told: list[str] = []

    def failed(error: BaseException) -> None:
        """Print that an example failed: shrinking it takes a while."""
        if not told:
            told.append(str(error))
            print(f"seed {number} fails, its steps are being made few: {error}", flush=True)

    machine = seed(number)(type("Round", (ClusterMachine,), {"failed": staticmethod(failed)}))
    try:
        run_state_machine_as_test(machine, settings=chosen)
    except BaseException as error:  # told with its seed, whatever it is
        if isinstance(error, KeyboardInterrupt):
            raise
        traceback.print_exc()
        _tell(f"seed {number} failed; again: --seed {number} --steps {steps}", rules=True)
        return False
    return True


def _tell(head: str, *, rules: bool = False) -> None:
    counts = dict(ClusterMachine.counts)
    totals = ", ".join(f"{counts.pop(name, 0):,} {name}" for name in ("examples", "steps", "acknowledged"))
    print(f"{head}: {totals}", flush=True)
    if rules:
        print("  " + ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())), flush=True)


if __name__ == "__main__":
    sys.exit(main())
