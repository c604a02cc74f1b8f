"""Iceberg on Spark as a foreign writer: a process in an environment of its own that takes statements, for a whole run.

`python -m harness.readers setup` makes the environment. Iceberg has no release for the Spark that our own tests use.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.readers.environments import READERS, SPARK_41, python_of

CATALOG = "strangers"
PROGRAM = """
import json, os, sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").appName("strangers")
for name, value in json.loads(os.environ["READERS_SPARK"]).items():
    builder = builder.config(name, value)
session = builder.getOrCreate()
for line in sys.stdin:
    asked = json.loads(line)
    try:
        session.catalog.clearCache()
        rows = [list(map(str, row)) for row in session.sql(asked["statement"]).collect()]
        answer = {"rows": rows}
    except Exception as error:
        answer = {"refused": str(error)[:2000]}
    print("ANSWER" + json.dumps(answer), flush=True)
"""


class Refused(Exception):  # noqa: N818 -- says what happened
    """The statement failed; the message is Spark's."""


class IcebergOnSpark:
    """A session of Spark with Iceberg, begun with the first statement."""

    def __init__(self) -> None:
        (self._reader,) = (reader for reader in READERS if reader.program == "spark-iceberg")
        self.python = python_of(self._reader)
        self._process: subprocess.Popen[str] | None = None

    @property
    def is_installed(self) -> bool:
        """True if there is such a Spark."""
        return self.python is not None

    def run(self, place: Path, statement: str) -> list[list[str]]:
        """Run a statement on the table of Iceberg in a folder, which it calls `{table}`; return the rows as texts.

        Raises:
            Refused: it failed.
        """
        try:
            answer = self._answer(statement.replace("{table}", named(place)))
        except BaseException:
            # Its answer may still come, and would be taken for that to the next statement.
            self._kill()
            raise
        if "refused" in answer:
            raise Refused(answer["refused"])
        rows: list[list[str]] = answer["rows"]
        return rows

    def begin(self) -> None:
        """Begin the session, if there is none: that takes longer than a statement."""
        if self._process is None:
            self.run(Path("/"), "SELECT 1")

    def close(self) -> None:
        """End the session."""
        if self._process:
            with self._process, suppress(OSError):  # whose end closes its pipes
                assert self._process.stdin
                self._process.stdin.close()
            self._process = None

    def _answer(self, statement: str) -> dict[str, Any]:
        process = self._process or self._begun()
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps({"statement": statement}) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            if line.startswith("ANSWER"):
                answer: dict[str, Any] = json.loads(line.removeprefix("ANSWER"))
                return answer
        raise Refused(f"Spark ended with {process.wait()}")

    def _kill(self) -> None:
        if self._process:
            self._process.kill()
            with self._process:
                pass
            self._process = None

    def _begun(self) -> subprocess.Popen[str]:
        assert self.python is not None
        catalog = {f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog"}
        catalog |= {f"spark.sql.catalog.{CATALOG}.type": "hadoop", f"spark.sql.catalog.{CATALOG}.warehouse": "file:///"}
        catalog |= {f"spark.sql.catalog.{CATALOG}.cache-enabled": "false"}
        environment = dict(os.environ) | {"READERS_SPARK": json.dumps(dict(SPARK_41) | catalog), "TZ": "UTC"}
        environment.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(
            [self.python, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        return self._process


def named(place: Path) -> str:
    """Return the name of a folder: the catalog's warehouse is the root, and its namespaces are folders."""
    return ".".join((CATALOG, *(f"`{part}`" for part in place.parts[1:])))
