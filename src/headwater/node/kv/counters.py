"""Counting and touching: increment, decrement, touch, get-and-touch (kv.md 2)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from headwater.node.kv import documents, values
from headwater.node.kv.answering import StagedChange
from headwater.node.kv.command import handles
from headwater.node.kv.framing import preserves_ttl
from headwater.node.refused import CommandRefused
from headwater.wire import documents as wire
from headwater.wire import times
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.kv.api import Session
    from headwater.node.storage.records import StoredDocument

_MUST_EXIST = 0xFFFF_FFFF
_WRAP = 1 << 64
_DIGITS_MAX = 20


def _number(body: bytes) -> int:
    """Return the decimal number in a document. Raises CommandRefused with DELTA_BADVAL if the body is anything else
    than 1 to 20 digits, or the number is not below 2^64.
    """
    if not (1 <= len(body) <= _DIGITS_MAX and body.isdigit() and int(body) < _WRAP):
        raise CommandRefused(Status.DELTA_BADVAL)
    return int(body)


@handles(wire.Increment, wire.Decrement, document=True, writes=True)
def count(session: Session, request: wire.Increment) -> wire.IncrementResponse | Awaitable[wire.IncrementResponse]:
    """Answer INCREMENT and DECREMENT with the new number. INCREMENT wraps at 2^64, DECREMENT stops at 0.

    A missing counter is created with `initial`; if the request's expiry is all ones, the request is refused instead.
    The number is stored in decimal digits. An existing counter keeps its flags and expiry.
    """
    old = documents.newest(session, request)
    if old is None or old.deleted:
        number, staged = request.initial, _begun(session, request, old)
    else:
        section, body = values.body_of(old)
        number = _counted(request, _number(body))
        staged = documents.store_body(session, request, old, section, b"%d" % number, expiry=old.expiry)
    stored = staged.stored
    return staged.answer(
        wire.IncrementResponse(counter=number, cas=stored.cas, vb_uuid=stored.vb_uuid, seqno=stored.seqno)
    )


def _counted(request: wire.Increment, number: int) -> int:
    if isinstance(request, wire.Decrement):
        return max(0, number - request.delta)
    return (number + request.delta) % _WRAP


def _begun(session: Session, request: wire.Increment, old: StoredDocument | None) -> StagedChange:
    if request.expiration == _MUST_EXIST:
        raise CommandRefused(Status.KEY_ENOENT)
    body = b"%d" % request.initial
    expiry = documents.limited(session, times.absolute_expiry(request.expiration, session.store_bucket.now()))
    datatype = values.accepted(body, 0)
    return documents.store(session, request, body, old=old, flags=0, expiry=expiry, datatype=datatype)


def _touch_document(
    session: Session, request: wire.Touch | wire.GetAndTouch
) -> tuple[StoredDocument, StagedChange | None]:
    """Set the expiry of a document. This is a change like any other, with a new seqno and CAS, unless the expiry stays
    the same.

    Returns:
        The document before the change, and the staged change; None in place of the change if the expiry stays the same.
    """
    document = documents.existing(session, request)
    expiry = documents.limited(session, times.absolute_expiry(request.expiration, session.store_bucket.now()))
    # "A no-op touch with identical expiry may skip" (kv.md 2), which saves every stream a version.
    if expiry == document.expiry or preserves_ttl(request):
        return document, None
    value, flags, datatype = document.value, document.flags, document.datatype
    return document, documents.store(
        session, request, value, old=document, flags=flags, expiry=expiry, datatype=datatype
    )


@handles(wire.Touch, document=True, writes=True)
def touch(session: Session, request: wire.Touch) -> wire.TouchResponse | Awaitable[wire.TouchResponse]:
    """Answer TOUCH: set the expiry, and return no body."""
    document, staged = _touch_document(session, request)
    if staged is None:
        return wire.TouchResponse(cas=document.cas)
    return staged.answer(wire.TouchResponse(cas=staged.stored.cas))


@handles(wire.GetAndTouch, document=True, writes=True)
def get_and_touch(session: Session, request: wire.GetAndTouch) -> wire.GetResponse | Awaitable[wire.GetResponse]:
    """Answer GAT: set the expiry, and return the document."""
    document, staged = _touch_document(session, request)
    if staged is None:
        return documents.answer_hit(session, document, wire.GetResponse, cas=document.cas)
    return staged.answer(documents.answer_hit(session, document, wire.GetResponse, cas=staged.stored.cas))
