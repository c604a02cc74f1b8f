"""The consumer's end, fed with bytes: what is asked, what comes back, positions, flow control and time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.client import CollectionModified, UnknownSystemEvent
from headwater.client.changes import collection_event
from headwater.client.collections import CollectionNames
from headwater.errors import RemoteProtocolError
from headwater.kernels.columns import Arena
from headwater.protocol.dcp.consumer_stream import Phase
from headwater.protocol.dcp.drain import Drain
from headwater.protocol.dcp.events import (
    Advanced,
    CollectionsTold,
    DeletionsMissed,
    Ended,
    Marked,
    Opened,
    Refused,
    RollbackNeeded,
    Rows,
)
from headwater.protocol.dcp.failover import Claim, Ok, decide
from headwater.protocol.dcp.position import ENDLESS, Position
from headwater.protocol.end import PeerGone
from headwater.wire import dcp
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.layout import Done
from headwater.wire.manifest import EventKind
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.protocol.dcp.drain_talk import (
    ACCEPTED,
    BEGINNING,
    LOG,
    TALK,
    UUID,
    a_drain,
    accepted,
    answer,
    asked,
    change,
    feed,
    happened,
    marker,
    outcome,
    purged_marker,
)
from tests.protocol.dcp.test_answers import MODIFIED


def test_the_request_carries_all_five_numbers():
    drain = a_drain()
    drain.request(Position(10, 0xFEEDDECA, 5, 3, 9), 100, 0.0)
    expected = (
        "80530000300 0000a 00000030 00000001 0000000000000000"
        "00000010 00000000 0000000000000005 0000000000000064 00000000feeddeca 0000000000000003 0000000000000009"
    )
    assert drain.data_to_send().hex() == expected.replace(" ", "")


def test_the_end_is_never_before_the_start_because_that_would_be_a_range_error():
    drain = a_drain()
    drain.request(Position(0, UUID, 50, 50, 50), 20, 0.0)
    assert dcp.StreamRequest.decode(drain.data_to_send()).end_seqno == 50


def test_a_stream_from_its_answer_to_its_end():
    drain = asked()
    feed(drain, TALK)
    rows, events, sent = outcome(drain)
    assert [row["seqno"] for row in rows] == [1, 2, 3]
    assert events == [(0, Opened, 0, tuple(LOG)), (0, Marked, 0, 0, 3, 1, 0, 0), (3, Ended, 0, 0)]
    assert sent == Done(opcode=Opcode.DCP_NOOP, opaque=9).encode()
    assert drain.position(0) == Position(0, UUID, 3, 3, 3)


@given(st.lists(st.integers(0, len(TALK)), max_size=8))
def test_how_the_bytes_are_cut_changes_nothing(cuts: list[int]):
    whole, pieces, rest = asked(), asked(), b""
    feed(whole, TALK)
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), len(TALK)], strict=True):
        rest += TALK[start:stop]
        rest = rest[pieces.receive(rest, 100.0) :]
    assert rest == b"" and outcome(pieces) == outcome(whole)


def test_a_stream_of_many_vbuckets_mixes_message_by_message():
    drain = a_drain()
    for vbucket in (3, 900):
        drain.request(Position(vbucket), ENDLESS, 0.0)
    feed(drain, *(dcp.StreamResponse(opaque=opaque, failover_log=LOG).encode() for opaque in (1, 2)))
    feed(drain, marker(0, 2, vbucket=3), marker(0, 2, opaque=2, vbucket=900))
    feed(drain, change(1, opaque=2, vbucket=900), change(1, vbucket=3), change(2, opaque=2, vbucket=900))
    assert drain.position(3) == Position(3, UUID, 1, 0, 2) and drain.position(900) == Position(900, UUID, 2, 2, 2)


@pytest.mark.parametrize("extras", [b"", (400).to_bytes(8)])
def test_a_rollback_is_reported_wherever_its_eight_bytes_are(extras: bytes):
    drain = asked(Position(0, UUID, 900, 900, 900))
    feed(drain, answer(Status.ROLLBACK, b"" if extras else (400).to_bytes(8), extras))
    assert happened(drain.events) == [(0, RollbackNeeded, 0, 400, "another history begins after it")]
    assert drain.streams[0].request_seqno == 900
    assert drain.streams[0].phase is Phase.ENDED


def test_key_not_found_is_the_rollback_to_zero_of_upr():
    drain = asked(Position(0, UUID, 900, 900, 900))
    feed(drain, answer(Status.KEY_ENOENT))
    assert happened(drain.events) == [(0, RollbackNeeded, 0, 0, "the node does not know our history")]


def test_a_history_that_began_where_we_stand_is_given_up_for_the_one_before():
    drain = asked(Position(0, 0xB, 900, 900, 900, ((0xB, 900), (0xA, 0))))
    feed(drain, answer(Status.ROLLBACK, bytes(8)))
    again = dcp.StreamRequest.decode(drain.data_to_send())
    assert (again.vb_uuid, again.start_seqno, again.opaque, drain.events) == (0xA, 900, 2, [])
    feed(drain, answer(Status.ROLLBACK, bytes(8), opaque=2))
    assert [type(event) for _, event in drain.events] == [RollbackNeeded]


def test_a_history_that_lacks_a_part_of_what_we_hold_is_never_quoted_for_it():
    drain = asked(Position(0, 0xC, 900, 900, 900, ((0xC, 900), (0xB, 899), (0xA, 0))))
    for opaque in (1, 2):
        feed(drain, answer(Status.ROLLBACK, bytes(8), opaque=opaque))
    quoted = [frame.extras[24:32] for frame in FrameBuffer().receive_data(drain.data_to_send())]
    assert quoted == [(0xB).to_bytes(8)]
    assert [type(event) for _, event in drain.events] == [RollbackNeeded]


def test_other_answers_are_handed_to_the_caller():
    drain = asked()
    feed(drain, answer(Status.NOT_MY_VBUCKET, b"{}"))
    assert happened(drain.events) == [(0, Refused, 0, Status.NOT_MY_VBUCKET, b"{}")]


def test_the_state_changes_of_a_takeover_are_always_answered():
    drain = accepted()
    feed(drain, dcp.SetVbucketState(vbucket=0, opaque=1, state=3).encode())
    assert drain.data_to_send() == Done(opcode=Opcode.DCP_SET_VBUCKET_STATE, opaque=1).encode()


def test_a_marker_that_wants_an_answer_gets_it_when_its_last_change_has_come():
    drain = accepted()
    feed(drain, marker(0, 2, flags=0x0D), change(1))
    assert drain.data_to_send() == b""
    feed(drain, change(2))
    assert drain.data_to_send() == Done(opcode=Opcode.DCP_SNAPSHOT_MARKER, opaque=1).encode()


def test_a_seqno_that_was_passed_moves_the_position():
    drain = accepted()
    feed(drain, marker(0, 5), dcp.SeqnoAdvanced(vbucket=0, opaque=1, seqno=5).encode())
    assert drain.position(0).seqno == 5 and happened(drain.events)[-1] == (0, Advanced, 0, 5, (0, 0))


def test_the_end_of_another_stream_is_ignored():
    drain = accepted()
    feed(drain, dcp.StreamEnd(vbucket=0, opaque=77, status=0).encode(), dcp.StreamEnd(vbucket=5, status=0).encode())
    assert drain.events == [] and drain.streams[0].phase is Phase.OPEN


def test_a_documented_but_obsolete_answer_to_an_acknowledgement_is_swallowed():
    feed(accepted(), Done(opcode=Opcode.DCP_BUFFER_ACKNOWLEDGEMENT).encode())


def test_before_anything_came_the_position_is_the_one_we_asked_from():
    position = Position(0, 0xDEAD, 4, 2, 5)
    assert asked(position).position(0) == position


def test_after_a_marker_without_changes_nothing_of_its_snapshot_is_claimed():
    drain = accepted()
    feed(drain, marker(1, 3), change(1), change(3), marker(4, 9))
    assert drain.position(0) == Position(0, UUID, 3, 3, 3)


def test_inside_a_snapshot_the_claim_begins_at_the_last_consistent_seqno():
    drain = accepted()
    # 4 to 6 are not sent: newer versions of their keys are. Whoever claims to be consistent at 7 could lose them.
    feed(drain, marker(1, 3), change(1), change(3), marker(7, 9), change(7))
    assert drain.position(0) == Position(0, UUID, 7, 3, 9)


def test_a_snapshot_that_is_replaced_before_its_end_widens_the_claim():
    drain = accepted()
    feed(drain, marker(1, 100), change(1), change(50), marker(51, 200, flags=2), change(120))
    assert drain.position(0) == Position(0, UUID, 120, 0, 200)
    feed(drain, change(200))
    assert drain.position(0) == Position(0, UUID, 200, 200, 200)


def test_a_resume_inside_a_snapshot_keeps_the_claim_of_the_position():
    drain = accepted(Position(0, UUID, 4, 2, 6))
    feed(drain, marker(4, 6), change(5))
    assert drain.position(0) == Position(0, UUID, 5, 2, 6)


def test_the_uuid_is_that_of_the_branch_the_snapshot_ends_on():
    drain = asked(Position(0, 0xA, 5, 5, 5))
    feed(drain, dcp.StreamResponse(opaque=1, failover_log=[(0xB, 7), (0xA, 0)]).encode())
    assert drain.position(0).vb_uuid == 0xA
    feed(drain, marker(6, 8), change(6))
    assert drain.position(0).vb_uuid == 0xB  # what 6 lacks was replaced by a change of that branch
    feed(drain, change(8))
    assert drain.position(0).vb_uuid == 0xB


def test_bytes_are_acknowledged_when_processed_and_a_fifth_of_the_window_is_owed():
    drain = accepted(window_bytes=1000)
    feed(drain, marker(0, 9), change(1, value=b"v" * 200))
    assert drain.data_to_send() == b""  # received only
    drain.processed(101.0)
    assert dcp.BufferAck.decode(drain.data_to_send()).acked_bytes == 44 + 55 + 1 + 200


def test_what_is_owed_for_five_seconds_is_acknowledged_however_little():
    drain = accepted(window_bytes=1000)
    feed(drain, marker(0, 9))
    drain.processed(101.0)
    assert drain.data_to_send() == b"" and drain.deadline == 106.0
    drain.tick(105.9)
    assert drain.data_to_send() == b""
    drain.tick(106.0)
    assert dcp.BufferAck.decode(drain.data_to_send()).acked_bytes == 44


def test_answers_and_noops_take_nothing_of_the_window():
    drain = accepted(window_bytes=1000)
    feed(drain, dcp.Noop(opaque=1).encode())
    drain.processed(101.0)
    assert drain.window.received_bytes == 0 and drain.window.deadline is None


def test_two_quiet_intervals_mean_the_peer_is_gone():
    drain = accepted(silence_seconds=240.0)
    drain.tick(339.9)
    assert drain.tick(340.0) == [PeerGone(240.0)]


def test_without_noops_silence_means_nothing():
    drain = accepted(silence_seconds=None)
    drain.tick(1e9)
    assert drain.deadline is None


def test_a_stream_request_without_an_answer_is_not_waited_for_for_ever():
    drain = asked(answer_seconds=30.0)
    feed(drain, dcp.Noop(opaque=1).encode(), now=120.0)
    assert drain.deadline == 130.0
    assert drain.tick(130.0) == [PeerGone(30.0, "stream request for vbucket 0")]


def test_a_full_arena_stops_at_a_frame_and_goes_on_after_the_batch():
    drain = accepted()
    data = marker(0, 9) + b"".join(change(seqno, value=bytes(3000)) for seqno in (1, 2, 3))
    used = drain.receive(data, 100.0)
    assert drain.full and drain.arena.rows == 1
    rows = drain.arena.batch().num_rows
    while drain.full:
        used += drain.receive(data[used:], 100.0)
        rows += drain.arena.batch().num_rows
    assert used == len(data) and rows == 3


def test_a_value_larger_than_the_arena_makes_it_grow():
    drain = accepted()
    feed(drain, marker(0, 1), change(1, value=bytes(100_000)))
    assert drain.arena.batch()["value"][0].as_py() == bytes(100_000)


def test_what_comes_before_its_stream_is_accepted_is_refused_in_whatever_order_answers_come() -> None:
    def answered(*opaques: int) -> Drain:
        drain = a_drain()
        for vbucket in range(4):
            drain.request(Position(vbucket), ENDLESS, 0.0)
        for opaque in opaques:
            frames = dcp.StreamResponse(opaque=opaque, failover_log=LOG).encode(), marker(0, 9, 1, opaque, opaque - 1)
            feed(drain, *frames, change(1, opaque=opaque, vbucket=opaque - 1))
        return drain

    for opaques in ((1, 2, 3), (1, 3, 2), (3, 1, 2), (2, 3, 1)):
        drain = answered(*opaques)
        early = marker(0, 9, 1, 4, 3) + change(1, opaque=4, vbucket=3)
        with pytest.raises(RemoteProtocolError, match="vbucket 3: changes came before the stream request 4"):
            drain.receive(early, 0.0)


@pytest.mark.parametrize("markers", [True, False])
def test_markers_are_told_and_answered_as_asked(markers: bool) -> None:
    drain = asked(markers=markers)
    feed(drain, ACCEPTED, marker(0, 1, 1), change(1), marker(2, 2, 0x09), change(2))
    told = [(0, Marked, 0, 0, 1, 1, 0, 0), (1, Marked, 0, 2, 2, 9, 0, 0)] if markers else []
    assert [each for each in happened(drain.events) if each[1] is Marked] == told
    assert drain.data_to_send() == Done(opcode=Opcode.DCP_SNAPSHOT_MARKER, opaque=1).encode()


@given(st.lists(st.integers(0, len(TALK)), max_size=8), st.sampled_from([20, 4096]))
def test_rows_and_events_come_out_in_the_order_of_the_wire_however_it_was_cut(cuts: list[int], arena_bytes: int):
    drain, seen = asked(arena_bytes=arena_bytes, window_bytes=0), []
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), len(TALK)], strict=True):
        if stop > start:
            seen += drain.receive_data(TALK[start:stop], 100.0)
    pieces = [event.records["seqno"].to_pylist() if isinstance(event, Rows) else [type(event)] for event in seen]
    assert [each for piece in pieces for each in piece] == [Opened, Marked, 1, 2, 3, Ended]
    assert drain.data_to_send() == Done(opcode=Opcode.DCP_NOOP, opaque=9).encode()


def test_what_was_handed_out_counts_as_processed_when_the_next_bytes_come():
    drain = accepted(window_bytes=1000)
    drain.receive_data(marker(0, 9) + change(1, value=b"v" * 200), 101.0)
    assert drain.data_to_send() == b""
    drain.receive_data(change(2), 101.0)
    assert dcp.BufferAck.decode(drain.data_to_send()).acked_bytes == 44 + 55 + 1 + 200


def test_collections_that_were_modified_and_events_that_nobody_knows_are_told_and_counted() -> None:
    drain = Drain(
        Arena(value_bytes=4096, key_bytes=4096, with_ids=True),
        "node:11210",
        window_bytes=1000,
        silence_seconds=240.0,
        answer_seconds=1000.0,
        now=100.0,
        with_ids=True,
    )
    drain.request(Position.beginning(0), ENDLESS, 100.0)
    feed(drain, ACCEPTED, marker(1, 4), change(1, key=b"\x00k"))
    drain.events.clear()
    table = bytes.fromhex(MODIFIED)
    told = dcp.SystemEventV2(vbucket=0, opaque=1, by_seqno=2, event=5, key=b"orders", value=table).encode()
    strange = Frame(0x80, Opcode.DCP_SYSTEM_EVENT, extras=(3).to_bytes(8) + b"\x00\x00\x00\x09\x07", opaque=1).encode()
    feed(drain, told, strange, change(4, key=b"\x00k"))
    (row, modified), (_, unknown) = drain.events
    assert isinstance(modified, CollectionsTold) and isinstance(unknown, CollectionsTold) and row == 1
    names = CollectionNames()
    names.see(EventKind.CREATE_COLLECTION, 8, 12, "orders")
    event = collection_event(modified, names)
    assert event == CollectionModified(0, 2, 10, names.of(12), 1, 4, max_ttl=None, history=True)
    assert collection_event(unknown, names) == UnknownSystemEvent(0, 3, 9, 7, b"", b"", 1, 4)
    assert drain.position(0).seqno == 4


def test_every_flag_and_layout_of_a_marker_is_read():
    """History (0x10) and MayContainDuplicates (0x20) say that keys repeat: whether a drain asked for that or not, it
    reads what comes. The third marker is of version 2.2."""
    drain = accepted()
    first = (
        "805600001400000000000014000000010000000000000000" + "0000000000000000000000000000000300000036"
    )  # start 0, end 3, History | MayContainDuplicates | Checkpoint | Disk
    second = (
        "805600000100000000000025000000010000000000000000" + "00"
        "0000000000000004000000000000000500000011" + "0000000000000005" + "0000000000000000"
    )
    third = (
        "805600000100000000000035000000010000000000000000" + "02"
        "0000000000000006000000000000000700000032" + "0000000000000007" + "00" * 8 + "0000000000000002" + "00" * 8
    )
    feed(drain, bytes.fromhex(first), change(1), change(3), bytes.fromhex(second), change(4), change(5))
    feed(drain, bytes.fromhex(third), change(7))
    rows, events, _ = outcome(drain)
    assert [(row["seqno"], row["key"]) for row in rows] == [(seqno, b"k") for seqno in (1, 3, 4, 5, 7)]
    assert events == [
        (0, Marked, 0, 0, 3, 0x36, 0, 0),
        (2, Marked, 0, 4, 5, 0x11, 0, 0),
        (4, Marked, 0, 6, 7, 0x32, 0, 0),
    ]
    assert drain.position(0) == Position(0, UUID, 7, 7, 7) and drain.streams[0].purge_seqno == 2


def checking(position: Position = BEGINNING, **options) -> Drain:
    return accepted(position, with_ids=True, checks_purges=True, markers=False, **options)


AT_50 = Position(0, UUID, 50, 50, 50)


@pytest.mark.parametrize(
    ("held", "said", "missed"),
    [
        (BEGINNING, [purged_marker(0, 90, 60)], None),
        (BEGINNING, [purged_marker(1, 90, 60)], None),
        (AT_50, [purged_marker(50, 90, 50)], None),
        (AT_50, [purged_marker(50, 90, 51)], (50, 51)),
        (AT_50, [purged_marker(40, 90, 60)], (50, 60)),
        (AT_50, [marker(50, 70), purged_marker(71, 90, 70)], None),
        (AT_50, [marker(50, 70), purged_marker(71, 90, 71)], (70, 71)),
        (AT_50, [marker(50, 70), purged_marker(70, 90, 70)], None),
        (BEGINNING, [purged_marker(0, 70, 60), purged_marker(71, 90, 80)], (70, 80)),
        (BEGINNING, [purged_marker(0, 70, 60), purged_marker(60, 90, 60)], None),
        (AT_50, [purged_marker(50, 40 + 20, 1 << 63)], (50, 60)),
    ],
)
def test_a_snapshot_that_lacks_purged_deletions_of_what_is_held_is_told(held, said, missed):
    drain = checking(held)
    feed(drain, *said)
    told = [each for each in happened(drain.events) if each[1] is DeletionsMissed]
    assert told == ([] if missed is None else [(0, DeletionsMissed, 0, *missed)])
    assert drain.streams[0].phase is (Phase.OPEN if missed is None else Phase.ENDED)


def test_who_quoted_the_purge_seqno_lacks_nothing_of_it():
    drain = a_drain(with_ids=True, checks_purges=True)
    drain.request(Position(0, UUID, 50, 0, 90), ENDLESS, 100.0, b'{"uid":"0","purge_seqno":"60"}', 60)
    assert drain.data_to_send().endswith(b'{"uid":"0","purge_seqno":"60"}')
    feed(drain, ACCEPTED, purged_marker(0, 90, 60))
    assert not [event for _, event in drain.events if isinstance(event, DeletionsMissed)]
    assert drain.streams[0].purge_seqno == 60


PARTED_AT_60 = ((0xB0B, 60), (UUID, 0))


@pytest.mark.parametrize(
    ("theirs", "missed"), [(PARTED_AT_60, True), (((0xB0B, 100), (UUID, 0)), False), (((UUID, 0),), False)]
)
def test_a_purge_seqno_of_a_history_that_was_lost_proves_nothing_about_that_of_another_node(theirs, missed):
    """A reader of a collection that stood still was told that others were purged up to 100. A failover led to a history
    that parted from his at 60, and was purged up to 100, too: a deletion at 70 in his collection is among it."""
    claim = Claim(50, ENDLESS, UUID, 50, 50)
    assert decide(claim, theirs, 200, purge_seqno=100, remote_purge_seqno=100, collection_high_seqno=90) == Ok()
    drain = a_drain(with_ids=True)
    drain.request(Position(0, UUID, 50, 50, 50, ((UUID, 0),)), ENDLESS, 100.0, b"", 100)
    feed(drain, dcp.StreamResponse(opaque=1, failover_log=list(theirs)).encode())
    told = [each for each in happened(drain.events) if each[1] is DeletionsMissed]
    assert told == ([(0, DeletionsMissed, 0, 50, 100)] if missed else [])


def test_of_a_part_of_the_bucket_a_purge_is_learned_and_nothing_concluded():
    """A producer serves a reader of a collection that has not changed since, whatever was purged of others."""
    drain = accepted(AT_50, with_ids=True)
    feed(drain, purged_marker(50, 90, 60))
    assert [type(event) for _, event in drain.events] == [Marked] and drain.streams[0].purge_seqno == 60
