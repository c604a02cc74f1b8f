"""The example's project, and Spark's own Auto CDC where it keeps both types.

HEADWATER_AUTO_CDC names a Spark Connect server whose catalog `lake` has tables with row-level operations.
"""

import inspect
import os
import runpy
from pathlib import Path
from typing import Any

import pyspark.pipelines
import pytest

from harness.auto_cdc.__main__ import run
from harness.auto_cdc.spark import EXAMPLE, has_type_2
from headwater.spark.schema import types
from tests.spark.conftest import spark

__all__ = ["spark"]

PROGRAM = EXAMPLE / "transformations" / "orders.py"
GUIDE = Path(__file__).parents[3] / "docs" / "howto" / "auto-cdc.md"
SERVER = os.environ.get("HEADWATER_AUTO_CDC")


@pytest.mark.spark
@pytest.mark.skipif(not has_type_2(), reason="PySpark before 4.3 keeps no tables of type 2")
@pytest.mark.skipif(SERVER is None, reason="HEADWATER_AUTO_CDC names no Spark Connect server")
def test_sparks_own_tables_are_right_after_a_failover_that_took_back_what_they_had() -> None:
    scenario, lines = run(1, 1, SERVER)
    assert (scenario.taken_back, lines) == (1, [])


def test_the_program_has_ten_lines_and_is_the_one_of_the_guide() -> None:
    text = PROGRAM.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 10
    assert text in GUIDE.read_text(encoding="utf-8")
    assert (EXAMPLE / "spark-pipeline.yml").read_text(encoding="utf-8") in GUIDE.read_text(encoding="utf-8")


@pytest.mark.spark
def test_the_program_defines_two_flows_with_columns_of_the_source(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    signature = inspect.signature(pyspark.pipelines.create_auto_cdc_flow)
    flows = list[dict[str, Any]]()
    monkeypatch.setattr("pyspark.pipelines.temporary_view", lambda name: lambda function: None)
    monkeypatch.setattr("pyspark.pipelines.create_streaming_table", lambda name: None)
    monkeypatch.setattr(
        "pyspark.pipelines.create_auto_cdc_flow",
        lambda *args, **options: flows.append(signature.bind(*args, **options).arguments),
    )
    monkeypatch.setattr("pyspark.sql.SparkSession.active", lambda: spark)
    runpy.run_path(str(PROGRAM))
    columns = types(undoes=True)
    assert [flow["stored_as_scd_type"] for flow in flows] == [1, 2]
    for flow in flows:
        assert {*flow["keys"], *flow["column_list"], flow["sequence_by"]} <= columns.keys()
