"""Errors of the source and the writer without our own calls in them.

Spark hands on an error of a Python source as text, with all calls down to a socket; on its way to a user that text is
shown twice. The calls inside headwater tell nobody why a node refuses connections. They are left out of errors that
say themselves what to do; HEADWATER_TRACEBACK=1 in the environment of Spark keeps them. An error that may be a mistake
of ours keeps them always.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeVar

from headwater import errors

EXPLAINED = (
    errors.HistoryChanged,
    errors.NotPersisted,
    errors.OptionError,
    errors.RollbackRequired,
    errors.RowsRefused,
    errors.StatusError,
    errors.TransportError,
)
"""Errors that name what outside of headwater they come from."""

Method = TypeVar("Method", bound=Callable[..., Any])


def brief(method: Method) -> Method:
    """Let a method that Spark calls raise errors of ours without the calls that led to them."""

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
    """Do the same for a method that yields."""

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
