"""The reason why a mirror ended, in one line, and whether another attempt may help.

Errors come from here, from our own worker processes, or out of Spark, which wraps them in pages of traceback. Ours are
found in its text by their names.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headwater import errors
from headwater.errors import HeadwaterError
from headwater.first_line import OURS

_LASTING = (
    "OptionError",
    "UnsupportedTable",
    "TableError",
    "CatalogRefused",
    "LedgerError",
    "SearchRefused",
    "PublishRefused",
    "CorruptStore",
    "RollbackRequired",
    "DataLoss",
    "OutputLost",
    "SparkUnavailable",
    "InvariantBroken",
)
"""Failures that another try meets again: somebody has to do something first. All else is tried again: a node that
starts, a lake that is full or read-only for a while, a Python worker that was late."""

_LASTING_ERRNO = (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
"""Answers of the system that say that a path can't be, and not that a disk is full, away or read-only."""

_OF_SPARK = re.compile(r"^(?:Caused by: )?[\w.]*(?:Exception|Error): (.+)")


class MirrorFailed(HeadwaterError):  # noqa: N818 -- says what happened
    """The mirror ended; `problem` is the reason, in one line."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem


@contextmanager
def passing_failovers(url: str) -> Iterator[None]:
    """Convert a failover or purge during a second read of the source to ConnectionLost: the read is repeated from its
    start.
    """
    try:
        yield
    except errors.RollbackRequired as error:
        raise errors.ConnectionLost(url, f"history changed while it was read a second time: {error}") from error


def reason(error: BaseException) -> HeadwaterError:
    """Return the reason of an error, without the traceback that Spark wraps around it."""
    if isinstance(error, HeadwaterError):
        return error
    own_errors = OURS.findall(str(error))
    if own_errors:
        return MirrorFailed(own_errors[-1][1].strip())
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    if isinstance(error, OSError) and error.filename and error.strerror:
        return MirrorFailed(f"{error.filename}: {error.strerror}")
    if isinstance(error, OSError) or not lines:
        return MirrorFailed(str(error) or type(error).__name__)
    messages = [match[1] for line in lines if (match := _OF_SPARK.match(line))]
    return MirrorFailed((messages or lines)[-1 if messages else 0])


def passes(error: BaseException) -> bool:
    """Return True if another attempt may succeed a little later."""
    if isinstance(error, HeadwaterError):
        return _passes(type(error), error)
    if isinstance(error, OSError) and error.errno in _LASTING_ERRNO:
        return False
    own_errors = OURS.findall(str(error))
    if not own_errors:
        return True
    error_class: Any = getattr(errors, own_errors[-1][0], None)
    return error_class is None or _passes(error_class, None)


def _passes(kind: type[BaseException], error: BaseException | None) -> bool:
    if issubclass(kind, errors.TableChanged | errors.TableAway):
        return True
    if kind.__name__ in _LASTING:
        return False
    if issubclass(kind, errors.StatusError | errors.TransportError | errors.MoveError):
        return bool(getattr(error or kind, "retriable", False))
    return True
