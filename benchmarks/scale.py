"""How cost grows: CPU seconds of the same work at sizes x1, x4 and x16, and the exponent; `make bench-scale`.

    python -m benchmarks.scale [NAME ...]

    collections: 64, 256, 1024 in 64 vbuckets: 0.060, 0.232, 0.910 CPU s; exponent 0.99, at most 1.1: met

The exponent is that of the last step, log(cost x16 / cost x4) / log 4: costs that do not grow weigh least there. 1 is
linear. A limit of 1.1 is for work that has to be linear, 0.1 for work that has to cost the same at every size. The
figure of a size is the least of REPETITIONS runs: other work on a machine makes a run dearer, never cheaper.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.harness import publish
from benchmarks.scale_axes import AXES


def main(arguments: list[str] | None = None) -> int:
    """Measure the work that is named, or all; return 1 if an exponent is over its limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description="Measure how cost grows with size.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(AXES)}; all unless given")
    names = parser.parse_args(arguments).names or list(AXES)
    if unknown := sorted(set(names) - set(AXES)):
        parser.error(f"nothing is called {', '.join(unknown)}; there are {', '.join(AXES)}")
    growths = [publish(AXES[name].measured()) for name in names]
    return int(any(growth.exponent > growth.limit for growth in growths))


if __name__ == "__main__":
    sys.exit(main())
