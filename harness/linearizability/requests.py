"""Operations as frames, and the results in their answers.

Frames are built and read by the product's own codec (`headwater.wire`), for clients of real nodes and simulated ones
alike: the judges check the node's behaviour. The bytes themselves are checked elsewhere, by the literal bytes in
tests/wire and by third-party programs in tests/interop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.linearizability.record import Argument, Kind, Outcome, Result, outcome_of, result_of, text_of
from headwater.client.kv import NO_CREATE
from headwater.wire import documents
from headwater.wire.framing import FrameInfo, RequestInfo, encode_framing
from headwater.wire.header import Frame, Magic
from headwater.wire.layout import Request

__all__ = ["frame_of", "result_in"]

SHOW_VALUE = frozenset({Kind.GET, Kind.GET_AND_TOUCH, Kind.GET_AND_LOCK})
SHOW_NOTHING = frozenset({Kind.TOUCH, Kind.UNLOCK})
_STORES: dict[Kind, type[documents.Set]] = {
    Kind.SET: documents.Set,
    Kind.ADD: documents.Add,
    Kind.REPLACE: documents.Replace,
}
_COUNTERS: dict[Kind, type[documents.Increment]] = {
    Kind.INCREMENT: documents.Increment,
    Kind.DECREMENT: documents.Decrement,
}
_OTHERS: dict[Kind, Callable[[bytes, Argument], Request]] = {
    Kind.GET: lambda key, _: documents.Get(key=key),
    Kind.DELETE: lambda key, parts: documents.Delete(key=key, cas=parts.cas),
    Kind.APPEND: lambda key, parts: documents.Append(key=key, value=parts.value.encode(), cas=parts.cas),
    Kind.TOUCH: lambda key, parts: documents.Touch(key=key, expiration=parts.expiry),
    Kind.GET_AND_TOUCH: lambda key, parts: documents.GetAndTouch(key=key, expiration=parts.expiry),
    Kind.GET_AND_LOCK: lambda key, parts: documents.GetLocked(key=key, lock_seconds=parts.seconds),
    Kind.UNLOCK: lambda key, parts: documents.Unlock(key=key, cas=parts.cas),
}


def frame_of(kind: Kind, key: bytes, argument: Argument, vbucket: int, *, durable_ms: int = 0) -> Frame:
    """Return the frame of an operation's request.

    Args:
        durable_ms: the timeout of a durable write.
    """
    frame = replace(_request(kind, key, argument), vbucket=vbucket).frame()
    if not argument.level:
        return frame
    info = FrameInfo(RequestInfo.DURABILITY, bytes([argument.level]) + durable_ms.to_bytes(2))
    return replace(frame, magic=Magic.FLEXIBLE_REQUEST, framing=encode_framing([info]))


def result_in(kind: Kind, answer: Frame, node: str) -> Result:
    """Return the result in an answer, with the node that sent it."""
    value: str | None = None
    place = documents.Stored()
    if outcome_of(answer.status) is not Outcome.DONE or kind in SHOW_NOTHING:
        pass
    elif kind in SHOW_VALUE:
        value = text_of(documents.GetResponse.decode(answer).value)
    elif kind in _COUNTERS:
        place = counted = documents.IncrementResponse.decode(answer)
        value = str(counted.counter)
    else:
        place = documents.Stored.decode(answer)
    vb_uuid, seqno = place.vb_uuid or 0, place.seqno or 0
    return result_of(answer.status, value=value, cas=answer.cas, vb_uuid=vb_uuid, seqno=seqno, node=node)


def _request(kind: Kind, key: bytes, argument: Argument) -> Request:
    if kind in _STORES:
        value = argument.value.encode()
        return _STORES[kind](key=key, value=value, expiration=argument.expiry, cas=argument.cas)
    if kind in _COUNTERS:
        initial, expiration = (0, NO_CREATE) if argument.initial is None else (argument.initial, 0)
        return _COUNTERS[kind](key=key, delta=argument.delta, initial=initial, expiration=expiration)
    return _OTHERS[kind](key, argument)
