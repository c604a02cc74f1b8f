"""Framing extras of key-value requests: which objects mean something here (wire.md 1.4).

A barrier asks for what this node does anyway, one command after the other. Durability is what every write gets as far
as one node can give it, but synchronous replication is not offered, so asking for it is refused rather than half
kept.
"""

from __future__ import annotations

from headwater.errors import BadMessage
from headwater.node.kv.command import Refused
from headwater.wire.framing import RequestInfo, decode_framing
from headwater.wire.header import Frame
from headwater.wire.opcodes import QUIET, Opcode
from headwater.wire.status import Status

_DURABLE = frozenset(
    {
        Opcode.SET,
        Opcode.ADD,
        Opcode.REPLACE,
        Opcode.DELETE,
        Opcode.INCREMENT,
        Opcode.DECREMENT,
        Opcode.APPEND,
        Opcode.PREPEND,
        Opcode.TOUCH,
        Opcode.GAT,
    }
)
_KEEPS_TTL = frozenset({Opcode.SET, Opcode.REPLACE, Opcode.INCREMENT, Opcode.DECREMENT, Opcode.APPEND, Opcode.PREPEND})


def check_framing(frame: Frame) -> None:
    """Refuse what the framing extras ask for and this node does not do; BadMessage when they are cut short."""
    if not frame.framing:
        return
    for info in decode_framing(frame.framing):
        _check(frame, info.id, info.data)


def preserves_ttl(frame: Frame) -> bool:
    """Whether the request asks to keep the expiry of the document it replaces."""
    return bool(frame.framing) and any(info.id == RequestInfo.PRESERVE_TTL for info in decode_framing(frame.framing))


def _check(frame: Frame, kind: int, data: bytes) -> None:
    loud = QUIET.get(frame.opcode, frame.opcode)
    if kind == RequestInfo.BARRIER:
        _expect(data, (0,))
    elif kind == RequestInfo.DURABILITY:
        _check_durability(loud, data)
    elif kind == RequestInfo.STREAM_ID:
        _expect(data, (2,))
    elif kind == RequestInfo.PRESERVE_TTL:
        _expect(data, (0,))
        if loud not in _KEEPS_TTL:
            raise Refused(Status.NOT_SUPPORTED, "this command does not preserve an expiry")
    elif kind in (RequestInfo.IMPERSONATE_USER, RequestInfo.EXTRA_PRIVILEGE, RequestInfo.IMPERSONATE_TOKEN):
        raise Refused(Status.EACCESS, "no user may act for another")
    else:
        raise Refused(Status.UNKNOWN_FRAME_INFO, f"frame info {kind} is not known")


def _check_durability(loud: int, data: bytes) -> None:
    _expect(data, (1, 3))
    if data[0] not in (1, 2, 3):
        raise Refused(Status.DURABILITY_INVALID_LEVEL, f"durability level {data[0]} is not 1, 2 or 3")
    if len(data) == 3 and int.from_bytes(data[1:], "big") in (0, 65535):
        raise Refused(Status.EINVAL, "a durability timeout is 1 to 65534 ms")
    if loud not in _DURABLE:
        raise Refused(Status.EINVAL, "this command has no durability")
    raise Refused(Status.NOT_SUPPORTED, "synchronous replication was not negotiated")


def _expect(data: bytes, sizes: tuple[int, ...]) -> None:
    if len(data) not in sizes:
        raise BadMessage("framing extras", 0, f"an object of {len(data)} bytes, expected {sizes}")
