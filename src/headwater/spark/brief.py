"""Errors of the source and the writer without headwater's own calls in the traceback.

Spark passes an error of a Python source on as text, with all calls down to a socket, and shows this text twice. The
calls inside headwater do not explain why a node refuses connections. So they are left out of errors whose message has
the next step; HEADWATER_TRACEBACK=1 in Spark's environment keeps them. An error that may be our own mistake always
keeps them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeVar

from headwater import errors

EXPLAINED = (
    errors.BucketMadeAnew,
    errors.CollectionMadeAnew,
    errors.HistoryChanged,
    errors.NotesError,
    errors.NotPersisted,
    errors.OptionError,
    errors.RollbackRequired,
    errors.RowsRefused,
    errors.StatusError,
    errors.TransportError,
)
"""Errors that name their cause outside of headwater."""

Method = TypeVar("Method", bound=Callable[..., Any])


def brief(method: Method) -> Method:
    """Decorate a method that Spark calls, so that errors with a next step are raised without the calls inside
    headwater.
    """

    @wraps(method)
    def briefly(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except EXPLAINED as error:
            if _keeps_calls():
                raise
            raise error.with_traceback(None) from None

    return briefly  # type: ignore[return-value]


def brief_rows(method: Method) -> Method:
    """Decorate a generator method as `brief` does."""

    @wraps(method)
    def briefly(*args: Any, **kwargs: Any) -> Iterator[Any]:
        try:
            yield from method(*args, **kwargs)
        except EXPLAINED as error:
            if _keeps_calls():
                raise
            raise error.with_traceback(None) from None

    return briefly  # type: ignore[return-value]


def _keeps_calls() -> bool:
    return bool(os.environ.get("HEADWATER_TRACEBACK"))
