"""Attack two real nodes by hostile guests, and measure the cost of each attack:

    python -m harness.attack

Every request and page at its limits, before the login and after it, then storms; a line for each, a table at the end:
the longest turn of the event loop in processor time ("turn"), in wall time while its thread did not stand in line for a
processor ("own") and in wall time ("late"), how long a bystander waited, and the most resident memory. Status 1 when a
bound is broken: a turn of more than 50 ms of processor time that comes again when the attack is repeated three times,
more memory than the options allow, a traceback, a bystander who was not answered. Other programs on the machine make
the other times longer, but not the processor time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness.attack.battery import Battery, two_nodes
from harness.attack.storms import KEYS


def main(argv: Sequence[str] | None = None) -> int:
    """Read the arguments and run; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.attack", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="at most; what was not tried by then is a failure")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the storms, and share of the requests")
    parser.add_argument("--documents", type=int, default=KEYS, help="so many in each node")
    parser.add_argument("--only", default="", help="a pattern: only attacks in whose name it is found")
    parser.add_argument("--quiet", action="store_true", help="the table only")
    arguments = parser.parse_args(argv)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, two_nodes(Path(folder), arguments.documents) as (everybody, users):
        tell = (lambda line: None) if arguments.quiet else _tell
        options = {"seconds": arguments.seconds, "scale": arguments.scale, "only": arguments.only, "tell": tell}
        report = Battery(everybody, users, **options).run()
    for line in report.table():
        _tell(line)
    for remark in report.remarks:
        _tell(f"not again: {remark}")
    for complaint in report.complaints:
        _tell(f"FAILED {complaint}")
    _tell(f"{len(report.rows)} attacks in {time.monotonic() - begun:.0f} s, {len(report.complaints)} complaints")
    return 1 if report.complaints else 0


def _tell(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
