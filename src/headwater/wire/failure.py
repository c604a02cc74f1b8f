"""The answer to a request that failed, whatever the request was. Source: specification, wire.md 1.3."""

from __future__ import annotations

from headwater.errors import StatusError, error_for
from headwater.wire.layout import ANY_FAILURE, OPTIONAL, Answer

__all__ = ["Failure"]


class Failure(Answer, status=ANY_FAILURE, value=OPTIONAL):
    """A request failed with `status`; the value, if any, is an explanation as text or JSON, or the cluster map.

    It has neither extras nor a key. `opcode` is that of the request.
    """

    def error(self, context: str = "") -> StatusError:
        """Return (not raise) the exception for this answer; `context` describes the request."""
        text = self.value.decode("utf-8", "replace")
        return error_for(self.status, f"{context}: {text}" if context and text else context or text)
