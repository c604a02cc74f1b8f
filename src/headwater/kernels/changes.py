"""The frames that changes leave in the log, and the numbers in them: CAS, expiry (wire.md 10)."""

from __future__ import annotations

from typing import Any

import numpy as np

from headwater.kernels.builds import inline_kernel
from headwater.kernels.index import CAS, HIGH, NAMED_MARK
from headwater.kernels.intrinsics import copy, load32, store8, store16, store32, store64
from headwater.kernels.json import is_json, may_be_json
from headwater.kernels.offsets import (
    BODY_LENGTH_AT,
    CAS_AT,
    DELETE_TIME_AT,
    DELETION_HEAD,
    DELETION_V2_EXTRAS,
    EXPIRY_AT,
    FLAGS_AT,
    HEADER,
    LOCK_TIME_AT,
    MUTATION_EXTRAS,
    MUTATION_HEAD,
    NMETA_AT,
    NRU_AT,
    OPAQUE_AT,
    REV_SEQNO_AT,
    SEQNO_AT,
    SET_EXPIRY_AT,
    SET_EXTRAS,
    SET_FLAGS_AT,
    UNUSED_AT,
)
from headwater.wire import numbers

MUTATION_BYTES = HEADER + MUTATION_EXTRAS
DELETION_BYTES = HEADER + DELETION_V2_EXTRAS

U = np.uintp
_ZERO, _ONE, _EIGHT = U(0), U(1), U(8)
_MUTATION_HEAD, _DELETION_HEAD = U(MUTATION_HEAD), U(DELETION_HEAD)
_SET_BYTES = HEADER + SET_EXTRAS
_JSON = U(0x01)
CAS_MAX = U(numbers.HELD_MAX)
"""The highest CAS that other nodes accept."""
_GIVEN_MAX = U(numbers.GIVEN_MAX)
_RELATIVE_MAX = U(30 * 86400)
_EXPIRY_MAX = U(0xFFFFFFFF)
_MARK_BIT = U(NAMED_MARK.bit_length() - 1)
_CLOCK_MASK, _LOGICAL_BITS = U(0xFFFFFFFFFFFF0000), U(0xFFFF)


@inline_kernel
def next_cas(table: Any, vb: Any, now_ns: Any) -> Any:
    """Return the next CAS, by wire.md 10: a hybrid clock, max(now with the low 16 bits cleared, last + 1).

    After a CAS at the upper bound: the clock, with the low bits of the seqno, as in wire/times.py.
    """
    clock = now_ns & _CLOCK_MASK
    last = table[vb, CAS]
    if last >= CAS_MAX:
        return clock | ((table[vb, HIGH] + _ONE) & _LOGICAL_BITS)
    return clock if clock > last else last + _ONE


@inline_kernel
def above(rev: Any) -> Any:
    """Return the revision after `rev`, or `rev` itself at the highest revision that a node assigns.

    Other nodes would not accept a higher one; of versions with equal revisions the higher CAS wins.
    """
    return rev + _ONE if rev < _GIVEN_MAX else rev


@inline_kernel
def absolute(expiry: Any, now: Any) -> Any:
    """Return the absolute expiry in Unix seconds, by wire.md 10: 0 is never, up to 30 days relative, above that
    absolute.
    """
    if expiry == _ZERO or expiry > _RELATIVE_MAX:
        return expiry
    sum_ = now + expiry
    return sum_ if sum_ < _EXPIRY_MAX else _EXPIRY_MAX


@inline_kernel
def is_expired(frame: Any, now: Any) -> Any:
    """Return True if a stored mutation has expired at Unix second `now`."""
    expiry = U(load32(frame + EXPIRY_AT))
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
    prefix: Any,
    named: Any,
) -> None:
    """Write the DCP mutation (dcp.md 2.8, 31 bytes of extras) for the complete request at `at`, whose key loses its
    first `prefix` bytes; `named` is 1 if the rest begins with the id of a collection, else 0.
    """
    key = at + _SET_BYTES + prefix
    value = key + key_length
    datatype = _ZERO
    if may_be_json(value, value_length) and is_json(value, value_length, scratch):
        datatype = _JSON
    store64(to, _MUTATION_HEAD | (key_length << U(32)) | (datatype << U(16)) | vb)
    store32(to + BODY_LENGTH_AT, np.uint32(MUTATION_EXTRAS + key_length + value_length))
    store32(to + OPAQUE_AT, np.uint32(named << _MARK_BIT))
    store64(to + CAS_AT, np.uint64(cas))
    store64(to + SEQNO_AT, np.uint64(seqno))
    store64(to + REV_SEQNO_AT, np.uint64(rev))
    store32(to + FLAGS_AT, load32(at + SET_FLAGS_AT))
    store32(to + EXPIRY_AT, np.uint32(absolute(U(load32(at + SET_EXPIRY_AT)), now)))
    store32(to + LOCK_TIME_AT, np.uint32(0))
    store16(to + NMETA_AT, np.uint16(0))
    store8(to + NRU_AT, np.uint8(0))
    copy(to + MUTATION_BYTES, key, key_length + value_length)


@inline_kernel
def write_deletion(
    to: Any, key: Any, vb: Any, key_length: Any, cas: Any, seqno: Any, rev: Any, now: Any, named: Any
) -> None:
    """Write the DCP deletion with its delete time (dcp.md 2.9, 21 bytes of extras); `named` as for `write_mutation`."""
    store64(to, _DELETION_HEAD | (key_length << U(32)) | vb)
    store32(to + BODY_LENGTH_AT, np.uint32(DELETION_V2_EXTRAS + key_length))
    store32(to + OPAQUE_AT, np.uint32(named << _MARK_BIT))
    store64(to + CAS_AT, np.uint64(cas))
    store64(to + SEQNO_AT, np.uint64(seqno))
    store64(to + REV_SEQNO_AT, np.uint64(rev))
    store32(to + DELETE_TIME_AT, np.uint32(now))
    store8(to + UNUSED_AT, np.uint8(0))
    copy(to + DELETION_BYTES, key, key_length)
