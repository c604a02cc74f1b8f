"""Run scenarios of faults against the mirror, by seed:

    python -m harness.lake_faults --seeds 0-199

Each scenario's result is printed and appended to the report as a JSON object, as soon as it is known; a seed whose
result is in the report is not run again, so an interrupted run can be continued. At the end a table has the number of
scenarios of each kind. Exit status 1 if one of them went wrong.

    python -m harness.lake_faults --seeds 17 --again --verbose       one seed, step by step
    python -m harness.lake_faults --engine spark --seeds 0-13        the mirrors run on Spark; a report of its own
    python -m harness.lake_faults --format iceberg --seeds 0-199     tables of Iceberg, or of both: reports of their own

With `--format` there are some kinds more: a catalog that goes away and loses answers, and Iceberg on Spark as a
foreign writer, if `python -m harness.readers setup` has installed it; without it these steps do nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.lake_faults.engines import Engine, OnSpark, WithoutSpark
from harness.lake_faults.scenario import PROFILES, Profile, profile_of, profiles_of, run
from harness.lake_faults.strangers import IcebergOnSpark
from harness.lake_faults.world import DELTA, FORMS
from harness.numbers import numbers_of

ENGINES = ("local", "spark")


def main(argv: Sequence[str] | None = None) -> int:
    """Read the arguments and run; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.lake_faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0-199", help="numbers and ranges, such as 0-19,40")
    parser.add_argument("--engine", choices=list(ENGINES), default="local", help="what runs the mirrors")
    parser.add_argument("--format", choices=FORMS, default=DELTA, help="of the tables")
    parser.add_argument("--report", type=Path, help="where results are kept, a JSON object a line")
    parser.add_argument("--again", action="store_true", help="run seeds whose results are there as well")
    parser.add_argument("--verbose", action="store_true", help="tell each step")
    arguments = parser.parse_args(argv)
    seeds = numbers_of(arguments.seeds)
    report = arguments.report or report_of(arguments.engine, arguments.format)
    known = read(report)
    report.parent.mkdir(parents=True, exist_ok=True)
    with _engine(arguments.engine) as engine, closing(IcebergOnSpark()) as strangers:
        also = {"form": arguments.format, "strangers": strangers if strangers.is_installed else None}
        for seed in seeds:
            if seed not in known or arguments.again:
                known[seed] = _run(seed, report, engine, verbose=arguments.verbose, **also)
    chosen = [known[seed] for seed in seeds]
    print("\n".join(table(chosen, profiles_of(arguments.format))))
    return int(any(result["problem"] for result in chosen))


def read(report: Path) -> dict[int, dict[str, Any]]:
    """Return the results that a report has, by seed; the newest of each counts."""
    lines = report.read_text("utf-8").splitlines() if report.exists() else []
    return {result["seed"]: result for result in map(json.loads, lines)}


def report_of(engine: str, form: str) -> Path:
    """Return where the results of an engine and a format are kept."""
    more = [engine] if engine != "local" else []
    more += [form.replace(",", "-")] if form != DELTA else []
    return Path("artifacts", f"{'-'.join(('lake-faults', *more))}.jsonl")


@contextmanager
def _engine(name: str) -> Iterator[Engine]:
    if name == "local":
        yield WithoutSpark()
        return
    from headwater.pipelines.session import local_session  # noqa: PLC0415 -- imports pyspark

    spark = local_session("lake-faults", cores="local[2,2]", quiet=True)
    try:
        yield OnSpark(spark)
    finally:
        spark.stop()


def _run(seed: int, report: Path, engine: Engine, *, verbose: bool, **also: Any) -> dict[str, Any]:
    if verbose:
        print(f"seed {seed}: {profile_of(seed, also['form']).name}", flush=True)
    result = run(seed, lambda line: print(f"    {line}", flush=True) if verbose else None, engine, **also)
    entry = asdict(result)
    with report.open("a", encoding="utf-8") as out:
        out.write(json.dumps(entry) + "\n")
    outcome = result.problem or "equal"
    print(f"seed {seed:4}  {result.seconds:6.1f} s  {result.steps:2} steps  {result.profile}: {outcome}", flush=True)
    if verbose and result.trace:
        print(result.trace)
    return entry


def table(results: Iterable[dict[str, Any]], profiles: Iterable[Profile] = PROFILES) -> list[str]:
    """Return the lines of a table: scenarios and wrong ones, by profile."""
    kinds: dict[str, list[dict[str, Any]]] = {profile.name: [] for profile in profiles}
    for result in results:
        kinds.setdefault(result["profile"], []).append(result)
    lines = ["", "| scenarios | run | steps | wrong | seeds that went wrong |", "|---|---|---|---|---|"]
    for name, found in [*kinds.items(), ("all", [result for kind in kinds.values() for result in kind])]:
        wrong = [str(result["seed"]) for result in found if result["problem"]]
        steps = sum(result["steps"] for result in found)
        lines.append(f"| {name} | {len(found)} | {steps} | {len(wrong)} | {', '.join(wrong)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
