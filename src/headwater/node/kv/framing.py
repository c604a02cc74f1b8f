"""Framing extras of key-value requests: the objects that this node supports (wire.md 1.4).

A barrier demands that commands run one after the other, which this node always does. Durability makes a write wait for
replicas (node/durable_writes.py); every write is on this node's own disk before it is acknowledged.
"""

from __future__ import annotations

from headwater.errors import BadMessage
from headwater.node.kv.subdoc.editing import EDITS
from headwater.node.refused import CommandRefused
from headwater.wire.durability import DURABILITY_TIMEOUT_MS_MAX
from headwater.wire.framing import DurabilityInfo, RequestInfo, decode_durability, decode_framing
from headwater.wire.header import Frame
from headwater.wire.layout import Request
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

_SUBDOCS = frozenset({*EDITS, Opcode.SUBDOC_MULTI_MUTATION})
_DURABLE = _SUBDOCS | frozenset(
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
_KEEPS_TTL = _SUBDOCS | frozenset(
    {
        Opcode.SET,
        Opcode.REPLACE,
        Opcode.INCREMENT,
        Opcode.DECREMENT,
        Opcode.APPEND,
        Opcode.PREPEND,
    }
)


def check_framing(frame: Frame, loud: int) -> DurabilityInfo | None:
    """Return the durability in a request's framing extras; None if there is none.

    Args:
        frame: the request.
        loud: the opcode of the request's loud form.

    Raises:
        CommandRefused: an object is not supported, or not allowed in this request.
        BadMessage: the extras are incomplete.
    """
    durability = None
    for info in decode_framing(frame.framing) if frame.framing else ():
        if info.id == RequestInfo.DURABILITY:
            durability = _durability(loud, info.data)
        else:
            _check(loud, info.id, info.data)
    return durability


def preserves_ttl(request: Request) -> bool:
    """Return True if the request's framing extras say that the new version keeps the expiry of the old one."""
    return any(info.id == RequestInfo.PRESERVE_TTL for info in decode_framing(request.framing or b""))


def _check(loud: int, kind: int, data: bytes) -> None:
    if kind == RequestInfo.BARRIER:
        _expect(data, (0,))
    elif kind == RequestInfo.STREAM_ID:
        _expect(data, (2,))
    elif kind == RequestInfo.PRESERVE_TTL:
        _expect(data, (0,))
        if loud not in _KEEPS_TTL:
            raise CommandRefused(Status.NOT_SUPPORTED, "this command does not preserve an expiry")
    elif kind in (RequestInfo.IMPERSONATE_USER, RequestInfo.EXTRA_PRIVILEGE, RequestInfo.IMPERSONATE_TOKEN):
        raise CommandRefused(Status.EACCESS, "no user may act for another")
    else:
        raise CommandRefused(Status.UNKNOWN_FRAME_INFO, f"frame info {kind} is not known")


def _durability(loud: int, data: bytes) -> DurabilityInfo:
    durability = decode_durability(data)
    if durability.timeout_ms is not None and not 0 < durability.timeout_ms <= DURABILITY_TIMEOUT_MS_MAX:
        raise CommandRefused(Status.EINVAL, f"a durability timeout is 1 to {DURABILITY_TIMEOUT_MS_MAX} ms")
    if loud not in _DURABLE:
        raise CommandRefused(Status.EINVAL, "this command has no durability")
    return durability


def _expect(data: bytes, sizes: tuple[int, ...]) -> None:
    if len(data) not in sizes:
        raise BadMessage("framing extras", 0, f"an object of {len(data)} bytes, expected {sizes}")
