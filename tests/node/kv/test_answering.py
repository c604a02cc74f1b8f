"""Answers: those of durable writes wait for the commit, many are sent in turns, refusals are in the client's words."""

from __future__ import annotations

import asyncio

import pytest

from headwater.node.durable_writes import DurableWrite
from headwater.node.kv.answering import (
    Committed,
    StagedChange,
    answer_with,
    failure_of,
    is_held_back,
    send_some,
    settle,
)
from headwater.node.refused import CommandRefused
from headwater.node.vbucket.prepares import Key
from headwater.wire.bootstrap import StatResponse
from headwater.wire.documents import Stored, TouchResponse
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.node.support import Talk

STAT = Frame(0x80, Opcode.STAT, opaque=7)


def test_a_plain_change_is_answered_at_once() -> None:
    stored = Stored(cas=5, vb_uuid=1, seqno=2)
    assert StagedChange(stored, None).outcome is stored
    assert StagedChange(stored, None).answer(TouchResponse(cas=5)) == TouchResponse(cas=5)


def test_the_answer_of_a_durable_write_has_the_place_of_its_commit() -> None:
    async def outcomes() -> tuple[object, object]:
        write = DurableWrite(0, Key(0, b"k"), 2, asyncio.get_running_loop().create_future())
        staged = StagedChange(Stored(cas=5, vb_uuid=1, seqno=2), write)
        stored, touched = staged.outcome, staged.answer(TouchResponse(cas=5))
        assert isinstance(stored, Committed) and isinstance(touched, Committed)
        write.succeed(3)
        return await stored, await touched

    assert asyncio.run(outcomes()) == (Stored(cas=5, vb_uuid=1, seqno=3), TouchResponse(cas=5))


def test_a_durable_write_that_is_given_up_is_refused() -> None:
    async def outcome() -> None:
        write = DurableWrite(0, Key(0, b"k"), 2, asyncio.get_running_loop().create_future())
        staged = StagedChange(Stored(cas=5), write)
        write.fail("nobody had it")
        answer = staged.outcome
        assert isinstance(answer, Committed)
        await answer

    with pytest.raises(CommandRefused, match="nobody had it") as refused:
        asyncio.run(outcome())
    assert refused.value.status == Status.SYNC_WRITE_AMBIGUOUS


def test_many_answers_are_sent_as_far_as_the_turn_goes(talk: Talk) -> None:
    """And no further: with a look at the clock behind 32 answers, STAT collections counted 32 vbuckets in a turn."""
    answers = iter([StatResponse(key=b"%d" % number) for number in range(40)])
    looks = iter([False, False, True, *[False] * 40])
    talk.connection.turn_is_over = lambda: next(looks)  # type: ignore[attr-defined]
    assert not send_some(talk.kv, STAT, answers)
    assert len(FrameBuffer().receive_data(talk.bytes_sent())) == 3
    assert send_some(talk.kv, STAT, answers)
    assert len(FrameBuffer().receive_data(talk.bytes_sent())) == 37
    answer_with(talk.kv, STAT, [StatResponse(key=b"a"), StatResponse()])
    answer_with(talk.kv, STAT, None)
    assert [frame.key for frame in FrameBuffer().receive_data(talk.bytes_sent())] == [b"a", b""]


def test_a_refusal_is_explained_to_those_who_asked_for_that(talk: Talk) -> None:
    refused, request = CommandRefused(Status.LOCKED, "the document is locked"), Frame(0x80, Opcode.SET)
    plain = failure_of(talk.kv, request, refused)
    assert plain is not None and (plain.status, plain.value) == (Status.KEY_EEXISTS, b"")
    talk.hello(7)
    explained = failure_of(talk.kv, request, refused)
    assert explained is not None and explained.status == Status.LOCKED and b"the document is locked" in explained.value


def test_a_status_without_a_word_for_old_clients_ends_their_connection(talk: Talk) -> None:
    refused = CommandRefused(Status.SYNC_WRITE_AMBIGUOUS, "nobody knows")
    assert failure_of(talk.kv, Frame(0x80, Opcode.SET), refused) is None
    assert "nobody knows" in talk.connection.dropped


def test_another_bucket_is_waited_for_until_all_answers_have_left(talk: Talk) -> None:
    assert not is_held_back(talk.kv)
    talk.ask(Opcode.SET, key=b"k", extras=bytes(8))
    assert is_held_back(talk.kv)
    committer, outcome = talk.desk.committer, [True, False]

    async def wait(gate: int) -> bool:
        assert gate == committer.open
        return outcome.pop(0)

    committer.wait = wait  # type: ignore[attr-defined]
    asyncio.run(settle(talk.kv))
    with pytest.raises(CommandRefused, match="could not be"):
        asyncio.run(settle(talk.kv))
