"""Third-party Java programs from Maven Central, by Ivy, which comes with PySpark; kept in Ivy's own cache."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path

__all__ = ["NotFetched", "class_path"]

FETCH_SECONDS = 600.0


class NotFetched(Exception):  # noqa: N818 - says what happened
    """The jars can't be downloaded: no PySpark, no Java, or no network."""


def class_path(organisation: str, module: str, revision: str, place: Path) -> str:
    """Return the class path of a module with all its dependencies; download missing jars.

    Args:
        organisation: with `module` and `revision` the coordinates on Maven Central.
        place: a folder for Ivy's answer.

    Raises:
        NotFetched: with Ivy's message.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise NotFetched("pyspark is not installed")
    (ivy,) = (Path(spec.origin).parent / "jars").glob("ivy-*.jar")
    jars = place / f"{module}.jars"
    wanted = ["-dependency", organisation, module, revision, "-confs", "default", "-types", "jar", "bundle"]
    command = ["java", "-jar", str(ivy), *wanted, "-cachepath", str(jars), "-warn"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise NotFetched(str(problem)) from problem
    if done.returncode or not jars.exists():
        raise NotFetched(done.stdout[-500:])
    return jars.read_text(encoding="utf-8").strip()
