"""System events as messages: the changes of a bucket's collections on the wire and in the log. Source: dcp 2.16.

There are three versions of such a message. 0 and 1 (with a maximum TTL) have fields of their own; the value of 2 is a
table of FlatBuffers, by the fields of kv_engine's events.fbs:

    collection (created, modified): uid u64, scope u32, collection u32, has a TTL u8, TTL u32, name, history u8
    dropped collection: uid u64, scope u32, collection u32
    scope: uid u64, scope u32, name
    dropped scope: uid u64, scope u32

Version 2 alone tells whether a collection has a history, and that it was modified.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from headwater.errors import BadMessage
from headwater.wire.dcp import SystemEvent, SystemEventV2
from headwater.wire.flatbuffer import FlatNumber, FlatTable, flat_table
from headwater.wire.header import Frame
from headwater.wire.manifest import EventKind, ManifestEvent
from headwater.wire.opcodes import Opcode

__all__ = [
    "AnySystemEvent", "event_of", "flat_event", "flat_message", "is_expressible", "old_message", "oldest_message",
    "read_message",
]  # fmt: skip

AnySystemEvent: TypeAlias = SystemEvent | SystemEventV2

_UID, _SCOPE, _COLLECTION, _HAS_TTL, _TTL, _NAME, _HISTORY = range(7)
_NAME_OF_SCOPE: Final = 2
_MADE: Final = (EventKind.CREATE_COLLECTION, EventKind.MODIFY_COLLECTION)
_OF_COLLECTIONS: Final = (*_MADE, EventKind.DROP_COLLECTION)
_EXTRAS: Final = SystemEventV2.layout.extras_struct
_VERSION_2: Final = 2


def read_message(frame: Frame) -> AnySystemEvent:
    """Read a system event of a known kind, of any version.

    Raises:
        BadMessage: it is malformed, or an event of a collection names none.
    """
    if len(frame.extras) == _EXTRAS.size and _EXTRAS.unpack(frame.extras)[2] == _VERSION_2:
        message = SystemEventV2.decode(frame)
        event_of(message)
        return message
    older = SystemEvent.decode(frame)
    if older.event in _OF_COLLECTIONS and older.collection_id is None:
        raise BadMessage("SystemEvent", frame.opcode, "an event of a collection names none")
    return older


def event_of(message: AnySystemEvent) -> ManifestEvent:
    """Return the event in a message.

    Raises:
        BadMessage: the value of version 2 is no such table.
    """
    if isinstance(message, SystemEventV2):
        try:
            return flat_event(EventKind(message.event), message.value, message.key)
        except ValueError as error:
            raise BadMessage("SystemEventV2", Opcode.DCP_SYSTEM_EVENT, str(error)) from None
    return ManifestEvent(
        EventKind(message.event),
        message.manifest_uid,
        message.scope_id,
        message.collection_id,
        message.key.decode("utf-8", "replace"),
        message.max_ttl,
    )


def flat_event(kind: EventKind, value: bytes, key: bytes = b"") -> ManifestEvent:
    """Return the event in the value of version 2; its name is `key` if the table has none.

    Raises:
        ValueError: it is no table.
    """
    table = FlatTable(value)
    uid, scope = table.number(_UID, 8), table.number(_SCOPE, 4)
    if kind is EventKind.CREATE_SCOPE:
        return ManifestEvent(kind, uid, scope, name=_text(table.text(_NAME_OF_SCOPE) or key))
    if kind is EventKind.DROP_SCOPE:
        return ManifestEvent(kind, uid, scope)
    collection = table.number(_COLLECTION, 4)
    if kind is EventKind.DROP_COLLECTION:
        return ManifestEvent(kind, uid, scope, collection)
    max_ttl = table.number(_TTL, 4) if table.number(_HAS_TTL, 1) == 1 else None
    name = _text(table.text(_NAME) or key)
    return ManifestEvent(kind, uid, scope, collection, name, max_ttl, table.number(_HISTORY, 1) == 1)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def is_expressible(event: ManifestEvent) -> bool:
    """Return True if versions 0 and 1 say all of an event."""
    return event.kind is not EventKind.MODIFY_COLLECTION and event.history


def oldest_message(event: ManifestEvent) -> AnySystemEvent:
    """Return the message of an event, still without seqno, in the oldest version that says all of it."""
    return old_message(event) if is_expressible(event) else flat_message(event)


def old_message(event: ManifestEvent) -> SystemEvent:
    """Return the message of an event that is no modification, still without seqno, in version 0, or if there is a
    maximum TTL in version 1. These versions can't express that a collection has no history.
    """
    return SystemEvent(
        by_seqno=0,
        event=int(event.kind),
        version=0 if event.max_ttl is None else 1,
        key=event.name.encode(),
        manifest_uid=event.manifest_uid,
        scope_id=event.scope_id,
        collection_id=event.collection_id,
        max_ttl=event.max_ttl,
    )


def flat_message(event: ManifestEvent) -> SystemEventV2:
    """Return the message of an event, still without seqno, in version 2."""
    return SystemEventV2(by_seqno=0, event=int(event.kind), key=event.name.encode(), value=_table(event))


def _table(event: ManifestEvent) -> bytes:
    fields: dict[int, FlatNumber | bytes] = {
        _UID: FlatNumber(event.manifest_uid, 8), _SCOPE: FlatNumber(event.scope_id, 4)
    }  # fmt: skip
    if event.kind is EventKind.CREATE_SCOPE:
        fields[_NAME_OF_SCOPE] = event.name.encode()
    if event.collection_id is not None:
        fields[_COLLECTION] = FlatNumber(event.collection_id, 4)
    if event.kind in _MADE:
        fields |= {
            _HAS_TTL: FlatNumber(int(event.max_ttl is not None), 1),
            _TTL: FlatNumber(event.max_ttl or 0, 4),
            _NAME: event.name.encode(),
            _HISTORY: FlatNumber(int(event.history), 1),
        }
    return flat_table(fields)
