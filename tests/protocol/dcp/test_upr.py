"""UPR at both ends of the protocol: who speaks which dialect, and what the older one says differently."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.protocol.dcp import upr as tables
from headwater.protocol.dcp.consumer import Consumer
from headwater.protocol.dcp.consumer_stream import ConsumerStream
from headwater.protocol.dcp.controls import Negotiated
from headwater.protocol.dcp.events import (
    Boundary,
    Changed,
    Ended,
    Event,
    Flushed,
    Opened,
    PositionNeeded,
    Refused,
    RollbackNeeded,
    StateWanted,
)
from headwater.protocol.dcp.negotiation import ConsumerSettings
from headwater.protocol.dcp.opening import negotiated_by
from headwater.protocol.dcp.position import ENDLESS, Position
from headwater.protocol.dcp.producer import Producer
from headwater.protocol.dcp.producer_events import StreamRequested
from headwater.protocol.dcp.producer_stream import ProducerStream, SentMessage
from headwater.protocol.dcp.stream_request import Facts
from headwater.wire import dcp, upr
from headwater.wire.dcp import EndReason, OpenFlag, SnapshotFlag
from headwater.wire.dialect import Dialect
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.layout import Request
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State

BRANCHES = ((0xB, 200), (0xA, 0))
LOG = b"".join(number.to_bytes(8) for branch in BRANCHES for number in branch)
OLD, NEW = upr.StreamRequest(start_seqno=0), dcp.StreamRequest(start_seqno=0, snap_start_seqno=0, snap_end_seqno=0)
MARKER = SnapshotFlag.MEMORY | SnapshotFlag.ACK


class Asking:
    """A consumer of a producer under test."""

    def __init__(self, negotiated: Negotiated | None = None, facts: Facts | None = None) -> None:
        self.end = Producer(negotiated or Negotiated(), now=0.0)
        self.facts = facts or Facts(State.ACTIVE, high_seqno=300, purge_seqno=0, failover_log=BRANCHES)
        self.stream: ProducerStream

    def ask(self, request: Request | Frame) -> Frame:
        frame = request.frame() if isinstance(request, Request) else request
        for event in self.end.receive_frame(frame, 0.0):
            if isinstance(event, StreamRequested):
                made = self.end.answer_stream(event, self.facts, LOG)
                if made is not None:
                    self.stream = made
        return Frame.decode(self.end.data_to_send())


# --- the dialect of a connection --------------------------------------------------------------------------------------


def test_the_first_stream_request_decides():
    old, new = Asking(), Asking()
    assert old.ask(OLD).status == new.ask(NEW).status == Status.SUCCESS
    assert (old.end.dialect, new.end.dialect) == (Dialect.UPR, Dialect.DCP)
    assert old.ask(NEW).status == new.ask(OLD).status == Status.EINVAL


def test_a_request_of_neither_length_decides_nothing():
    asking = Asking()
    assert asking.ask(Frame(0x80, Opcode.DCP_STREAM_REQ, extras=bytes(39))).status == Status.EINVAL
    assert asking.end.dialect is Dialect.AUTO
    assert asking.ask(OLD).status == Status.SUCCESS


def test_a_control_makes_it_dcp_unless_it_is_upr_already():
    asking, upr_already = Asking(), Asking()
    control = dcp.Control(key=b"enable_noop", value=b"true")
    assert asking.ask(control).status == Status.SUCCESS
    assert asking.ask(OLD).status == Status.EINVAL
    upr_already.ask(OLD)
    assert upr_already.ask(control).status == Status.SUCCESS  # erratum U15: accepted when offered
    assert upr_already.end.dialect is Dialect.UPR


@pytest.mark.parametrize(
    ("flags", "features", "speaks_dcp"),
    [(0, (), False), (1, (), False), (1, (0x08,), True), (1 | OpenFlag.INCLUDE_DELETE_TIMES, (), True)],
)
def test_hello_or_a_newer_flag_of_open_makes_it_dcp(flags, features, speaks_dcp):
    negotiated = negotiated_by(dcp.Open(key=b"n", flags=flags), frozenset(features))
    assert negotiated.speaks_dcp is speaks_dcp
    assert (Asking(negotiated).ask(OLD).status == Status.EINVAL) is speaks_dcp


# --- the producer -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uuid", "branch", "start", "rollback"),
    [
        (0, 0, 0, None),
        (0xA, 0, 200, None),
        (0xA, 0, 250, 200),
        (0xB, 200, 250, None),
        (0xB, 200, 301, 300),
        (0xB, 0, 250, 0),
        (0xABCD, 0, 10, 0),
    ],
)
def test_a_consumer_goes_on_or_back_by_the_branch_it_names(uuid, branch, start, rollback):
    """The vectors U01 to U08 of failover 2.1; unknown pairs are sent to 0 as in the sample (erratum U4)."""
    answer = Asking().ask(upr.StreamRequest(start_seqno=start, vb_uuid=uuid, high_seqno=branch))
    assert (answer.status, answer.extras) == (Status.SUCCESS if rollback is None else Status.ROLLBACK, b"")
    assert answer.value == (LOG if rollback is None else rollback.to_bytes(8))


def test_deletions_that_were_purged_send_a_upr_consumer_to_the_beginning():
    facts = Facts(State.ACTIVE, high_seqno=300, purge_seqno=100, failover_log=BRANCHES)
    answer = Asking(facts=facts).ask(upr.StreamRequest(start_seqno=50, vb_uuid=0xA))
    assert (answer.status, answer.value) == (Status.ROLLBACK, bytes(8))


def test_unknown_flags_are_ignored():
    """Erratum A3; StrictVbUuid is later than UPR."""
    asking = Asking()
    assert asking.ask(upr.StreamRequest(start_seqno=0, vb_uuid=5, flags=0xFFFF_FFA0)).status == Status.SUCCESS
    assert asking.stream.flags == 0


def test_a_marker_is_bare_and_counts_24_bytes():
    asking = Asking()
    asking.ask(OLD)
    assert asking.end.marker(asking.stream, 1, 9, MARKER).hex() == "805600000000000000000000" + "00" * 12
    assert asking.end.flow.sent_bytes == 24
    assert asking.stream.unanswered_markers == 0  # nobody could answer it


def test_a_snapshot_that_is_replaced_before_its_end_just_goes_on():
    """A boundary there would declare whole what is not."""
    asking = Asking()
    asking.ask(OLD)
    asking.end.marker(asking.stream, 1, 9, MARKER)
    asking.end.sent_changes(asking.stream, 60, 5)
    assert asking.end.marker(asking.stream, 6, 12, MARKER) == b""
    asking.end.sent_changes(asking.stream, 60, 12)
    assert len(asking.end.marker(asking.stream, 13, 14, MARKER)) == 24


@given(reason=st.sampled_from(EndReason))
def test_streams_end_with_0_or_1(reason):
    asking = Asking()
    asking.ask(OLD)
    if reason is not EndReason.OK:
        asking.end.marker(asking.stream, 1, 9, MARKER)
    asking.end.end_stream(asking.stream, reason)
    assert dcp.StreamEnd.decode(asking.end.data_to_send()).status == (0 if reason is EndReason.OK else 1)


@pytest.mark.parametrize(("as_printed", "number"), [(False, 3), (True, 2)])
def test_pending_has_dcps_number_or_that_of_the_text(as_printed, number):
    asking = Asking(Negotiated(upr_states_as_printed=as_printed))
    asking.ask(OLD)
    asking.end.set_state(asking.stream, State.PENDING)
    assert dcp.SetVbucketState.decode(asking.end.data_to_send()).state == number


@given(state=st.sampled_from(State), as_printed=st.booleans())
def test_numbers_of_states_go_both_ways(state, as_printed):
    number = tables.state_number(state, as_printed=as_printed)
    assert tables.state_of(number, as_printed=as_printed) is state
    assert number == state or (as_printed and state in (State.REPLICA, State.PENDING))


def test_dcp_streams_are_as_they_were():
    asking = Asking()
    asking.ask(NEW)
    assert asking.stream.dialect is Dialect.DCP
    assert len(asking.end.marker(asking.stream, 1, 9, MARKER)) == 44
    asking.stream.step(SentMessage.LAST_CHANGE)
    assert asking.stream.unanswered_markers == 1


# --- the consumer -----------------------------------------------------------------------------------------------------


class Following:
    """A consumer node's end that meets a producer of UPR."""

    def __init__(self, *, takes_controls: bool = False, as_printed: bool = False) -> None:
        self.end = Consumer(Negotiated(upr_states_as_printed=as_printed), ConsumerSettings(), now=0.0)
        self.stream, _ = self.end.add(1, 0)
        while (frame := self.sent()[0]).opcode == Opcode.DCP_CONTROL:
            status = Status.SUCCESS if takes_controls else Status.UNKNOWN_COMMAND
            events = self.give(Frame(0x81, frame.opcode, vbucket=status, opaque=frame.opaque))
            if events:
                assert events == [PositionNeeded(self.stream)]
                break

    def sent(self) -> list[Frame]:
        return FrameBuffer().receive_data(self.end.data_to_send())

    def give(self, message: Request | Frame) -> list[Event]:
        frame = message.frame() if isinstance(message, Request) else message
        return self.end.receive_frame(Frame.decode(frame.encode()), 0.0)

    def answer(self, status: int, value: bytes = b"") -> list[Event]:
        return self.give(Frame(0x81, Opcode.DCP_STREAM_REQ, vbucket=status, value=value, opaque=self.stream.opaque))

    def ask(self, position: Position) -> Frame:
        assert self.end.ask(self.stream, position) == []
        (asked,) = self.sent()
        return asked

    def open(self, position: Position) -> ConsumerStream:
        self.ask(position)
        assert self.answer(Status.EINVAL) == [PositionNeeded(self.stream)]
        self.ask(position)
        log = ((0xB, 200), (0xA, 0))
        assert self.answer(Status.SUCCESS, LOG) == [Opened(self.stream, log), Boundary(self.stream, goes_on=True)]
        return self.stream

    def about(self, kind: type[Request], **fields: int | bytes) -> list[Event]:
        return self.give(kind(vbucket=1, opaque=self.stream.opaque, **fields))

    def mutation(self, seqno: int) -> list[Event]:
        return self.about(upr.Mutation, cas=9, key=b"k", by_seqno=seqno, rev_seqno=1)


