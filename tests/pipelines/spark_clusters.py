"""Clusters of Spark as processes, and an environment for executors that have nothing of ours."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import IO

import pyspark
from packaging.requirements import Requirement

from harness.nodes import until
from harness.processes import end_with_all_its_own

SPARK_HOME = Path(pyspark.__file__).parent
SOURCES = Path(__file__).parents[2] / "src"
SUBMIT_SECONDS = 1200.0


def environment(**more: str) -> dict[str, str]:
    """The variables of a cluster's processes: nothing of this interpreter's, one Spark."""
    ours = ("PYTHON", "PYSPARK", "VIRTUAL_ENV", "HEADWATER")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    return kept | {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"} | more


def submitted(arguments: Sequence[str | Path], *, python: str, folder: Path, **more: str) -> str:
    """Run spark-submit in a folder to its end; return what the program printed.

    Args:
        python: of the driver; that of the executors, too, if `PYSPARK_PYTHON` is not given.
    """
    asked = [str(SPARK_HOME / "bin/spark-submit"), *map(str, arguments)]
    variables = environment(**({"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python} | more))
    ended = subprocess.run(
        asked, env=variables, cwd=folder, capture_output=True, text=True, timeout=SUBMIT_SECONDS, check=False
    )
    assert ended.returncode == 0, ended.stderr[-6000:]
    return ended.stdout


@contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[str]:
    """A master and workers of one core each, as processes; yields the master's url."""
    with ExitStack() as stack:
        log = folder / "master.log"
        asked = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        _start(stack, asked, log, folder)
        until(lambda: "I have been elected leader" in log.read_text(), "the master runs")
        found = re.search(r"spark://127\.0\.0\.1:\d+", log.read_text())
        assert found is not None
        for number in range(workers):
            work = folder / f"worker{number}"
            work.mkdir()
            asked = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0"]
            asked += ["--cores", "1", "--memory", "1g", "--work-dir", str(work), found[0]]
            _start(stack, asked, folder / f"worker{number}.log", work)
        until(lambda: log.read_text().count("Registering worker") == workers, "the workers are there")
        yield found[0]


def _start(stack: ExitStack, asked: Sequence[str], log: Path, folder: Path) -> None:
    told: IO[bytes] = stack.enter_context(log.open("wb"))
    # The least that a cluster's machine has: a PATH on which no Python has headwater.
    variables = environment(PATH="/usr/bin:/bin")
    if java := shutil.which("java"):
        variables["PATH"] += f":{Path(java).parent}"
    process = subprocess.Popen(
        [str(SPARK_HOME / "bin/spark-class"), *asked], env=variables, cwd=folder, stdout=told, stderr=told
    )
    stack.callback(process.wait)
    stack.callback(end_with_all_its_own, process.pid)


def installed(into: Path, *wanted: str) -> None:
    """Put into an environment what `pip install` would, taken from what is installed here: tests have no network."""
    site = next((into / "lib").glob("python*/site-packages"))
    done: set[str] = set()
    todo = [Requirement(each) for each in wanted]
    while todo:
        asked = todo.pop()
        if f"{asked.name}{sorted(asked.extras)}" in done:
            continue
        done.add(f"{asked.name}{sorted(asked.extras)}")
        try:
            found = distribution(asked.name)
        except PackageNotFoundError:
            continue  # of another platform
        _link(found, site)
        todo += [need for need in map(Requirement, found.requires or ()) if _is_needed(need, asked)]
    for package in ("headwater", "pyspark_headwater"):
        shutil.copytree(SOURCES / package, site / package, ignore=shutil.ignore_patterns("__pycache__"))


def _is_needed(need: Requirement, by: Requirement) -> bool:
    return need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in (*by.extras, ""))


def _link(found: Distribution, site: Path) -> None:
    """Give files a second name where that is possible: an environment of half a gigabyte costs nothing then."""
    for file in found.files or ():
        source, target = Path(str(found.locate_file(file))), site / file
        if ".." in file.parts or target.exists() or not source.is_file() or file.suffix == ".pth":
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)


def bare(folder: Path) -> Path:
    """An environment with nothing in it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder
