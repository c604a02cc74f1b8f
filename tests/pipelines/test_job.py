"""The frame of the jobs, with a table as the sink and no worker processes. With Spark: each job's own tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.nodes import set_state
from headwater.errors import NotMyVbucket
from headwater.pipelines.job import follow_into
from headwater.pipelines.jobs import JobProgress, OnEngines
from headwater.pipelines.sink import TableSink
from headwater.testing.node import Node, node
from headwater.wire.vbucket import State
from tests.pipelines.support import documents, table


class CountedTable(TableSink):
    """A table that counts nothing."""

    def count(self, progress: JobProgress, written: Sequence[Any]) -> None:
        """Add nothing."""


def go(
    bucket: Node,
    place: Path,
    told: list[str],
    retry_seconds: float,
    open_sink: Callable[[], Any] | None = None,
    *,
    patience: str = "60",
) -> JobProgress:
    job: OnEngines[JobProgress] = OnEngines(
        bucket.url,
        once=True,
        engine="local",
        workers=0,
        interval_seconds=0.0,
        retry_seconds=retry_seconds,
        reading={"retrySeconds": patience},
        progress=lambda done: told.append(done.problem),
    )
    return follow_into(job, open_sink or (lambda: CountedTable(place, "default")))


def test_a_sink_is_opened_anew_for_each_attempt_and_failures_that_pass_are_told(tmp_path: Path) -> None:
    told: list[str] = []
    opened: list[int] = []
    with node(vbuckets=4) as bucket:
        with bucket.client() as client:
            client.set_many((f"k{i}", b"v") for i in range(20))

        def open_sink() -> CountedTable:
            opened.append(1)
            if len(opened) == 1:
                raise OSError("the disk is away")
            return CountedTable(tmp_path, "default")

        done = go(bucket, tmp_path, told, 60.0, open_sink)
        assert (done.retries, len(opened), told[0]) == (1, 2, "the disk is away")
        assert done.batches >= 1
        assert table(tmp_path) == documents(bucket)


def test_a_run_to_the_end_of_a_node_that_has_half_of_the_vbuckets_fails_with_their_number(tmp_path: Path) -> None:
    told: list[str] = []
    with node(vbuckets=4) as bucket:
        for vbucket in (1, 2):
            set_state(bucket, vbucket, State.DEAD)
        with pytest.raises(NotMyVbucket, match=r"2 of 4 vbuckets, the first is 1, have no active node"):
            go(bucket, tmp_path, told, 0.0, patience="0")
