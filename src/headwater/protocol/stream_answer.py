"""What a producer answers to a stream request, read by either kind of consumer: the failover log, or a rollback.

"STREAM_REQ response malformed (rollback body not 8 bytes, OK log empty or not multiple of 16): disconnect" (dcp 9).
"""

from __future__ import annotations

from headwater.errors import RemoteProtocolError
from headwater.protocol.position import FailoverLog
from headwater.wire import dcp
from headwater.wire.header import Frame
from headwater.wire.opcodes import name_of
from headwater.wire.status import Status

LOG_ENTRIES_MAX = 1024
"""Real failover logs hold 25 entries at most; a longer one would be kept with every position."""


def read_failover_log(frame: Frame) -> FailoverLog:
    """The log of an accepted request, newest entry first.

    Raises:
        RemoteProtocolError: it is empty, too long, or no whole number of entries.
    """
    count, rest = divmod(len(frame.value), 16)
    if rest or not 0 < count <= LOG_ENTRIES_MAX:
        raise RemoteProtocolError(
            f"{told(frame.opcode)}: a failover log of {len(frame.value)} bytes; "
            f"expected 16 each for 1 to {LOG_ENTRIES_MAX} entries"
        )
    return tuple(dcp.StreamResponse.decode(frame).failover_log)


def read_rollback(frame: Frame) -> int:
    """The seqno to go back to: eight bytes of value, or of extras in the UPR sample (erratum U3).

    Raises:
        RemoteProtocolError: it is not eight bytes.
    """
    if frame.status == Status.KEY_ENOENT:  # UPR's word for an unknown history (dcp 14)
        return 0
    body = frame.extras + frame.value
    if len(body) != 8:
        raise RemoteProtocolError(f"{told(frame.opcode)}: a rollback of {len(body)} bytes, expected 8")
    return int.from_bytes(body)


def told(opcode: int) -> str:
    """An opcode as messages name it."""
    return f"{name_of(opcode)} (opcode 0x{opcode:02x})"
