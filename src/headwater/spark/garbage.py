"""Python's collector of reference cycles in Spark's worker processes.

Spark's daemon lets a worker collect everything after each task (pyspark/daemon.py, `gc.collect()`): all that was ever
imported is looked through, 140,000 objects of PySpark, Arrow and ours, 0.08 s of a core. A task needs as much for
reading 250,000 documents, and leaves next to nothing behind that has to be found.
"""

from __future__ import annotations

import gc
import sys
from functools import cache

DAEMON = "pyspark.daemon"


def set_aside() -> None:
    """Take what this worker holds out of all later collections, when its first task ends; anywhere else do nothing.

    Reference counts free it as ever. Only cycles among it that fall apart later stay, and that is bounded, for it is
    done once.
    """
    if _is_worker():
        _once()


@cache
def _once() -> None:
    gc.collect()
    gc.freeze()


def _is_worker() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == DAEMON
