"""The places that changes are brought into, as the engines see them: a table, an index, the windows of an observer.

A task does its part where it runs and answers in a few bytes; one process, the driver, brings in the answers of a
batch, all of them or none. How far the place is stands in it, in its record, and is brought forward by the same act. So
a batch may be planned, run and answered any number of times: planned from another record than the place has, it is left
out.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

from headwater.spark.settings import SourceSettings

P_contra = TypeVar("P_contra", contravariant=True)

REPEATS_MAX = 10
"""Attempts at one batch whose place or nodes moved on meanwhile, before that is an error."""


class Standing(Protocol):
    """A record: how far a place is."""

    @property
    def end(self) -> Mapping[str, Any]:
        """The offset up to which it has the changes."""

    @property
    def digest(self) -> str:
        """A short name of exactly this record."""

    @property
    def batch(self) -> int:
        """The number of batches that were brought in."""


class SinkTask(Protocol):
    """One task's work; travels pickled to wherever it runs."""

    def answer(self) -> bytes:
        """Do it; return what the driver has to know."""


class ChangeSink(Protocol):
    """A place that changes are brought into."""

    @property
    def place(self) -> str:
        """The sink's place: an absolute path. Spark's checkpoint, which says nothing, lies in it."""

    def opening(self) -> SinkOpening:
        """Return what another process opens the same place with."""

    def refresh(self) -> Standing:
        """Return how far the place is, whoever brought it there."""

    def begun(self) -> Mapping[str, Any] | None:
        """Return the end of a batch that must be the next, for its tasks may have done what can't be undone by planning
        another; None for any."""

    def tasks(self, end: Mapping[str, Any], settings: SourceSettings, count: int) -> Sequence[SinkTask]:
        """Return the tasks of the batch that ends at `end`, at most `count`."""

    def read(self, answer: bytes) -> Any:
        """Read what a task answered."""

    def commit(
        self, after: str, end: Mapping[str, Any], written: Sequence[Any], transaction: tuple[str, int] | None = None
    ) -> Standing:
        """Bring a batch in, if the place still is where it was planned from; return the new record.

        Args:
            after: digest of the record that the batch was planned from.
            end: where it ends.
            written: the answers of its tasks, read.
            transaction: (application, version), for those who look for it.

        Raises:
            TableChanged: plan the batch anew.
        """


class CountingSink(ChangeSink, Protocol[P_contra]):
    """A sink that counts for its job what came in."""

    def count(self, progress: P_contra, written: Sequence[Any]) -> None:
        """Add what the tasks of the last batch answered to the job's progress."""


class SinkOpening(Protocol):
    """A place by name: travels as text to processes that open it for themselves."""

    def open(self) -> ChangeSink:
        """Open it."""


Done = Callable[[list[Any], Mapping[str, Any]], None]
"""Called after each batch, with the tasks' answers and the offset that the place is at."""


def to_text(opening: SinkOpening) -> str:
    """Return an opening as an option of Spark."""
    return base64.b64encode(pickle.dumps(opening)).decode()


def from_text(text: str) -> SinkOpening:
    """Read what `to_text` wrote; of our own driver only, for it is unpickled."""
    return cast("SinkOpening", pickle.loads(base64.b64decode(text)))  # noqa: S301 -- as Spark does with all it sends
