"""Faster starts of a local Spark of our own: half of a short job is loading classes and compiling Python sources.

The JVM can keep the classes that a run has loaded in an archive (150 MB) that the next one maps: class data sharing.
The first run that ends well waits at its end until the archive is written. And Spark puts its Python sources before the
installed ones, zipped; Python can't load compiled modules from that zip, so each of the five or six Python processes of
a query would compile a hundred modules anew.

Both are done only for a Spark that came with PySpark. If a file can't be kept, the start is only slower.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

WRITE_SECONDS = 60.0
"""The longest time that a JVM may take to write the archive; on an idle machine it takes some seconds."""

_SCRIPT = """#!/bin/sh
# Without the zipped sources that Spark puts before the installed ones: see headwater/pipelines/starting.py.
set -f
IFS=:
kept=
for part in $PYTHONPATH; do
    case "$part" in
        */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip) ;;
        *) kept="$kept${kept:+:}$part" ;;
    esac
done
unset IFS
PYTHONPATH="$kept" exec '{python}' "$@"
"""


def cache_folder() -> Path:
    """Return the folder of cached files: HEADWATER_CACHE, or `headwater` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("HEADWATER_CACHE") or Path(base) / "headwater")


class ClassArchive:
    """The archive of a JVM's classes.

    Attributes:
        path: the path of the archive; None if it can't be kept.
        wanted: True if there is no archive yet, so that this run's JVM is to write it.
    """

    def __init__(self) -> None:
        self.path = _archive_path()
        self.wanted: bool = self.path is not None and not self.path.exists()
        if self.path is not None and self.wanted:
            self._new_archive = self.path.with_suffix(f".{os.getpid()}.new")
            try:
                self._make_room(self.path.parent)
            except OSError:
                self.path, self.wanted = None, False

    @property
    def option(self) -> str:
        """The options of a JVM that maps the archive or, at its end, writes it.

        The JVM itself ignores an archive of other jars or of another JVM.
        """
        if self.path is None:
            return ""
        if self.wanted:
            return f'"-XX:ArchiveClassesAtExit={self._new_archive}" -Xlog:disable'
        return f'"-XX:SharedArchiveFile={self.path}" -Xshare:auto -Xlog:disable'

    def keep(self, jvm: subprocess.Popen[bytes]) -> bool:
        """Wait for the end of the JVM that writes the archive; return True if there is an archive now.

        The archive gets its name only when it is whole and on disk: a JVM that maps a truncated one crashes.
        """
        if self.path is None or not self.wanted:
            return False
        try:
            if jvm.wait(WRITE_SECONDS) == 0:
                with self._new_archive.open("rb") as archive:
                    os.fsync(archive.fileno())
                self._new_archive.rename(self.path)
                return True
        except (OSError, subprocess.TimeoutExpired):
            pass
        return False

    @staticmethod
    def _make_room(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("spark-*"):
            # Archives of other versions are of no use any more; one that is being written belongs to a run that began
            # just before.
            if old.suffix != ".new" or old.stat().st_mtime < time.time() - WRITE_SECONDS:
                old.unlink(missing_ok=True)


def _archive_path() -> Path | None:
    spark, java = _installed(), _java()
    if spark is None or java is None:
        return None
    versions = f"{java.resolve()} {java.stat().st_mtime_ns} {spark} {(spark / 'version.py').stat().st_mtime_ns}"
    return cache_folder() / f"spark-{hashlib.sha256(versions.encode()).hexdigest()[:16]}.jsa"


def python() -> str:
    """Return the program that Spark starts as Python: this interpreter, by a script that uses the installed PySpark.

    The plain interpreter if there is no such script.
    """
    if _installed() is None or os.name != "posix" or "'" in sys.executable:
        return sys.executable
    text = _SCRIPT.replace("{python}", sys.executable)
    script = cache_folder() / f"python-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if not os.access(script, os.X_OK):
        temporary = script.with_name(f"{script.name}.{os.getpid()}")
        try:
            script.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(text, encoding="utf-8")
            temporary.chmod(0o755)
            # Two runs may write it at once: each gives its own whole file the name.
            temporary.rename(script)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            return sys.executable
    return str(script)


def _installed() -> Path | None:
    """Return the folder of PySpark, if Spark's jars came with it and have no site settings."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None or os.environ.get("SPARK_HOME") or os.environ.get("SPARK_CONF_DIR"):
        return None
    folder = Path(spec.origin).parent
    return folder if (folder / "jars").is_dir() and not (folder / "conf").exists() else None


def _java() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home, "bin", "java")) if home else shutil.which("java")
    return Path(path) if path and Path(path).exists() else None
