"""Runs scenarios by their seeds, and prints what is wrong with the tables."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from harness.auto_cdc.ledger import differences
from harness.auto_cdc.model import ModelPipeline
from harness.auto_cdc.scenario import VBUCKETS, Scenario
from headwater.testing.node import node


def run(seed: int, rounds: int, remote: str | None) -> tuple[Scenario, list[str]]:
    """Run one scenario; return it, and what is wrong with the tables."""
    with tempfile.TemporaryDirectory() as folder, node(vbuckets=VBUCKETS) as bucket:
        if remote is None:
            model = ModelPipeline(bucket.url, str(Path(folder, "undo")))
            scenario = Scenario(bucket, model, seed)
            scenario.run(rounds)
            return scenario, differences(scenario.ledger, model.scd1(), model.scd2())
        from harness.auto_cdc.spark import SparkPipeline  # noqa: PLC0415 -- Spark Connect

        pipeline = SparkPipeline(remote, bucket.url, Path(folder), seed)
        scenario = Scenario(bucket, pipeline, seed)
        try:
            scenario.run(rounds)
            return scenario, differences(scenario.ledger, pipeline.scd1(), pipeline.scd2())
        finally:
            pipeline.close()


def main() -> int:
    """Run the seeds of the command line; return the number of scenarios whose tables were wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-99")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so many")
    parser.add_argument("--spark", help="the address of a Spark Connect server, for Spark's own Auto CDC")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    wrong = runs = failovers = 0
    ends = time.monotonic() + options.seconds
    for seed in range(int(first), int(last or first) + 1):
        if time.monotonic() >= ends:
            break
        scenario, lines = run(seed, options.rounds, options.spark)
        runs, failovers, wrong = runs + 1, failovers + scenario.taken_back, wrong + bool(lines)
        for line in lines:
            print(f"seed {seed}: {line}", flush=True)
    print(f"{runs} runs, {failovers} failovers that took back what the tables had, {wrong} runs wrong", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(), 1))
