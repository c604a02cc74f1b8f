"""Refusals by either end of a DCP connection: a status that the peer understands, and a sentence for people.

The owner takes the sentence for its log (`take`): "Check the server logs for more information on which case occurred"
(seed 001, ERANGE). It is also the body of the answer to a peer that negotiated XERROR. Source: wire 3.1; kv.md 1.5.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from headwater.errors import RemoteProtocolError
from headwater.protocol.dcp.controls import Negotiated
from headwater.wire.datatype import Datatype
from headwater.wire.header import Frame, response
from headwater.wire.json_text import error_body
from headwater.wire.opcodes import Opcode
from headwater.wire.status import BODIED, Status, name_of, without_xerror

KEPT_MAX = 64
"""The number of refusals that are kept; older ones are forgotten. A peer that sends thousands of bad requests at once
gets all answers, but the log need not have each."""

_NO_EXPLANATION = BODIED | {Status.NOT_MY_VBUCKET}
"""Statuses whose body has a meaning of its own: clients read that of NOT_MY_VBUCKET as a cluster map."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused request, and the reason."""

    opcode: int
    vbucket: int
    status: int
    reason: str

    def __str__(self) -> str:
        name = Opcode(self.opcode).name if self.opcode in _OPCODES else f"opcode 0x{self.opcode:02x}"
        return f"{name} of vbucket {self.vbucket} is refused with {name_of(self.status)}: {self.reason}"


class Refusals:
    """Answers requests with errors, and keeps the refusals; `total` counts them."""

    def __init__(self, negotiated: Negotiated) -> None:
        self._negotiated = negotiated
        self._refusals: deque[Refusal] = deque(maxlen=KEPT_MAX)
        self.total: int = 0

    def answer(self, frame: Frame, status: int, reason: str, *, extras: bytes = b"", value: bytes = b"") -> bytes:
        """Return the bytes of the answer to a refused request.

        Args:
            frame: the request.
            status: intended status; a peer without XERROR gets the nearest one that it knows.
            reason: for people; empty if the reason was recorded before.
            extras, value: extras and value of the answer.

        Raises:
            RemoteProtocolError: no such status exists for this peer: close the connection.
        """
        if reason:
            self.total += 1
            self._refusals.append(Refusal(frame.opcode, frame.vbucket, status, reason))
        sent_status, datatype = self._status_for(status), 0
        if reason and not value and self._negotiated.xerror and sent_status not in _NO_EXPLANATION:
            value, datatype = error_body(reason), Datatype.JSON if self._negotiated.json else 0
        return response(frame, sent_status, extras=extras, value=value, datatype=datatype).encode()

    def take(self) -> list[Refusal]:
        """Return the refusals since the last call, and forget them."""
        refusals = list(self._refusals)
        self._refusals.clear()
        return refusals

    def __bool__(self) -> bool:
        return bool(self._refusals)

    def _status_for(self, status: int) -> int:
        if self._negotiated.xerror:
            return status
        older = without_xerror(status, collections=self._negotiated.collections)
        # wire 3.1 maps these statuses to "disconnect": a client that doesn't know them would misread any answer.
        if older is None:
            raise RemoteProtocolError(f"{name_of(status)} can not be told to a peer without XERROR")
        return older


_OPCODES = frozenset(Opcode)
