"""From ADD_STREAM to an open stream: flags, refusals, rollbacks, failover logs (dcp 9)."""

import struct

import pytest

from headwater.errors import RemoteProtocolError
from headwater.protocol.dcp.consumer_core import ROLLBACKS_MAX
from headwater.protocol.dcp.events import (
    Ended,
    Refused,
    RollbackNeeded,
)
from headwater.protocol.dcp.position import Position
from headwater.wire.header import Frame, Magic
from headwater.wire.json_text import context_of, error_body
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.protocol.dcp.consumer_talk import (
    LOG,
    VB,
    Talk,
    add_stream,
    answer_to,
)


def test_every_flag_of_add_stream_is_copied() -> None:
    talk = Talk()
    talk.open(flags=0x1F7)
    assert talk.asked_last.extras[:4] == (0x1F7).to_bytes(4)
    assert int.from_bytes(talk.asked_last.extras[16:24]) == 2**64 - 1


@pytest.mark.parametrize("flags", [0x08, 0x200, 1 << 31])
def test_unknown_flags_of_add_stream_are_invalid(flags: int) -> None:
    answer = Talk().one(add_stream(flags))
    assert (answer.status, answer.extras) == (Status.EINVAL, bytes(4))


@pytest.mark.parametrize("status", [Status.NOT_MY_VBUCKET, Status.KEY_EEXISTS, Status.ETMPFAIL, Status.ERANGE])
def test_the_producers_refusal_answers_add_stream(status: Status) -> None:
    talk = Talk()
    mover = add_stream()
    stream, _ = talk.end.add(VB, 0, mover)
    talk.control_all()
    talk.end.ask(stream, Position.beginning(VB))
    (asked,) = talk.sent()
    assert talk.give(answer_to(asked, status)) == [Refused(stream, status)]
    (answer,) = talk.sent()
    assert (answer.status, answer.extras) == (status, stream.opaque.to_bytes(4))
    assert talk.end.streams == {}


def test_what_the_producer_says_of_its_refusal_is_passed_on() -> None:
    talk = Talk()
    stream, _ = talk.end.add(VB, 0, add_stream())
    talk.control_all()
    talk.end.ask(stream, Position.beginning(VB))
    (asked,) = talk.sent()
    (event,) = talk.give(answer_to(asked, Status.ETMPFAIL, value=error_body("not served yet")))
    assert event == Refused(stream, Status.ETMPFAIL, error_body("not served yet")) and event.said == "not served yet"
    (answer,) = talk.sent()
    assert context_of(answer.value) == "the producer answered ETMPFAIL (not served yet)"


def test_a_rollback_asks_again_with_the_same_opaque() -> None:
    talk = Talk()
    stream, _ = talk.end.add(VB, 0, add_stream())
    talk.control_all()
    talk.end.ask(stream, Position(VB, 5, 10, 10, 10, ((5, 0),)))
    (first,) = talk.sent()
    assert talk.give(answer_to(first, Status.ROLLBACK, value=(7).to_bytes(8))) == [RollbackNeeded(stream, 7)]
    talk.end.ask(stream, Position(VB, 5, 6, 6, 6, ((5, 0),)))
    (second,) = talk.sent()
    assert (second.opaque, int.from_bytes(second.extras[8:16])) == (first.opaque, 6)


@pytest.mark.parametrize(
    ("log", "tried"),
    [
        (((7, 10), (6, 10), (5, 0)), [7, 6, 5]),
        (((7, 10), (6, 4), (5, 0)), [7, 6]),  # 5 to 10 are not of the branch 5: it is not quoted for them
        (((7, 4), (6, 4), (5, 0)), [7]),
    ],
)
def test_a_rollback_to_nothing_tries_the_older_histories_that_have_all_we_hold(
    log: tuple[tuple[int, int], ...], tried: list[int]
) -> None:
    talk = Talk()
    stream, _ = talk.end.add(VB, 0, add_stream())
    talk.control_all()
    talk.end.ask(stream, Position(VB, 7, 10, 10, 10, log))
    quoted = []
    for _ in tried:
        (asked,) = talk.sent()
        quoted.append(int.from_bytes(asked.extras[24:32]))
        events = talk.give(answer_to(asked, Status.ROLLBACK, value=bytes(8)))
    assert quoted == tried
    assert events == [RollbackNeeded(stream, 0)]


def test_a_rollback_forward_or_without_a_number_ends_the_connection() -> None:
    for value in ((11).to_bytes(8), b"", bytes(7)):
        talk = Talk()
        stream, _ = talk.end.add(VB, 0, add_stream())
        talk.control_all()
        talk.end.ask(stream, Position(VB, 5, 10, 10, 10, ((5, 0),)))
        (asked,) = talk.sent()
        with pytest.raises(RemoteProtocolError):
            talk.give(answer_to(asked, Status.ROLLBACK, value=value))


def test_a_producer_that_sends_us_back_for_ever_is_given_up() -> None:
    talk = Talk()
    stream, _ = talk.end.add(VB, 0, add_stream())
    talk.control_all()
    for _ in range(ROLLBACKS_MAX):
        talk.end.ask(stream, Position(VB, 5, 10, 10, 10, ((5, 0),)))
        (asked,) = talk.sent()
        assert talk.give(answer_to(asked, Status.ROLLBACK, value=(10).to_bytes(8))) == [RollbackNeeded(stream, 10)]
    talk.end.ask(stream, Position(VB, 5, 10, 10, 10, ((5, 0),)))
    (asked,) = talk.sent()
    given_up = Refused(stream, Status.ROLLBACK, b"it was sent back %d times" % (ROLLBACKS_MAX + 1))
    assert talk.give(answer_to(asked, Status.ROLLBACK, value=bytes(8))) == [given_up]


@pytest.mark.parametrize("log", [b"", bytes(15), bytes(17)])
def test_a_malformed_failover_log_ends_the_connection(log: bytes) -> None:
    talk = Talk()
    stream, _ = talk.end.add(VB, 0, add_stream())
    talk.control_all()
    talk.end.ask(stream, Position.beginning(VB))
    (asked,) = talk.sent()
    with pytest.raises(RemoteProtocolError, match="failover log"):
        talk.give(answer_to(asked, value=log))


def test_an_answer_nobody_asked_for_ends_the_connection() -> None:
    talk = Talk()
    talk.open()
    with pytest.raises(RemoteProtocolError, match="opaque 999"):
        talk.give(Frame(Magic.CLIENT_RESPONSE, Opcode.DCP_STREAM_REQ, opaque=999, value=bytes(16)))


def test_a_close_while_asked_answers_the_mover_and_forgives_the_late_answer() -> None:
    talk = Talk()
    stream, _ = talk.end.add(VB, 0, add_stream())
    talk.control_all()
    talk.end.ask(stream, Position.beginning(VB))
    (asked,) = talk.sent()
    assert talk.give(Frame(0x80, Opcode.DCP_CLOSE_STREAM, vbucket=VB, opaque=3)) == [Ended(stream, None)]
    assert [(frame.opcode, frame.status) for frame in talk.sent()] == [
        (Opcode.DCP_ADD_STREAM, Status.KEY_ENOENT),
        (Opcode.DCP_CLOSE_STREAM, Status.SUCCESS),
    ]
    assert talk.give(answer_to(asked, value=struct.pack(">QQ", *LOG[0]))) == []
