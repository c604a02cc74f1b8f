"""Run a judge over seeds, until one of them fails:

    python -m harness.mutants.judges failovers --seeds 0-199

The last line says `found SEED SECONDS: why` (status 1) or `nothing` (status 0). Status 2: the judge itself broke.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Final

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from harness.lake_faults import scenario
from harness.lake_faults.judge import Wrong
from harness.numbers import numbers_of
from harness.power_cuts.mounted import mounted
from harness.power_cuts.nodes import CutNode
from harness.simulation.cluster import SimCluster
from harness.simulation.failovers import Failovers
from harness.simulation.machine import ClusterMachine
from harness.world.shrinking import run_seed
from headwater.errors import HeadwaterError

__all__ = ["FINDINGS", "JUDGES", "main"]

EXAMPLES: Final = 10
STEPS: Final = 50
ROUNDS: Final = 4
CUTS: Final = 10
OPERATIONS: Final = 300
FINDINGS: Final = (AssertionError, HeadwaterError, Flaky)
"""The errors by which a judge says that a promise is broken; any other is a mistake of the judge or the patch."""


def machine(number: int) -> None:
    """Ten examples of the model-based test, fifty steps each."""
    chosen = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(seed(number)(type("Round", (ClusterMachine,), {})), settings=chosen)


def failovers(number: int) -> None:
    """Four failovers by maps, under durable writes."""
    with SimCluster.running(number, vbuckets=1) as cluster:
        rounds = Failovers(cluster)
        rounds.begin()
        for _ in range(ROUNDS):
            rounds.round()


def world(number: int) -> None:
    """A whole cluster, its operators and clients: 300 operations."""
    if broken := run_seed(number, OPERATIONS).broken:
        raise AssertionError(broken)


def lake(number: int) -> None:
    """A scenario of faults against the mirror, without Spark."""
    if problem := scenario.run(number).problem:
        raise Wrong(problem)


def power_cuts(number: int) -> None:
    """Ten cuts under a node that is written to, followed and compacted (as root)."""
    with tempfile.TemporaryDirectory(prefix="mutants-cuts-") as folder:
        place = Path(folder) / "disk"
        place.mkdir()
        with mounted(place) as disk:
            node = CutNode(disk, place, number)
            try:
                while node.cuts.total() < CUTS:
                    node.round()
                node.end()
            finally:
                node.close()


JUDGES: Final[Mapping[str, Callable[[int], None]]] = {
    "machine": machine,
    "failovers": failovers,
    "world": world,
    "lake": lake,
    "power_cuts": power_cuts,
}


def main(given: Sequence[str] | None = None) -> int:
    """Read the arguments and run; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.mutants.judges", description=__doc__)
    parser.add_argument("judge", choices=list(JUDGES))
    parser.add_argument("--seeds", default="0-199", help="numbers and ranges, such as 0-19,40")
    arguments = parser.parse_args(given)
    for number in numbers_of(arguments.seeds):
        began = time.monotonic()
        try:
            with redirect_stdout(StringIO()):
                JUDGES[arguments.judge](number)
        except FINDINGS as error:
            told = (str(error).strip() or type(error).__name__).splitlines()[0]
            print(f"found {number} {time.monotonic() - began:.1f}: {told}", flush=True)
            return 1
    print("nothing", flush=True)
    return 0


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    try:
        status = main()
    except Exception as error:
        print(f"the judge broke: {type(error).__name__}: {error}", flush=True)
        status = 2
    sys.exit(status)
