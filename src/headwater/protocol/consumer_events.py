"""What a consumer node's connection has to tell whoever owns vbuckets and sockets. Source: dcp 2, 9."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.protocol.consumer_stream import ConsumerStream
from headwater.protocol.position import FailoverLog
from headwater.protocol.producer_events import NotDcp, PeerGone
from headwater.wire.header import Frame
from headwater.wire.vbucket import State


@dataclass(frozen=True, slots=True)
class StreamWanted:
    """A mover asks for a stream: `Consumer.add` or `Consumer.refuse_stream`."""

    vbucket: int
    flags: int
    frame: Frame


@dataclass(frozen=True, slots=True)
class PositionNeeded:
    """The stream's request is due: `Consumer.ask` takes the position of its vbucket, or `close` gives it up."""

    stream: ConsumerStream


@dataclass(frozen=True, slots=True)
class RollbackNeeded:
    """The producer does not share what lies above `seqno`: give it up, then `Consumer.ask` again."""

    stream: ConsumerStream
    seqno: int


@dataclass(frozen=True, slots=True)
class Opened:
    """The producer accepted; the vbucket's failover log is the producer's from here on."""

    stream: ConsumerStream
    failover_log: FailoverLog


@dataclass(frozen=True, slots=True)
class Refused:
    """The stream did not come about: `status` is the producer's, or ours."""

    stream: ConsumerStream
    status: int


@dataclass(frozen=True, slots=True)
class Marked:
    """A snapshot begins; tombstones up to `purge_seqno`, as far as that was told, are missing from it."""

    stream: ConsumerStream
    start_seqno: int
    end_seqno: int
    flags: int
    purge_seqno: int = 0


@dataclass(frozen=True, slots=True)
class Boundary:
    """UPR: what came so far is a whole snapshot. If the stream `goes_on`, the next one begins, its end unknown."""

    stream: ConsumerStream
    goes_on: bool


@dataclass(frozen=True, slots=True)
class Changed:
    """A change that the kernel left to Python: it is in order, apply it."""

    stream: ConsumerStream
    frame: Frame
    seqno: int


@dataclass(frozen=True, slots=True)
class Advanced:
    """Nothing for us lies before this seqno."""

    stream: ConsumerStream
    seqno: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """UPR: the producer dropped all data of the vbucket."""

    stream: ConsumerStream


@dataclass(frozen=True, slots=True)
class StateWanted:
    """The producer sets the vbucket's state: apply it, then `Consumer.answer_state`."""

    stream: ConsumerStream
    state: State
    frame: Frame


@dataclass(frozen=True, slots=True)
class Ended:
    """The stream is over: `reason` is an EndReason, or a number later than this program; None when it was closed."""

    stream: ConsumerStream
    reason: int | None


Event = (
    StreamWanted
    | PositionNeeded
    | RollbackNeeded
    | Opened
    | Refused
    | Marked
    | Boundary
    | Changed
    | Advanced
    | Flushed
    | StateWanted
    | Ended
    | NotDcp
    | PeerGone
)
