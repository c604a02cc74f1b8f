"""Read answers to stream requests, and say in words what is wrong with a frame that can not be."""

from __future__ import annotations

from dataclasses import replace

from headwater.errors import BadMessage, RemoteProtocolError
from headwater.kernels.scan import Stop
from headwater.kernels.tracker import StreamTable  # not by way of columns: a node needs no pyarrow
from headwater.protocol.dcp.position import FailoverLog
from headwater.wire import dcp
from headwater.wire.header import HEADER, HEADER_BYTES, Frame
from headwater.wire.manifest import EventKind
from headwater.wire.opcodes import name_of
from headwater.wire.records import LOG_ENTRY_BYTES
from headwater.wire.status import Status

_ROLLBACK_BYTES = dcp.StreamRollback.layout.value_bytes
_OF_COLLECTIONS = (EventKind.CREATE_COLLECTION, EventKind.DROP_COLLECTION)

LOG_ENTRIES_MAX = 1024
"""Real failover logs hold 25 entries at most; a longer one would be kept with every position."""


def read_failover_log(frame: Frame) -> FailoverLog:
    """Read the log of an accepted request; dcp.md 9: empty, or not a multiple of 16 bytes, is an error."""
    if not may_be_log(len(frame.value)):
        raise RemoteProtocolError(
            f"{named(frame.opcode)}: a failover log of {len(frame.value)} bytes; "
            f"expected 16 each for 1 to {LOG_ENTRIES_MAX} entries"
        )
    return tuple(dcp.StreamResponse.decode(frame).failover_log)


def may_be_log(size_bytes: int) -> bool:
    """Whether a failover log can have so many bytes."""
    return 0 < size_bytes <= LOG_ENTRY_BYTES * LOG_ENTRIES_MAX and size_bytes % LOG_ENTRY_BYTES == 0


def read_rollback(frame: Frame) -> int:
    """Read the seqno of a rollback: eight bytes of value, or of extras in the UPR sample (erratum U3)."""
    if frame.status == Status.KEY_ENOENT:
        return 0
    body = frame.extras + frame.value
    if len(body) != _ROLLBACK_BYTES:
        raise RemoteProtocolError(f"{named(frame.opcode)}: a rollback of {len(body)} bytes, expected {_ROLLBACK_BYTES}")
    return dcp.StreamRollback.decode(replace(frame, extras=b"", value=body)).rollback_seqno


def read_system_event(frame: Frame) -> dcp.SystemEvent:
    """Read a system event, of a collection or of a scope (dcp 2.16).

    Raises:
        BadMessage: it is malformed, or an event of a collection names none.
    """
    message = dcp.SystemEvent.decode(frame)
    if message.event in _OF_COLLECTIONS and message.collection_id is None:
        raise BadMessage("SystemEvent", frame.opcode, "an event of a collection names none")
    return message


def named(opcode: int) -> str:
    """Return an opcode's name and number, as every complaint begins."""
    return f"{name_of(opcode)} (opcode 0x{opcode:02x})"


def _meaning(stop: Stop) -> str:
    return stop.name.lower().replace("_", " ")


def complaint(view: memoryview, stop: Stop, table: StreamTable) -> str:
    """Say what is wrong with the frame at the start of `view`, with the numbers that matter."""
    magic, opcode, _, extras, _, vbucket, body, opaque, _ = HEADER.unpack_from(view)
    if stop in (Stop.BAD_MAGIC, Stop.LENGTHS_EXCEED_BODY, Stop.BODY_TOO_LARGE):
        return f"opcode 0x{opcode:02x}: {_meaning(stop)} (magic 0x{magic:02x}, {extras} extras, body {body} bytes)"
    row = table.stream(vbucket)
    told = f"{named(opcode)}: vbucket {vbucket}, opaque {opaque}: {_meaning(stop)}; extras {extras} bytes"
    if extras >= 8 and len(view) >= HEADER_BYTES + 8:
        told += f", seqno {dcp.seqno_of(view[HEADER_BYTES:])}"
    return told + f"; last {row.seqno}, snapshot {row.snapshot_start} to {row.snapshot_end}, stream {row.opaque}"
