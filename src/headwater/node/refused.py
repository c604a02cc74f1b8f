"""The node's refusals of a request: a status, or "try again after the next commit"."""

from __future__ import annotations


class CommandRefused(Exception):  # noqa: N818 - an answer, not an error of ours
    """The request is refused with a status; `context` may go to a client that understands error bodies."""

    def __init__(self, status: int, context: str = "", *, value: bytes = b"", datatype: int = 0) -> None:
        super().__init__(status, context)
        self.status = status
        self.context = context
        self.value = value
        self.datatype = datatype


class NoRoom(Exception):  # noqa: N818 - not an error: the request runs again after the commit
    """The staging arena can't take this request now."""
