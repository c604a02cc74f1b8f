"""The sinks of changes, as the engines see them: a table, an index, the windows of an observer.

A task does its part where it runs and answers in a few bytes; one process, the driver, commits the answers of a batch,
all of them or none. The sink's position is in its record, which moves in the same commit. So a batch may be planned,
run and answered any number of times: a batch that was planned from another record is left out.
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
    """The record of a sink: its position in the bucket's history."""

    @property
    def end(self) -> Mapping[str, Any]:
        """The offset up to which the sink has the changes."""

    @property
    def digest(self) -> str:
        """A short digest of exactly this record."""

    @property
    def batch(self) -> int:
        """The number of batches in the sink."""


class SinkTask(Protocol):
    """One task's work; it travels pickled to the process that runs it."""

    def answer(self) -> bytes:
        """Do the work; return its result for the driver."""


class ChangeSink(Protocol):
    """A target of changes with a record of its own position."""

    @property
    def place(self) -> str:
        """The sink's place: an absolute path. Spark's checkpoint lies in it; only the sink's record counts for the
        position.
        """

    def opening(self) -> SinkOpening:
        """Return the opening by which another process opens the same sink."""

    def refresh(self) -> Standing:
        """Return the present record of the sink, even if another process moved it."""

    def begun(self) -> Mapping[str, Any] | None:
        """Return the end of a batch that must be the next; None for any.

        Its tasks may have had effects that another plan can't undo.
        """

    def tasks(self, end: Mapping[str, Any], settings: SourceSettings, count: int) -> Sequence[SinkTask]:
        """Return the tasks of the batch that ends at `end`, at most `count`."""

    def read(self, answer: bytes) -> Any:
        """Read a task's answer."""

    def commit(
        self, after: str, end: Mapping[str, Any], answers: Sequence[Any], transaction: tuple[str, int] | None = None
    ) -> Standing:
        """Add a batch, if the sink still has the record that it was planned from; return the new record.

        Args:
            after: digest of the record that the batch was planned from.
            end: the end of the batch.
            answers: the answers of its tasks, read.
            transaction: (application, version), for readers of the log.

        Raises:
            TableChanged: the sink has another record; plan the batch anew.
        """


class CountingSink(ChangeSink, Protocol[P_contra]):
    """A sink that adds to its job's counts."""

    def count(self, progress: P_contra, answers: Sequence[Any]) -> None:
        """Add the answers of the last batch's tasks to the job's progress."""


class SinkOpening(Protocol):
    """A sink in a form that travels as text to processes that open it themselves."""

    def open(self) -> ChangeSink:
        """Return the sink, opened."""


Done = Callable[[list[Any], Mapping[str, Any]], None]
"""Called after each batch, with the tasks' answers and the offset that the place is at."""


def to_text(opening: SinkOpening) -> str:
    """Return an opening as the text of a Spark option."""
    return base64.b64encode(pickle.dumps(opening)).decode()


def from_text(text: str) -> SinkOpening:
    """Read the result of `to_text`, from our own driver only, for it is unpickled."""
    return cast("SinkOpening", pickle.loads(base64.b64decode(text)))  # noqa: S301 -- as Spark does with all it sends
