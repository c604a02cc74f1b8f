"""Frames of the log as TAP messages: the same cursor, another dialect.

What `gather` copied out of the log (DCP frames) `reshape` writes again as TAP_MUTATION and TAP_DELETE, numbered in the
order they go out. TAP has no room for the seqno; it is handed back, so that the session knows what an acknowledgement
of a message means for the cursor. Source: tap.md 2 (layouts), 3.1 (flags), 4 (numbers, which messages ask).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from headwater.kernels.intrinsics import copy, load8, load16, load32, load64, store8, store16, store32, store64
from headwater.kernels.jit import inline_kernel, kernel, prepare
from headwater.wire.opcodes import Opcode
from headwater.wire.tap import MessageFlag

NUMBERS: Final = 0xFFFF_FFFF
"""Opaques run from 1 to this many, then from 1 again."""

U = np.uintp
_HEADER: Final = 24
_MUTATION_IN, _MUTATION_OUT = U(_HEADER + 31), U(_HEADER + 16 + 9)
_DELETE_OUT = U(_HEADER + 8 + 8)
_LOGGED_MUTATION: Final = int(Opcode.DCP_MUTATION)
_MUTATION: Final = int(Opcode.TAP_MUTATION)
_DELETE: Final = int(Opcode.TAP_DELETE)
_ACK: Final = int(MessageFlag.ACK)
_TTL: Final = 255
_FROM_SEQNO, _FROM_REV, _FROM_FLAGS, _FROM_EXPIRY, _FROM_NRU = U(24), U(32), U(40), U(44), U(54)


@inline_kernel
def _swapped(number: Any) -> Any:
    """The four bytes in the other order."""
    low, high = number & U(0xFF), (number >> U(24)) & U(0xFF)
    return low << U(24) | (number & U(0xFF00)) << U(8) | (number >> U(8)) & U(0xFF00) | high


@inline_kernel
def _begin(out: Any, frame: Any, opcode: Any, extras: Any, engine: Any, body: Any, flags: Any) -> None:
    """Header and the eight bytes that all messages of the producer begin with; the datatype is put in by the caller."""
    copy(out, frame, U(_HEADER))
    store8(out + U(1), np.uint8(opcode))
    store8(out + U(4), np.uint8(extras))
    store32(out + U(8), np.uint32(body))
    store16(out + U(24), np.uint16(engine))
    store16(out + U(26), np.uint16(flags))
    store32(out + U(28), np.uint32(_TTL << 24))


@kernel
def reshape(
    frames: Any, used: Any, out: Any, number: Any, ack_interval: Any, flags: Any, swap: Any, datatypes: Any, seqnos: Any
) -> Any:
    """Write frames[:used], as `gather` leaves them, into `out` as TAP messages; each is smaller than what it was.

    Args:
        frames, out: uint8 arrays; out has room for `used` bytes.
        number: of the first message, counted from 1 without end.
        ack_interval: a message whose number is a multiple of it asks for an acknowledgement; 0: none does.
        flags: MessageFlag bits of every mutation (deletions have none of NO_VALUE and NETWORK_BYTE_ORDER).
        swap: whether item flags go out reversed.
        datatypes: mask of what the client understands.
        seqnos: uint64 array that gets the seqno of each message.

    Returns: (bytes, messages, offset of the last message).
    """
    at, end = U(frames.ctypes.data), U(frames.ctypes.data) + U(used)
    start = U(out.ctypes.data)
    to, last, count = start, start, 0
    while at < end:
        body, key, extras = U(load32(at + U(8))), U(load16(at + U(2))), U(load8(at + U(4)))
        rest = body - extras
        asks = _ACK if ack_interval > 0 and (number + count) % ack_interval == 0 else 0
        last = to
        if load8(at + U(1)) == _LOGGED_MUTATION:
            _begin(to, at, _MUTATION, 16, 9, rest + U(25), flags | asks)
            item_flags = U(load32(at + _FROM_FLAGS))
            store32(to + U(32), np.uint32(_swapped(item_flags) if swap else item_flags))
            store32(to + U(36), load32(at + _FROM_EXPIRY))
            store64(to + U(40), load64(at + _FROM_REV))
            store8(to + U(48), load8(at + _FROM_NRU))
            copy(to + _MUTATION_OUT, at + _MUTATION_IN, rest)
            to = to + _MUTATION_OUT + rest
        else:
            rest = key
            _begin(to, at, _DELETE, 8, 8, rest + U(16), asks)
            store64(to + U(32), load64(at + _FROM_REV))
            copy(to + _DELETE_OUT, at + U(_HEADER) + extras, rest)
            to = to + _DELETE_OUT + rest
        store8(last + U(5), np.uint8(U(load8(at + U(5))) & U(datatypes)))
        store32(last + U(12), np.uint32((number + count - 1) % NUMBERS + 1))
        seqnos[count] = load64(at + _FROM_SEQNO)
        count += 1
        at = at + U(_HEADER) + body
    return np.int64(to - start), count, np.int64(last - start)


def warm_up() -> None:
    """Build the kernels of this module."""
    u8, u64 = np.zeros(0, np.uint8), np.zeros(0, np.uint64)
    prepare(reshape, u8, 0, u8, 1, 1000, 0, 0, 0, u64)
