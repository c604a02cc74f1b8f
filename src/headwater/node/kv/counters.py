"""Counting and touching: increment, decrement, touch, get-and-touch (kv.md 2)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headwater.node.kv import documents, values
from headwater.node.kv.command import Part, Refused, Reply, command
from headwater.node.kv.framing import preserves_ttl
from headwater.wire.header import Frame
from headwater.wire.opcodes import QUIET, Opcode
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.kv.session import KvSession
    from headwater.node.storage.records import Document

_MUST_EXIST = 0xFFFF_FFFF
_WRAP = 1 << 64
_DIGITS_MAX = 20


def _number(body: bytes) -> int:
    """The decimal number a document holds: 1 to 20 digits, nothing else, below 2^64. Else DELTA_BADVAL."""
    if not (1 <= len(body) <= _DIGITS_MAX and body.isdigit() and int(body) < _WRAP):
        raise Refused(Status.DELTA_BADVAL)
    return int(body)


@command(
    Opcode.INCREMENT,
    Opcode.INCREMENTQ,
    Opcode.DECREMENT,
    Opcode.DECREMENTQ,
    extras=(20,),
    key=Part.REQUIRED,
    document=True,
    writes=True,
)
def count(session: KvSession, frame: Frame) -> Reply:
    """INCREMENT wraps at 2^64, DECREMENT stops at 0. A missing counter begins at `initial`, unless expiry is all ones.

    The value is stored in decimal digits; the answer has it as eight bytes. Flags and expiry of an existing one stay.
    """
    delta, initial, expiry = (int.from_bytes(frame.extras[at:to], "big") for at, to in ((0, 8), (8, 16), (16, 20)))
    bucket = session.store_bucket
    version = documents.newest(session, frame)
    if version is None or version.deleted:
        if expiry == _MUST_EXIST:
            raise Refused(Status.KEY_ENOENT)
        until = documents.absolute_expiry(expiry, bucket.now())
        return _counted(session, frame, version, initial, until)
    _, body = values.body_of(version)
    number = _number(body)
    up = QUIET.get(frame.opcode, frame.opcode) == Opcode.INCREMENT
    number = (number + delta) % _WRAP if up else max(0, number - delta)
    return _counted(session, frame, version, number, version.expiry)


def _counted(session: KvSession, frame: Frame, old: Document | None, number: int, expiry: int) -> Reply:
    body = str(number).encode()
    if old is None or old.deleted:
        datatype = values.accepted(body, 0)
        answer = documents.store(session, frame, body, old=old, flags=0, expiry=expiry, datatype=datatype)
    else:
        section, _ = values.body_of(old)
        answer = documents.store_body(session, frame, old, section, body, expiry=expiry)
    return replace(answer, value=number.to_bytes(8, "big"))


def _touched(session: KvSession, frame: Frame) -> tuple[Document, Reply]:
    """Give a document a new expiry: a change like any other (new seqno and CAS), unless nothing changes."""
    document = documents.existing(session, frame)
    given = int.from_bytes(frame.extras, "big")
    expiry = documents.absolute_expiry(given, session.store_bucket.now())
    if expiry == document.expiry or preserves_ttl(frame):
        return document, Reply(cas=document.cas)
    value = document.value
    answer = documents.store(
        session, frame, value, old=document, flags=document.flags, expiry=expiry, datatype=document.datatype
    )
    return document, answer


@command(Opcode.TOUCH, extras=(4,), key=Part.REQUIRED, document=True, writes=True)
def touch(session: KvSession, frame: Frame) -> Reply:
    """TOUCH: a new expiry, no body in the answer."""
    _, answer = _touched(session, frame)
    return Reply(cas=answer.cas)


@command(Opcode.GAT, Opcode.GATQ, extras=(4,), key=Part.REQUIRED, document=True, writes=True)
def get_and_touch(session: KvSession, frame: Frame) -> Reply:
    """GAT: TOUCH, then GET."""
    document, answer = _touched(session, frame)
    return replace(documents.found_reply(session, document), cas=answer.cas)
