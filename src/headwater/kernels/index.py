"""The index of the log: the place of the newest version of every key, and of every older one that can still be read.

One row per stored change, per vbucket, in seqno order. A vbucket's rows are five columns and a hash table:

    SEQ   u64   by_seqno                       PREV  u32   the row this one superseded, or NIL
    LOC   u64   slot << 40 | offset            NEXT  u32   the row that superseded this one, or NIL
    HASH  u32   hash of the key                TABLE u32[] open addressing, key hash -> newest row of the key

`table: uint64[vbuckets, FIELDS]` holds their addresses and the counters (the constants below); `segments: uint64[slots,
2]` holds (address, length) of everything a LOC can point into. Slots 0 and 1 are the staging arenas, segments start at
FIRST_SEGMENT. Row r is visible in the view of the first n rows if NEXT[r] is NIL or >= n: a reader needs no copy and no
lock, a writer never waits (MVCC).

A kernel that writes changes does the following, in this order (every kernel below is inlined into its caller):

    hash = key_hash(table, vb, key, length)                  uintp below 2^32
    if not has_room(table, vb): return "grow vb" to Python   (Store.grow(vb)); growing moves every slot
    slot, old = find(table, vb, segments, key, length, hash, named)     (uintp, int64); old: -1 when never stored
    ... write the frame at segments[arena, 0] + offset, by_seqno in it > table[vb, HIGH] ...
    append_row(table, vb, segments, frame, location(arena, offset), hash, slot, old)

`vb` is any integer type; key, length, frame, hash and slot are np.uintp. `old` may be a tombstone
(`opcode(frame_of(...))`). A frame is a DCP frame as streams send it, and lies wholly inside its slot. Nothing here
allocates or raises.

Every stream replaces the opaque by its own. In a stored frame the lowest nine bits of the opaque count hops (TAP), and
the two highest are marks. NAMED: the key belongs to a named collection and begins with its id (leb128); keys of the
default collection have no id. SYSTEM (with NAMED): the frame is a system event, no document. Two keys are the same only
if their marks are the same. In a tombstone whose delete time is much older than its arrival, the bits between are the
hour of Unix time by which it had arrived; otherwise 0.

The hash is SipHash-1-3 with a random key of the store, so that a client can't choose keys that collide. The index keeps
32 bits of it: tables grow and shrink from the columns alone, without reading a frame.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from headwater.kernels.builds import inline_kernel, kernel, prepare
from headwater.kernels.intrinsics import (
    load8,
    load16,
    load32,
    load32_native,
    load64,
    load64_native,
    store32_native,
    store64_native,
)
from headwater.kernels.offsets import (
    BODY_LENGTH_AT,
    CAS_AT,
    DELETE_TIME_AT,
    EXPIRY_AT,
    EXTRAS_LENGTH_AT,
    HEADER,
    KEY_LENGTH_AT,
    MUTATION,
    OPAQUE_AT,
    OPCODE_AT,
    REV_SEQNO_AT,
    SEQNO_AT,
)

Table: TypeAlias = "np.ndarray[Any, np.dtype[np.uint64]]"
Address: TypeAlias = "np.unsignedinteger[Any]"

# ------------------------------------------------------------------ fields of `table`
ROWS = 0  # rows in use, staged ones included
DURABLE_ROWS = 1  # rows whose batch is on disk: what readers may see
FROZEN_ROWS = 2  # rows at the last freeze: what is durable once the batch in flight is
CAPACITY = 3  # rows the columns have room for
SEQ = 4  # addresses of the columns ...
LOC = 5
HASH = 6
PREV = 7
NEXT = 8
TABLE = 9  # ... and of the hash table
MASK = 10  # slots of the hash table - 1
KEYS = 11  # slots in use: keys, tombstones included
KEYS_MAX = 12  # keys beyond which the table must grow, always fewer than slots (so that a probe ends)
HIGH = 13  # high seqno, staged changes included
DURABLE_HIGH = 14
FROZEN_HIGH = 15
CAS = 16  # the largest CAS ever given or taken here
STATE = 17  # 0: not here; else wire.vbucket.State
EXPIRY = 18  # no live document expires before this Unix second (a lower bound); 0: none expires at all
ITEMS = 19  # live documents
LIVE_BYTES = 20  # bytes of the frames that the newest view shows, tombstones included
SEED0 = 21  # the key of the hash
SEED1 = 22
PURGE = 23  # purge seqno: tombstones up to here may be missing
FLOOR = 24  # states below this seqno cannot be rebuilt (old versions were compacted away)
DELETED_REV = 25  # the highest revision of all tombstones there ever were: new keys start above it
MIXED = 26  # 1 once a change with a mark was here: then not every row is one of the default collection
FIELDS = 27

# ------------------------------------------------------------------ places
NIL = np.uintp(0xFFFFFFFF)
UNLINKED = np.uintp(0)  # the NEXT of a row that is the newest of no key yet: no row comes before row 0
ROWS_MAX = 0xFFFFFFFE
OFFSET_BITS = np.uintp(40)
OFFSET_MASK = np.uintp((1 << 40) - 1)
FIRST_SEGMENT = 2

U = np.uintp
_ZERO, _ONE, _TWO, _FOUR, _EIGHT = U(0), U(1), U(2), U(4), U(8)

# ------------------------------------------------------------------ marks, in the stored opaque
NAMED_MARK, SYSTEM_MARK = 0x8000_0000, 0x4000_0000
_MARKS = U(NAMED_MARK | SYSTEM_MARK)
_NAMED, _SYSTEM = U(0x80), U(0x40)  # in its first byte
HOPS_MASK = 0x1FF
SINCE_SHIFT, SINCE_MASK = 9, 0x1F_FFFF
HOUR_SECONDS = 3600
_LOW32 = U(0xFFFFFFFF)


@inline_kernel
def location(slot: Any, offset: Any) -> Any:
    """Return the LOC of a frame `offset` bytes into `slot`."""
    return (U(slot) << OFFSET_BITS) | U(offset)


@inline_kernel
def frame_at(segments: Table, place: Any) -> Any:
    """Return the address of a LOC."""
    return segments[place >> OFFSET_BITS, 0] + (place & OFFSET_MASK)


@inline_kernel
def frame_of(table: Table, vb: Any, segments: Table, row: Any) -> Any:
    """Return the address of the frame of a row (row as uintp)."""
    return frame_at(segments, load64_native(table[vb, LOC] + row * _EIGHT))


@inline_kernel
def opcode(frame: Any) -> Any:
    """Return MUTATION, DELETION or EXPIRATION (uintp)."""
    return U(load8(frame + OPCODE_AT))


@inline_kernel
def frame_bytes(frame: Any) -> Any:
    """Return the length of a whole frame, header included."""
    return HEADER + U(load32(frame + BODY_LENGTH_AT))


@inline_kernel
def key_address(frame: Any) -> Any:
    """Return the address of a frame's key; its length is load16(frame + 2)."""
    return frame + HEADER + U(load8(frame + EXTRAS_LENGTH_AT))


