"""One stream that is consumed, by a client or by a node, and the table of what may happen to it when.

    QUEUED --asked--> ASKED --rolled back--> QUEUED         data is given up, then it is asked again
                      ASKED --accepted--> OPEN
    QUEUED, ASKED --refused--> ENDED     OPEN --ended--> ENDED     any --closed--> ENDED

QUEUED also while the connection still negotiates. Source: dcp 1, 2.2, 9.
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
    """Where a stream is in its life; the values are what STAT shows."""

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
        opaque: that of the last request; 0 before the first.
        flags: of the stream request; a node copies those of ADD_STREAM.
        mover: the ADD_STREAM to answer; None when this end itself wanted the stream.
        end_seqno: where the stream is to end.
        asked: the position of the last request. asked_at: when that was sent, where that is watched.
        histories: uuids still to be quoted if the producer does not know the first (dcp 9, ROLLBACK 0).
        failover_log: as of the last answer, or of the position asked from.
        rollbacks: how often we had to give something up so far.
        dialect: that of the last request; UPR if the producer did not understand DCP's.
        marked: whether a marker came; in UPR the first closes nothing.
        value: of the stream request; it chooses collections.
    """

    vbucket: int
    opaque: int = 0
    flags: int = 0
    mover: Frame | None = None
    end_seqno: int = ENDLESS
    phase: Phase = Phase.QUEUED
    asked: Position | None = None
    asked_at: float = 0.0
    histories: Sequence[int] = ()
    failover_log: FailoverLog = ()
    rollbacks: int = 0
    dialect: Dialect = Dialect.DCP
    marked: bool = False
    value: bytes = b""

    @property
    def asked_seqno(self) -> int:
        """The seqno that the last request goes on from; 0 before the first."""
        return 0 if self.asked is None else self.asked.seqno

    def step(self, what: Step) -> None:
        """Follow the table; what is not in it is a mistake of ours."""
        following = TRANSITIONS[self.phase].get(what)
        if following is None:
            raise LocalProtocolError(f"vbucket {self.vbucket}: {what.value} on a stream that is {self.phase.value}")
        self.phase = following