HELD = Position(1, 0xB, 250, 250, 250, BRANCHES)


def test_a_request_that_is_not_understood_is_made_again_in_upr():
    following = Following()
    assert dcp.StreamRequest.decode(following.ask(HELD)).snap_end_seqno == 250
    assert following.answer(Status.EINVAL) == [PositionNeeded(following.stream)]
    again = upr.StreamRequest.decode(following.ask(HELD))
    assert (again.start_seqno, again.end_seqno, again.vb_uuid, again.high_seqno) == (250, ENDLESS, 0xB, 200)
    assert following.answer(Status.EINVAL) == [Refused(following.stream, Status.EINVAL)]


def test_a_producer_that_takes_controls_is_taken_at_its_word():
    following = Following(takes_controls=True)
    following.ask(HELD)
    assert following.answer(Status.EINVAL) == [Refused(following.stream, Status.EINVAL)]


def test_half_a_snapshot_is_given_up_before_upr_is_spoken():
    """ "A UPR consumer may resume only from the last completed boundary" (dcp 14)."""
    following = Following()
    half = Position(1, 0xB, 250, 240, 260, BRANCHES)
    following.ask(half)
    following.answer(Status.EINVAL)
    assert following.end.ask(following.stream, half) == [RollbackNeeded(following.stream, 250)]
    assert upr.StreamRequest.decode(following.ask(Position.after(1, 240, BRANCHES))).start_seqno == 240


