"""Run the tests that failed in the last run of pytest once more, alone, and report which of them are flaky.

    python tools/again.py LOG     LOG: the output of that run, with pytest's closing line

A test that fails beside others and passes alone is flaky: the run counts as passed, and the closing line names the
test, so that somebody mends it next. A log without a closing line was cut off, and a log that counts more failures than
pytest has noted failed in another way: both runs stay failed, and no test is run again.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

NOTED = Path(".pytest_cache/v/cache/lastfailed")
COUNTS = ("passed", "failed", "error", "skipped")
AGAIN = ("-q", "--last-failed", "--last-failed-no-failures=none", "-p", "no:xdist", "-m", "")


@dataclass
class Closing:
    """The counts of pytest's closing line."""

    passed: int = 0
    failed: int = 0
    error: int = 0
    skipped: int = 0

    @classmethod
    def of(cls, output: str) -> Closing | None:
        """Return the counts of the last closing line of an output; None if there is none."""
        lines = [line for line in output.splitlines() if re.search(r"\d+ \w+.* in [\d.]+s", line)]
        if not lines:
            return None
        return cls(*(int(found[1]) if (found := re.search(rf"(\d+) {word}", lines[-1])) else 0 for word in COUNTS))


def noted() -> list[str]:
    """Return the ids of the tests that pytest has noted as failed."""
    return sorted(json.loads(NOTED.read_text("utf-8"))) if NOTED.exists() else []


def closing_line(first: Closing, flaky: list[str], failed: list[str]) -> str:
    """Return the last line of a run in two parts, with the names of the flaky tests."""
    line = f"{first.passed + len(flaky)} passed, {len(failed)} failed, {first.skipped} skipped"
    return f"{line}; flaky: {', '.join(flaky)}" if flaky else line


def run(log: Path) -> int:
    """Run the tests again that failed in a log's run; return 0 if all of them pass now."""
    first, before = Closing.of(log.read_text("utf-8", "replace")), noted()
    if first is None:
        print("the run was cut before pytest's closing line: nothing is run again")
        return 1
    if not before or len(before) != first.failed + first.error:
        print(f"pytest counted {first.failed} failed, {first.error} errors, and noted {len(before)}: no run again")
        return 1
    print(f"== once more, alone: {len(before)}", flush=True)
    status = subprocess.run([sys.executable, "-m", "pytest", *AGAIN], check=False).returncode
    failed = noted() if status else []
    print(closing_line(first, [test for test in before if test not in failed], failed))
    return int(status != 0)


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1])))
