"""A drain and the frames its node sends, for the tests of the consumer's end."""

from dataclasses import fields

from headwater.kernels.columns import Arena
from headwater.protocol.dcp.drain import Drain
from headwater.protocol.dcp.position import ENDLESS, Position
from headwater.wire import dcp
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode

UUID = 0xA11CE


BEGINNING = Position.beginning(0)


LOG = [(UUID, 0)]


def a_drain(arena_bytes: int = 4096, **options) -> Drain:
    settings = {"window_bytes": 1000, "silence_seconds": 240.0, "answer_seconds": 1000.0, "now": 100.0, "markers": True}
    arena = Arena(value_bytes=arena_bytes, key_bytes=4096, with_ids=options.get("with_ids", False))
    return Drain(arena, "node:11210", **(settings | options))


def asked(position: Position = BEGINNING, end_seqno: int = ENDLESS, **options) -> Drain:
    drain = a_drain(**options)
    drain.request(position, end_seqno, 100.0)
    drain.data_to_send()
    return drain


def accepted(position: Position = BEGINNING, **options) -> Drain:
    drain = asked(position, **options)
    feed(drain, ACCEPTED)
    drain.events.clear()
    return drain


def feed(drain: Drain, *frames: bytes, now: float = 100.0) -> None:
    data = b"".join(frames)
    assert drain.receive(data, now) == len(data)


def marker(start: int, end: int, flags: int = 1, opaque: int = 1, vbucket: int = 0) -> bytes:
    message = dcp.SnapshotMarker(vbucket=vbucket, opaque=opaque, start_seqno=start, end_seqno=end, flags=flags)
    return message.encode()


def purged_marker(start: int, end: int, purge_seqno: int, flags: int = 6, vbucket: int = 0) -> bytes:
    return dcp.SnapshotMarkerV22(
        vbucket=vbucket,
        opaque=1,
        start_seqno=start,
        end_seqno=end,
        flags=flags,
        max_visible_seqno=0,
        high_completed_seqno=0,
        purge_seqno=purge_seqno,
        high_prepared_seqno=0,
    ).encode()


def change(seqno: int, key: bytes = b"k", value: bytes = b"v", opaque: int = 1, vbucket: int = 0) -> bytes:
    message = dcp.Mutation(vbucket=vbucket, opaque=opaque, cas=7, by_seqno=seqno, rev_seqno=1, key=key, value=value)
    return message.encode()


ACCEPTED = dcp.StreamResponse(opaque=1, failover_log=LOG).encode()


END = dcp.StreamEnd(vbucket=0, opaque=1, status=0).encode()


TALK = ACCEPTED + marker(0, 3) + change(1) + change(2) + dcp.Noop(opaque=9).encode() + change(3) + END


def answer(status: int, value: bytes = b"", extras: bytes = b"", opaque: int = 1) -> bytes:
    return Frame(0x81, Opcode.DCP_STREAM_REQ, b"", extras, value, vbucket=status, opaque=opaque).encode()


def outcome(drain: Drain):
    """All there is to see: rows, events, what is sent."""
    return drain.arena.batch().to_pylist(), happened(drain.events), drain.data_to_send()


def happened(events):
    """Events by the values of their fields: (row, kind, vbucket, the rest)."""
    return [
        (row, type(event), event.vbucket, *(getattr(event, field.name) for field in fields(event)[1:]))
        for row, event in events
    ]
