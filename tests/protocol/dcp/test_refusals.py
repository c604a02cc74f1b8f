"""How either end says no: the status its peer knows, the words it asked for, and what is kept for the log."""

import pytest

from headwater.errors import RemoteProtocolError
from headwater.protocol.dcp.controls import Negotiated
from headwater.protocol.dcp.refusals import KEPT_MAX, Refusal, Refusals
from headwater.wire.datatype import Datatype
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

ASKED = Frame(0x80, Opcode.DCP_STREAM_REQ, extras=bytes(48), vbucket=7, opaque=9)


def answer(negotiated: Negotiated, status: int, reason: str = "why", **more: bytes) -> Frame:
    return Frame.decode(Refusals(negotiated).answer(ASKED, status, reason, **more))


def test_who_negotiated_xerror_is_told_why() -> None:
    told = answer(Negotiated(xerror=True), Status.ERANGE)
    assert (told.status, told.opaque, told.value, told.datatype) == (0x22, 9, b'{"error": {"context": "why"}}', 0)
    assert answer(Negotiated(xerror=True, json=True), Status.ERANGE).datatype == Datatype.JSON
    assert answer(Negotiated(), Status.ERANGE).value == b""


@pytest.mark.parametrize("status", [Status.ROLLBACK, Status.NOT_MY_VBUCKET])
def test_a_body_that_means_something_else_is_left_alone(status: Status) -> None:
    assert answer(Negotiated(xerror=True), status).value == b""
    assert answer(Negotiated(xerror=True), status, value=bytes(8)).value == bytes(8)


def test_extras_that_belong_to_an_answer_stay() -> None:
    assert answer(Negotiated(xerror=True), Status.EINVAL, extras=bytes(4)).extras == bytes(4)


def test_a_status_that_the_peer_does_not_know_is_not_told() -> None:
    assert answer(Negotiated(), Status.UNKNOWN_COLLECTION).status == Status.EINVAL
    with pytest.raises(RemoteProtocolError, match="without XERROR"):
        answer(Negotiated(), Status.DCP_STREAMID_INVALID)


def test_what_was_refused_can_be_taken_once() -> None:
    refusals = Refusals(Negotiated())
    assert not refusals
    for number in range(KEPT_MAX + 1):
        refusals.answer(ASKED, Status.ERANGE, f"reason {number}")
    assert refusals
    taken = refusals.take()
    assert (len(taken), refusals.take()) == (KEPT_MAX, [])
    assert str(taken[-1]) == f"DCP_STREAM_REQ of vbucket 7 is refused with ERANGE: reason {KEPT_MAX}"


def test_an_opcode_without_a_name_is_told_by_number() -> None:
    assert str(Refusal(0xEE, 3, 0x1234, "why")) == "opcode 0xee of vbucket 3 is refused with 0x1234: why"
