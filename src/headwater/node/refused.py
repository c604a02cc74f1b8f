"""The refusals of a request by its handler: with a status, or until the next commit."""

from __future__ import annotations


class CommandRefused(Exception):  # noqa: N818 - an answer, not an error of ours
    """The request is refused.

    Attributes:
        status: the status of the answer.
        context: the reason, for people; sent to clients that understand error bodies.
        value: the value of the answer, which replaces an error body; empty for none.
        datatype: the datatype of that value.
    """

    def __init__(self, status: int, context: str = "", *, value: bytes = b"", datatype: int = 0) -> None:
        super().__init__(status, context)
        self.status = status
        self.context = context
        self.value = value
        self.datatype = datatype


class NoRoom(Exception):  # noqa: N818 - not an error: the request runs again after the commit
    """The request can't be executed now, because the staging arena is full, or its connection was paused. It must be
    handled again, from the beginning, after the next commit or when the connection is resumed.
    """
