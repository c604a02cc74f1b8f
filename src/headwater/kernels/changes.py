"""The frames that changes leave in the log, and the numbers in them: CAS, expiry (wire.md 10)."""

from __future__ import annotations

from typing import Any

import numpy as np

from headwater.kernels.index import CAS
from headwater.kernels.intrinsics import copy, load32, store8, store16, store32, store64
from headwater.kernels.jit import inline_kernel
from headwater.kernels.json import is_json, may_be_json

MUTATION_BYTES = np.uintp(55)  # header and 31 bytes of extras
DELETION_BYTES = np.uintp(45)  # header and 21 bytes of extras

U = np.uintp
_ZERO, _ONE, _EIGHT = U(0), U(1), U(8)
_MUTATION_HEAD = (U(0x80) << U(56)) | (U(0x57) << U(48)) | (U(31) << U(24))
_DELETION_HEAD = (U(0x80) << U(56)) | (U(0x58) << U(48)) | (U(21) << U(24))
_JSON = U(0x01)
_RELATIVE_MAX = U(30 * 86400)
_EXPIRY_MAX = U(0xFFFFFFFF)
_CLOCK_MASK = U(0xFFFFFFFFFFFF0000)


@inline_kernel
def next_cas(table: Any, vb: Any, now_ns: Any) -> Any:
    """wire.md 10: a hybrid clock, max(now with the low 16 bits cleared, last + 1)."""
    clock = now_ns & _CLOCK_MASK
    after = table[vb, CAS] + _ONE
    return clock if clock > after else after


@inline_kernel
def absolute(expiry: Any, now: Any) -> Any:
    """wire.md 10: 0 never, up to 30 days relative, larger absolute."""
    if expiry == _ZERO or expiry > _RELATIVE_MAX:
        return expiry
    sum_ = now + expiry
    return sum_ if sum_ < _EXPIRY_MAX else _EXPIRY_MAX


@inline_kernel
def is_expired(frame: Any, now: Any) -> Any:
    """Whether the time of a stored mutation is over at Unix second `now`."""
    expiry = U(load32(frame + U(44)))
    return expiry != _ZERO and expiry <= now


@inline_kernel
def write_mutation(
    to: Any,
    at: Any,
    vb: Any,
    key_length: Any,
    value_length: Any,
    cas: Any,
    seqno: Any,
    rev: Any,
    now: Any,
    scratch: Any,
) -> None:
    """The DCP mutation (dcp.md 2.8, 31 bytes of extras) of a request that is wholly at `at`."""
    value = at + U(32) + key_length
    datatype = _ZERO
    if may_be_json(value, value_length) and is_json(value, value_length, scratch):
        datatype = _JSON
    store64(to, _MUTATION_HEAD | (key_length << U(32)) | (datatype << U(16)) | vb)
    store32(to + _EIGHT, np.uint32(U(31) + key_length + value_length))
    store32(to + U(12), np.uint32(0))
    store64(to + U(16), np.uint64(cas))
    store64(to + U(24), np.uint64(seqno))
    store64(to + U(32), np.uint64(rev))
    store32(to + U(40), load32(at + U(24)))
    store32(to + U(44), np.uint32(absolute(U(load32(at + U(28))), now)))
    store32(to + U(48), np.uint32(0))
    store16(to + U(52), np.uint16(0))
    store8(to + U(54), np.uint8(0))
    copy(to + MUTATION_BYTES, at + U(32), key_length + value_length)


@inline_kernel
def write_deletion(to: Any, key: Any, vb: Any, key_length: Any, cas: Any, seqno: Any, rev: Any, now: Any) -> None:
    """The DCP deletion with its delete time (dcp.md 2.9, 21 bytes of extras)."""
    store64(to, _DELETION_HEAD | (key_length << U(32)) | vb)
    store32(to + _EIGHT, np.uint32(U(21) + key_length))
    store32(to + U(12), np.uint32(0))
    store64(to + U(16), np.uint64(cas))
    store64(to + U(24), np.uint64(seqno))
    store64(to + U(32), np.uint64(rev))
    store32(to + U(40), np.uint32(now))
    store8(to + U(44), np.uint8(0))
    copy(to + DELETION_BYTES, key, key_length)
