"""How either end of a DCP connection says no: in words its peer understands, and in a sentence for people.

"Check the server logs for more information on which case occurred" (seed 001, ERANGE): the sentence is kept for whoever
has a log (`take`), and goes to a peer that negotiated XERROR as the body of the answer. Source: wire 3.1; kv.md 1.5.
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
"""Refusals that wait to be taken; older ones are forgotten. Who sends thousands of bad requests at once gets answers
to all of them, and his log need not have each."""

_NO_EXPLANATION = BODIED | {Status.NOT_MY_VBUCKET}
"""The body of these has a meaning of its own: clients read that of NOT_MY_VBUCKET as a cluster map."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that was refused, and why."""

    opcode: int
    vbucket: int
    status: int
    reason: str

    def __str__(self) -> str:
        name = Opcode(self.opcode).name if self.opcode in _OPCODES else f"opcode 0x{self.opcode:02x}"
        return f"{name} of vbucket {self.vbucket} is refused with {name_of(self.status)}: {self.reason}"


class Refusals:
    """Answers requests with errors, and remembers which; `total` counts them."""

    def __init__(self, negotiated: Negotiated) -> None:
        self._negotiated = negotiated
        self._kept: deque[Refusal] = deque(maxlen=KEPT_MAX)
        self.total = 0

    def answer(self, frame: Frame, status: int, reason: str, *, extras: bytes = b"", value: bytes = b"") -> bytes:
        """The bytes of the answer to a request that is refused.

        Args:
            frame: the request.
            status: what is meant; a peer without XERROR gets the nearest that it knows.
            reason: for people; empty where it was given before.
            extras, value: what the answer has to carry.

        Raises:
            RemoteProtocolError: there is no such status for this peer. Hang up.
        """
        if reason:
            self.total += 1
            self._kept.append(Refusal(frame.opcode, frame.vbucket, status, reason))
        told, datatype = self._told(status), 0
        if reason and not value and self._negotiated.xerror and told not in _NO_EXPLANATION:
            value, datatype = error_body(reason), Datatype.JSON if self._negotiated.json else 0
        return response(frame, told, extras=extras, value=value, datatype=datatype).encode()

    def take(self) -> list[Refusal]:
        """Return the refusals since the last call, and forget them."""
        taken = list(self._kept)
        self._kept.clear()
        return taken

    def __bool__(self) -> bool:
        return bool(self._kept)

    def _told(self, status: int) -> int:
        if self._negotiated.xerror:
            return status
        told = without_xerror(status, collections=self._negotiated.collections)
        if told is None:
            raise RemoteProtocolError(f"{name_of(status)} can not be told to a peer without XERROR")
        return told


_OPCODES = frozenset(Opcode)
