"""The readers, and the environments of Python in which they are installed.

Some can't be installed beside another: Iceberg's jar for Spark is for an older Spark than Delta's newest. `setup` makes
an environment of its own for each of these, below `artifacts/readers` or the folder that `HEADWATER_READERS` names.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

READING = Path(__file__).with_name("reading.py")
SECONDS = 3600.0
"""How long a reader may take for all tables, or an environment to be installed."""

OURS = ""
"""The environment of this process."""

ENVIRONMENTS = {"spark-4.1": ("pyspark==4.1.4",), "chdb": ("chdb==4.4.0",)}
"""Requirements of each of the other environments."""

DELTA_EXTENSION, ICEBERG_EXTENSION = (
    "io.delta.sql.DeltaSparkSessionExtension",
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
)
SPARK = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.log.level": "OFF",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    # The tables are small: what the better compiler would spend on them never comes back.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
SPARK_42 = SPARK | {
    "spark.sql.extensions": DELTA_EXTENSION,
    "spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0",
}
SPARK_41 = SPARK | {
    "spark.sql.extensions": f"{DELTA_EXTENSION},{ICEBERG_EXTENSION}",
    "spark.jars.packages": ",".join(
        (
            "io.delta:delta-spark_4.1_2.13:4.4.0",
            "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
        )
    ),
}


@dataclass(frozen=True)
class Reader:
    """A reader of tables.

    Attributes:
        name: on the page.
        program: its name in `reading.py`.
        form: the format that it reads, delta or iceberg.
        packages: their versions are on the page, the first of them decides whether the reader is installed.
        environment: where it is.
        settings: of its session of Spark.
        more: versions that no package has: of jars.
    """

    name: str
    program: str
    form: str
    packages: tuple[str, ...]
    environment: str = OURS
    settings: Mapping[str, str] = field(default_factory=dict)
    more: str = ""


READERS = (
    Reader("delta-rs", "delta-rs", "delta", ("deltalake",)),
    Reader("Polars", "polars-delta", "delta", ("polars", "deltalake")),
    Reader("DuckDB", "duckdb-delta", "delta", ("duckdb_extension_delta", "duckdb")),
    Reader("chdb", "chdb-delta", "delta", ("chdb", "chdb_core"), "chdb"),
    Reader("pyiceberg", "pyiceberg", "iceberg", ("pyiceberg",)),
    Reader("Polars", "polars-iceberg", "iceberg", ("polars", "pyiceberg")),
    Reader("DuckDB", "duckdb-iceberg", "iceberg", ("duckdb_extension_iceberg", "duckdb")),
    Reader("chdb", "chdb-iceberg", "iceberg", ("chdb", "chdb_core"), "chdb"),
    Reader("Spark 4.2", "spark-delta", "delta", ("pyspark",), OURS, SPARK_42, "delta-spark_4.2 4.4.0"),
    Reader("Spark 4.1", "spark-delta", "delta", ("pyspark",), "spark-4.1", SPARK_41, "delta-spark_4.1 4.4.0"),
    Reader(
        "Spark 4.1", "spark-iceberg", "iceberg", ("pyspark",), "spark-4.1", SPARK_41, "iceberg-spark-runtime-4.1 1.12.0"
    ),
)


def folder() -> Path:
    """Return where environments are."""
    return Path(os.environ.get("HEADWATER_READERS", "artifacts/readers")).absolute()


def python_of(reader: Reader) -> str | None:
    """Return the Python that has a reader; None if it is not installed."""
    if reader.environment == OURS:
        return sys.executable if find_spec(reader.packages[0]) else None
    python = folder() / reader.environment / "bin" / "python"
    return str(python) if _has(python, reader.packages[0]) else None


def _has(python: Path, package: str) -> bool:
    asked = [str(python), "-c", f"import {package}"]
    return python.exists() and not subprocess.run(asked, capture_output=True, timeout=SECONDS, check=False).returncode


def versions_of(reader: Reader, python: str) -> str:
    """Return the versions of a reader, as the page has them."""
    program = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    command = [python, "-c", program, *reader.packages]
    told = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout.split()
    named = [f"{name.replace('_', '-')} {number}" for name, number in zip(reader.packages, told, strict=True)]
    return ", ".join([*named, *([reader.more] if reader.more else [])])


def setup() -> None:
    """Install what has an environment of its own, from PyPI; jars come with Spark's first session, from Maven."""
    for name, requirements in ENVIRONMENTS.items():
        place = folder() / name
        if not (place / "installed").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], timeout=SECONDS, check=True)
            pip = [str(place / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", *requirements]
            subprocess.run(pip, timeout=SECONDS, check=True)
            (place / "installed").touch()
