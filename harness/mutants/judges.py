"""Run a judge over seeds, until one of them fails:

    python -m harness.mutants.judges failovers --seeds 0-199

Each seed is named before it begins. The last line says `found SEED SECONDS: why` (status 1) or `nothing` (status 0).
Status 2: the judge itself broke. A seed that takes `PROCESSOR_SECONDS_MAX` of a processor goes round in a circle: its
process is ended by SIGPROF, which no code of the product can hold up. `harness.mutants` counts such an end as a find,
as it does for any other signal.

A seed of `clients` or `power_cuts` decides the requests and the cuts, but not their times, since these judges run real
processes: a seed that found a bug once will nearly always find it again, but not surely.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from random import Random
from threading import Lock
from typing import Final

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from harness.lake_faults import scenario
from harness.lake_faults.judge import Wrong
from harness.linearizability.clients import Client
from harness.linearizability.judgement import judged
from harness.linearizability.record import FaultKind, History, Recorder
from harness.numbers import numbers_of
from harness.power_cuts.mounted import mounted, why_not
from harness.power_cuts.nodes import CutNode
from harness.simulation import failovers as failovers_by_maps
from harness.simulation import promotions as torn_promotions
from harness.simulation import reads as early_reads
from harness.simulation.machine import ClusterMachine
from harness.world.shrinking import run_seed
from headwater import testing
from headwater.errors import HeadwaterError
from headwater.wire.address import Address

__all__ = ["FINDINGS", "JUDGES", "main", "why_not_here"]

EXAMPLES: Final = 10
STEPS: Final = 50
ROUNDS: Final = 4
PROMOTIONS: Final = 12
READ_ROUNDS: Final = 6
CUTS: Final = 10
OPERATIONS: Final = 300
CLIENTS: Final = 4
LIFE_SECONDS: Final = 3.0
LOCK_SECONDS: Final = (5,)
CLOCK_ERROR_SECONDS: Final = 1.05
"""The error of a node that uses its clients' clock, but counts in whole seconds."""
HOT_KEYS, COLD_KEYS = ("p1", "p2", "d1"), tuple(f"c{number}" for number in range(200))
KEYS: Final = HOT_KEYS * 60 + COLD_KEYS
"""Half of all operations use the same three keys; all other keys are unused for long enough to expire, or to stay
locked.
"""
PROCESSOR_SECONDS_MAX: Final = 60.0
"""The most processor seconds for a seed: far more than a seed of any judge needs."""
FINDINGS: Final = (AssertionError, HeadwaterError, Flaky)
"""The errors by which a judge says that a promise is broken; any other is a mistake of the judge or the patch."""


def machine(number: int) -> None:
    """Run ten examples of the model-based test, fifty steps each."""
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
    """Run four failovers by maps, under durable writes."""
    failovers_by_maps.play(number, ROUNDS)


def torn_copies(number: int) -> None:
    """Run four failovers of an owner one of whose replicas is amid a snapshot."""
    failovers_by_maps.play_torn(number, ROUNDS)


def handovers(number: int) -> None:
    """Hand four vbuckets over while durable writes wait."""
    failovers_by_maps.play_handed_over(number, ROUNDS)


def promotions(number: int) -> None:
    """Promote twelve replicas, often amid a snapshot."""
    torn_promotions.play(number, PROMOTIONS)


def reads(number: int) -> None:
    """Run six crashes, most of them power cuts, amid batches whose documents are read at the same time."""
    early_reads.play(number, READ_ROUNDS)


def world(number: int) -> None:
    """Run a whole cluster, its operators and clients, for 300 operations."""
    if broken := run_seed(number, OPERATIONS).broken:
        raise AssertionError(broken)


def lake(number: int) -> None:
    """Run a scenario of faults against the mirror, without Spark."""
    if problem := scenario.run(number).problem:
        raise Wrong(problem)


def clients(number: int) -> None:
    """Run four clients of a real node, which is killed once, and both judges of their history."""
    with testing.node(vbuckets=4) as node:
        history = _history(node, number)
    if reports := judged(history).reports:
        raise AssertionError(" ".join(reports[0].split()))


def _history(node: testing.Node, number: int) -> History:
    recorder, lock, random = Recorder(CLOCK_ERROR_SECONDS), Lock(), Random(number)  # noqa: S311 - must be repeatable
    seeds = [Address(node.host, node.port)]
    working = [
        Client(each, recorder, lock, seeds, keys=KEYS, random=Random(random.random()), lock_seconds=LOCK_SECONDS)  # noqa: S311
        for each in range(CLIENTS)
    ]
    for client in working:
        client.start()
    working[0].join(LIFE_SECONDS)
    began = time.time()
    node.kill()
    node.start()
    with lock:
        recorder.fault(FaultKind.RESTART, began=began, ended=time.time())
    working[0].join(LIFE_SECONDS)
    for client in working:
        client.stopping.set()
    for client in working:
        client.join()
        if client.error is not None:
            raise client.error
    return recorder.history()


def power_cuts(number: int) -> None:
    """Run ten power cuts under a node with writers, followers and compactions (as root)."""
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
    "torn_copies": torn_copies,
    "handovers": handovers,
    "promotions": promotions,
    "reads": reads,
    "world": world,
    "lake": lake,
    "clients": clients,
    "power_cuts": power_cuts,
}


def why_not_here(judge: str) -> str:
    """Return why a judge can't work on this machine; "" if it can."""
    return why_not() if judge == "power_cuts" else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Read the arguments and run; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.mutants.judges", description=__doc__)
    parser.add_argument("judge", choices=list(JUDGES))
    parser.add_argument("--seeds", default="0-199", help="numbers and ranges, such as 0-19,40")
    arguments = parser.parse_args(argv)
    for number in numbers_of(arguments.seeds):
        print(f"seed {number}", flush=True)
        signal.setitimer(signal.ITIMER_PROF, PROCESSOR_SECONDS_MAX)
        began = time.monotonic()
        try:
            with redirect_stdout(StringIO()):
                JUDGES[arguments.judge](number)
        except FINDINGS as error:
            message = (str(error).strip() or type(error).__name__).splitlines()[0]
            print(f"found {number} {time.monotonic() - began:.1f}: {message}", flush=True)
            return 1
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
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
