"""The answer to a request that failed, whatever the request was. Source: specification, wire.md 1.3."""

from __future__ import annotations

from typing import Any

from headwater.errors import StatusError, error_for
from headwater.wire.header import Frame
from headwater.wire.layout import ANY_STATUS, OPTIONAL, Response

__all__ = ["Failure"]


class Failure(Response, status=ANY_STATUS, value=OPTIONAL):
    """A request failed with `status`; the value, if any, is text or JSON that explains, or the cluster map.

    It carries neither extras nor a key. `opcode` is that of the request.
    """

    opcode: int

    @classmethod
    def _values(cls, frame: Frame) -> dict[str, Any]:
        if frame.status == 0:
            raise ValueError("status is 0x00, which is no failure")
        return super()._values(frame)

    @classmethod
    def _header_values(cls, frame: Frame) -> dict[str, Any]:
        return {"status": frame.status, "opcode": frame.opcode}

    def _opcode(self) -> int:
        return self.opcode

    def error(self, context: str = "") -> StatusError:
        """Return (not raise) the error to raise for this answer; `context` says what was asked."""
        text = self.value.decode("utf-8", "replace")
        return error_for(self.status, f"{context}: {text}" if context and text else context or text)
