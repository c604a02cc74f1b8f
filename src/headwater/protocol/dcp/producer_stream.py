"""One stream of a producer's connection, and the table of its states and the messages that may be sent in each.

    BETWEEN --marker--> INSIDE --changes--> INSIDE --the last change--> BETWEEN
    BETWEEN, INSIDE --end or close--> ENDED       with reason OK only between snapshots

    INSIDE --marker--> INSIDE       a replica's own snapshot was replaced before it was whole (dcp 9)
    BETWEEN --state--> BETWEEN      a takeover sets the consumer's state, twice (failover 4)

Source: dcp 8.1, 8.2, 8.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headwater.errors import LocalProtocolError
from headwater.protocol.dcp.stream_request import Accepted, StreamKey
from headwater.wire.dialect import Dialect


class ProducerState(StrEnum):
    """The states of a stream."""

    BETWEEN = "between snapshots"
    INSIDE = "inside a snapshot"
    ENDED = "ended"


class SentMessage(StrEnum):
    """The inputs of a stream's state machine: messages sent on it, and events."""

    MARKER = "a snapshot marker"
    CHANGES = "changes"
    STATE = "a vbucket state"
    LAST_CHANGE = "the last change of a snapshot"
    END_OK = "the end that was asked for"
    CUT = "an early end"


TRANSITIONS: dict[ProducerState, dict[SentMessage, ProducerState]] = {  # what may be sent where, and where it leads
    ProducerState.BETWEEN: {
        SentMessage.MARKER: ProducerState.INSIDE,
        SentMessage.STATE: ProducerState.BETWEEN,
        SentMessage.END_OK: ProducerState.ENDED,
        SentMessage.CUT: ProducerState.ENDED,
    },
    ProducerState.INSIDE: {
        SentMessage.MARKER: ProducerState.INSIDE,
        SentMessage.CHANGES: ProducerState.INSIDE,
        SentMessage.LAST_CHANGE: ProducerState.BETWEEN,
        SentMessage.CUT: ProducerState.ENDED,
    },
    ProducerState.ENDED: {},
}


@dataclass(slots=True, eq=False)
class ProducerStream:
    """One stream of the connection.

    Attributes:
        key: vbucket, and stream id or None.
        opaque: opaque of the request; all messages of the stream have it.
        accepted: the accepted request: first and last seqno, flags, filter.
        state: see the table.
        last_seqno: the newest seqno sent; before the first change, the start seqno of the request.
        snapshot_end_seqno: end of the snapshot announced last.
        unanswered_markers: markers with flag ACK that were not answered yet.
        dialect: DCP or UPR, the dialect of the request.
    """

    key: StreamKey
    opaque: int
    accepted: Accepted
    state: ProducerState = ProducerState.BETWEEN
    last_seqno: int = 0
    snapshot_end_seqno: int = 0
    framing: bytes | None = None
    unanswered_markers: int = 0
    dialect: Dialect = Dialect.DCP

    @property
    def vbucket(self) -> int:
        """The stream's vbucket."""
        return self.key[0]

    @property
    def flags(self) -> int:
        """The flags of the request: StreamFlag bits."""
        return self.accepted.flags

    def step(self, message: SentMessage) -> None:
        """Take a step of the table. A step that the table does not have is a programming error."""
        following = TRANSITIONS[self.state].get(message)
        if following is None:
            raise LocalProtocolError(f"vbucket {self.vbucket}: {message.value} on a stream that is {self.state.value}")
        self.state = following
