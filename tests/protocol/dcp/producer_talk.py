"""A producer's end and the requests of its consumer, for the tests of both its files."""

from headwater.protocol.dcp.controls import Negotiated
from headwater.protocol.dcp.producer import Producer
from headwater.protocol.dcp.producer_events import (
    StreamRequested,
)
from headwater.protocol.dcp.producer_stream import ProducerStream
from headwater.protocol.dcp.stream_request import Facts
from headwater.wire import dcp
from headwater.wire.dcp import SnapshotFlag
from headwater.wire.header import Frame
from headwater.wire.vbucket import State

FACTS = Facts(State.ACTIVE, high_seqno=300, purge_seqno=0, failover_log=((0xA, 0),))


LOG = bytes.fromhex("000000000000000a0000000000000000")


MARKER = SnapshotFlag.MEMORY | SnapshotFlag.CHECKPOINT


XERROR = Negotiated(xerror=True)


def producer(negotiated: Negotiated = XERROR) -> Producer:
    return Producer(negotiated, now=100.0)


def say(end: Producer, hexed: str, now: float = 100.0) -> str:
    """Send the bytes of one frame; the bytes of the answer."""
    end.receive_frame(Frame.decode(bytes.fromhex(hexed)), now)
    return end.data_to_send().hex()


def control(end: Producer, key: bytes, value: bytes, now: float = 100.0) -> int:
    end.receive_frame(dcp.Control(key=key, value=value).frame(), now)
    return Frame.decode(end.data_to_send()).status


def stream_request(vbucket: int = 7, opaque: int = 0x77, end: int = 0xFFFF_FFFF_FFFF_FFFF, value: bytes = b"") -> Frame:
    return dcp.StreamRequest(
        vbucket=vbucket,
        opaque=opaque,
        start_seqno=0,
        end_seqno=end,
        snap_start_seqno=0,
        snap_end_seqno=0,
        value=value,
    ).frame()


def stream(end: Producer, vbucket: int = 7, opaque: int = 0x77) -> ProducerStream:
    (event,) = end.receive_frame(stream_request(vbucket, opaque), 100.0)
    assert isinstance(event, StreamRequested)
    made = end.answer_stream(event, FACTS, LOG)
    assert made is not None
    end.data_to_send()
    return made
