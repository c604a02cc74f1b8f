"""Checks of markers and changes at a consumer node, and the form in which it stores changes.

Source: dcp 2.7 to 2.10 (layouts, datatypes), 9 (apply verbatim), 11 (xattrs of tombstones).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headwater.errors import BadMessage, RemoteProtocolError
from headwater.wire import dcp, leb128, snappy, upr, xattr
from headwater.wire.datatype import Datatype, legal
from headwater.wire.header import KEY_BYTES_MAX, Frame
from headwater.wire.manifest import COLLECTION_ID_FIRST
from headwater.wire.numbers import HELD_MAX
from headwater.wire.opcodes import Opcode

CHANGES = frozenset({Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION})
CAS_ALL_ONES = 0xFFFF_FFFF_FFFF_FFFF

# "By extras length" (dcp 14): mutations of 30 bytes and expirations of 18 are UPR's.
_EXTRAS_BYTES = {Opcode.DCP_MUTATION: (31, 30), Opcode.DCP_DELETION: (18, 21), Opcode.DCP_EXPIRATION: (20, 18)}
_UPR_MUTATION = upr.Mutation.layout.extras_struct  # what the extras of both dialects begin with
_DELETION = dcp.Deletion.layout.extras_struct
_EXPIRATION = dcp.Expiration.layout.extras_struct  # and a deletion with a delete time begins so
_DELETION_DATATYPES = frozenset(
    {
        Datatype.RAW,
        Datatype.SNAPPY,
        Datatype.XATTR,
        Datatype.XATTR | Datatype.SNAPPY,
        Datatype.XATTR | Datatype.JSON,
        Datatype.XATTR | Datatype.JSON | Datatype.SNAPPY,
    }
)


@dataclass(frozen=True, slots=True)
class Change:
    """A change in its stored form.

    Attributes:
        cas: 0 if the store must choose a new CAS (dcp 9).
        deleted, expired: True for a tombstone; `expired` if the document's TTL was over.
        delete_time: Unix seconds; None if the message has no delete time (V1 deletions).
        collection: id of the collection, which `key` does not contain.
    """

    key: bytes
    value: bytes
    seqno: int
    rev_seqno: int
    cas: int
    datatype: int
    flags: int = 0
    expiry: int = 0
    deleted: bool = False
    expired: bool = False
    delete_time: int | None = None
    collection: int = 0


class Marker(NamedTuple):
    """A snapshot marker's numbers; `purge_seqno` and `high_prepared_seqno` are 0 in the layouts that have none."""

    start_seqno: int
    end_seqno: int
    flags: int
    purge_seqno: int = 0
    high_prepared_seqno: int = 0


def read_marker(frame: Frame) -> Marker:
    """Read a snapshot marker in any of its layouts.

    Raises:
        BadMessage: an unknown version, or a body of the wrong length.
    """
    if len(frame.extras) != 1:
        marker = dcp.SnapshotMarker.decode(frame)
        return Marker(marker.start_seqno, marker.end_seqno, marker.flags)
    if frame.extras == b"\x02":
        latest = dcp.SnapshotMarkerV22.decode(frame)
        numbers = latest.purge_seqno, latest.high_prepared_seqno
        return Marker(latest.start_seqno, latest.end_seqno, latest.flags, *numbers)
    second = dcp.SnapshotMarkerV2.decode(frame)
    return Marker(second.start_seqno, second.end_seqno, second.flags)


def check_change(frame: Frame, *, collections: bool = False) -> None:
    """Check a change against the layout of its opcode.

    Raises:
        BadMessage: EINVAL for invalid extras, key, metadata or datatype.
    """
    problem = ""
    if len(frame.extras) not in _EXTRAS_BYTES[Opcode(frame.opcode)]:
        problem = f"{len(frame.extras)} bytes of extras"
    elif not 0 < len(frame.key) <= KEY_BYTES_MAX + collections:
        problem = f"a key of {len(frame.key)} bytes"
    elif _metadata_bytes(frame):
        problem = f"{_metadata_bytes(frame)} bytes of extended metadata, which is 0 today"
    elif not legal(frame.datatype):
        problem = f"datatype 0x{frame.datatype:02x}"
    elif frame.opcode != Opcode.DCP_MUTATION and frame.datatype not in _DELETION_DATATYPES:
        problem = f"a deletion of datatype 0x{frame.datatype:02x}"
    # All ones means "make a new one" (dcp 9); other values this high would leave no next CAS.
    elif HELD_MAX < frame.cas < CAS_ALL_ONES:
        problem = f"a CAS of {frame.cas}, the highest taken is {HELD_MAX}"
    elif (revision := _DELETION.unpack_from(frame.extras)[1]) > HELD_MAX:
        problem = f"revision {revision}, the highest taken is {HELD_MAX}"
    if not problem and collections:
        problem = _key_problem(frame.key)
    # A deletion's body is stripped, not refused (dcp 2.9), so only its attributes must be readable.
    if not problem and (frame.opcode == Opcode.DCP_MUTATION or frame.datatype & Datatype.XATTR):
        problem = _value_problem(frame)
    if problem:
        raise BadMessage("change", frame.opcode, problem)


