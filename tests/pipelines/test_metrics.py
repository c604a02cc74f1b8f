"""Metrics as Prometheus reads them: a job's rows, its batches, its lag."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.nodes import until
from headwater.errors import OptionError
from headwater.pipelines.jobs import IndexProgress, TransitionProgress
from headwater.pipelines.metrics import JobMetrics, served
from headwater.pipelines.mirror import MirrorProgress, mirror
from headwater.spark.behind import Behind, lag_of, ownerless_entry
from headwater.testing.node import Node, node

OPTIONS = {"maxChangesPerTrigger": "150", "retrySeconds": "0.5"}
Sample = dict[tuple[str, ...], float]


def scraped(port: int) -> Sample:
    """All samples, by name and labels but for the job's."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    found: Sample = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            others = [value for name, value in sample.labels.items() if name != "job"]
            found[sample.name.removeprefix("headwater_job_"), *others] = sample.value
    return found


def test_progress_batches_and_lag_are_what_a_scrape_shows() -> None:
    metrics, told = JobMetrics("mirror"), []  # type: ignore[var-annotated]
    with served(metrics, "127.0.0.1", 0) as port:
        before = scraped(port)
        assert (before["lag_changes",], before["batch_seconds_count",]) == (0, 0)
        assert not any(name == "rows_total" for name, *_ in before)
        report = metrics.counting(told.append)
        report(
            MirrorProgress(
                mutations=7, deletions=2, rollbacks=1, retries=3, problem="reset", conflicts=["a"], data_loss=[3, 7]
            )
        )
        metrics.batch(0.3)
        metrics.lag(lag_of("orders", [Behind(vb, 100 - vb, 2.5) for vb in range(7)], ownerless_entry(4, 61.0)))
        found = scraped(port)
    assert told[0].mutations == 7 and before["heard_timestamp_seconds",] == 0 < found["heard_timestamp_seconds",]
    assert (found["rows_total", "mutations"], found["rows_total", "deletions"]) == (7, 2)
    assert found["data_loss_vbuckets",] == 2
    assert (found["rollbacks_total",], found["retries_total",], found["failing",], found["conflicts",]) == (1, 3, 1, 1)
    assert (found["batch_seconds_count",], found["batch_seconds_sum",]) == (1, 0.3)
    assert (found["batch_seconds_bucket", "0.25"], found["batch_seconds_bucket", "0.5"]) == (0, 1)
    assert (found["lag_changes",], found["lag_seconds",], found["lag_vbuckets",]) == (679, 2.5, 7)
    assert (found["ownerless_vbuckets",], found["ownerless_seconds",]) == (4, 61.0)
    assert [name for name in found if name[0] == "vbucket_lag_changes"] == [
        ("vbucket_lag_changes", str(vb)) for vb in range(5)
    ]
    with pytest.raises(OSError, match="refused"):
        scraped(port)


def test_each_job_tells_the_rows_that_it_has() -> None:
    for progress, name, value in (
        (IndexProgress(aside=4), ("rows_total", "aside"), 4),
        (TransitionProgress(moved=3, total=8), ("vbuckets_left",), 5),
    ):
        metrics = JobMetrics("job")
        metrics.counting(lambda told: None)(progress)
        with served(metrics, "127.0.0.1", 0) as port:
            found = scraped(port)
        assert found[name] == value and found["failing",] == 0


def test_a_port_that_is_taken_is_refused_in_one_line() -> None:
    other = JobMetrics("other")
    with (
        served(JobMetrics("one"), "127.0.0.1", 0) as port,
        pytest.raises(OptionError, match=str(port)),
        served(other, "127.0.0.1", port),
    ):
        pass


class Held:
    """A mirror that runs in a thread, whose batches wait while they are held."""

    def __init__(self, bucket: Node, place: Path, spark: Any = None) -> None:
        self.metrics = JobMetrics("mirror")
        self._over, self._failed = threading.Event(), []  # type: ignore[var-annotated]
        self._thread = threading.Thread(target=self._run, args=(bucket, place, spark))

    def _run(self, bucket: Node, place: Path, spark: Any) -> None:
        asked: dict[str, Any] = {"workers": 0, "interval_seconds": 0.1, "retry_seconds": 120.0}
        asked |= {"progress": self.metrics.counting(lambda done: None), "watch": self.metrics}
        try:
            mirror(spark, bucket.url, place, stop=self._over.is_set, reading=OPTIONS, **asked)
        except BaseException as error:
            self._failed.append(error)

    def __enter__(self) -> Held:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(300)
        assert self._failed == []


def follows(bucket: Node, place: Path, spark: Any = None) -> None:
    """A mirror takes 400 documents in several batches; while it does, it is behind."""
    with bucket.client() as client:
        assert client.set_many((f"k{i}", b"v") for i in range(400)) == {}
    with Held(bucket, place, spark) as held, served(held.metrics, "127.0.0.1", 0) as port:
        seen: list[Sample] = []

        def shows(wanted: Callable[[Sample], bool]) -> bool:
            seen.append(scraped(port))
            return wanted(seen[-1])

        level = lambda found: found.get(("rows_total", "mutations")) == 400 and found["lag_changes",] == 0  # noqa: E731
        until(lambda: shows(level), "all is there and the lag is none", 300.0)
        assert seen[-1]["batch_seconds_count",] >= 3
        bucket.kill()
        until(lambda: shows(lambda found: found["failing",] == 1), "the failure shows", 300.0)
        bucket.restart()
        with bucket.client() as client:
            client.set("more", b"v")
        until(lambda: shows(lambda found: found["rows_total", "mutations"] >= 401), "it goes on", 300.0)
        until(lambda: shows(lambda found: found["failing",] == 0), "no failure shows any more", 300.0)
        assert seen[-1]["retries_total",] >= 1


def test_a_mirror_is_behind_and_then_level(tmp_path: Path) -> None:
    with node(vbuckets=4) as bucket:
        follows(bucket, tmp_path / "t")


@pytest.mark.battery
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_on_spark_batches_and_lag_come_out_of_the_querys_reports(spark: Any, tmp_path: Path) -> None:
    told: list[int] = []
    metrics = JobMetrics("mirror")
    metrics.lag = lambda lag: told.append(lag.changes)  # type: ignore[method-assign]
    with node(vbuckets=4) as bucket, bucket.client() as client:
        assert client.set_many((f"k{i}", b"v") for i in range(400)) == {}
        ended = threading.Event()

        def behind() -> bool:
            return 0 in told

        asked: dict[str, Any] = {"reading": OPTIONS, "watch": metrics, "stop": lambda: behind() or ended.is_set()}
        giving_up = threading.Timer(600, ended.set)
        giving_up.start()
        mirror(spark, bucket.url, tmp_path / "t", **asked)
        giving_up.cancel()
    assert told[-1] == 0 and max(told) > 0
    with served(metrics, "127.0.0.1", 0) as port:
        assert scraped(port)["batch_seconds_count",] >= 3
