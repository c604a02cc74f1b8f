"""A job that begins again after failures that may pass, and the progress that it reports meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from headwater.pipelines.failures import passes, reason
from headwater.pipelines.jobs import DeclaredJob
from headwater.pipelines.watch import NOBODY, BatchWatch
from headwater.transport.backoff import Backoff

LOOK_SECONDS = 0.1
RETRY_SECONDS, RETRY_SECONDS_ONCE = 300.0, 30.0
LONG_ATTEMPTS = 3
"""So often an attempt that was at work for longer than all patience may fail, without a batch, as if it were the
first."""
SOURCE_SECONDS, SOURCE_SECONDS_MIN = 60.0, 5.0
"""For so long a source waits for a node, at most and at least, unless its options say otherwise."""


class Progress(Protocol):
    """The fields of a job's progress that `Attempts` keeps.

    Attributes:
        retries: the number of times that the job began anew.
        problem: the last reason for that, until a batch succeeded.
        seconds: since the job began.
    """

    retries: int
    problem: str
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dict of JSON types."""


P = TypeVar("P", bound=Progress)


def patience(retry_seconds: float | None, *, once: bool) -> float:
    """Return the seconds for which a job keeps trying after a failure, without a successful batch.

    Args:
        retry_seconds: the user's choice; None for the default, which is shorter with `once`.
    """
    if retry_seconds is not None:
        return retry_seconds
    return RETRY_SECONDS_ONCE if once else RETRY_SECONDS


def patient_source(options: Mapping[str, str], retry_seconds: float) -> dict[str, str]:
    """Return the options of a source that waits for a node no longer than its job goes on trying, unless they set a
    time.

    Otherwise a job that is to give up after 3 s would wait for its source's 60.
    """
    if any(name.lower() == "retryseconds" for name in options):
        return dict(options)
    return {**options, "retrySeconds": f"{min(max(retry_seconds, SOURCE_SECONDS_MIN), SOURCE_SECONDS):g}"}


def attempts_of(job: DeclaredJob[P], progress: P) -> Attempts[P]:
    """Return the attempts of a job, which report to the job's own functions."""
    seconds = patience(job.retry_seconds, once=job.once)
    return Attempts(progress, job.progress, stop=job.stop, retry_seconds=seconds, watch=job.watch or NOBODY)


class Attempts(Generic[P]):
    """Runs a job until it ends or is stopped.

    Args:
        progress: the job's counts; the job adds to them before it reports that a batch is done.
        report: called with the progress after each batch and before each new attempt.
        stop: called several times a second; True ends the job.
        retry_seconds: the time of further attempts after a failure, without a successful batch.
        watch: gets the times of batches and the lag from the engine.
    """

    def __init__(
        self,
        progress: P,
        report: Callable[[P], None],
        *,
        stop: Callable[[], bool],
        retry_seconds: float,
        watch: BatchWatch = NOBODY,
    ) -> None:
        self.progress = progress
        self.stop: Callable[[], bool] = stop
        self.watch: BatchWatch = watch
        self.retry_seconds: float = retry_seconds
        self._report = report
        self._began_at = time.monotonic()
        self._failed_at: float | None = None  # the first failure since the last batch that succeeded
        self._long_ones = 0  # the attempts since then that took longer than all patience
        self._backoff = Backoff(0.5, 15.0)

    def batch_done(self, problem: str = "") -> None:
        """Report a successful batch.

        Args:
            problem: a problem that does not end the job, such as one of the upkeep; empty for none.
        """
        self.calm()
        self._say(problem)

    def calm(self) -> None:
        """Note that both ends answered and there was nothing to do.

        The next failure then counts as the first, however long ago the last batch was.
        """
        self._failed_at, self._long_ones = None, 0
        self._backoff.reset()

    def remark(self, problem: str) -> None:
        """Report a problem that belongs to no batch, after the last of them."""
        self._say(problem)

    def run(self, attempt: Callable[[], None]) -> None:
        """Call `attempt` until it returns, again and again while its failures may pass.

        Raises:
            HeadwaterError: the last failure, in one line.
        """
        while True:
            began = time.monotonic()
            try:
                return attempt()
            except Exception as error:  # Spark's have no class of their own; those that do not pass are raised again
                own_error = reason(error)
                late = self._note_failure(began, time.monotonic())
                if self.stop():
                    return None
                if late or not passes(error):
                    raise own_error from error
                self.progress.retries += 1
                self._say(str(own_error))
            self._pause(self._backoff.next_seconds())

    def _note_failure(self, began: float, now: float) -> bool:
        """Note that an attempt has failed; return True if that is too late for another one.

        Patience counts from the first failure, not from the last batch: one batch may take longer than all patience.
        For the same reason a failure counts as the first where the attempt was at work for so long.
        """
        if self._failed_at is not None and self._long_ones < LONG_ATTEMPTS and now - began >= self.retry_seconds > 0:
            self._long_ones += 1
            self._failed_at = None
        if self._failed_at is None:
            self._failed_at = now
        return now - self._failed_at >= self.retry_seconds

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.stop():
            time.sleep(LOOK_SECONDS)

    def _say(self, problem: str) -> None:
        self.progress.problem = problem
        self.progress.seconds = round(time.monotonic() - self._began_at, 3)
        self._report(self.progress)
