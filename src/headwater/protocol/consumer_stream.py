"""One stream that a consumer node receives, and the table of what may happen to it when.

    QUEUED --asked--> ASKED --rolled back--> QUEUED         the node gives data up, then asks again
                      ASKED --accepted--> OPEN
    QUEUED, ASKED --refused--> ENDED     OPEN --ended--> ENDED     any --closed--> ENDED

QUEUED also while the connection still negotiates. Source: dcp 1, 2.2, 9.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from headwater.errors import LocalProtocolError
from headwater.protocol.position import ENDLESS, Position
from headwater.protocol.stream_asked import request_after
from headwater.wire.dialect import Dialect
from headwater.wire.header import Frame


class PassiveState(Enum):
    """Where a stream stands; the values are what STAT shows."""

    QUEUED = "pending"
    ASKED = "requested"
    OPEN = "reading"
    ENDED = "dead"


class Step(Enum):
    """What may happen to a stream."""

    ASKED = "a stream request"
    ROLLED_BACK = "a rollback"
    ACCEPTED = "an acceptance"
    REFUSED = "a refusal"
    ENDED = "its end"
    CLOSED = "being closed"


TRANSITIONS: dict[PassiveState, dict[Step, PassiveState]] = {  # what may happen where, and where it leads
    PassiveState.QUEUED: {
        Step.ASKED: PassiveState.ASKED,
        Step.REFUSED: PassiveState.ENDED,
        Step.CLOSED: PassiveState.ENDED,
    },
    PassiveState.ASKED: {
        Step.ROLLED_BACK: PassiveState.QUEUED,
        Step.ACCEPTED: PassiveState.OPEN,
        Step.REFUSED: PassiveState.ENDED,
        Step.CLOSED: PassiveState.ENDED,
    },
    PassiveState.OPEN: {Step.ENDED: PassiveState.ENDED, Step.CLOSED: PassiveState.ENDED},
    PassiveState.ENDED: {},
}


@dataclass(slots=True, eq=False)
class ConsumerStream:
    """One stream of the connection.

    Attributes:
        vbucket: 0 to 1023; opaque: ours, the same for every request of this stream (dcp 9: "with the same opaque").
        flags: those of ADD_STREAM, copied into the stream request.
        mover: the ADD_STREAM to answer; None when this node itself wanted the stream.
        asked: the position of the last request.
        histories: uuids still to be quoted if the producer does not know the first (dcp 9, ROLLBACK 0).
        rollbacks: how often the producer sent us back so far.
        dialect: that of the last request; UPR if the producer did not understand DCP's.
        marked: whether a marker came; in UPR the first closes nothing.
        ack_end_seqno: end of a marker that must be answered once it is reached; None without one.
    """

    vbucket: int
    opaque: int
    flags: int
    mover: Frame | None
    state: PassiveState = PassiveState.QUEUED
    asked: Position | None = None
    histories: list[int] = field(default_factory=list)
    rollbacks: int = 0
    dialect: Dialect = Dialect.DCP
    marked: bool = False
    ack_end_seqno: int | None = None

    def step(self, what: Step) -> None:
        """Follow the table; what is not in it is a mistake of ours."""
        following = TRANSITIONS[self.state].get(what)
        if following is None:
            raise LocalProtocolError(f"vbucket {self.vbucket}: {what.value} on a stream that is {self.state.value}")
        self.state = following


def stream_request(stream: ConsumerStream, position: Position, vb_uuid: int) -> bytes:
    """The request for all that comes after `position`: "a consumer node always asks for end = 2^64-1" (dcp 9)."""
    return request_after(position, ENDLESS, vb_uuid, stream.opaque, stream.dialect, flags=stream.flags)
