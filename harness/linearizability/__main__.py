"""Judge what clients of real nodes saw while these were killed, stopped, cut off, failed over and rebalanced:

    python -m harness.linearizability run --minutes 10 --seed 1
    python -m harness.linearizability judge artifacts/linearizability/round-17.jsonl

Round after round with the next seed. Every round prints a line. Answers that nothing explains, and a cluster that does
not become well again, end the run with status 1; the history is kept in artifacts/linearizability, to be judged again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness.linearizability.judgement import Judgement, judged
from harness.linearizability.record import from_lines, to_lines
from harness.linearizability.rounds import Broken, Round
from headwater.errors import HeadwaterError
from headwater.testing.node import NodeError

KEPT = Path("artifacts/linearizability")


def main(argv: Sequence[str] | None = None) -> int:
    """Read the arguments and run; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.linearizability", description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    run = commands.add_parser("run", help="rounds of real nodes")
    run.add_argument("--minutes", type=float, default=1.0)
    run.add_argument("--seed", type=int, default=1, help="of the first round")
    run.add_argument("--rounds", type=int, default=0, help="at most so many")
    again = commands.add_parser("judge", help="a history that was kept")
    again.add_argument("file", type=Path)
    arguments = parser.parse_args(argv)
    if arguments.command == "judge":
        return _judge_file(arguments.file)
    return _run(arguments.minutes, arguments.seed, arguments.rounds)


def _judge_file(path: Path) -> int:
    with path.open(encoding="utf-8") as lines:
        found = judged(from_lines(lines))
    print(found.summary())
    print("\n".join(found.reports))
    return 0 if found.is_good else 1


def _run(minutes: float, first: int, rounds: int) -> int:
    give_up, seed, total = time.monotonic() + 60 * minutes, first, Judgement()
    while time.monotonic() < give_up and (not rounds or seed < first + rounds):
        found, trouble = _round(seed)
        _add(total, found)
        if trouble or not found.is_good:
            print(f"seed {seed}: {found.summary()}\n{trouble}\n" + "\n".join(found.reports), flush=True)
            print(f"judge it again: python -m harness.linearizability judge {_kept(seed)}", flush=True)
            return 1
        print(f"seed {seed}: {found.summary()}", flush=True)
        seed += 1
    print(f"{seed - first} rounds, seeds {first} to {seed - 1}: {total.summary()}", flush=True)
    return 0


def _round(seed: int) -> tuple[Judgement, str]:
    """Run one round; return the judges' findings and other problems. The history is kept if there is a finding or a
    problem.
    """
    trouble = ""
    with tempfile.TemporaryDirectory(prefix="headwater-round-") as folder:
        this = Round(seed, Path(folder))
        try:
            with this:
                this.run()
        except (Broken, NodeError, HeadwaterError) as problem:
            trouble = f"{problem}\n"
        history = this.history()
    KEPT.mkdir(parents=True, exist_ok=True)
    _kept(seed).write_text("\n".join(to_lines(history)) + "\n", encoding="utf-8")
    found = judged(history)
    if not (trouble or found.undecided) and found.is_good:
        _kept(seed).unlink()
    if trouble or not found.is_good:
        trouble = "\n".join([*this.did, trouble])
    return found, trouble


def _kept(seed: int) -> Path:
    return KEPT / f"round-{seed}.jsonl"


def _add(total: Judgement, found: Judgement) -> None:
    for name in ("operations", "maybes", "keys", "strict_keys"):
        setattr(total, name, getattr(total, name) + getattr(found, name))
    for name in ("violations", "undecided", "disagreements"):
        getattr(total, name).extend(getattr(found, name))
    total.porcupine = total.porcupine or found.porcupine


if __name__ == "__main__":
    sys.exit(main())
