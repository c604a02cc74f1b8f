"""The pipelines share the Spark of tests/spark."""

from tests.spark.conftest import lent_spark, spark

__all__ = ["lent_spark", "spark"]
