"""The frame of the jobs, with a table as the sink and no worker processes. With Spark: each job's own tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.nodes import set_state
from headwater.errors import NotMyVbucket
from headwater.pipelines.attempts import Attempts
from headwater.pipelines.job import JobProgress, follow_into, given
from headwater.pipelines.sink import TableSink
from headwater.testing.node import Node, node
from headwater.wire.vbucket import State
from tests.pipelines.support import documents, table


def test_only_options_that_were_given_are_passed_on() -> None:
    assert given(user="u", password=None, deadLetters="") == {"user": "u", "deadLetters": ""}


def test_progress_is_json_with_the_counts_of_every_job() -> None:
    assert JobProgress(batches=2, problem="x").to_json() == {
        "batches": 2,
        "rollbacks": 0,
        "retries": 0,
        "problem": "x",
        "seconds": 0.0,
        "data_loss": [],
    }


def go(
    bucket: Node, place: Path, attempts: Attempts[JobProgress], open_sink: Any = None, *, patience: str = "60"
) -> JobProgress:
    def done(written: list[Any], end: Any) -> None:
        attempts.progress.batches += 1
        attempts.batch_done()

    return follow_into(
        "local",
        "a-job",
        attempts,
        open_sink or (lambda: TableSink(place, "default")),
        done,
        {"url": bucket.url, "retrySeconds": patience},
        once=True,
        interval_seconds=0.0,
        workers=0,
    )


def attempts(told: list[str], retry_seconds: float) -> Attempts[JobProgress]:
    return Attempts(
        JobProgress(), lambda done: told.append(done.problem), stop=lambda: False, retry_seconds=retry_seconds
    )


def test_a_sink_is_opened_anew_for_each_attempt_and_failures_that_pass_are_told(tmp_path: Path) -> None:
    told: list[str] = []
    opened: list[int] = []
    with node(vbuckets=4) as bucket:
        with bucket.client() as client:
            client.set_many((f"k{i}", b"v") for i in range(20))

        def open_sink() -> TableSink:
            opened.append(1)
            if len(opened) == 1:
                raise OSError("the disk is away")
            return TableSink(tmp_path, "default")

        done = go(bucket, tmp_path, attempts(told, 60.0), open_sink)
        assert (done.retries, len(opened), told[0]) == (1, 2, "the disk is away")
        assert done.batches >= 1
        assert table(tmp_path) == documents(bucket)


def test_a_run_to_the_end_of_a_node_that_has_half_of_the_vbuckets_fails_with_their_number(tmp_path: Path) -> None:
    told: list[str] = []
    with node(vbuckets=4) as bucket:
        for vbucket in (1, 2):
            set_state(bucket, vbucket, State.DEAD)
        with pytest.raises(NotMyVbucket, match=r"2 of 4 vbuckets, the first is 1, have no active node"):
            go(bucket, tmp_path, attempts(told, 0.0), patience="0")
