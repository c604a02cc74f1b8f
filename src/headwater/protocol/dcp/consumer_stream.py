"""One stream that is consumed, by a client or by a node, and the table of its states and steps.

    QUEUED --asked--> ASKED --rolled back--> QUEUED         data is given up, then it is asked again
                      ASKED --accepted--> OPEN
    QUEUED, ASKED --refused--> ENDED     OPEN --ended--> ENDED     any --closed--> ENDED

A stream is also QUEUED while the connection still negotiates. Source: dcp 1, 2.2, 9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from headwater.errors import LocalProtocolError
from headwater.protocol.dcp.position import ENDLESS, FailoverLog, Position
from headwater.wire.dialect import Dialect
from headwater.wire.header import Frame


class Phase(StrEnum):
    """The states of a stream; the values are what STAT shows."""

    QUEUED = "pending"
    ASKED = "requested"
    OPEN = "reading"
    ENDED = "dead"


class Step(StrEnum):
    """The inputs of a stream's state machine."""

    ASKED = "a stream request"
    ROLLED_BACK = "a rollback"
    ACCEPTED = "an acceptance"
    REFUSED = "a refusal"
    ENDED = "its end"
    CLOSED = "being closed"


TRANSITIONS: dict[Phase, dict[Step, Phase]] = {  # what may happen where, and where it leads
    Phase.QUEUED: {
        Step.ASKED: Phase.ASKED,
        Step.REFUSED: Phase.ENDED,
        Step.CLOSED: Phase.ENDED,
    },
    Phase.ASKED: {
        Step.ROLLED_BACK: Phase.QUEUED,
        Step.ACCEPTED: Phase.OPEN,
        Step.REFUSED: Phase.ENDED,
        Step.CLOSED: Phase.ENDED,
    },
    Phase.OPEN: {Step.ENDED: Phase.ENDED, Step.CLOSED: Phase.ENDED},
    Phase.ENDED: {},
}


@dataclass(slots=True, eq=False)
class ConsumerStream:
    """One stream of the connection.

    Attributes:
        vbucket: 0 to 1023.
        opaque: opaque of the last request; 0 before the first.
        flags: of the stream request; a node copies those of ADD_STREAM.
        mover: the ADD_STREAM to answer; None if this end itself wanted the stream.
        end_seqno: seqno at which the stream is to end.
        request_position: position of the last request. requested_at: time of the last request, in seconds; kept by
            clients only.
        histories: vb uuids for the next requests if the producer does not know the first (dcp 9, ROLLBACK 0).
        failover_log: as of the last answer, or of the requested position.
        rollbacks: number of rollbacks so far.
        dialect: dialect of the last request; UPR if the producer did not understand DCP's.
        marked: whether a marker came; in UPR the first marker closes nothing.
        value: value of the stream request; it chooses collections.
        purge_seqno: purge seqno of the last marker of this vbucket that had one, on this stream or an earlier one; 0
            for none.
    """

    vbucket: int
    opaque: int = 0
    flags: int = 0
    mover: Frame | None = None
    end_seqno: int = ENDLESS
    phase: Phase = Phase.QUEUED
    request_position: Position | None = None
    requested_at: float = 0.0
    histories: Sequence[int] = ()
    failover_log: FailoverLog = ()
    rollbacks: int = 0
    dialect: Dialect = Dialect.DCP
    marked: bool = False
    value: bytes = b""
    purge_seqno: int = 0

    @property
    def request_seqno(self) -> int:
        """The start seqno of the last request; 0 before the first request."""
        return 0 if self.request_position is None else self.request_position.seqno

    def step(self, step: Step) -> None:
        """Take a step of the table. A step that the table does not have is a programming error."""
        following = TRANSITIONS[self.phase].get(step)
        if following is None:
            raise LocalProtocolError(f"vbucket {self.vbucket}: {step.value} on a stream that is {self.phase.value}")
        self.phase = following
