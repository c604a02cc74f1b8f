"""A client that negotiated Collections, at a real node: documents, manifests, streams."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from headwater.wire import dcp, leb128
from headwater.wire.admin import (
    CompactDb,
    GetAllVbSeqnos,
    GetAllVbSeqnosResponse,
    GetFailoverLog,
    GetFailoverLogResponse,
)
from headwater.wire.header import Frame
from headwater.wire.layout import Request
from headwater.wire.opcodes import Opcode
from tests.node.wire import Client

ENDLESS = 0xFFFF_FFFF_FFFF_FFFF
COLLECTIONS, XERROR, JSON, MUTATION_SEQNO = 0x12, 0x07, 0x0B, 0x04
DEFAULT: dict[str, Any] = {
    "uid": "0",
    "name": "_default",
    "collections": [{"uid": "0", "name": "_default", "history": True}],
}


def manifest(uid: int, plain: Collection[str] = (), **collections: int | tuple[int, int]) -> bytes:
    """Scope `shop`, id 8, with collections by name: an id, or id and maximum TTL. Those of `plain` have no history;
    `_default` may be one.
    """
    made = []
    for name, told in collections.items():
        number, ttl = told if isinstance(told, tuple) else (told, None)
        kept = {"history": name not in plain}
        made.append({"uid": f"{number:x}", "name": name} | kept | ({} if ttl is None else {"maxTTL": ttl}))
    shop = [{"uid": "8", "name": "shop", "collections": made}] if made else []
    default = DEFAULT
    if "_default" in plain:
        default = DEFAULT | {"collections": [{"uid": "0", "name": "_default", "history": False}]}
    return json.dumps({"uid": f"{uid:x}", "scopes": [default, *shop]}).encode()


class Aware(Client):
    """A connection with Collections, or without (`features`)."""

    def __init__(self, port: int, *features: int) -> None:
        super().__init__(port)
        asked = features or (COLLECTIONS, XERROR, JSON, MUTATION_SEQNO)
        granted = self.ask(Opcode.HELLO, value=b"".join(code.to_bytes(2) for code in asked)).value
        assert len(granted) == 2 * len(asked)

    def put(self, key: bytes, value: bytes, collection: int = 0, vbucket: int = 0, expiry: int = 0) -> int:
        """SET; returns the status."""
        extras = bytes(4) + expiry.to_bytes(4)
        return self.ask(
            Opcode.SET, key=leb128.join_key(collection, key), extras=extras, value=value, vbucket=vbucket
        ).status

    def delete(self, key: bytes, collection: int = 0, vbucket: int = 0) -> int:
        """DELETE; returns the status."""
        return self.ask(Opcode.DELETE, key=leb128.join_key(collection, key), vbucket=vbucket).status

    def got(self, key: bytes, collection: int = 0, vbucket: int = 0) -> bytes | int:
        """The value, or the status there is none for."""
        found = self.ask(Opcode.GET, key=leb128.join_key(collection, key), vbucket=vbucket)
        return found.status or found.value

    def becomes(self, told: bytes) -> int:
        """SET_MANIFEST; returns the status."""
        return self.ask(Opcode.COLLECTIONS_SET_MANIFEST, value=told).status

    def request(self, message: Request) -> Frame:
        self.send(message.encode())
        answer = self.read()
        assert answer is not None
        return answer

    def seqno(self, collection: int | None = None, vbucket: int = 0) -> int:
        """The high seqno of a vbucket, or of what it has of a collection."""
        state = None if collection is None else 0
        answer = self.request(GetAllVbSeqnos(vb_state=state, collection_id=collection))
        return dict(GetAllVbSeqnosResponse.decode(answer).seqnos)[vbucket]

    def vb_uuid(self, vbucket: int = 0) -> int:
        """The newest branch of a vbucket."""
        answer = self.request(GetFailoverLog(vbucket=vbucket))
        return int(GetFailoverLogResponse.decode(answer).failover_log[0][0])

    def compacts(self, vbucket: int = 0) -> int:
        """COMPACT_DB with tombstones of any age; returns the status."""
        return self.request(CompactDb(vbucket=vbucket, drop_deletes=1)).status

    def opens(self, name: bytes = b"reader", **controls: str) -> None:
        """DCP_OPEN as producer, and the controls that Collections need."""
        assert self.request(dcp.Open(key=name, flags=1)).status == 0
        for key, value in {"enable_noop": "true", "set_noop_interval": "600", **controls}.items():
            assert self.ask(Opcode.DCP_CONTROL, key=key.encode(), value=value.encode()).status == 0, key

    def asks(self, value: object = None, *, start: int = 0, uuid: int = 0, flags: int = 0, vbucket: int = 0) -> Frame:
        """The answer to a stream request; `value` is the JSON, or bytes."""
        told = b"" if value is None else value if isinstance(value, bytes) else json.dumps(value).encode()
        return self.request(
            dcp.StreamRequest(
                vbucket=vbucket,
                opaque=7,
                flags=flags,
                start_seqno=start,
                end_seqno=ENDLESS,
                vb_uuid=uuid,
                snap_start_seqno=start,
                snap_end_seqno=start,
                value=told,
            )
        )

    def messages(self) -> Iterator[Frame]:
        """The messages of the stream, to its end."""
        while (frame := self.read()) is not None:
            yield frame
            if frame.opcode == Opcode.DCP_STREAM_END:
                return

    def until(self, opcode: int) -> list[Frame]:
        """The messages of the stream up to the first one of this opcode."""
        got: list[Frame] = []
        while not got or got[-1].opcode != opcode:
            frame = self.read()
            assert frame is not None, got
            got.append(frame)
        return got


KINDS = {0x55: "end", 0x56: "marker", 0x57: "set", 0x58: "delete", 0x59: "expire", 0x5F: "event", 0x64: "advanced"}


def told(frames: Iterator[Frame] | list[Frame]) -> list[tuple[object, ...]]:
    """Streamed messages in short."""
    return [_told(frame) for frame in frames]


def _told(frame: Frame) -> tuple[object, ...]:
    kind = KINDS[frame.opcode]
    if kind == "marker":
        marker = dcp.SnapshotMarker.decode(frame)
        return kind, marker.start_seqno, marker.end_seqno
    if kind == "end":
        return kind, dcp.StreamEnd.decode(frame).status
    if kind == "event":
        event = dcp.SystemEvent.decode(frame)
        of = event.scope_id if event.collection_id is None else event.collection_id
        return kind, event.by_seqno, event.event, of, event.manifest_uid, event.key
    seqno = dcp.seqno_of(frame.extras)
    return (kind, seqno) if kind == "advanced" else (kind, seqno, frame.key)


def everything(port: int, value: object = None, *features: int, name: bytes = b"look") -> list[tuple[object, ...]]:
    """All that a stream of vbucket 0 brings up to now, from the beginning."""
    with Aware(port, *features) as reader:
        reader.opens(name)
        answer = reader.asks(value, flags=4)
        assert answer.status == 0, answer
        return told(reader.messages())
