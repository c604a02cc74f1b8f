"""One stream of a producer's connection, and the table of what may be sent on it when.

    BETWEEN --marker--> INSIDE --changes--> INSIDE --the last change--> BETWEEN
    BETWEEN, INSIDE --end or close--> ENDED; only between snapshots does a stream end well

    INSIDE --marker--> INSIDE       a replica's own snapshot was replaced before it was whole (dcp 9)
    BETWEEN --state--> BETWEEN      a takeover sets the consumer's state, twice (failover 4)

Source: dcp 8.1, 8.2, 8.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headwater.errors import LocalProtocolError
from headwater.protocol.stream_request import Accepted, StreamKey
from headwater.wire.dialect import Dialect


class StreamState(StrEnum):
    """Where a stream stands."""

    BETWEEN = "between snapshots"
    INSIDE = "inside a snapshot"
    ENDED = "ended"


class Sent(StrEnum):
    """What may be sent on a stream, or happen to it."""

    MARKER = "a snapshot marker"
    CHANGES = "changes"
    STATE = "a vbucket state"
    LAST_CHANGE = "the last change of a snapshot"
    END_OK = "the end that was asked for"
    CUT = "an early end"


TRANSITIONS: dict[StreamState, dict[Sent, StreamState]] = {  # what may be sent where, and where it leads
    StreamState.BETWEEN: {
        Sent.MARKER: StreamState.INSIDE,
        Sent.STATE: StreamState.BETWEEN,
        Sent.END_OK: StreamState.ENDED,
        Sent.CUT: StreamState.ENDED,
    },
    StreamState.INSIDE: {
        Sent.MARKER: StreamState.INSIDE,
        Sent.CHANGES: StreamState.INSIDE,
        Sent.LAST_CHANGE: StreamState.BETWEEN,
        Sent.CUT: StreamState.ENDED,
    },
    StreamState.ENDED: {},
}


@dataclass(slots=True, eq=False)
class ProducerStream:
    """One stream of the connection.

    Attributes:
        key: vbucket, and stream id or None.
        opaque: that of the request; all messages of the stream carry it.
        accepted: from where to where it runs, and its flags.
        state: see the table.
        last_seqno: the newest seqno sent, at first the one asked from.
        snapshot_end_seqno: of the snapshot announced last.
        unanswered_markers: markers with flag ACK that were not answered yet.
        dialect: DCP or UPR, which the request was in.
    """

    key: StreamKey
    opaque: int
    accepted: Accepted
    state: StreamState = StreamState.BETWEEN
    last_seqno: int = 0
    snapshot_end_seqno: int = 0
    framing: bytes | None = None
    unanswered_markers: int = 0
    dialect: Dialect = Dialect.DCP

    @property
    def vbucket(self) -> int:
        """The vbucket it streams."""
        return self.key[0]

    @property
    def flags(self) -> int:
        """Those of the request: StreamFlag bits."""
        return self.accepted.flags

    def step(self, sent: Sent) -> None:
        """Follow the table; what is not in it is a mistake of ours."""
        following = TRANSITIONS[self.state].get(sent)
        if following is None:
            raise LocalProtocolError(f"vbucket {self.vbucket}: {sent.value} on a stream that is {self.state.value}")
        self.state = following
