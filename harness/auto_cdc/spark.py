"""Spark's own Auto CDC as the pipeline of a scenario: a Spark Connect server, and the example's project.

It needs PySpark 4.3 with Spark Connect, and a server whose catalog `lake` has tables with row-level operations.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[2] / "examples" / "auto_cdc"


def has_type_2() -> bool:
    """Return True if this PySpark's `create_auto_cdc_flow` keeps tables of type 2, as it does from 4.3 on."""
    return tuple(int(number) for number in pyspark.__version__.split(".")[:2]) >= (4, 3)


class SparkPipeline:
    """The example's project, updated as `spark-pipelines run` does it.

    Args:
        remote: the address of the Spark Connect server.
        url: the bucket.
        folder: where the project is copied to, and where its storage and its folder of keys are.
        seed: makes the names of the tables.
    """

    def __init__(self, remote: str, url: str, folder: Path, seed: int) -> None:
        self._spark = SparkSession.builder.remote(remote).getOrCreate()
        self._database = f"run{seed}"
        self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{self._database}")
        self._project = folder / "project"
        shutil.copytree(EXAMPLE, self._project)
        for path in self._project.rglob("*.*"):
            text = path.read_text(encoding="utf-8")
            text = text.replace("couchbase://127.0.0.1:11210/default", url)
            text = text.replace("/data/orders", str(folder)).replace("database: shop", f"database: {self._database}")
            path.write_text(text, encoding="utf-8")

    def update(self, changes_max: int | None = None, *, repeats: bool = False) -> None:
        """Update the tables; the arguments are those of the model alone."""
        from pyspark.pipelines import cli  # noqa: PLC0415 -- needs Spark Connect
        from pyspark.pipelines.spark_connect_graph_element_registry import (  # noqa: PLC0415
            SparkConnectGraphElementRegistry,
        )
        from pyspark.pipelines.spark_connect_pipeline import (  # noqa: PLC0415
            create_dataflow_graph,
            handle_pipeline_events,
            start_run,
        )

        path = self._project / "spark-pipeline.yml"
        spec = cli.load_pipeline_spec(path)
        graph = create_dataflow_graph(self._spark, spec.catalog, spec.database, {})
        registry = SparkConnectGraphElementRegistry(self._spark, graph)
        cli.register_definitions(path, registry, spec, self._spark, graph)
        nothing: dict[str, Any] = {"full_refresh": None, "full_refresh_all": False, "refresh": None, "dry": False}
        handle_pipeline_events(start_run(self._spark, graph, storage=spec.storage, **nothing))

    def scd1(self) -> dict[str, str]:
        """Return the table of type 1: key -> value."""
        rows = self._spark.read.table(f"lake.{self._database}.orders").collect()
        return {row.key: row.value for row in rows}

    def scd2(self) -> dict[str, list[tuple[str, Any, Any]]]:
        """Return the table of type 2: key -> (value, start, end) of each version."""
        rows = self._spark.read.table(f"lake.{self._database}.orders_history").collect()
        history: dict[str, list[tuple[str, Any, Any]]] = {}
        for row in rows:
            start, end = row["__START_AT"], row["__END_AT"]
            history.setdefault(row.key, []).append((row.value, tuple(start), None if end is None else tuple(end)))
        return history

    def close(self) -> None:
        """Drop the tables."""
        self._spark.sql(f"DROP NAMESPACE IF EXISTS lake.{self._database} CASCADE")
