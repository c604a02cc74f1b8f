"""The behaviour that both ends of a DCP connection share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headwater.errors import RemoteProtocolError
from headwater.node.dcp.end import REFUSED_ON_DCP
from headwater.wire import dcp
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from tests.node.replication.test_machine import Passive
from tests.node.streams.support import Producer, StreamDesk

NOOP = Frame(0x80, Opcode.NOOP, opaque=3).encode()


@pytest.fixture(params=[Producer, Passive], ids=["producing", "consuming"])
def talk(request: pytest.FixtureRequest, desk: StreamDesk) -> Producer | Passive:
    made: Callable[[StreamDesk], Producer | Passive] = request.param
    return made(desk)


def test_a_frame_is_taken_once_it_is_whole(talk: Producer | Passive) -> None:
    assert talk.give(NOOP + NOOP[:23]) == 24
    assert len(FrameBuffer().receive_data(talk.bytes_sent())) == 1


def test_nothing_is_taken_while_the_connection_pauses(talk: Producer | Passive) -> None:
    talk.connection.pause("test")
    assert talk.give(NOOP) == 0


def test_what_was_answered_before_a_mistake_leaves(talk: Producer | Passive) -> None:
    asks = dcp.StreamRequest(
        vbucket=0, flags=0, start_seqno=0, end_seqno=1, vb_uuid=0, snap_start_seqno=0, snap_end_seqno=0
    )
    adds = dcp.AddStream(flags=0)  # each sent to the wrong end
    with pytest.raises(RemoteProtocolError):
        talk.give(NOOP + (asks if isinstance(talk, Passive) else adds).encode())
    (answer,) = FrameBuffer().receive_data(talk.bytes_sent())
    assert (answer.opcode, answer.opaque) == (Opcode.NOOP, 3)


@pytest.mark.parametrize("opcode", sorted(REFUSED_ON_DCP))
def test_whose_connection_it_is_can_not_change(talk: Producer | Passive, opcode: int) -> None:
    assert talk.one(opcode, key=b"x").status == REFUSED_ON_DCP[opcode]


def test_a_closed_connection_gives_its_name_back(desk: StreamDesk, talk: Producer | Passive) -> None:
    assert len(desk.dcp.sessions) == 1
    talk.connection.session.closed()
    assert not desk.dcp.sessions
