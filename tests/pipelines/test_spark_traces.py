"""The spans of batches on Spark, as a collector gets them from the command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from headwater import testing
from tests.tracing import arrived, collector

pytestmark = [pytest.mark.spark, pytest.mark.battery, pytest.mark.timeout(900)]

DOCUMENTS = 100


def number(span: Span, name: str) -> int:
    """An attribute that is a whole number."""
    (value,) = (int(attribute.value.int_value) for attribute in span.attributes if attribute.key == f"headwater.{name}")
    return value


def test_batches_on_spark_arrive_at_a_collector_with_their_tasks_and_commits(tmp_path: Path) -> None:
    with testing.node(vbuckets=4) as bucket, collector() as (url, kept):
        with bucket.client() as client:
            assert client.set_many((f"k{i}", "v") for i in range(DOCUMENTS)) == {}
        environment = {
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
            "OTEL_SERVICE_NAME": "orders-mirror",
        }
        words = ["mirror", bucket.url, "--to", str(tmp_path / "table"), "--engine", "spark", "--once"]
        done = subprocess.run(
            [sys.executable, "-m", "headwater", *words],
            env=environment, capture_output=True, text=True, timeout=800, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    spans, services = arrived(kept)
    assert services == {"orders-mirror"}
    batches = [span for span in spans if span.name == "batch"]
    assert sum(number(batch, "rows") for batch in batches) == DOCUMENTS
    assert sum(number(batch, "changes") for batch in batches) == DOCUMENTS
    for batch in batches:
        below = [span for span in spans if span.parent_span_id == batch.span_id]
        of_tasks = {"batch.read", "batch.write"} if number(batch, "rows") else set()  # an empty one may have no task
        assert {span.name for span in below} - of_tasks == {"batch.tasks", "batch.commit"}, (batch, below)
        assert of_tasks <= {span.name for span in below}, (batch, below)
        assert {span.trace_id for span in below} == {batch.trace_id}
        assert sum(number(span, "rows") for span in below if span.name == "batch.write") == number(batch, "rows")
        assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in below)
