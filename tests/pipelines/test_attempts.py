"""A job is begun again after what passes; its attempts here are a list of what comes of each."""

from collections.abc import Callable
from typing import Any

import pytest

from headwater.errors import ConnectionLost, OptionError
from headwater.pipelines import attempts as module
from headwater.pipelines.attempts import Attempts, patience, patient_source
from headwater.pipelines.jobs import CopyProgress

RESET = ConnectionLost("node", "reset")


class BackoffOfNothing:
    def next_seconds(self) -> float:
        return 0.0

    def reset(self) -> None:
        pass


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(module, "Backoff", lambda least, most: BackoffOfNothing())


def prepared(*errors: Exception | None, retry_seconds: float = 60.0, **more: Any) -> Any:
    """Return what was reported, the attempts, and a job that meets these errors, one an attempt."""
    left, reports = list(errors), []
    more = {"stop": lambda: False} | more

    def job() -> None:
        if (error := left.pop(0)) is not None:
            raise error

    note: Callable[[CopyProgress], None] = lambda progress: reports.append((progress.retries, progress.problem))  # noqa: E731
    return reports, Attempts(CopyProgress(), note, retry_seconds=retry_seconds, **more), job


def test_what_passes_is_tried_again_and_reported() -> None:
    reports, attempts, job = prepared(RESET, RESET, None)
    attempts.run(job)
    assert reports == [(1, "node: reset"), (2, "node: reset")]


def test_what_does_not_pass_ends_it_at_once() -> None:
    reports, attempts, job = prepared(OptionError("url", "x", "an address"), None)
    with pytest.raises(OptionError):
        attempts.run(job)
    assert reports == []


def test_patience_has_an_end() -> None:
    _, attempts, job = prepared(RESET, None, retry_seconds=0.0)
    with pytest.raises(ConnectionLost):
        attempts.run(job)


def test_a_failure_after_it_was_to_stop_is_none() -> None:
    reports, attempts, job = prepared(RESET, stop=lambda: True)
    attempts.run(job)
    assert reports == []


def test_a_batch_that_went_well_ends_a_problem_and_begins_the_patience_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    reports, attempts, job = prepared(RESET, None, retry_seconds=30.0)
    clock[0] = 29.0
    attempts.batch_done()
    clock[0] = 58.0
    attempts.run(job)  # 29 seconds without a batch
    attempts.batch_done()
    assert reports == [(0, ""), (1, "node: reset"), (1, "")]
    assert attempts.progress.seconds == 58.0


def test_a_job_that_had_nothing_to_do_for_long_has_all_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A night without writes made the first failure of the morning the last."""
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    reports, attempts, job = prepared(RESET, RESET, None, retry_seconds=30.0)

    def night() -> None:
        clock[0] += 29.0
        if clock[0] == 29.0:
            clock[0] = 40_000.0
            attempts.calm()
        job()

    attempts.run(night)
    assert reports == [(1, "node: reset"), (2, "node: reset")]


def test_a_batch_that_fails_after_longer_than_all_patience_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first copy of a large bucket takes an hour; a node that restarted in it ended the job."""
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    reports, attempts, job = prepared(RESET, RESET, RESET, retry_seconds=30.0)

    def hour() -> None:
        clock[0] += 20.0 if reports else 3600.0
        job()

    with pytest.raises(ConnectionLost):
        attempts.run(hour)
    assert reports == [(1, "node: reset"), (2, "node: reset")]


def test_a_long_batch_may_be_interrupted_three_times_more_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    reports, attempts, job = prepared(*[RESET] * 9, retry_seconds=30.0)

    def hour() -> None:
        clock[0] += 3600.0
        job()

    with pytest.raises(ConnectionLost):
        attempts.run(hour)
    assert [number for number, _ in reports] == [1, 2, 3, 4]


def test_a_problem_beside_a_batch_is_reported_with_it() -> None:
    reports, attempts, _ = prepared()
    attempts.batch_done("upkeep: no space")
    assert reports == [(0, "upkeep: no space")]


def test_patience_is_longer_for_a_job_without_an_end() -> None:
    assert (patience(None, once=False), patience(None, once=True), patience(0.0, once=True)) == (300.0, 30.0, 0.0)


def test_a_source_waits_for_a_node_no_longer_than_its_job_goes_on_trying() -> None:
    assert [patient_source({}, seconds)["retrySeconds"] for seconds in (0, 7.5, 30, 300)] == ["5", "7.5", "30", "60"]
    assert patient_source({"retryseconds": "9", "url": "u"}, 300) == {"retryseconds": "9", "url": "u"}
