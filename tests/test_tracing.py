"""Spans as such: what they cost where nobody looks, and the way from a command to a collector."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.trace import StatusCode

import headwater
from headwater import testing, tracing
from headwater.testing import processes
from tests.tracing import arrived, collector, told, traced

SOURCES = Path(headwater.__file__).parent
_USED = re.compile(r'\b(?:span|past)\(\s*"([a-z_.]+)"')


def test_every_span_that_is_begun_stands_in_the_table_and_the_other_way_round() -> None:
    used = {name for path in SOURCES.rglob("*.py") for name in _USED.findall(path.read_text())}
    assert used == set(tracing.SPANS)


def test_a_span_has_its_attributes_its_parent_and_the_error_that_left_it() -> None:
    def fails() -> None:
        with tracing.span("rebalance.move", vbucket=7) as inner:
            inner.tell(source="a")
            raise ValueError("lost")

    with traced() as seen:
        with tracing.span("rebalance"), pytest.raises(ValueError, match="lost"):
            fails()
        tracing.past("batch.fold", 1.0, 2.5, files=8)
    move, whole, fold = seen.spans
    assert (told(move), seen.below(whole)) == ({"vbucket": 7, "source": "a"}, ["rebalance.move"])
    assert (move.status.status_code, move.events[0].name) == (StatusCode.ERROR, "exception")
    assert whole.status.status_code is StatusCode.UNSET
    assert (fold.start_time, fold.end_time, told(fold)) == (10**9, 25 * 10**8, {"files": 8})


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    return done.stdout.strip()


HIDDEN = "import sys; sys.modules['opentelemetry'] = None; "


def test_without_opentelemetry_a_span_is_nothing() -> None:
    code = (
        "from headwater import tracing\nwith tracing.span('batch', job='x') as told:\n told.tell(rows=1)\n"
        " print(told.is_heard, tracing.span('batch') is tracing.span('rebalance'))\ntracing.past('batch.fold', 1, 2)"
    )
    assert run(HIDDEN + "\n" + code) == "False True"


def test_nothing_of_opentelemetry_is_imported_before_the_first_span() -> None:
    code = (
        "import sys, headwater.cli.app, headwater.cluster.rebalance, headwater.pipelines.local; "
        "from headwater import tracing; tracing.begin({}); "
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    assert run(code) == "[]"


@pytest.mark.parametrize(
    ("environment", "answer"),
    [
        ({}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"}, ""),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, ""),
        (
            {"OTEL_TRACES_EXPORTER": "zipkin"},
            "no traces: OTEL_TRACES_EXPORTER=zipkin is not known here: otlp, console or none; "
            "others by opentelemetry-instrument",
        ),
    ],
)
def test_the_environment_says_whether_spans_are_sent(environment: dict[str, str], answer: str) -> None:
    assert tracing.begin(environment) == answer


def test_an_exporter_that_is_missing_says_what_to_install() -> None:
    code = "from headwater import tracing; print(tracing.begin({'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://127.0.0.1:9'}))"
    assert run(HIDDEN + code) == (
        "no traces: the environment asks for them, and opentelemetry is missing: "
        "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
    )


def test_a_command_sends_its_spans_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with testing.node(vbuckets=4) as bucket, collector() as (url, kept), (tmp_path / "log").open("wb") as log:
        with bucket.client() as client:
            assert client.set_many((f"k{i}", "v") for i in range(100)) == {}
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "orders-mirror")
        monkeypatch.delenv("OTEL_EXPORTER_OTLP_COMPRESSION", raising=False)
        words = ["mirror", bucket.url, "--to", str(tmp_path / "table"), "--engine", "local", "--once"]
        process = processes.start(words, dict(os.environ), log)
        assert process.stdout is not None
        with process.stdout:
            assert process.wait(300) == 0, (tmp_path / "log").read_text()
    spans, services = arrived(kept)
    assert services == {"orders-mirror"}
    assert {"batch", "batch.plan", "batch.read", "batch.write", "batch.commit"} <= {span.name for span in spans}


FORKS = """
import subprocess, sys
from headwater import tracing
assert tracing.begin({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}) == ""
import concurrent.futures.thread
print(subprocess.run([sys.executable, "-c", ""], preexec_fn=lambda: None).returncode)
"""


def test_a_process_that_traces_can_start_others_in_the_way_that_spark_starts_java() -> None:
    assert run(FORKS) == "0"
