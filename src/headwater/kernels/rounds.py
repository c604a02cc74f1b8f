"""Answers one small request of each of many connections in one call: receives, executes and sends without Python.

A round visits the readable descriptors, `events`. A connection is READY if no bytes and no answers of earlier requests
are left: its bytes are received into `arena` and executed (execute.py). An answer that depends only on durable rows is
sent at once. Any other answer, of at most KEPT_BYTES, is kept in the array `ring` with the number of the batch that
must be on disk first; `release` sends it then. While the ring has an answer of a connection, Python receives what the
connection sends.

In any other case the round stops; Python handles that one connection and continues the round after it. ROUND_ASK:
nothing was received. ROUND_TAKE: GOT bytes are in the arena, executed up to the offset in `state`. ROUND_REST: only
SENT bytes of an answer were sent.

`members` (uint64[descriptors, MEMBER_FIELDS]) has a row for each descriptor, `round_state` (uint64[TURN_FIELDS]) the
inputs and outputs of a round. `entries` (uint64[KEPT, ENTRY_FIELDS]) describes the kept answers, `ring` has their
bytes; HEAD and TAIL count answers since the start, so the position of an answer is its number modulo KEPT. The batch
numbers in the ring never decrease: an answer waits for the batch that is being filled, or for the one being written if
nothing was staged since.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headwater.kernels.builds import inline_kernel, kernel, kernel_or
from headwater.kernels.execute import (
    ANSWERED,
    CALLED,
    DELETES,
    FEATURES,
    FLAG_WROTE,
    FLAGS,
    GETS,
    HITS,
    OFFSET,
    OPCODES,
    SEEN,
    SETS,
    STATE_FIELDS,
    STOP_MORE,
    run,
)
from headwater.kernels.index import FIELDS
from headwater.kernels.intrinsics import copy, receive, send
from headwater.kernels.json import SCRATCH_BYTES

__all__ = [
    "ENTRY_FIELDS",
    "KEPT",
    "KEPT_BYTES",
    "MEMBER_FIELDS",
    "TURN_FIELDS",
    "go_round",
    "release",
]

# ------------------------------------------------------------------ fields of a row of `members`
READY = 0  # FEATURE_* bits of the connection and IS_READY; 0: Python has what it sends
WAITING = 1  # 1 + the number of its answer in the ring; 0 for none
STIRRED = 2  # TURN_NOW of its last request, or of the last answer from the ring
MEMBER_FIELDS = 3
IS_READY = 1 << 32

# ------------------------------------------------------------------ fields of an entry of the ring
DESCRIPTOR = 0
GATE = 1
LENGTH = 2
ENTRY_FIELDS = 3
KEPT = 1024
KEPT_BYTES = 256

# ------------------------------------------------------------------ fields of `round_state`
AT = 0  # in, out: the next event
COUNT = 1  # in: how many events there are
TURN_NOW = 2  # in: the time, in units of the caller
MASK = 3  # in: the features that may be had now
OPEN_GATE = 4  # in: the batch that gathers
READ_GATE = 5  # in, out: the batch that a read of what is not durable waits for; 0 for none
DURABLE = 6  # in: the newest batch on disk
HEAD = 7  # in, out: the number of the oldest answer kept
TAIL = 8  # in, out: the number of the next one
WHO = 9  # out: the descriptor that stopped the round
GOT = 10  # out: the bytes received of it, with ROUND_TAKE and ROUND_REST
SENT = 11  # out: the bytes of its answer that have left, with ROUND_REST
STOP = 12  # out: why its requests stopped (STOP_* of execute.py), with ROUND_TAKE
RECEIVED = 13  # out: bytes of all connections that Python has not to deal with; RECEIVED to the end are set to 0 first
SENT_BYTES = 14
WROTE = 15  # 1 if a change was staged
ROUND_GETS = 16
ROUND_HITS = 17
ROUND_SETS = 18
ROUND_DELETES = 19
KINDS = 3  # answered now, waiting for the batch in flight, waiting for the one that gathers
ROUND_SEEN = 20  # bit n of each kind is set when there was a request of opcode n
ROUND_CALLED = ROUND_SEEN + KINDS  # how many there were of each opcode, OPCODES fields for each kind
TURN_FIELDS = ROUND_CALLED + KINDS * OPCODES

ROUND_DONE = 0  # all events are dealt with
ROUND_ASK = 1  # of connection WHO nothing was received
ROUND_TAKE = 2  # its bytes and what `state` says of them are for Python
ROUND_REST = 3  # its answer is `out`, of which SENT bytes have left
ROUND_PAUSE = 4  # much was received: others may have to have their turn
PAUSE_BYTES = 64 << 10

U = np.uintp
_ZERO, _ONE = U(0), U(1)
_KEPT, _KEPT_BYTES, _PAUSE_BYTES = U(KEPT), U(KEPT_BYTES), U(PAUSE_BYTES)
_OPCODES, _CALLED, _ROUND_CALLED, _ROUND_SEEN = U(OPCODES), U(CALLED), U(ROUND_CALLED), U(ROUND_SEEN)
_NOW, _IN_FLIGHT, _GATHERING = U(0), U(1), U(2)


@inline_kernel
def _sum_up(state: Any, round_state: Any, kind: Any) -> None:
    """Add the request counts of one connection to those of the round."""
    round_state[ROUND_GETS] += state[GETS]
    round_state[ROUND_HITS] += state[HITS]
    round_state[ROUND_SETS] += state[SETS]
    round_state[ROUND_DELETES] += state[DELETES]
    kinds = state[SEEN]
    round_state[_ROUND_SEEN + kind] |= kinds
    code = _ZERO
    while kinds != _ZERO:
        if (kinds & _ONE) != _ZERO:
            round_state[_ROUND_CALLED + kind * _OPCODES + code] += state[_CALLED + code]
        kinds = kinds >> _ONE
        code = code + _ONE


@inline_kernel
def _keep(who: Any, gate: Any, members: Any, out: Any, state: Any, round_state: Any, entries: Any, ring: Any) -> None:
    """Keep an answer in the ring until batch `gate` is on disk."""
    place = round_state[TAIL] % _KEPT
    entries[place, DESCRIPTOR] = who
    entries[place, GATE] = gate
    entries[place, LENGTH] = state[ANSWERED]
    copy(U(ring.ctypes.data) + place * _KEPT_BYTES, U(out.ctypes.data), state[ANSWERED])
    round_state[TAIL] += _ONE
    members[who, WAITING] = round_state[TAIL]


@inline_kernel
def _answer(who: Any, members: Any, out: Any, state: Any, round_state: Any, entries: Any, ring: Any) -> Any:
    """Send or keep the answers of a connection whose bytes were all executed; return the ROUND_* code."""
    kind, gate = _NOW, _ZERO
    if (state[FLAGS] & FLAG_WROTE) != _ZERO:
        kind, gate = _GATHERING, round_state[OPEN_GATE]
    elif state[FLAGS] != _ZERO:
        gate = round_state[READ_GATE]
        kind = _GATHERING if gate == round_state[OPEN_GATE] else _IN_FLIGHT
        if gate == _ZERO:
            kind = _NOW
    if gate != _ZERO and (
        state[ANSWERED] == _ZERO or state[ANSWERED] > _KEPT_BYTES or round_state[TAIL] - round_state[HEAD] >= _KEPT
    ):
        # Before anything is counted: Python finds all of it as if it had executed the requests itself.
        return ROUND_TAKE
    if (state[FLAGS] & FLAG_WROTE) != _ZERO:
        # A read from here on may show this change, so it waits for the same batch.
        round_state[WROTE], round_state[READ_GATE] = _ONE, round_state[OPEN_GATE]
    _sum_up(state, round_state, kind)
    if gate != _ZERO:
        _keep(who, gate, members, out, state, round_state, entries, ring)
    elif state[ANSWERED] != _ZERO:
        sent_bytes = send(who, U(out.ctypes.data), state[ANSWERED])
        # Of an error nothing has left: Python sends the answer again, and meets the error itself.
        round_state[SENT] = U(sent_bytes) if sent_bytes > 0 else _ZERO
        round_state[SENT_BYTES] += round_state[SENT]
        if round_state[SENT] != state[ANSWERED]:
            return ROUND_REST
    return ROUND_DONE


@inline_kernel
def _serve(
    who: Any,
    members: Any,
    arena: Any,
    out: Any,
    table: Any,
    segments: Any,
    uuids: Any,
    plain: Any,
    scratch: Any,
    state: Any,
    round_state: Any,
    entries: Any,
    ring: Any,
) -> Any:
    """Receive, execute and answer what one connection has sent; return the ROUND_* code."""
    # While an answer waits nothing more is read: a later one would overtake it.
    if who >= U(len(members)) or members[who, READY] == _ZERO or members[who, WAITING] != _ZERO:
        return ROUND_ASK
    got = receive(who, U(arena.ctypes.data), U(len(arena)))
    if got <= 0:
        return ROUND_ASK  # who receives again meets the end: Linux tells an error once, and then the end
    round_state[GOT] = U(got)
    state[OFFSET] = _ZERO
    state[FEATURES] = members[who, READY] & round_state[MASK]
    stop = run(U(arena.ctypes.data), round_state[GOT], out, table, segments, uuids, plain, scratch, state)
    round_state[STOP] = U(stop)
    # The beginning of another request stays in the arena, which the next connection overwrites: Python takes it over.
    if stop != STOP_MORE or state[OFFSET] != round_state[GOT]:
        return ROUND_TAKE
    end = _answer(who, members, out, state, round_state, entries, ring)
    if end != ROUND_TAKE:
        round_state[RECEIVED] += round_state[GOT]
        members[who, STIRRED] = round_state[TURN_NOW]
    return end


def _leave_to_python(
    events: Any,
    members: Any,
    arena: Any,
    out: Any,
    table: Any,
    segments: Any,
    uuids: Any,
    plain: Any,
    scratch: Any,
    state: Any,
    round_state: Any,
    entries: Any,
    ring: Any,
) -> int:
    """Stand in for `go_round` until it is compiled: leave each connection to Python."""
    round_state[RECEIVED:] = _ZERO
    if round_state[AT] >= round_state[COUNT]:
        return ROUND_DONE
    round_state[WHO] = events[round_state[AT]]
    round_state[AT] += _ONE
    return ROUND_ASK


@kernel_or(_leave_to_python)
def go_round(
    events: Any,
    members: Any,
    arena: Any,
    out: Any,
    table: Any,
    segments: Any,
    uuids: Any,
    plain: Any,
    scratch: Any,
    state: Any,
    round_state: Any,
    entries: Any,
    ring: Any,
) -> Any:
    """Serve the connections events[AT:COUNT] (fields of `round_state`) until the round stops or all are served; return
    the ROUND_* code.

    Args:
        events: uint64 descriptors. members, round_state, entries, ring: see the module.
        arena: uint8, receive buffer. out, table, segments, uuids, plain, scratch, state: as for `execute`.
    """
    for each in range(RECEIVED, TURN_FIELDS):
        round_state[each] = _ZERO
    if members.shape[1] != MEMBER_FIELDS or entries.shape[1] != ENTRY_FIELDS or len(entries) != KEPT:
        return ROUND_DONE
    if len(round_state) != TURN_FIELDS or len(state) != STATE_FIELDS or len(ring) != KEPT * KEPT_BYTES:
        return ROUND_DONE
    stop = ROUND_DONE
    while round_state[AT] < round_state[COUNT] and round_state[AT] < U(len(events)):
        if round_state[RECEIVED] >= _PAUSE_BYTES:
            return ROUND_PAUSE
        round_state[WHO] = events[round_state[AT]]
        round_state[AT] += _ONE
        stop = _serve(
            round_state[WHO],
            members,
            arena,
            out,
            table,
            segments,
            uuids,
            plain,
            scratch,
            state,
            round_state,
            entries,
            ring,
        )
        if stop != ROUND_DONE:
            break
    return stop


@kernel
def release(members: Any, round_state: Any, entries: Any, ring: Any) -> Any:
    """Send the kept answers whose batch is on disk, oldest first; return ROUND_DONE.

    ROUND_REST: of the answer to connection WHO, the last one before HEAD, only the first SENT bytes were sent.
    """
    round_state[SENT_BYTES] = _ZERO
    if members.shape[1] != MEMBER_FIELDS or entries.shape[1] != ENTRY_FIELDS or len(entries) != KEPT:
        return ROUND_DONE
    if len(round_state) != TURN_FIELDS or len(ring) != KEPT * KEPT_BYTES:
        return ROUND_DONE
    while round_state[HEAD] != round_state[TAIL]:
        place = round_state[HEAD] % _KEPT
        if entries[place, GATE] > round_state[DURABLE]:
            break
        round_state[HEAD] += _ONE
        who = entries[place, DESCRIPTOR]
        if who >= U(len(members)) or members[who, WAITING] != round_state[HEAD]:
            continue  # Python has taken it back, or the connection is gone: this number is never another's
        members[who, WAITING] = _ZERO
        members[who, STIRRED] = round_state[TURN_NOW]
        sent_bytes = send(who, U(ring.ctypes.data) + place * _KEPT_BYTES, entries[place, LENGTH])
        round_state[SENT] = U(sent_bytes) if sent_bytes > 0 else _ZERO
        round_state[SENT_BYTES] += round_state[SENT]
        if round_state[SENT] != entries[place, LENGTH]:
            round_state[WHO] = who
            return ROUND_REST
    return ROUND_DONE


def warm_up() -> None:
    """Build the kernels of this module."""
    bytes_, numbers = np.zeros(1, np.uint8), np.zeros(1, np.uint64)
    table, pair = np.zeros((1, FIELDS), np.uint64), np.zeros((3, 2), np.uint64)
    members, entries = np.zeros((1, MEMBER_FIELDS), np.uint64), np.zeros((KEPT, ENTRY_FIELDS), np.uint64)
    ring, round_state = np.zeros(KEPT * KEPT_BYTES, np.uint8), np.zeros(TURN_FIELDS, np.uint64)
    scratch, state = np.zeros(SCRATCH_BYTES, np.uint8), np.zeros(STATE_FIELDS, np.uint64)
    release(members, round_state, entries, ring)  # first: nobody needs it before rounds are gone
    go_round(
        numbers, members, bytes_, bytes_, table, pair, numbers, numbers, scratch, state, round_state, entries, ring
    )
