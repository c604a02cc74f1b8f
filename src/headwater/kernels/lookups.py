"""Answers SUBDOC_MULTI_LOOKUP requests in one call: no Python object for a lookup of simple paths.

The kernel answers up to 16 paths of names and indexes (`a.b[0].c`) for SUBDOC_GET and SUBDOC_EXISTS, in documents that
are JSON without extended attributes or compression. At any other request it stops without having begun it, with the
`state` and STOP_* codes of execute.py, and Python answers that request. Python's answers are the reference for the
kernel's.

Python handles unusual requests: attributes (any path flag), document flags, a count, the whole body; a path that is
empty, too long or too deep, has backticks, an index from the end, or bytes that JSON may write otherwise. So this
kernel answers a path without a value, or with a value of another kind on its way; Python answers an invalid path.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headwater.kernels.builds import inline_kernel, kernel_or
from headwater.kernels.changes import MUTATION_BYTES, is_expired
from headwater.kernels.execute import (
    ANSWERED,
    GETS,
    HITS,
    LIMIT,
    LOOKUP,
    NOW,
    OFFSET,
    STATE_FIELDS,
    STOP_MORE,
    STOP_OUT_FULL,
    STOP_PLAIN,
    WALKED,
    bare,
    count,
    head,
    note_row,
    split,
)
from headwater.kernels.index import FIELDS, STATE, find, frame_of, key_hash, opcode
from headwater.kernels.intrinsics import copy, load8, load16, load32, load64, store16, store32
from headwater.kernels.json import SCRATCH_BYTES, is_json
from headwater.kernels.offsets import (
    BODY_LENGTH_AT,
    CAS_AT,
    DATATYPE_AT,
    EXTRAS_LENGTH_AT,
    HEADER,
    KEY_LENGTH_AT,
    LOOKUP_RESULT,
    LOOKUP_SPEC,
    MUTATION,
    NMETA_AT,
    OPCODE_AT,
    REQUEST,
    VBUCKET_AT,
)
from headwater.kernels.paths import (
    BACKSLASH,
    CLOSE_LIST,
    FOUND,
    NOWHERE,
    OPEN_DICT,
    OPEN_LIST,
    QUOTE,
    SPACE,
    after_value,
    child,
    skip_spaces,
)
from headwater.wire.datatype import Datatype
from headwater.wire.header import BODY_BYTES_MAX, KEY_BYTES_MAX
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.subdoc import PATH_BYTES_MAX, PATH_DEPTH_MAX, SPECS_MAX
from headwater.wire.vbucket import State

__all__ = ["REQUEST_WALKED_MAX", "STATUSES", "WALKED_MAX", "look_up"]

STATUSES = (Status.SUCCESS, Status.KEY_ENOENT, Status.SUBDOC_MULTI_PATH_FAILURE)
"""The statuses of answers, in the order of the counts of `execute.LOOKUP`."""
WALKED_MAX = 1 << 20
"""Bytes of documents that one call looks through before others have their turn."""
REQUEST_WALKED_MAX = 4 << 20
"""Bytes that the kernel looks through for one request, a document once for each path: a millisecond or two. For a
larger request Python takes the paths one by one, and lets others have their turn in between."""

U = np.uintp
_ZERO, _ONE, _TWO, _TEN = U(0), U(1), U(2), U(10)
_REQUEST = U(Opcode.SUBDOC_MULTI_LOOKUP)
_GET, _EXISTS = U(Opcode.SUBDOC_GET), U(Opcode.SUBDOC_EXISTS)
_ACTIVE = U(State.ACTIVE)
_KEY_MAX, _BODY_MAX = U(KEY_BYTES_MAX), U(BODY_BYTES_MAX)
_PATH_MAX, _SPECS_MAX, _WALKED_MAX = U(PATH_BYTES_MAX), U(SPECS_MAX), U(WALKED_MAX)
_REQUEST_MAX = U(REQUEST_WALKED_MAX)
_NOT_PLAIN = U(Datatype.SNAPPY | Datatype.XATTR)
_MISSED, _FAILED = _ONE, _TWO  # places in STATUSES
_NO_DOCUMENT, _SOME_FAILED = U(Status.KEY_ENOENT), U(Status.SUBDOC_MULTI_PATH_FAILURE)
_ENOENT, _MISMATCH = U(Status.SUBDOC_PATH_ENOENT), U(Status.SUBDOC_PATH_MISMATCH)
_UNUSUAL = U(0xFFFF)  # no status: Python knows
_DOT, _BACKTICK, _ASCII_MAX = U(ord(".")), U(ord("`")), U(0x7F)
_DIGIT_ZERO, _NINE = U(ord("0")), U(ord("9"))
_DIGITS_MAX = 9
# A spec is u8 opcode, u8 flags, u16 length, path; a result is u16 status, u32 length, value.
_SPEC_FLAGS_AT, _SPEC_LENGTH_AT, _RESULT_LENGTH_AT = U(1), U(2), U(2)
_DONE = 0


@inline_kernel
def _after_name(path: Any, end: Any) -> Any:
    """Return the end of the name at `path`; 0 if it has bytes that JSON or a path could write in another way."""
    while path < end:
        byte = U(load8(path))
        if byte == _DOT or byte == OPEN_LIST:
            break
        odd = byte < SPACE or byte > _ASCII_MAX or byte == QUOTE or byte == BACKSLASH
        if odd or byte == _BACKTICK or byte == CLOSE_LIST:
            return _ZERO
        path = path + _ONE
    return path


@inline_kernel
def _index(path: Any, end: Any) -> Any:
    """Return (address after the bracket, index) of the component `[index]` at `path`; NOWHERE as the index if it is
    unusual.
    """
    path = path + _ONE
    index, digits = np.int64(0), 0
    # Nine digits stay far from overflow; no array has more elements.
    while path < end and digits < _DIGITS_MAX:
        byte = U(load8(path))
        if byte < _DIGIT_ZERO or byte > _NINE:
            break
        index = index * np.int64(10) + np.int64(byte - _DIGIT_ZERO)
        digits, path = digits + 1, path + _ONE
    if digits == 0 or path >= end or U(load8(path)) != CLOSE_LIST:
        return path, np.int64(NOWHERE)
    return path + _ONE, index


@inline_kernel
def _follow(path: Any, path_end: Any, at: Any, end: Any) -> Any:
    """Return (status, address of the value) of a path into the value at `at`; the status is _UNUSUAL if Python must
    decide.

    The path is parsed to its end even after a component without value, because the rest may be invalid.
    """
    first, depth, status = path, 0, _ZERO
    while path < path_end:
        depth += 1
        index, name, length = np.int64(NOWHERE), path, _ZERO
        if U(load8(path)) == OPEN_LIST:
            path, index = _index(path, path_end)
            if index == NOWHERE:
                return _UNUSUAL, at
        else:
            if path != first:
                if U(load8(path)) != _DOT:
                    return _UNUSUAL, at
                name = path + _ONE
            path = _after_name(name, path_end)
            if path == _ZERO or path == name:
                return _UNUSUAL, at
            length = path - name
        if depth > PATH_DEPTH_MAX:
            return _UNUSUAL, at
        if status == _ZERO:
            if U(load8(at)) != (OPEN_DICT if index == NOWHERE else OPEN_LIST):
                status = _MISMATCH
            else:
                status_, _, value, _, _ = child(at, end, name, length, index)
                if status_ == FOUND:
                    at = value
                else:
                    status = _ENOENT
    return status, at


@inline_kernel
def _simple_specs(at: Any, end: Any) -> Any:
    """Return the number of specs; 0 if Python must handle one of them, or there are too many."""
    specs = _ZERO
    while at < end:
        if end - at < LOOKUP_SPEC:
            return _ZERO
        code, length = U(load8(at)), U(load16(at + _SPEC_LENGTH_AT))
        if (code != _GET and code != _EXISTS) or load8(at + _SPEC_FLAGS_AT) != 0:
            return _ZERO
        at = at + LOOKUP_SPEC
        if length == _ZERO or length > _PATH_MAX or end - at < length:
            return _ZERO
        at, specs = at + length, specs + _ONE
    return specs if specs <= _SPECS_MAX else _ZERO


@inline_kernel
def _results(spec: Any, specs_end: Any, text: Any, end: Any, to: Any, room: Any) -> Any:
    """Write the results of all specs to `to`; return (STOP_* code, bytes written, True if a path failed)."""
    begin, used, has_failed = skip_spaces(text, end), _ZERO, False
    while spec < specs_end:
        code, length = U(load8(spec)), U(load16(spec + _SPEC_LENGTH_AT))
        path = spec + LOOKUP_SPEC
        spec = path + length
        status, value = _follow(path, spec, begin, end)
        if status == _UNUSUAL:
            return STOP_PLAIN, used, has_failed
        size = after_value(value, end) - value if status == _ZERO and code == _GET else _ZERO
        # By subtractions, which can't wrap: `used` never passes `room`.
        if room - used < LOOKUP_RESULT or room - used - LOOKUP_RESULT < size:
            return STOP_OUT_FULL, used, has_failed
        has_failed = has_failed or status != _ZERO
        store16(to + used, np.uint16(status))
        store32(to + used + _RESULT_LENGTH_AT, np.uint32(size))
        copy(to + used + LOOKUP_RESULT, value, size)
        used = used + LOOKUP_RESULT + size
    return _DONE, used, has_failed


@inline_kernel
def _in_document(at: Any, body: Any, frame: Any, key_length: Any, out: Any, scratch: Any, state: Any) -> Any:
    """Answer the request at `at` from the document in `frame`; its specs are simple."""
    text = frame + MUTATION_BYTES + U(load16(frame + KEY_LENGTH_AT))
    end = frame + HEADER + U(load32(frame + BODY_LENGTH_AT)) - U(load16(frame + NMETA_AT))
    if is_expired(frame, state[NOW]) or (U(load8(frame + DATATYPE_AT)) & _NOT_PLAIN) != _ZERO:
        return STOP_PLAIN
    specs, specs_end = at + HEADER + key_length, at + HEADER + body
    walk = (end - text) * (_ONE + _simple_specs(specs, specs_end))
    # The text is checked here, whatever its datatype says: what steps through it (paths.py) trusts it to be JSON.
    if walk > _REQUEST_MAX or state[WALKED] > _WALKED_MAX or not is_json(text, end - text, scratch):
        return STOP_PLAIN
    state[WALKED] += walk
    to, room = U(out.ctypes.data) + state[ANSWERED], U(len(out)) - state[ANSWERED]
    stop, used, has_failed = _results(specs, specs_end, text, end, to + HEADER, room - HEADER)
    if stop != _DONE:
        return STOP_PLAIN if state[ANSWERED] == _ZERO else stop
    head(to, _REQUEST, _SOME_FAILED if has_failed else _ZERO, used, at, load64(frame + CAS_AT))
    state[ANSWERED] += HEADER + used
    count(state, U(LOOKUP), _FAILED if has_failed else _ZERO)
    state[HITS] += _ONE
    state[GETS] += _ONE
    return _DONE


@inline_kernel
def _run_request(at: Any, body: Any, out: Any, table: Any, segments: Any, plain: Any, scratch: Any, state: Any) -> Any:
    """Execute the complete request at `at`; return _DONE or the reason of a stop."""
    code, extras, key_bytes = U(load8(at + OPCODE_AT)), U(load8(at + EXTRAS_LENGTH_AT)), U(load16(at + KEY_LENGTH_AT))
    if code != _REQUEST or extras != _ZERO or load8(at + DATATYPE_AT) != 0 or load64(at + CAS_AT) != 0:
        return STOP_PLAIN
    prefix, named, own_length = split(at + HEADER, key_bytes, plain, state)
    key, length, vb = at + HEADER + prefix, key_bytes - prefix, U(load16(at + VBUCKET_AT))
    if vb >= U(len(table)) or table[vb, STATE] != _ACTIVE or own_length == _ZERO or own_length > _KEY_MAX:
        return STOP_PLAIN
    if _simple_specs(at + HEADER + key_bytes, at + HEADER + body) == _ZERO:
        return STOP_PLAIN
    _, row = find(table, vb, segments, key, length, key_hash(table, vb, key, length), named)
    if row >= 0:
        frame = frame_of(table, vb, segments, U(row))
        if opcode(frame) == MUTATION:
            stop = _in_document(at, body, frame, key_bytes, out, scratch, state)
            if stop == _DONE:
                note_row(table, vb, row, state)
            return stop
        note_row(table, vb, row, state)
    state[GETS] += _ONE
    count(state, U(LOOKUP), _MISSED)
    bare(out, state, _REQUEST, _NO_DOCUMENT, at)
    return _DONE


def _plainly(data: Any, out: Any, table: Any, segments: Any, plain: Any, scratch: Any, state: Any) -> int:
    """Stand in for `look_up` until it is compiled: leave every request to Python."""
    state[ANSWERED:LIMIT] = _ZERO
    return STOP_PLAIN


@kernel_or(_plainly)
def look_up(data: Any, out: Any, table: Any, segments: Any, plain: Any, scratch: Any, state: Any) -> Any:
    """Answer the lookups in data[state[OFFSET]:] until one stops the kernel, or all are answered; return the STOP_*
    code.

    The arguments are those of `execute`. The kernel writes answers only.
    """
    start, end = U(data.ctypes.data), U(data.ctypes.data) + U(len(data))
    at = start + state[OFFSET]
    stop = STOP_MORE
    for each in range(ANSWERED, LIMIT):
        state[each] = _ZERO
    if table.shape[1] != FIELDS or len(state) != STATE_FIELDS:
        return STOP_PLAIN
    while at <= end and end - at >= HEADER:
        body = U(load32(at + BODY_LENGTH_AT))
        extras, key_length = U(load8(at + EXTRAS_LENGTH_AT)), U(load16(at + KEY_LENGTH_AT))
        if load8(at) != REQUEST or extras + key_length > body or body > _BODY_MAX:
            stop = STOP_PLAIN
            break
        if end - at - HEADER < body:
            break
        if U(len(out)) - state[ANSWERED] < HEADER:
            stop = STOP_OUT_FULL
            break
        stop = _run_request(at, body, out, table, segments, plain, scratch, state)
        if stop != _DONE:
            break
        at = at + HEADER + body
    state[OFFSET] = at - start
    return stop


def warm_up() -> None:
    """Build the kernels of this module."""
    table, pair = np.zeros((1, FIELDS), np.uint64), np.zeros((3, 2), np.uint64)
    state, nothing = np.zeros(STATE_FIELDS, np.uint64), np.zeros(1, np.uint8)
    look_up(nothing, nothing, table, pair, np.zeros(1, np.uint64), np.zeros(SCRATCH_BYTES, np.uint8), state)
