"""One stream as its consumer sees it: what was asked, what the answer means, and what is wrong with a frame."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from struct import Struct

from headwater.errors import RemoteProtocolError
from headwater.kernels.scan import Stop
from headwater.kernels.tracker import StreamTable  # not by way of columns: a node needs no pyarrow
from headwater.protocol.position import FailoverLog, Position
from headwater.protocol.stream_asked import request_after
from headwater.wire import dcp
from headwater.wire.dialect import Dialect
from headwater.wire.header import HEADER, HEADER_BYTES, Frame
from headwater.wire.opcodes import name_of
from headwater.wire.status import Status

LOG_ENTRIES_MAX = 1024
"""Real failover logs hold 25 entries at most; a longer one would be kept with every position."""

_LOG_ENTRY = Struct(">QQ")
_ACTIVE_VB_ONLY = int(dcp.StreamFlag.ACTIVE_VB_ONLY)


class Phase(Enum):
    """Where a stream is in its life."""

    ASKED = "asked"
    OPEN = "open"
    ENDED = "ended"


@dataclass(slots=True)
class Stream:
    """One vbucket's stream on this connection.

    Attributes:
        asked: the position the request was made from.
        histories: uuids still to be tried if the producer does not know the first (dcp.md 9).
        failover_log: as of the last answer, or of the position.
        dialect: that of the last request, DCP or UPR.
    """

    vbucket: int
    opaque: int
    asked: Position
    end_seqno: int
    histories: list[int]
    failover_log: FailoverLog
    asked_at: float
    phase: Phase = Phase.ASKED
    dialect: Dialect = Dialect.DCP


def stream_request(stream: Stream, vb_uuid: int) -> bytes:
    """The request for what comes after the position asked from, up to the end wanted."""
    # A start beyond the end is ERANGE before histories are compared (dcp.md 2.4, step 7).
    end = max(stream.end_seqno, stream.asked.seqno)
    # A replica may lag, or be left behind for good; what it calls a rollback is none (dcp.md 2.4, flag 0x10).
    flags = 0 if stream.dialect is Dialect.UPR else _ACTIVE_VB_ONLY
    return request_after(stream.asked, end, vb_uuid, stream.opaque, stream.dialect, flags)


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
    return 0 < size_bytes <= _LOG_ENTRY.size * LOG_ENTRIES_MAX and size_bytes % _LOG_ENTRY.size == 0


def log_entries(value: memoryview) -> FailoverLog:
    """The entries of a log of such a size."""
    return tuple(_LOG_ENTRY.iter_unpack(value))


def read_rollback(frame: Frame) -> int:
    """Read the seqno of a rollback: eight bytes of value, or of extras in the UPR sample (erratum U3)."""
    if frame.status == Status.KEY_ENOENT:
        return 0
    body = frame.extras + frame.value
    if len(body) != 8:
        raise RemoteProtocolError(f"{named(frame.opcode)}: a rollback of {len(body)} bytes, expected 8")
    return int.from_bytes(body)


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
        told += f", seqno {int.from_bytes(view[HEADER_BYTES : HEADER_BYTES + 8])}"
    return told + f"; last {row.seqno}, snapshot {row.snapshot_start} to {row.snapshot_end}, stream {row.opaque}"
