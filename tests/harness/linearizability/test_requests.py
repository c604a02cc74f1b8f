"""Operations as frames and answers as results, with literal bytes."""

from __future__ import annotations

import pytest

from harness.linearizability.record import Argument, Kind, Level, Outcome
from harness.linearizability.requests import frame_of, result_in
from headwater.wire.header import Frame, Magic
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

PLACE = (7).to_bytes(8) + (9).to_bytes(8)


def answer(status: int = 0, extras: bytes = b"", value: bytes = b"") -> Frame:
    return Frame(Magic.CLIENT_RESPONSE, Opcode.SET, extras=extras, value=value, cas=5, vbucket=status)


def test_a_durable_write_has_its_level_and_its_time_before_its_extras() -> None:
    argument = Argument("v", cas=5, expiry=3, level=Level.MAJORITY)
    frame = frame_of(Kind.SET, b"k", argument, 2, durable_ms=258)
    assert frame.framing == b"\x13\x01\x01\x02" and frame.magic == Magic.FLEXIBLE_REQUEST
    assert (frame.opcode, frame.vbucket, frame.cas, frame.extras) == (Opcode.SET, 2, 5, bytes(7) + b"\3")
    assert (frame.key, frame.value) == (b"k", b"v")


def test_a_plain_write_has_no_framing() -> None:
    frame = frame_of(Kind.DELETE, b"k", Argument(cas=5), 2)
    assert (frame.magic, frame.opcode, frame.framing, frame.cas) == (Magic.CLIENT_REQUEST, Opcode.DELETE, b"", 5)


@pytest.mark.parametrize(("initial", "last"), [(None, b"\xff\xff\xff\xff"), (6, bytes(4))])
def test_a_counter_that_must_exist_says_so_in_its_expiry(initial: int | None, last: bytes) -> None:
    frame = frame_of(Kind.INCREMENT, b"k", Argument(delta=2, initial=initial), 0)
    assert frame.extras == (2).to_bytes(8) + (initial or 0).to_bytes(8) + last


@pytest.mark.parametrize("kind", Kind)
def test_every_operation_has_a_frame(kind: Kind) -> None:
    assert frame_of(kind, b"k", Argument(), 0).key == b"k"


def test_the_answer_to_a_write_says_its_place() -> None:
    result = result_in(Kind.SET, answer(extras=PLACE), "n")
    assert (result.outcome, result.cas, result.vb_uuid, result.seqno, result.node) == (Outcome.DONE, 5, 7, 9, "n")


def test_the_answer_to_a_write_need_not_say_a_place() -> None:
    result = result_in(Kind.DELETE, answer(), "n")
    assert (result.vb_uuid, result.seqno) == (0, 0)


def test_the_answer_to_a_counter_has_its_number() -> None:
    result = result_in(Kind.DECREMENT, answer(extras=PLACE, value=(3).to_bytes(8)), "n")
    assert (result.value, result.seqno) == ("3", 9)


def test_the_answer_to_a_read_has_its_value() -> None:
    assert result_in(Kind.GET_AND_LOCK, answer(extras=bytes(4), value=b"v"), "n").value == "v"


@pytest.mark.parametrize("kind", [Kind.GET, Kind.INCREMENT, Kind.SET, Kind.UNLOCK])
def test_an_error_has_no_value_whatever_its_body_is(kind: Kind) -> None:
    result = result_in(kind, answer(Status.KEY_ENOENT, value=b"not found"), "n")
    assert (result.outcome, result.value) == (Outcome.MISSING, None)
