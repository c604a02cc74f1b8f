"""Reads answers to stream requests, and describes what is wrong with an invalid frame."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

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
from headwater.wire.system_events import flat_event, old_message, read_message

_ROLLBACK_BYTES = dcp.StreamRollback.layout.value_bytes
_KINDS = frozenset(EventKind)
_SYSTEM_EVENT = dcp.SystemEventV2.layout.extras_struct

LOG_ENTRIES_MAX = 1024
"""The longest log that is accepted. Real failover logs hold 25 entries at most, and each position keeps its log."""


def read_failover_log(frame: Frame) -> FailoverLog:
    """Read the log of an accepted request; dcp.md 9: empty, or not a multiple of 16 bytes, is an error."""
    if not may_be_log(len(frame.value)):
        raise RemoteProtocolError(
            f"{label(frame.opcode)}: a failover log of {len(frame.value)} bytes; "
            f"expected 16 each for 1 to {LOG_ENTRIES_MAX} entries"
        )
    return tuple(dcp.StreamResponse.decode(frame).failover_log)


def may_be_log(size_bytes: int) -> bool:
    """Return True if a failover log can have this size."""
    return 0 < size_bytes <= LOG_ENTRY_BYTES * LOG_ENTRIES_MAX and size_bytes % LOG_ENTRY_BYTES == 0


def read_rollback(frame: Frame) -> int:
    """Read the seqno of a rollback: eight bytes of value, or of extras in the UPR sample (erratum U3)."""
    # An unknown history has no body: UPR's way to say ROLLBACK 0 (dcp 14).
    if frame.status == Status.KEY_ENOENT:
        return 0
    # "UPR text shows it in extras; accept either" (dcp 2.4).
    body = frame.extras + frame.value
    if len(body) != _ROLLBACK_BYTES:
        raise RemoteProtocolError(f"{label(frame.opcode)}: a rollback of {len(body)} bytes, expected {_ROLLBACK_BYTES}")
    return dcp.StreamRollback.decode(replace(frame, extras=b"", value=body)).rollback_seqno


@dataclass(frozen=True, slots=True)
class SystemNews:
    """A system event that versions 0 and 1 can't express: a modified collection, or an event unknown here.

    Attributes:
        by_seqno: seqno of the event.
        event, version: numbers as on the wire.
        key, value: bytes of the frame, unchanged.
        manifest_uid, scope_id, collection_id, name, max_ttl, history: the modified collection after the change;
            `max_ttl` in seconds, None for no limit; `history` is True if its storage keeps versions. For an unknown
            event all are None, and `name` is empty.
    """

    by_seqno: int
    event: int
    version: int
    key: bytes
    value: bytes
    manifest_uid: int | None = None
    scope_id: int | None = None
    collection_id: int | None = None
    name: bytes = b""
    max_ttl: int | None = None
    history: bool | None = None


class KnownEvent(NamedTuple):
    """A system event that versions 0 and 1 can express.

    Attributes:
        message: the event in their form.
        history: True if a created collection has a history; None for other events, or if the event does not report it.
    """

    message: dcp.SystemEvent
    history: bool | None = None


def read_any_system_event(frame: Frame) -> KnownEvent | SystemNews:
    """Read a system event of any version. An event of version 2 that older versions have too becomes a SystemEvent; an
    unknown event is kept whole, for its seqno counts all the same.

    Raises:
        BadMessage: an event of version 0 or 1 is malformed.
    """
    if len(frame.extras) != _SYSTEM_EVENT.size:
        return KnownEvent(_read_old(frame))
    by_seqno, event, version = _SYSTEM_EVENT.unpack(frame.extras)
    if version < 2 and event in _KINDS and event != EventKind.MODIFY_COLLECTION:
        return KnownEvent(_read_old(frame))
    try:
        return _of_version_2(by_seqno, event, frame) if version == 2 else _unknown_news(by_seqno, event, version, frame)
    except ValueError:
        return _unknown_news(by_seqno, event, version, frame)


def _read_old(frame: Frame) -> dcp.SystemEvent:
    message = read_message(frame)
    if not isinstance(message, dcp.SystemEvent):
        raise BadMessage("SystemEvent", frame.opcode, "its extras are not those of its version")
    return message


def _unknown_news(by_seqno: int, event: int, version: int, frame: Frame) -> SystemNews:
    return SystemNews(by_seqno, event, version, frame.key, frame.value)


def _of_version_2(by_seqno: int, event: int, frame: Frame) -> KnownEvent | SystemNews:
    if event not in _KINDS:
        return _unknown_news(by_seqno, event, 2, frame)
    step = flat_event(EventKind(event), frame.value, frame.key)
    if step.kind is EventKind.MODIFY_COLLECTION:
        values = (step.manifest_uid, step.scope_id, step.collection_id, step.name.encode(), step.max_ttl, step.history)
        return SystemNews(by_seqno, event, 2, frame.key, frame.value, *values)
    message = replace(old_message(step), vbucket=frame.vbucket, by_seqno=by_seqno)
    return KnownEvent(message, step.history if step.kind is EventKind.CREATE_COLLECTION else None)


def label(opcode: int) -> str:
    """Return an opcode's name and number, the beginning of every error message about a frame."""
    return f"{name_of(opcode)} (opcode 0x{opcode:02x})"


def _meaning(stop: Stop) -> str:
    return stop.name.lower().replace("_", " ")


def complaint(view: memoryview, stop: Stop, table: StreamTable) -> str:
    """Describe what is wrong with the frame at the start of `view`, with the numbers that matter."""
    magic, opcode, _, extras, _, vbucket, body, opaque, _ = HEADER.unpack_from(view)
    if stop in (Stop.BAD_MAGIC, Stop.LENGTHS_EXCEED_BODY, Stop.BODY_TOO_LARGE):
        return f"opcode 0x{opcode:02x}: {_meaning(stop)} (magic 0x{magic:02x}, {extras} extras, body {body} bytes)"
    row = table.stream(vbucket)
    text = f"{label(opcode)}: vbucket {vbucket}, opaque {opaque}: {_meaning(stop)}; extras {extras} bytes"
    if extras >= 8 and len(view) >= HEADER_BYTES + 8:
        text += f", seqno {dcp.seqno_of(view[HEADER_BYTES:])}"
    return text + f"; last {row.seqno}, snapshot {row.snapshot_start} to {row.snapshot_end}, stream {row.opaque}"
