"""Python's collector of reference cycles in Spark's worker processes.

Spark's daemon lets a worker collect everything after each task (pyspark/daemon.py, `gc.collect()`). That scans all
imported objects, 140,000 of PySpark, Arrow and ours, in 0.08 s of a core: as much as a task needs for reading 250,000
documents, though a task leaves almost no garbage.
"""

from __future__ import annotations

import gc
import sys
from functools import cache

DAEMON = "pyspark.daemon"


def set_aside() -> None:
    """Exclude the objects of a Spark worker from later collections, once, at the end of its first task.

    Reference counts free these objects as always. Only cycles among them that become garbage later stay, and their
    number is bounded. Outside of a worker nothing happens.
    """
    if _is_worker():
        _run_once()


@cache
def _run_once() -> None:
    gc.collect()
    gc.freeze()


def _is_worker() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == DAEMON
