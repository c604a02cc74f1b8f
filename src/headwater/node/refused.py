"""The refusals of a request by its handler: with a status, or until the next commit."""

from __future__ import annotations


class CommandRefused(Exception):  # noqa: N818 - an answer, not an error of ours
    """The request is refused with a status; `context` is sent to clients that understand error bodies."""

    def __init__(self, status: int, context: str = "", *, value: bytes = b"", datatype: int = 0) -> None:
        super().__init__(status, context)
        self.status = status
        self.context = context
        self.value = value
        self.datatype = datatype


class NoRoom(Exception):  # noqa: N818 - not an error: the request runs again after the commit
    """The request can't be executed now: the staging arena is full, or its connection was paused."""
