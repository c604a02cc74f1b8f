"""A local Spark session with Delta Lake and the `dcp` source, for the command line, the demo and tests.

On a cluster this is not needed: pass the same settings (DELTA_CONFIGURATION, SOURCE_CONFIGURATION) to spark-submit.
Spark downloads Delta's jars by itself when a session with their coordinates starts for the first time; `local_session`
announces that, since it takes a while and a network.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headwater.errors import HeadwaterError
from headwater.spark import register

DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""Maven coordinates of Delta Lake for Spark 4.2, the newest Spark that Delta supports."""

DELTA_JARS, DELTA_MEGABYTES = 33, 87

DELTA_SPARK = "4.2."
"""The versions of Spark that `DELTA` is for. There is none for 4.3 yet; the source and the mirror need none."""

DELTA_CONFIGURATION = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

SOURCE_CONFIGURATION = {
    # Unix sockets between the JVM and Python cost half of what loopback TCP does, a task and a batch.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
"""The settings that the `dcp` source wants of any session."""

HADOOP_S3 = "org.apache.hadoop:hadoop-aws:3.5.0"
"""Maven coordinates of the library by which Spark 4.2 reaches S3: that of its own version of Hadoop."""

LOCAL_INSTEAD = "mirror, index and observe need neither Spark nor Java with --engine local"

LISTS = ("spark.jars", "spark.jars.packages", "spark.sql.extensions")
"""Settings that are lists with commas."""

LOCAL = {
    # 200 shuffle partitions and 50 for a Delta snapshot are made for clusters; here each costs a task.
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


class SparkUnavailable(HeadwaterError):  # noqa: N818 -- says what happened
    """Spark can't be started here; `problem` has the reason and the next step."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem


def local_session(
    app: str,
    *,
    cores: str = "local[*]",
    memory: str = "2g",
    settings: Mapping[str, str] | None = None,
    quiet: bool = False,
    delta: bool = True,
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> Any:
    """Return a Spark session in this process, with Delta Lake and the `dcp` source registered.

    Args:
        app: the name that Spark shows.
        cores: Spark's master: `local[2]` for two tasks at once, `local[2,4]` with up to four attempts of each.
        memory: the memory of the JVM.
        settings: further Spark settings; they override ours, and lists such as `spark.jars` are added to ours.
        quiet: silence Spark's own log, but for errors.
        delta: with Delta Lake, to read tables; without it any Spark with the source's interface is enough.
        say: called with one line if Delta's jars have to be downloaded.

    Raises:
        SparkUnavailable: no Java, no PySpark, or one we do not support.
    """
    check_spark(delta=delta)
    jars = _fetched() if delta else []
    if delta and not jars:
        say(
            f"first run: Spark now fetches Delta Lake ({DELTA}) from Maven Central, "
            f"{DELTA_JARS} jars, {DELTA_MEGABYTES} MB; this happens once"
        )
    from pyspark.sql import SparkSession

    configuration = SOURCE_CONFIGURATION | LOCAL | {"spark.driver.memory": memory}
    if delta:
        configuration |= DELTA_CONFIGURATION | _s3(os.environ)
        configuration |= {"spark.jars": ",".join(jars)} if jars else {"spark.jars.packages": DELTA}
    configuration = _with(configuration, settings or {})
    if quiet:
        configuration |= {"spark.log.level": "ERROR"}
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers need what this interpreter has installed
    builder = SparkSession.builder.appName(app).master(cores)
    for name, value in configuration.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    if delta and not jars and not (settings or {}).keys() & set(LISTS):
        _remember(session.sparkContext.getConf().get("spark.jars", ""))
    register(session)
    return session


def _s3(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings by which Hadoop's library for S3, if a session has it, uses the same store as ours."""
    settings = {"spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}
    if endpoint := environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL"):
        settings |= {"spark.hadoop.fs.s3a.endpoint": endpoint, "spark.hadoop.fs.s3a.path.style.access": "true"}
    if region := environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION"):
        settings |= {"spark.hadoop.fs.s3a.endpoint.region": region}
    return settings


def _with(configuration: dict[str, str], overrides: Mapping[str, str]) -> dict[str, str]:
    """Return settings overridden by others. Lists of jars and extensions are joined: a catalog's own jars would replace
    Delta's.
    """
    both = {
        name: f"{configuration[name]},{overrides[name]}"
        for name in LISTS
        if configuration.get(name) and overrides.get(name)
    }
    return configuration | dict(overrides) | both


def check_spark(*, delta: bool) -> None:
    """Check that Spark can be started here. Raises SparkUnavailable."""
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else shutil.which("java")
    if java is None or not Path(java).exists():
        raise SparkUnavailable(
            "Spark needs Java 17 or newer and there is none on this machine: install it (for example "
            f"`apt-get install openjdk-17-jre-headless`), or point JAVA_HOME at one; {LOCAL_INSTEAD}"
        )
    try:
        installed = version("pyspark")
    except ModuleNotFoundError:
        requirements = "'pyspark>=4.2,<4.3' 'pandas>=2.2,<3' delta-spark==4.4.0"
        raise SparkUnavailable(f"PySpark is not installed: pip install {requirements}; {LOCAL_INSTEAD}") from None
    if delta and not installed.startswith(DELTA_SPARK):
        raise SparkUnavailable(
            f"Delta Lake 4.4.0 needs PySpark 4.2 and this is {installed}: pip install 'pyspark==4.2.0'"
        )


def _list() -> Path:
    """Return the path of the file that lists the jars which Spark downloaded for `DELTA`.

    With this file a session needs no network, and starts sooner.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("HEADWATER_CACHE") or base / "headwater") / f"{DELTA.replace(':', '_')}.jars"


def _fetched() -> list[str]:
    """Return the paths of Delta's jars; an empty list if they were not downloaded yet, or one of them is gone."""
    try:
        jars = _list().read_text(encoding="utf-8").split()
    except OSError:
        return []
    return jars if all(Path(jar).exists() for jar in jars) else []


def _remember(jars: str) -> None:
    """Note the paths of the jars, from Spark's setting `spark.jars`."""
    paths = [jar.removeprefix("file:").replace("///", "/") for jar in jars.split(",") if jar]
    if not any("delta-spark" in path for path in paths):
        return  # a session that was there before us, with jars of its own
    with suppress(OSError):  # without the note the next session asks Maven again
        _list().parent.mkdir(parents=True, exist_ok=True)
        _list().write_text("\n".join(paths), encoding="utf-8")
