"""The life of a stream for client and following node alike: one table, one walk of histories."""

from itertools import pairwise, product

import pytest

from headwater.errors import LocalProtocolError, RemoteProtocolError
from headwater.protocol.dcp.consumer_core import ConsumerCore, ends_whole
from headwater.protocol.dcp.consumer_stream import TRANSITIONS, ConsumerStream, Phase, Step
from headwater.protocol.dcp.events import Opened, PositionNeeded, Refused, RollbackNeeded
from headwater.protocol.dcp.position import Position
from headwater.protocol.dcp.window import ConsumerWindow
from headwater.wire.dcp import EndReason
from headwater.wire.dialect import Dialect
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame, Magic
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

VB, UUID = 7, 0xA11CE
ENTRY = UUID.to_bytes(8) + bytes(8)
CLIENT = {"runs_ahead": True, "unknown_is_rollback": True}
NODE = {"runs_ahead": False, "unknown_is_rollback": False}

both = pytest.mark.parametrize("end", [CLIENT, NODE], ids=["client", "node"])


def a_core(end: dict[str, bool], dialect: Dialect = Dialect.AUTO) -> ConsumerCore:
    return ConsumerCore(dialect, ConsumerWindow(1000), **end)


def asked(core: ConsumerCore, position: Position | None = None) -> ConsumerStream:
    stream = core.streams[VB] = ConsumerStream(VB)
    assert core.ask(stream, position or Position(VB, UUID, 10, 10, 10, ((UUID, 0),))) is None
    return stream


def sent(core: ConsumerCore) -> list[Frame]:
    return FrameBuffer().receive_data(core.data_to_send())


def answer(opaque: int, status: int = 0, value: bytes = b"") -> Frame:
    return Frame(Magic.CLIENT_RESPONSE, Opcode.DCP_STREAM_REQ, value=value, vbucket=status, opaque=opaque)


@pytest.mark.parametrize(("phase", "step"), list(product(Phase, Step)))
def test_what_the_table_does_not_name_is_a_mistake_that_changes_nothing(phase: Phase, step: Step) -> None:
    stream = ConsumerStream(VB, phase=phase)
    if step in TRANSITIONS[phase]:
        stream.step(step)
        assert stream.phase is TRANSITIONS[phase][step]
        return
    with pytest.raises(LocalProtocolError, match=f"vbucket 7: {step.value} on a stream that is {phase.value}"):
        stream.step(step)
    assert stream.phase is phase


@both
def test_an_accepted_stream_is_open_and_has_the_producers_log(end: dict[str, bool]) -> None:
    core = a_core(end)
    stream = asked(core)
    assert core.answered(answer(stream.opaque, value=ENTRY)) == Opened(stream, ((UUID, 0),))
    assert (stream.phase, core.table.is_open(VB), core.last(VB)) == (Phase.OPEN, True, 10)
    assert core.awaiting == {} and core.dialect is Dialect.DCP


@both
def test_an_answer_that_nobody_asked_for_is_an_error(end: dict[str, bool]) -> None:
    core = a_core(end)
    stream = asked(core)
    core.answered(answer(stream.opaque, value=ENTRY))
    with pytest.raises(RemoteProtocolError, match=f"opaque {stream.opaque}, which was not asked"):
        core.answered(answer(stream.opaque, value=ENTRY))


@pytest.mark.parametrize(("end", "opaques"), [(CLIENT, [1, 2, 3]), (NODE, [1, 1, 1])], ids=["client", "node"])
def test_older_histories_are_quoted_one_by_one_before_anything_is_given_up(
    end: dict[str, bool], opaques: list[int]
) -> None:
    core = a_core(end)
    stream = asked(core, Position(VB, 7, 10, 10, 10, ((7, 10), (6, 10), (5, 0))))
    events, quoted = [], []
    for _ in opaques:
        (request,) = sent(core)
        quoted.append((request.opaque, int.from_bytes(request.extras[24:32])))
        events.append(core.answered(answer(request.opaque, Status.ROLLBACK, bytes(8))))
    assert quoted == list(zip(opaques, [7, 6, 5], strict=True))
    assert events == [None, None, RollbackNeeded(stream, 0)]
    assert (stream.phase, core.table.is_open(VB)) == (Phase.QUEUED, False)


@both
def test_a_rollback_forward_is_an_error(end: dict[str, bool]) -> None:
    core = a_core(end)
    stream = asked(core)
    with pytest.raises(RemoteProtocolError, match="vbucket 7, asked from seqno 10, is rolled back forward, to 11"):
        core.answered(answer(stream.opaque, Status.ROLLBACK, (11).to_bytes(8)))


def test_an_unknown_key_is_a_rollback_for_a_client_and_a_refusal_for_a_node_that_would_drop_data() -> None:
    for end, kind in ((CLIENT, RollbackNeeded), (NODE, Refused)):
        core = a_core(end, Dialect.DCP)
        stream = asked(core)
        assert isinstance(core.answered(answer(stream.opaque, Status.KEY_ENOENT)), kind)


@both
def test_a_producer_that_does_not_understand_is_asked_again_in_upr(end: dict[str, bool]) -> None:
    core = a_core(end)
    stream = asked(core)
    assert core.answered(answer(stream.opaque, Status.EINVAL)) == PositionNeeded(stream)
    sent(core)
    assert core.ask(stream, Position(VB, UUID, 10, 8, 12)) == RollbackNeeded(stream, 10)
    assert core.ask(stream, Position(VB, UUID, 8, 8, 8)) is None
    assert [len(frame.extras) for frame in sent(core)] == [40]
    assert stream.dialect is Dialect.UPR and ends_whole(stream, EndReason.OK)
    assert not ends_whole(stream, EndReason.CLOSED)


@both
def test_a_marker_is_answered_once_when_its_last_seqno_is_here(end: dict[str, bool]) -> None:
    core = a_core(end)
    stream = asked(core)
    core.answered(answer(stream.opaque, value=ENTRY))
    sent(core)
    core.marked(stream, 11, wants_answer=True)
    core.marked(stream, 12, wants_answer=True)  # takes the place of the one before
    told = []
    for seqno in (11, 12, 13):
        core.table.rows[VB, 2] = seqno
        told.append(core.answer_markers())
    assert told == [False, True, False]
    assert [(frame.opcode, frame.opaque) for frame in sent(core)] == [(Opcode.DCP_SNAPSHOT_MARKER, stream.opaque)]


@both
def test_a_stream_that_is_forgotten_owes_nothing(end: dict[str, bool]) -> None:
    core = a_core(end)
    stream = asked(core)
    core.answered(answer(stream.opaque, value=ENTRY))
    core.marked(stream, 10, wants_answer=True)
    core.forget(stream)
    assert (core.streams, core.answer_markers(), core.table.is_open(VB)) == ({}, False, False)


@both
def test_opaques_of_a_connection_never_repeat(end: dict[str, bool]) -> None:
    core = a_core(end)
    assert all(older < newer for older, newer in pairwise(core.next_opaque() for _ in range(5)))


@both
def test_a_connection_without_an_opaque_left_asks_for_nothing_more(end: dict[str, bool]) -> None:
    core = ConsumerCore(Dialect.AUTO, ConsumerWindow(1000), **end, opaques=range(5, 7))
    assert (core.next_opaque(), core.next_opaque()) == (5, 6)
    with pytest.raises(LocalProtocolError, match="has used all of its 2 opaques: open another one"):
        asked(core)
    assert sent(core) == []
