"""Events of a producer's connection, for the owner of vbuckets and sockets. Source: dcp 2."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.protocol.dcp.producer_stream import ProducerStream
from headwater.protocol.dcp.upr import StreamRequest
from headwater.protocol.end import PeerGone
from headwater.wire.header import Frame


@dataclass(frozen=True, slots=True)
class StreamRequested:
    """A stream request; answer with `Producer.answer_stream` and the facts about its vbucket."""

    request: StreamRequest

    @property
    def frame(self) -> Frame:
        """The request as a frame, for a refusal."""
        return self.request.frame()


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """The consumer closed a stream; its CLOSE_STREAM is answered already."""

    stream: ProducerStream


@dataclass(frozen=True, slots=True)
class FailoverLogRequested:
    """A request for a vbucket's failover log; answer with `Producer.answer_log`."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class MarkerAnswered:
    """The consumer has received the whole snapshot of a marker with flag ACK."""

    stream: ProducerStream


@dataclass(frozen=True, slots=True)
class StateAnswered:
    """The consumer answered SET_VBUCKET_STATE; anything but SUCCESS fails the takeover."""

    stream: ProducerStream
    status: int


@dataclass(frozen=True, slots=True)
class PreparesAcknowledged:
    """A replica has every prepare up to a seqno."""

    stream: ProducerStream
    seqno: int


@dataclass(frozen=True, slots=True)
class WindowOpened:
    """The consumer acknowledged bytes, or changed its window: more may be sent."""


@dataclass(frozen=True, slots=True)
class NotDcp:
    """A request of another protocol than DCP, such as STAT; a DCP connection serves those as well."""

    frame: Frame


Event = (
    StreamRequested
    | StreamClosed
    | FailoverLogRequested
    | MarkerAnswered
    | StateAnswered
    | PreparesAcknowledged
    | WindowOpened
    | NotDcp
    | PeerGone
)