@inline_kernel
def visible(nexts: Any, row: Any, rows: Any) -> Any:
    """Return True if a row is the newest of its key among the first `rows` (`nexts`: the array of a view)."""
    after = U(nexts[row])
    return after == NIL or after >= U(rows)


@inline_kernel
def marks(frame: Any) -> Any:
    """Return the marks of a stored frame, in their bits of the opaque."""
    return U(load32(frame + OPAQUE_AT)) & _MARKS


@inline_kernel
def is_named(frame: Any) -> Any:
    """Return 1 if the key of a stored frame begins with the id of a collection, else 0 (uintp)."""
    return U(load8(frame + OPAQUE_AT)) >> U(7)


@inline_kernel
def is_system(frame: Any) -> Any:
    """Return True if a stored frame is a system event."""
    return (U(load8(frame + OPAQUE_AT)) & _SYSTEM) != _ZERO


@inline_kernel
def since_of(delete_time: Any, now: Any) -> Any:
    """Return the age bits of a new tombstone: the current hour of Unix time, rounded up; 0 if its delete time is
    recent.
    """
    if U(delete_time) + U(HOUR_SECONDS) > U(now):
        return _ZERO
    return ((U(now) + U(HOUR_SECONDS - 1)) // U(HOUR_SECONDS) & U(SINCE_MASK)) << U(SINCE_SHIFT)


@inline_kernel
def made_at(frame: Any) -> Any:
    """Return the Unix second from which a tombstone ages: its delete time, or the time of its arrival if that
    is later.
    """
    since_hours = (U(load32(frame + OPAQUE_AT)) >> U(SINCE_SHIFT)) & U(SINCE_MASK)
    return max(U(load32(frame + DELETE_TIME_AT)), since_hours * U(HOUR_SECONDS))


@inline_kernel
def _rotate(value: Any, bits: Any) -> Any:
    return (value << U(bits)) | (value >> U(64 - bits))


@inline_kernel
def _sip_round(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    v0 = v0 + v1
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 = v2 + v3
    v3 = _rotate(v3, 16) ^ v2
    v0 = v0 + v3
    v3 = _rotate(v3, 21) ^ v0
    v2 = v2 + v1
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


@inline_kernel
def siphash13(seed0: Any, seed1: Any, address: Any, length: Any) -> Any:
    """Return the 64 bits of SipHash-1-3 (Aumasson and Bernstein; one round a word, three at the end) of
    `length` bytes.
    """
    v0 = U(0x736F6D6570736575) ^ seed0
    v1 = U(0x646F72616E646F6D) ^ seed1
    v2 = U(0x6C7967656E657261) ^ seed0
    v3 = U(0x7465646279746573) ^ seed1
    at = address
    end = address + length
    while at + _EIGHT <= end:
        word = U(load64_native(at))
        v3 = v3 ^ word
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
        v0 = v0 ^ word
        at = at + _EIGHT
    word = length << U(56)
    shift = _ZERO
    while at < end:
        word = word | (U(load8(at)) << shift)
        shift = shift + _EIGHT
        at = at + _ONE
    v3 = v3 ^ word
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0 = v0 ^ word
    v2 = v2 ^ U(0xFF)
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


@inline_kernel
def key_hash(table: Table, vb: Any, address: Any, length: Any) -> Any:
    """Return the index's hash (32 bits as uintp) of the key of `length` bytes at `address`."""
    return siphash13(table[vb, SEED0], table[vb, SEED1], address, length) & _LOW32


@inline_kernel
def same_bytes(first: Any, second: Any, length: Any) -> Any:
    """Return True if two ranges of `length` bytes are equal."""
    at = _ZERO
    while at + _EIGHT <= length:
        if load64_native(first + at) != load64_native(second + at):
            return False
        at = at + _EIGHT
    while at < length:
        if load8(first + at) != load8(second + at):
            return False
        at = at + _ONE
    return True


@inline_kernel
def has_room(table: Table, vb: Any) -> Any:
    """Return True if one more row and one more key fit; otherwise Python must first grow the vbucket."""
    return table[vb, ROWS] < table[vb, CAPACITY] and table[vb, KEYS] < table[vb, KEYS_MAX]


@inline_kernel
def has_key(frame: Any, key: Any, length: Any, named_mark: Any) -> Any:
    """Return True if a frame has the key of `length` bytes at address `key`; `named_mark` as for `find`."""
    alike = U(load16(frame + KEY_LENGTH_AT)) == length and is_named(frame) == named_mark
    return alike and same_bytes(key_address(frame), key, length)


@inline_kernel
def find(table: Table, vb: Any, segments: Table, key: Any, length: Any, hashed: Any, named_mark: Any) -> Any:
    """Return (slot, row) of a key: its newest row, which may be a tombstone; without a row, -1 and the slot for it.

    `named_mark` (uintp): 1 if the key begins with the id of its collection, else 0.
    """
    slots, mask, hashes = table[vb, TABLE], table[vb, MASK], table[vb, HASH]
    slot = hashed & mask
    # The probe ends: a table always has fewer keys than slots (KEYS_MAX).
    while True:
        row = U(load32_native(slots + slot * _FOUR))
        if row == NIL:
            return slot, np.int64(-1)
        # Two keys may share 32 bits of their hash, so the frame decides; it is read only here, for it is a cache miss.
        if U(load32_native(hashes + row * _FOUR)) == hashed:
            if has_key(frame_of(table, vb, segments, row), key, length, named_mark):
                return slot, np.int64(row)
        slot = (slot + _ONE) & mask


@inline_kernel
def count_in(table: Table, vb: Any, frame: Any) -> None:
    """Add a frame that became the newest of its key to the vbucket's sums."""
    table[vb, LIVE_BYTES] += frame_bytes(frame)
    if opcode(frame) == MUTATION and not is_system(frame):
        table[vb, ITEMS] += _ONE
        expiry = U(load32(frame + EXPIRY_AT))
        if expiry != _ZERO and (table[vb, EXPIRY] == _ZERO or expiry < table[vb, EXPIRY]):
            table[vb, EXPIRY] = expiry


@inline_kernel
def count_out(table: Table, vb: Any, frame: Any) -> None:
    """Subtract a frame that is no longer the newest of its key."""
    table[vb, LIVE_BYTES] -= frame_bytes(frame)
    if opcode(frame) == MUTATION and not is_system(frame):
        table[vb, ITEMS] -= _ONE


@inline_kernel
def append_row(
    table: Table, vb: Any, segments: Table, frame: Any, place: Any, hashed: Any, slot: Any, old: Any
) -> None:
    """Index the frame at address `frame` (LOC `place`), which supersedes row `old` (-1: none).

    The caller has checked `has_room`, then called `find` for slot and row; the frame is complete.
    """
    row = table[vb, ROWS]
    add_row(table, vb, frame, place, hashed)
    link_row(table, vb, segments, row, slot, old)


@inline_kernel
def add_row(table: Table, vb: Any, frame: Any, place: Any, hashed: Any) -> None:
    """Add a row for the frame, and count it as the newest of its key. The hash table has no entry until `link_row`."""
    row = table[vb, ROWS]
    store64_native(table[vb, SEQ] + row * _EIGHT, load64(frame + SEQNO_AT))
    store64_native(table[vb, LOC] + row * _EIGHT, place)
    store32_native(table[vb, HASH] + row * _FOUR, np.uint32(hashed))
    store32_native(table[vb, NEXT] + row * _FOUR, np.uint32(UNLINKED))
    count_in(table, vb, frame)
    table[vb, ROWS] = row + _ONE
    table[vb, HIGH] = load64(frame + SEQNO_AT)
    # The highest of all tombstones, as they may be purged: a new document of such a key must win against copies of the
    # old one elsewhere.
    if opcode(frame) != MUTATION and U(load64(frame + REV_SEQNO_AT)) > table[vb, DELETED_REV]:
        table[vb, DELETED_REV] = load64(frame + REV_SEQNO_AT)
    cas = U(load64(frame + CAS_AT))
    if cas > table[vb, CAS]:
        table[vb, CAS] = cas
    if is_named(frame) != _ZERO:
        table[vb, MIXED] = _ONE


@inline_kernel
def link_row(table: Table, vb: Any, segments: Table, row: Any, slot: Any, old: Any) -> None:
    """Make an added row the newest of its key: enter it in the key's slot, and link it with row `old` (-1: none)."""
    store32_native(table[vb, NEXT] + row * _FOUR, np.uint32(NIL))
    if old >= 0:
        before = U(old)
        count_out(table, vb, frame_of(table, vb, segments, before))
        store32_native(table[vb, PREV] + row * _FOUR, np.uint32(before))
        # Views that began before go on showing the older version: to them a row at or beyond their end has superseded
        # nothing.
        store32_native(table[vb, NEXT] + before * _FOUR, np.uint32(row))
    else:
        store32_native(table[vb, PREV] + row * _FOUR, np.uint32(NIL))
        table[vb, KEYS] += _ONE
    store32_native(table[vb, TABLE] + slot * _FOUR, np.uint32(row))


@kernel
def lookup(table: Table, vb: Any, segments: Table, key: Any, named_mark: Any) -> Any:
    """Return the newest row of a key (a uint8 array), or -1; `named_mark` as for `find`."""
    address, length = U(key.ctypes.data), U(len(key))
    _, row = find(table, vb, segments, address, length, key_hash(table, vb, address, length), U(named_mark))
    return row


@kernel
def index_frame(table: Table, vb: Any, segments: Table, slot: Any, offset: Any) -> Any:
    """Index one frame that Python staged; return False if the vbucket must grow first."""
    if not has_room(table, vb):
        return False
    place = location(slot, offset)
    frame = frame_at(segments, place)
    key, length = key_address(frame), U(load16(frame + KEY_LENGTH_AT))
    hashed = key_hash(table, vb, key, length)
    at, old = find(table, vb, segments, key, length, hashed, is_named(frame))
    append_row(table, vb, segments, frame, place, hashed, at, old)
    return True


@kernel
def hash_of(table: Any, vb: Any, key: Any) -> Any:
    """Return `key_hash`, for Python."""
    return key_hash(table, vb, np.uintp(key.ctypes.data), np.uintp(len(key)))


def warm_up() -> None:
    """Build the kernels of this module."""
    table, segments = np.zeros((1, FIELDS), np.uint64), np.zeros((1, 2), np.uint64)
    prepare(hash_of, table, 0, np.frombuffer(b"", np.uint8))
    prepare(lookup, table, 0, segments, np.frombuffer(b"", np.uint8), 0)
    prepare(index_frame, table, 0, segments, 0, 0)
