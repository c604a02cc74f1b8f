"""STAT dcp-vbtakeover: what a mover watches."""

from __future__ import annotations

import pytest

from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.node.streams.support import Producer, StreamDesk


def ask(desk: StreamDesk, arguments: str) -> dict[str, str]:
    answers = desk.session().ask(Opcode.STAT, key=f"dcp-vbtakeover {arguments}".encode())
    return {frame.key.decode(): frame.value.decode() for frame in answers if frame.key}


def test_a_stream_in_backfill_and_one_that_has_caught_up(desk: StreamDesk) -> None:
    for number in range(5):
        desk.set(0, f"k{number}")
    desk.commit()
    mover = Producer(desk, "replication:a->b:default")
    mover.stream()
    told = ask(desk, "0 replication:a->b:default")
    assert told == {
        "name": "replication:a->b:default",
        "status": "backfilling",
        "estimate": "5",
        "backfillRemaining": "5",
        "chk_items": "0",
        "vb_items": "5",
        "on_disk_deletes": "0",
    }
    mover.read()
    told = ask(desk, "0 replication:a->b:default")
    assert (told["status"], told["estimate"], told["backfillRemaining"]) == ("in-memory", "0", "0")


def test_without_a_stream_everything_is_still_to_come(desk: StreamDesk) -> None:
    for number in range(3):
        desk.set(0, f"k{number}")
    desk.commit()
    assert ask(desk, "0 nobody")["status"] == "connection_does_not_exist"
    Producer(desk, "somebody else")
    told = ask(desk, "0 somebody else")
    assert (told["status"], told["estimate"]) == ("stream_does_not_exist", "3")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [("", Status.EINVAL), ("0", Status.EINVAL), ("x name", Status.EINVAL), ("9 name", Status.NOT_MY_VBUCKET)],
)
def test_a_question_that_makes_no_sense(desk: StreamDesk, arguments: str, status: Status) -> None:
    request = Frame(0x80, Opcode.STAT, key=f"dcp-vbtakeover {arguments}".strip().encode())
    talk = desk.session()
    talk.give(request.encode())
    assert FrameBuffer().receive_data(talk.bytes_sent())[0].status == status