def test_a_history_that_is_not_known_leads_to_the_beginning():
    following = Following()
    following.ask(HELD)
    following.answer(Status.EINVAL)
    following.ask(HELD)
    assert following.answer(Status.KEY_ENOENT) == [RollbackNeeded(following.stream, 0)]


def test_markers_are_boundaries_and_the_first_closes_nothing():
    following = Following()
    stream = following.open(HELD)
    first = following.about(upr.SnapshotMarker)
    (change,) = following.mutation(251)
    second = following.about(upr.SnapshotMarker)
    assert (first, second) == ([], [Boundary(stream, goes_on=True)])
    assert isinstance(change, Changed) and change.seqno == 251


def test_a_marker_may_also_come_at_the_end_of_its_snapshot():
    """Changes before any marker are taken, for the first implementations sent so (dcp 14, the marker quirk)."""
    following = Following()
    following.open(HELD)
    assert isinstance(following.mutation(251)[0], Changed)
    assert following.sent() == []


def test_a_snapshot_is_whole_at_a_good_end_and_at_a_state_but_not_when_broken_off():
    stream = (good := Following()).open(HELD)
    assert good.about(dcp.StreamEnd, status=0) == [Boundary(stream, goes_on=False), Ended(stream, 0)]
    stream = (broken := Following()).open(HELD)
    assert broken.about(dcp.StreamEnd, status=1) == [Ended(stream, 1)]
    stream = (taken := Following()).open(HELD)
    boundary, wanted = taken.about(dcp.SetVbucketState, state=1)
    assert boundary == Boundary(stream, goes_on=False)
    assert isinstance(wanted, StateWanted) and wanted.state is State.ACTIVE
    taken.end.answer_state(wanted)
    (answer,) = taken.sent()
    assert (answer.opcode, answer.status) == (Opcode.DCP_SET_VBUCKET_STATE, Status.SUCCESS)


@pytest.mark.parametrize(("as_printed", "state"), [(False, State.REPLICA), (True, State.PENDING)])
def test_the_state_2_is_what_the_peer_means_by_it(as_printed, state):
    following = Following(as_printed=as_printed)
    following.open(HELD)
    _, wanted = following.about(dcp.SetVbucketState, state=2)
    assert isinstance(wanted, StateWanted) and wanted.state is state


def test_flush_is_served_in_upr_only():
    following = Following()
    stream = following.open(HELD)
    assert following.about(upr.Flush) == [Flushed(stream)]
    in_dcp = Following()
    in_dcp.ask(HELD)
    in_dcp.answer(Status.SUCCESS, LOG)
    assert in_dcp.about(upr.Flush) == []
    (answer,) = in_dcp.sent()
    assert answer.status == Status.NOT_SUPPORTED


def test_expirations_of_18_bytes_are_taken():
    following = Following()
    following.open(HELD)
    (change,) = following.about(upr.Expiration, cas=1, key=b"k", by_seqno=260, rev_seqno=2)
    assert isinstance(change, Changed)
