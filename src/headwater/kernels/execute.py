"""Answers a chunk of pipelined requests in one call: no Python object for a get or a set.

The kernel executes GET, SET, ADD, REPLACE, DELETE, their quiet forms, GETK, GETKQ and NOOP, on active vbuckets, for
documents without extended attributes or compression, in the collections of `plain`. It writes a change to the staging
arena as the frame that the log has, indexes it at once, and writes the answer to `out`. At any other request the kernel
stops without having begun it; Python executes that one request, and calls the kernel for the rest.

`state` (uint64[STATE_FIELDS]) holds inputs and outputs, at the constants below. The kernel keeps no state: the caller
passes the staging arena's slot, fill and limit, and reads the new fill. The kernel never writes beyond the arena or
`out`: a request without room stops it with STAGE_FULL or OUT_FULL, and has no effect.

With FLAG_WROTE (a request changed a document) or FLAG_UNSTABLE (a request saw a row that is not durable yet), the
caller must hold back the answers of the whole chunk until the commit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headwater.kernels.builds import inline_kernel, kernel_or
from headwater.kernels.changes import (
    DELETION_BYTES,
    MUTATION_BYTES,
    above,
    is_expired,
    next_cas,
    write_deletion,
    write_mutation,
)
from headwater.kernels.choices import collection_of, place_in
from headwater.kernels.index import (
    DELETED_REV,
    DURABLE_ROWS,
    FIELDS,
    HIGH,
    STATE,
    append_row,
    find,
    frame_of,
    has_room,
    key_hash,
    location,
    opcode,
)
from headwater.kernels.intrinsics import copy, load8, load16, load32, load64, store32, store64
from headwater.kernels.json import SCRATCH_BYTES
from headwater.kernels.offsets import (
    BODY_LENGTH_AT,
    CAS_AT,
    DATATYPE_AT,
    EXTRAS_LENGTH_AT,
    FLAGS_AT,
    FOUND_EXTRAS,
    FOUND_FLAGS_AT,
    HEADER,
    KEY_LENGTH_AT,
    MUTATION,
    MUTATION_EXTRAS,
    NMETA_AT,
    OPAQUE_AT,
    OPCODE_AT,
    REQUEST,
    REV_SEQNO_AT,
    SET_EXTRAS,
    STORED_EXTRAS,
    VBUCKET_AT,
)
from headwater.wire import numbers
from headwater.wire.datatype import Datatype
from headwater.wire.header import BODY_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX, Magic
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State

__all__ = [
    "FLAG_UNSTABLE",
    "FLAG_WROTE",
    "OPCODES",
    "STATE_FIELDS",
    "STATUSES",
    "STOP_GROW",
    "STOP_MORE",
    "STOP_OUT_FULL",
    "STOP_PLAIN",
    "STOP_STAGE_FULL",
    "TALLY",
    "execute",
    "run",
    "split",
]

# ------------------------------------------------------------------ fields of `state`
OFFSET = 0  # in, out: where in `data` the next request begins
ARENA = 1  # in: the slot of the staging arena (segments[ARENA] is its address and length)
STAGED = 2  # in, out: bytes of the arena in use
NOW_NS = 3  # in: Unix time in nanoseconds, for CAS values
NOW = 4  # in: Unix time in seconds, for expiry
FEATURES = 5  # in: FEATURE_* bits of the connection
ANSWERED = 6  # out: bytes of `out` in use
FLAGS = 7  # out: FLAG_* bits
GROW = 8  # out: the vbucket that must grow, with STOP_GROW
GETS = 9  # out: counters of this call
HITS = 10
SETS = 11
DELETES = 12
SEEN = 13  # out: bit n is set when there was a request of opcode n in this call
WALKED = 14  # out: bytes of documents that paths were followed in
CALLED = 15  # out: how many of each opcode there were, OPCODES fields
OPCODES = 32  # those above are not the kernels', but for lookups
LOOKUP = 31  # the place of SUBDOC_MULTI_LOOKUP (kernels/lookups.py) in counts, which no opcode of execute has
LIMIT = CALLED + OPCODES  # in: how far the arena may be filled; ANSWERED to here are set to 0 first
TALLY = LIMIT + 1  # of all calls ever: how many requests of each opcode had each status, OPCODES * STATUSES fields
STATUSES = 4
STATE_FIELDS = TALLY + OPCODES * STATUSES

FEATURE_JSON = np.uint64(1)
FEATURE_SEQNO = np.uint64(2)
FEATURE_WRITE = np.uint64(4)  # not a feature: writes may run at all
FEATURE_HELLO = np.uint64(8)  # the client negotiated something
FEATURE_COLLECTIONS = np.uint64(16)  # keys begin with the id of their collection
FEATURE_NAMED = np.uint64(32)  # not a feature: the rights in the default collection are those in all

FLAG_WROTE = np.uint64(1)
FLAG_UNSTABLE = np.uint64(2)

STOP_MORE = 0  # all whole requests are done
STOP_PLAIN = 1  # the request at OFFSET is for the plain path
STOP_OUT_FULL = 2  # its answer does not fit into what is left of `out`
STOP_STAGE_FULL = 3  # its change does not fit into what is left of the arena
STOP_GROW = 4  # vbucket `GROW` needs a larger index first
_DONE = 0

U = np.uintp
_ZERO, _ONE, _EIGHT = U(0), U(1), U(8)
_TALLY, _STATUSES, _CALLED = U(TALLY), U(STATUSES), U(CALLED)
_ACTIVE = U(State.ACTIVE)
_KEY_MAX = U(KEY_BYTES_MAX)
_SEQNO_MAX = U(numbers.SEQNO_MAX)
_VALUE_MAX = U(VALUE_BYTES_MAX)
_BODY_MAX = U(BODY_BYTES_MAX)
_ANSWER_MAX = HEADER + STORED_EXTRAS  # all but a hit

_GET, _GETK, _NOOP = U(Opcode.GET), U(Opcode.GETK), U(Opcode.NOOP)
_SET, _ADD, _REPLACE, _DELETE = U(Opcode.SET), U(Opcode.ADD), U(Opcode.REPLACE), U(Opcode.DELETE)
_GETQ, _GETKQ = U(Opcode.GETQ), U(Opcode.GETKQ)

_ENOENT, _EEXISTS = U(Status.KEY_ENOENT), U(Status.KEY_EEXISTS)
_RESPONSE = U(Magic.CLIENT_RESPONSE) << U(56)
_STORED_SEQNO_AT = HEADER + _EIGHT  # behind the vb uuid
_FOUND_KEY_AT = HEADER + FOUND_EXTRAS
_JSON = U(Datatype.JSON)
_NOT_PLAIN = U(0xFE)  # datatype bits that the kernel leaves to Python
_XATTR = U(Datatype.XATTR)


@inline_kernel
def head(address: Any, code: Any, middle: Any, body: Any, request: Any, cas: Any) -> None:
    """Write a response header; `middle` is bytes 2 to 7 (key and extras length, datatype, status)."""
    store64(address, _RESPONSE | (code << U(48)) | middle)
    store32(address + BODY_LENGTH_AT, np.uint32(body))
    store32(address + OPAQUE_AT, load32(request + OPAQUE_AT))
    store64(address + CAS_AT, np.uint64(cas))


@inline_kernel
def count(state: Any, code: Any, status: Any) -> None:
    """Count a finished request, with or without an answer."""
    state[_TALLY + code * _STATUSES + status] += _ONE
    state[_CALLED + code] += _ONE
    state[SEEN] |= _ONE << code


@inline_kernel
def bare(out: Any, state: Any, code: Any, status: Any, request: Any) -> None:
    """Write an answer without body: a refusal, which quiet forms get as well, or (status 0) the answer to a no-op."""
    head(U(out.ctypes.data) + state[ANSWERED], code, status, _ZERO, request, _ZERO)
    state[ANSWERED] += HEADER


@inline_kernel
def _success(out: Any, state: Any, code: Any, vb: Any, request: Any, cas: Any, table: Any, uuids: Any) -> None:
    """Write the answer to a change; with MutationSeqno its 16 bytes of extras are vb uuid and seqno (kv.md 2, "M")."""
    address = U(out.ctypes.data) + state[ANSWERED]
    if state[FEATURES] & FEATURE_SEQNO:
        head(address, code, STORED_EXTRAS << U(24), STORED_EXTRAS, request, cas)
        store64(address + HEADER, uuids[vb])
        store64(address + _STORED_SEQNO_AT, table[vb, HIGH])
        state[ANSWERED] += _ANSWER_MAX
    else:
        head(address, code, _ZERO, _ZERO, request, cas)
        state[ANSWERED] += HEADER


@inline_kernel
def note_row(table: Any, vb: Any, row: Any, state: Any) -> None:
    """Set FLAG_UNSTABLE if this row, which a request saw, is not on disk yet: a crash could still remove it."""
    if U(row) >= table[vb, DURABLE_ROWS]:
        state[FLAGS] |= FLAG_UNSTABLE


@inline_kernel
def _read(
    at: Any,
    code: Any,
    vb: Any,
    key_length: Any,
    out: Any,
    table: Any,
    segments: Any,
    state: Any,
    prefix: Any,
    named: Any,
) -> Any:
    """Execute GET, GETQ, GETK, GETKQ."""
    key = at + HEADER + prefix
    hashed = key_hash(table, vb, key, key_length)
    _, row = find(table, vb, segments, key, key_length, hashed, named)
    is_hit = False
    frame = _ZERO
    if row >= 0:
        frame = frame_of(table, vb, segments, U(row))
        is_hit = opcode(frame) == MUTATION
    if not is_hit:
        if row >= 0:
            note_row(table, vb, row, state)
        state[GETS] += _ONE
        count(state, code, _ENOENT)
        if code == _GET or code == _GETK:
            bare(out, state, code, _ENOENT, at)
        return _DONE
    datatype = U(load8(frame + DATATYPE_AT))
    # Python makes a change of what has run out: expiry "creates a new seqno, revision+1, new CAS" (dcp 11).
    if is_expired(frame, state[NOW]) or (datatype & _NOT_PLAIN) != _ZERO:
        return STOP_PLAIN
    key_bytes = key_length + prefix if code == _GETK or code == _GETKQ else _ZERO
    value_length = U(load32(frame + BODY_LENGTH_AT)) - MUTATION_EXTRAS - key_length - U(load16(frame + NMETA_AT))
    size = HEADER + FOUND_EXTRAS + key_bytes + value_length
    if size > U(len(out)) - state[ANSWERED]:
        # An answer for which all of `out` is too small would stop the kernel here for ever.
        return STOP_PLAIN if state[ANSWERED] == _ZERO else STOP_OUT_FULL
    if (state[FEATURES] & FEATURE_JSON) == _ZERO:
        datatype = _ZERO
    address = U(out.ctypes.data) + state[ANSWERED]
    head(
        address,
        code,
        (key_bytes << U(32)) | (FOUND_EXTRAS << U(24)) | (datatype << U(16)),
        size - HEADER,
        at,
        load64(frame + CAS_AT),
    )
    store32(address + FOUND_FLAGS_AT, load32(frame + FLAGS_AT))
    copy(address + _FOUND_KEY_AT, at + HEADER, key_bytes)
    copy(address + _FOUND_KEY_AT + key_bytes, frame + MUTATION_BYTES + key_length, value_length)
    state[ANSWERED] += size
    note_row(table, vb, row, state)
    count(state, code, _ZERO)
    state[GETS] += _ONE
    state[HITS] += _ONE
    return _DONE


@inline_kernel
def _refusal(loud: Any, live: Any, cas: Any, frame: Any) -> Any:
    """Return the status with which a change is refused; 0 if it is not refused.

    kv.md 2: "SET with CAS c: c must equal the current CAS: otherwise 02; not found: 01. REPLACE: 01 if missing. ADD: 02
    if present. DELETE with CAS mismatch: 02."
    """
    if loud == _ADD:
        return _EEXISTS if live else _ZERO
    if not live:
        return _ENOENT if loud != _SET or cas != _ZERO else _ZERO
    if cas != _ZERO and cas != U(load64(frame + CAS_AT)):
        return _EEXISTS
    return _ZERO


@inline_kernel
def _change(
    at: Any,
    code: Any,
    vb: Any,
    key_length: Any,
    value_length: Any,
    out: Any,
    table: Any,
    segments: Any,
    uuids: Any,
    scratch: Any,
    state: Any,
    prefix: Any,
    named: Any,
) -> Any:
    """Execute SET, ADD, REPLACE, DELETE and their quiet forms (opcode plus 0x10)."""
    loud = code & U(0x0F)
    # Before the key is looked up: growing moves every slot, and `find` would have given one of before.
    if not has_room(table, vb):
        state[GROW] = vb
        return STOP_GROW
    deletes = loud == _DELETE
    key = prefix + (at + HEADER if deletes else at + HEADER + SET_EXTRAS)
    hashed = key_hash(table, vb, key, key_length)
    slot, row = find(table, vb, segments, key, key_length, hashed, named)
    # "A brand-new key starts at 1 + the highest revision ever deleted in the vbucket" (kv.md 2): the tombstone it may
    # have had is purged here, and may win every conflict elsewhere.
    before, live, rev = _ZERO, False, above(table[vb, DELETED_REV])
    if row >= 0:
        before = frame_of(table, vb, segments, U(row))
        live = opcode(before) == MUTATION
        rev = above(U(load64(before + REV_SEQNO_AT)))
        if (U(load8(before + DATATYPE_AT)) & _XATTR) != _ZERO or (live and is_expired(before, state[NOW])):
            return STOP_PLAIN
    if table[vb, HIGH] >= _SEQNO_MAX:
        return STOP_PLAIN  # which says that there is no next one
    status = _refusal(loud, live, U(load64(at + CAS_AT)), before)
    if status != _ZERO:
        if row >= 0:
            note_row(table, vb, row, state)
        count(state, code, status)
        bare(out, state, code, status, at)
        return _DONE
    size = DELETION_BYTES + key_length if deletes else MUTATION_BYTES + key_length + value_length
    arena = state[ARENA]
    # Whatever limit the caller gives, nothing is written behind the arena.
    limit = min(state[LIMIT], segments[arena, 1])
    # By subtraction, which can't wrap behind the first comparison.
    if state[STAGED] > limit or size > limit - state[STAGED]:
        return STOP_STAGE_FULL
    to = segments[arena, 0] + state[STAGED]
    # From here on nothing fails: the seqno is taken, and the frame must be staged and indexed with it.
    cas, seqno = next_cas(table, vb, state[NOW_NS]), table[vb, HIGH] + _ONE
    if deletes:
        write_deletion(to, key, vb, key_length, cas, seqno, rev, state[NOW], named)
        state[DELETES] += _ONE
    else:
        write_mutation(to, at, vb, key_length, value_length, cas, seqno, rev, state[NOW], scratch, prefix, named)
        state[SETS] += _ONE
    append_row(table, vb, segments, to, location(arena, state[STAGED]), hashed, slot, row)
    state[STAGED] += size
    state[FLAGS] |= FLAG_WROTE
    count(state, code, _ZERO)
    if deletes and (state[FEATURES] & FEATURE_HELLO) == _ZERO:
        cas = _ZERO  # the answer of a client that says no HELLO, see documents.remove
    if code == loud:
        _success(out, state, code, vb, at, cas, table, uuids)
    return _DONE


@inline_kernel
def _is_read(code: Any) -> Any:
    return code == _GET or code == _GETQ or code == _GETK or code == _GETKQ


@inline_kernel
def _is_change(code: Any) -> Any:
    loud = code & U(0x0F)
    return loud >= _SET and loud <= _DELETE and (code == loud or code == loud | U(0x10))


@inline_kernel
def _is_plain(at: Any, code: Any, extras: Any, key_length: Any, value_length: Any, table: Any, state: Any) -> Any:
    """Return True if only Python can execute a get or a change: it breaks a rule, or is not in the simple form."""
    vb, datatype, cas = U(load16(at + VBUCKET_AT)), U(load8(at + DATATYPE_AT)), U(load64(at + CAS_AT))
    if vb >= U(len(table)) or table[vb, STATE] != _ACTIVE or key_length == _ZERO or key_length > _KEY_MAX:
        return True
    if _is_read(code):
        return extras != _ZERO or value_length != _ZERO or datatype != _ZERO or cas != _ZERO
    allowed = _JSON if (state[FEATURES] & FEATURE_JSON) != _ZERO else _ZERO
    if (state[FEATURES] & FEATURE_WRITE) == _ZERO or (datatype & ~allowed) != _ZERO:
        return True
    loud = code & U(0x0F)
    if loud == _DELETE:
        return extras != _ZERO or value_length != _ZERO
    return extras != SET_EXTRAS or value_length > _VALUE_MAX or (loud == _ADD and cas != _ZERO)


@inline_kernel
def split(key: Any, key_length: Any, plain: Any, state: Any) -> Any:
    """Return (bytes of the key that are not stored, 1 if the stored key begins with an id, bytes of the application's
    key); these are 0 if the collection is not in `plain`, or the id breaks a rule.

    The id of the default collection is not stored, others are.
    """
    if (state[FEATURES] & FEATURE_COLLECTIONS) == _ZERO:
        return _ZERO, _ZERO, key_length if place_in(plain, _ZERO) >= 0 else _ZERO
    number, id_bytes = collection_of(key, key_length)
    if id_bytes == _ZERO or place_in(plain, number) < 0:
        return _ZERO, _ZERO, _ZERO
    if number == _ZERO:
        return id_bytes, _ZERO, key_length - id_bytes
    # "Id and key together" have one byte more than a key (wire 8).
    if (state[FEATURES] & FEATURE_NAMED) == _ZERO or key_length > _KEY_MAX + _ONE:
        return _ZERO, _ZERO, _ZERO
    return _ZERO, _ONE, key_length - id_bytes


@inline_kernel
def _run_request(
    at: Any, body: Any, out: Any, table: Any, segments: Any, uuids: Any, plain: Any, scratch: Any, state: Any
) -> Any:
    """Execute the complete request at `at`; return _DONE or the reason of a stop."""
    code, extras, key_length = U(load8(at + OPCODE_AT)), U(load8(at + EXTRAS_LENGTH_AT)), U(load16(at + KEY_LENGTH_AT))
    if code == _NOOP:
        if body != _ZERO or U(load8(at + DATATYPE_AT)) != _ZERO or U(load64(at + CAS_AT)) != _ZERO:
            return STOP_PLAIN
        count(state, code, _ZERO)
        bare(out, state, code, _ZERO, at)
        return _DONE
    reads = _is_read(code)
    value_length = body - extras - key_length
    prefix, named, own_length = split(at + HEADER + extras, key_length, plain, state)
    if not (reads or _is_change(code)) or _is_plain(at, code, extras, own_length, value_length, table, state):
        return STOP_PLAIN
    vb, key_length = U(load16(at + VBUCKET_AT)), key_length - prefix
    if reads:
        return _read(at, code, vb, key_length, out, table, segments, state, prefix, named)
    return _change(at, code, vb, key_length, value_length, out, table, segments, uuids, scratch, state, prefix, named)


def _plainly(data: Any, out: Any, table: Any, segments: Any, uuids: Any, plain: Any, scratch: Any, state: Any) -> int:
    """Stand in for `execute` until it is compiled: leave every request to Python."""
    state[ANSWERED:LIMIT] = _ZERO
    return STOP_PLAIN


@inline_kernel
def run(
    start: Any, size: Any, out: Any, table: Any, segments: Any, uuids: Any, plain: Any, scratch: Any, state: Any
) -> Any:
    """Answer the requests in `size` bytes at the address `start`, as `execute` does."""
    end = start + size
    at = start + state[OFFSET]
    stop = STOP_MORE
    for each in range(ANSWERED, LIMIT):
        state[each] = _ZERO
    # Columns are found by their numbers: a table of another width would be read and written in the wrong places.
    if table.shape[1] != FIELDS or len(state) != STATE_FIELDS or len(uuids) < len(table):
        return STOP_PLAIN
    while at <= end and end - at >= HEADER:
        body = U(load32(at + BODY_LENGTH_AT))
        magic, extras, key_length = U(load8(at)), U(load8(at + EXTRAS_LENGTH_AT)), U(load16(at + KEY_LENGTH_AT))
        # The parts of the body must lie within it before any of them is looked at.
        if magic != REQUEST or extras + key_length > body or body > _BODY_MAX:
            stop = STOP_PLAIN
            break
        if end - at - HEADER < body:
            break
        # Room for any answer but a hit is made sure of here, so that no other place has to.
        if U(len(out)) - state[ANSWERED] < _ANSWER_MAX:
            stop = STOP_OUT_FULL
            break
        stop = _run_request(at, body, out, table, segments, uuids, plain, scratch, state)
        if stop != _DONE:
            break
        at = at + HEADER + body
    state[OFFSET] = at - start
    return stop


@kernel_or(_plainly)
def execute(data: Any, out: Any, table: Any, segments: Any, uuids: Any, plain: Any, scratch: Any, state: Any) -> Any:
    """Answer the requests in data[state[OFFSET]:] until one stops the kernel, or all are answered; return the STOP_*
    code.

    Args:
        data: uint8 array, the bytes received. out: uint8 array for answers, filled from its start (ANSWERED bytes).
        table, segments: index and segments of the store (kernels/index.py); a row of `table` has FIELDS numbers.
        uuids: uint64[vbuckets], the newest vb uuid of each. plain: uint64, the ids of the collections that the kernel
            may serve, ascending. scratch: uint8[json.SCRATCH_BYTES].
        state: uint64[STATE_FIELDS], see above.
    """
    return run(U(data.ctypes.data), U(len(data)), out, table, segments, uuids, plain, scratch, state)


def warm_up() -> None:
    """Build the kernels of this module."""
    table, pair = np.zeros((1, FIELDS), np.uint64), np.zeros((3, 2), np.uint64)
    state, nothing = np.zeros(STATE_FIELDS, np.uint64), np.zeros(1, np.uint8)
    numbers = np.zeros(1, np.uint64)
    execute(nothing, nothing, table, pair, numbers, numbers, np.zeros(SCRATCH_BYTES, np.uint8), state)
