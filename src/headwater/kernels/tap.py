"""Converts frames of the log to TAP messages.

`reshape` converts the DCP frames that `gather` copied from the log to TAP_MUTATION and TAP_DELETE, numbered in the
order in which they are sent. TAP has no field for the seqno, so `reshape` returns the seqnos: with them the session
finds the place in the log that an acknowledgement belongs to. Source: tap.md 2 (layouts), 3.1 (flags), 4 (numbers, flag
ACK).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from headwater.kernels.builds import inline_kernel, kernel, prepare
from headwater.kernels.index import HOPS_MASK
from headwater.kernels.intrinsics import copy, load8, load16, load32, load64, store8, store16, store32, store64
from headwater.kernels.offsets import (
    BODY_LENGTH_AT,
    DATATYPE_AT,
    ENGINE_LENGTH_AT,
    EXPIRY_AT,
    EXTRAS_LENGTH_AT,
    FLAGS_AT,
    HEADER,
    ITEM_EXPIRY_AT,
    ITEM_FLAGS_AT,
    KEY_LENGTH_AT,
    MUTATION_EXTRAS,
    NRU_AT,
    OPAQUE_AT,
    OPCODE_AT,
    REV_SEQNO_AT,
    SEQNO_AT,
    TAP_EXTRAS,
    TAP_FLAGS_AT,
    TAP_MUTATION_EXTRAS,
    TTL_AT,
)
from headwater.wire.opcodes import Opcode
from headwater.wire.tap import MessageFlag

NUMBERS: Final = 0xFFFF_FFFF
"""Opaques run from 1 to this many, then from 1 again."""

U = np.uintp
_REVISION, _NRU = 8, 1  # bytes of the engine-private section: of a deletion the revision, of a mutation both
_ENGINE_AT, _DELETE_ENGINE_AT = HEADER + TAP_MUTATION_EXTRAS, HEADER + TAP_EXTRAS
_MUTATION_IN, _MUTATION_OUT = HEADER + MUTATION_EXTRAS, _ENGINE_AT + U(_REVISION + _NRU)
_DELETE_OUT = _DELETE_ENGINE_AT + U(_REVISION)
_LOGGED_MUTATION: Final = int(Opcode.DCP_MUTATION)
_MUTATION: Final = int(Opcode.TAP_MUTATION)
_DELETE: Final = int(Opcode.TAP_DELETE)
_ACK: Final = int(MessageFlag.ACK)
_TTL: Final = 255


@inline_kernel
def _swapped(number: Any) -> Any:
    """Return the four bytes of a number in reverse order."""
    low, high = number & U(0xFF), (number >> U(24)) & U(0xFF)
    return low << U(24) | (number & U(0xFF00)) << U(8) | (number >> U(8)) & U(0xFF00) | high


@inline_kernel
def _begin(out: Any, frame: Any, opcode: Any, extras: Any, engine: Any, body: Any, flags: Any, ttl: Any) -> None:
    """Write the header and the first eight bytes of extras, which all messages have; the caller adds the datatype."""
    copy(out, frame, HEADER)
    store8(out + OPCODE_AT, np.uint8(opcode))
    store8(out + EXTRAS_LENGTH_AT, np.uint8(extras))
    store32(out + BODY_LENGTH_AT, np.uint32(body))
    store16(out + ENGINE_LENGTH_AT, np.uint16(engine))
    store16(out + TAP_FLAGS_AT, np.uint16(flags))
    store32(out + TTL_AT, np.uint32(U(ttl) << U(24)))


@kernel
def reshape(
    frames: Any,
    used: Any,
    out: Any,
    number: Any,
    ack_interval: Any,
    flags: Any,
    swap: Any,
    datatypes: Any,
    ttl_min: Any,
    seqnos: Any,
) -> Any:
    """Write frames[:used], the output of `gather`, to `out` as TAP messages; each is smaller than its frame.

    The low bits of a stored frame's opaque are the number of nodes that the change has passed (gathered with
    KEEP_OPAQUE). Its TTL is 255 minus that number; a change whose TTL would be 0 is left out.

    Args:
        frames, out: uint8 arrays; out has room for `used` bytes.
        number: number of the first message; messages count from 1 without end.
        ack_interval: messages whose number is a multiple of it get the flag ACK; 0 for none.
        flags: MessageFlag bits of every mutation (deletions have none of NO_VALUE and NETWORK_BYTE_ORDER).
        swap: 1 to reverse item flags.
        datatypes: mask of the datatype bits that the client understands.
        ttl_min: 1 to send changes whose TTL would be 0 with TTL 1.
        seqnos: uint64 array, filled with the seqno of each message.

    Returns: (bytes, messages, offset of the last message).
    """
    at, end = U(frames.ctypes.data), U(frames.ctypes.data) + U(used)
    start = U(out.ctypes.data)
    to, last, count = start, start, 0
    while at < end:
        body, key, extras = (
            U(load32(at + BODY_LENGTH_AT)),
            U(load16(at + KEY_LENGTH_AT)),
            U(load8(at + EXTRAS_LENGTH_AT)),
        )
        ttl: Any = max(_TTL - np.int64(load32(at + OPAQUE_AT) & HOPS_MASK), np.int64(ttl_min))
        if ttl == 0:
            at = at + HEADER + body
            continue
        tail_bytes = body - extras
        asks = _ACK if ack_interval > 0 and (number + count) % ack_interval == 0 else 0
        last = to
        if load8(at + OPCODE_AT) == _LOGGED_MUTATION:
            _begin(
                to,
                at,
                _MUTATION,
                TAP_MUTATION_EXTRAS,
                _REVISION + _NRU,
                _MUTATION_OUT - HEADER + tail_bytes,
                flags | asks,
                ttl,
            )
            item_flags = U(load32(at + FLAGS_AT))
            store32(to + ITEM_FLAGS_AT, np.uint32(_swapped(item_flags) if swap else item_flags))
            store32(to + ITEM_EXPIRY_AT, load32(at + EXPIRY_AT))
            store64(to + _ENGINE_AT, load64(at + REV_SEQNO_AT))
            store8(to + _ENGINE_AT + U(_REVISION), load8(at + NRU_AT))
            copy(to + _MUTATION_OUT, at + _MUTATION_IN, tail_bytes)
            to = to + _MUTATION_OUT + tail_bytes
        else:
            tail_bytes = key
            _begin(to, at, _DELETE, TAP_EXTRAS, _REVISION, _DELETE_OUT - HEADER + tail_bytes, asks, ttl)
            store64(to + _DELETE_ENGINE_AT, load64(at + REV_SEQNO_AT))
            copy(to + _DELETE_OUT, at + HEADER + extras, tail_bytes)
            to = to + _DELETE_OUT + tail_bytes
        store8(last + DATATYPE_AT, np.uint8(U(load8(at + DATATYPE_AT)) & U(datatypes)))
        store32(last + OPAQUE_AT, np.uint32((number + count - 1) % NUMBERS + 1))
        seqnos[count] = load64(at + SEQNO_AT)
        count += 1
        at = at + HEADER + body
    return np.int64(to - start), count, np.int64(last - start)


def warm_up() -> None:
    """Build the kernels of this module."""
    u8, u64 = np.zeros(0, np.uint8), np.zeros(0, np.uint64)
    prepare(reshape, u8, 0, u8, 1, 1000, 0, 0, 0, 0, u64)