def check_durable(frame: Frame, *, collections: bool = False) -> None:
    """Check key, datatype and value of a prepare, a commit or an abort; BadMessage if one is invalid."""
    problem = "" if legal(frame.datatype) else f"datatype 0x{frame.datatype:02x}"
    if not 0 < len(frame.key) <= KEY_BYTES_MAX + collections:
        problem = f"a key of {len(frame.key)} bytes"
    elif collections:
        problem = problem or _key_problem(frame.key)
    problem = problem or _value_problem(frame)
    if problem:
        raise BadMessage("durable write", frame.opcode, problem)


def _value_problem(frame: Frame) -> str:
    """Return the reason why a value can't be read by its datatype; empty if it can.

    A consumer node refuses such a value. Once stored, the document could not be read, nor streamed without its
    compression or its xattrs, until a client wrote it again.
    """
    try:
        value = snappy.inflate(frame.value) if frame.datatype & Datatype.SNAPPY else frame.value
        if frame.datatype & Datatype.XATTR:
            xattr.split(value, xattr.PAIRS_MAX)
    except RemoteProtocolError as error:
        return str(error)
    return ""


def _key_problem(key: bytes) -> str:
    """Return the problem of the collection id in front of a key; empty if the id is valid."""
    try:
        collection, _ = leb128.split_key(key)
    except RemoteProtocolError as error:
        return str(error)
    return "" if not collection or collection >= COLLECTION_ID_FIRST else f"collection {collection} is reserved"


def _metadata_bytes(frame: Frame) -> int:
    """Return the length of the extended metadata (nmeta), 0 if the layout has none."""
    if frame.opcode == Opcode.DCP_MUTATION:
        return int(_UPR_MUTATION.unpack_from(frame.extras)[-1])
    return int(_DELETION.unpack(frame.extras)[-1]) if len(frame.extras) == _DELETION.size else 0


def read_change(frame: Frame, *, deleted_user_xattrs: bool, collections: bool = False) -> Change:
    """Return the change in a frame that `check_change` accepted; with `collections` the frame's key begins with a
    collection id.

    Raises:
        BadMessage: the value can't be decompressed, or its xattrs can't be read.
    """
    # "A CAS of 0 or all-ones is regenerated" (dcp 9).
    cas = 0 if frame.cas == CAS_ALL_ONES else frame.cas
    collection, key = leb128.split_key(frame.key) if collections else (0, frame.key)
    if frame.opcode == Opcode.DCP_MUTATION:
        seqno, rev_seqno, flags, expiry, _, _ = _UPR_MUTATION.unpack_from(frame.extras)
        return Change(key, frame.value, seqno, rev_seqno, cas, frame.datatype, flags, expiry, collection=collection)
    # "A third-party consumer should look at the extras length" (dcp 2.9): the layout is in no message.
    dated = len(frame.extras) != _DELETION.size
    seqno, rev_seqno, last = (_EXPIRATION if dated else _DELETION).unpack_from(frame.extras)
    value = _surviving(frame, deleted_user_xattrs)
    return Change(
        key,
        value,
        seqno,
        rev_seqno,
        cas,
        int(Datatype.XATTR) if value else 0,
        deleted=True,
        expired=frame.opcode == Opcode.DCP_EXPIRATION,
        delete_time=last if dated else None,
        collection=collection,
    )


def _surviving(frame: Frame, deleted_user_xattrs: bool) -> bytes:
    """Return the xattrs that a tombstone keeps; empty if it keeps none.

    The tombstone loses its body, and its user xattrs unless deleted-user-xattrs was negotiated (dcp 2.9).
    """
    if not frame.datatype & Datatype.XATTR:
        return b""
    try:
        value = snappy.inflate(frame.value) if frame.datatype & Datatype.SNAPPY else frame.value
        attributes, _ = xattr.split(value, xattr.PAIRS_MAX)
        section = xattr.join(attributes) if attributes else b""
        return section if deleted_user_xattrs or not section else xattr.only_system(section)
    except RemoteProtocolError as error:
        raise BadMessage("deletion", frame.opcode, str(error)) from None
