"""A mirror's start: the server of its workers is there early, and what a run does not need is not loaded."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys

LOADED = "import sys; import {}; print(*(name for name in {!r} if name in sys.modules))"


def imported(module: str, *sought: str) -> list[str]:
    """Return which of these modules are loaded once `module` is, in a process of its own."""
    asked = [sys.executable, "-c", LOADED.format(module, sought)]
    return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=240).stdout.split()


def test_a_run_with_nothing_to_do_loads_neither_compiler_nor_spark_nor_pandas() -> None:
    assert imported("headwater.pipelines.mirror", "numba", "pyspark", "pandas", "fsspec") == []


def test_the_server_of_workers_is_begun_without_what_it_loads() -> None:
    assert imported("headwater.pipelines.early", "numpy", "pyarrow", "headwater.client") == []


def test_workers_come_from_the_server_that_was_begun() -> None:
    from headwater.pipelines import early  # noqa: PLC0415

    early.begin()
    begun = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    early.begin()
    worker = early.context().Process(target=os.getpid)
    worker.start()
    worker.join(120)
    assert worker.exitcode == 0
    assert multiprocessing.forkserver._forkserver._forkserver_pid == begun  # type: ignore[attr-defined]
