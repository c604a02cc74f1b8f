"""The messages of a vbucket's stream: markers, changes each once per snapshot, and its end."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headwater.node.streams import stream as stream_module
from headwater.node.streams.stream import PHASES, StreamPhase
from headwater.wire.dcp import EndReason, StreamFlag, seqno_of
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.streams.support import COLLECTIONS, Producer, StreamDesk, fill, spoil, told

DISK, FIRST, MEMORY = 0x06, 0x05, 0x01
AWARE = (0x07, 0x08, COLLECTIONS)


def uuid(desk: StreamDesk, vb: int = 0) -> int:
    return desk.bucket.vbuckets[vb].failover.newest.vb_uuid


def unstalled(reader: Producer, last_seqno: int) -> list[Frame]:
    """Return the messages up to a seqno, each acknowledged by itself."""
    found: list[Frame] = []
    while not found or seqno_of(found[-1].extras) != last_seqno or found[-1].opcode == Opcode.DCP_SNAPSHOT_MARKER:
        reader.ack(len(found[-1]) if found else 0)
        found += reader.turn()
    return found


def seen(frames: list[Frame]) -> dict[str, int]:
    """The seqno of the newest change of each key."""
    return {str(each[2]): int(str(each[1])) for each in told(frames) if each[0] == "mutation"}


def test_nothing_follows_the_death_of_a_stream() -> None:
    assert set(PHASES) == set(StreamPhase)
    assert PHASES[StreamPhase.DEAD] == frozenset()


def test_a_backfill_then_what_is_written_after_it(desk: StreamDesk) -> None:
    desk.set(0, "a")
    desk.set(0, "b")
    desk.commit()
    reader = Producer(desk)
    reader.stream()
    assert told(reader.read()) == [("marker", 0, 2, DISK), ("mutation", 1, "a"), ("mutation", 2, "b")]
    desk.set(0, "c")
    desk.commit()
    assert told(reader.read()) == [("marker", 2, 3, FIRST), ("mutation", 3, "c")]
    desk.set(0, "d")
    desk.set(0, "e")
    desk.commit()
    assert told(reader.read()) == [("marker", 3, 5, MEMORY), ("mutation", 4, "d"), ("mutation", 5, "e")]


def test_live_changes_take_no_view(desk: StreamDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Producer(desk, flags=0x21)
    reader.stream()
    monkeypatch.setattr(desk.store, "view", lambda *_: pytest.fail("a view was taken"))
    for number in range(3):
        desk.set(0, "a", b"%d" % number)
    desk.set(0, "b")
    desk.commit()
    assert told(reader.read()) == [("marker", 0, 4, FIRST), ("mutation", 3, "a"), ("mutation", 4, "b")]
    desk.delete(0, "b")
    desk.commit()
    assert told(reader.read()) == [("marker", 4, 5, MEMORY), ("deletion", 5, "b")]
    entry = next(iter(reader.session.streams.values())).entry
    assert (entry.last_seqno, entry.snapshot_end_seqno) == (5, 5)


def test_a_damaged_vbucket_is_looked_at_before_anything_is_sent(desk: StreamDesk, monkeypatch: Any) -> None:
    reader = Producer(desk)
    reader.stream()
    monkeypatch.setattr(desk.store.quarantine, "vbuckets", {0})
    looked: list[int] = []
    monkeypatch.setattr(desk.store.quarantine, "check_range", lambda vb, *_: looked.append(vb))
    desk.set(0, "a")
    desk.commit()
    assert told(reader.read()) == [("marker", 0, 1, FIRST), ("mutation", 1, "a")]
    assert looked == [0]


def test_live_changes_count_in_the_window_like_all_others(desk: StreamDesk) -> None:
    reader = Producer(desk)
    reader.control("connection_buffer_size", "1000")
    reader.stream()
    desk.set(0, "a")
    desk.commit()
    sent = sum(map(len, reader.read()))
    assert reader.session.producer.flow.outstanding_bytes == sent == 44 + 55 + 1 + 5


def test_a_stream_with_nothing_to_catch_up_on_has_no_disk_snapshot(desk: StreamDesk) -> None:
    reader = Producer(desk)
    reader.stream()
    assert reader.read() == []
    desk.set(0, "a")
    desk.commit()
    assert told(reader.read()) == [("marker", 0, 1, FIRST), ("mutation", 1, "a")]


def test_what_is_not_durable_is_not_seen(desk: StreamDesk) -> None:
    reader = Producer(desk)
    reader.stream()
    desk.set(0, "a")
    assert reader.read() == []
    desk.commit()
    assert reader.connection.woken
    assert told(reader.read())[-1] == ("mutation", 1, "a")


def test_a_key_comes_once_per_snapshot_at_its_newest(desk: StreamDesk) -> None:
    for number in range(5):
        desk.set(0, "a", b"%d" % number)
        desk.set(0, "b", b"%d" % number)
    desk.delete(0, "a")
    desk.commit()
    reader = Producer(desk)
    reader.stream()
    frames = reader.read()
    assert told(frames) == [("marker", 0, 11, DISK), ("mutation", 10, "b"), ("deletion", 11, "a")]
    assert frames[1].value == b"4"


def test_a_slow_reader_sees_fewer_versions_and_the_last_of_each(desk: StreamDesk) -> None:
    reader = Producer(desk)
    reader.control("connection_buffer_size", "1")
    reader.stream()
    for number in range(3):
        desk.set(0, "a", b"%d" % number)
        desk.commit()
    assert told(reader.read()) == [("marker", 0, 3, FIRST)]
    reader.ack(44)
    assert told(reader.read()) == [("mutation", 3, "a")]


@pytest.mark.parametrize(("start", "snapshot", "first"), [(2, (2, 2), 2), (2, (1, 3), 1), (2, (2, 9), 2)])
def test_the_first_marker_begins_where_the_consumers_snapshot_began(
    desk: StreamDesk, start: int, snapshot: tuple[int, int], first: int
) -> None:
    for key in "abcd":
        desk.set(0, key)
    desk.commit()
    reader = Producer(desk)
    reader.stream(
        start_seqno=start, vb_uuid=uuid(desk), snap_start_seqno=snapshot[0], snap_end_seqno=snapshot[1], end_seqno=4
    )
    assert told(reader.read()) == [("marker", first, 4, DISK), ("mutation", 3, "c"), ("mutation", 4, "d"), ("end", 0)]


def test_an_end_in_the_past_shows_the_vbucket_as_it_was_then(desk: StreamDesk) -> None:
    for key in ("a", "b", "c", "a", "b"):
        desk.set(0, key)
    desk.commit()
    reader = Producer(desk)
    reader.stream(end_seqno=3)
    assert told(reader.read()) == [
        ("marker", 0, 3, DISK),
        ("mutation", 1, "a"),
        ("mutation", 2, "b"),
        ("mutation", 3, "c"),
        ("end", 0),
    ]


def test_an_end_that_can_not_be_shown_any_more_takes_the_whole_snapshot_that_holds_it(desk: StreamDesk) -> None:
    for key in ("a", "b", "a"):
        desk.set(0, key)
    desk.commit()
    desk.bucket.vbuckets[0].set_state(State.REPLICA)
    desk.commit()
    reader = Producer(desk)
    reader.stream(end_seqno=1)
    assert told(reader.read()) == [("marker", 0, 3, DISK), ("mutation", 2, "b"), ("mutation", 3, "a"), ("end", 0)]


def test_an_end_in_the_future_is_waited_for(desk: StreamDesk) -> None:
    desk.set(0, "a")
    desk.commit()
    reader = Producer(desk)
    reader.stream(end_seqno=2)
    assert told(reader.read()) == [("marker", 0, 1, DISK), ("mutation", 1, "a")]
    for key in "bcd":
        desk.set(0, key)
    desk.commit()
    assert told(reader.read()) == [("marker", 1, 2, FIRST), ("mutation", 2, "b"), ("end", 0)]
    desk.set(0, "e")
    desk.commit()
    assert reader.read() == []


@pytest.mark.parametrize(("start", "last"), [(0, 0), (2, 2)])
def test_start_and_end_alike_end_at_once(desk: StreamDesk, start: int, last: int) -> None:
    desk.set(0, "a")
    desk.set(0, "b")
    desk.commit()
    reader = Producer(desk)
    reader.stream(start_seqno=start, end_seqno=last, vb_uuid=uuid(desk))
    assert told(reader.read()) == [("end", 0)]


@pytest.mark.parametrize("flag", [StreamFlag.DISK_ONLY, StreamFlag.TO_LATEST])
def test_disk_only_and_to_latest_end_at_what_is_durable_now(desk: StreamDesk, flag: StreamFlag) -> None:
    desk.set(0, "a")
    desk.commit()
    reader = Producer(desk)
    reader.stream(flags=flag)
    desk.set(0, "b")
    desk.commit()
    assert told(reader.read()) == [("marker", 0, 1, DISK), ("mutation", 1, "a"), ("end", 0)]


def test_from_latest_sends_only_what_comes(desk: StreamDesk) -> None:
    desk.set(0, "a")
    desk.commit()
    reader = Producer(desk)
    reader.stream(flags=StreamFlag.FROM_LATEST)
    desk.set(0, "b")
    desk.commit()
    assert told(reader.read()) == [("marker", 1, 2, FIRST), ("mutation", 2, "b")]


@pytest.mark.parametrize("state", [State.REPLICA, State.PENDING, State.DEAD])
def test_a_change_of_state_ends_the_stream_once(desk: StreamDesk, state: State) -> None:
    reader = Producer(desk)
    reader.stream()
    desk.bucket.vbuckets[0].set_state(state)
    assert reader.connection.woken
    assert told(reader.read()) == [("end", 2)]
    desk.bucket.vbuckets[0].set_state(State.ACTIVE)
    desk.set(0, "a")
    desk.commit()
    assert reader.read() == []


def test_a_rollback_ends_the_stream_with_its_own_reason(desk: StreamDesk) -> None:
    desk.set(0, "a")
    desk.set(0, "b")
    desk.commit()
    reader = Producer(desk)
    reader.stream()
    reader.read()
    desk.bucket.vbuckets[0].roll_back(1)
    assert told(reader.read()) == [("end", 6)]
    answer = reader.request(start_seqno=2, vb_uuid=uuid(desk))
    assert (answer.status, answer.value) == (Status.ROLLBACK, bytes(7) + b"\1")


def test_a_vbucket_that_is_dropped_ends_its_streams_with_state_changed(desk: StreamDesk) -> None:
    reader = Producer(desk)
    reader.stream()
    desk.bucket.drop_vbucket(0)
    desk.commit()
    assert told(reader.read()) == [("end", 2)]
    assert reader.request().status == Status.NOT_MY_VBUCKET


def test_a_state_change_in_the_middle_of_a_snapshot_ends_it_there(desk: StreamDesk) -> None:
    for key in "abc":
        desk.set(0, key)
    desk.commit()
    reader = Producer(desk)
    reader.control("connection_buffer_size", "60")
    reader.stream()
    assert told(reader.read()) == [("marker", 0, 3, DISK), ("mutation", 1, "a")]
    desk.bucket.vbuckets[0].set_state(State.DEAD)
    assert reader.read() == []
    reader.ack(200)
    assert told(reader.read()) == [("end", 2)]


# --------------------------------------------------------------------------- replicas


def test_a_replica_announces_the_snapshot_it_is_receiving_and_goes_on_inside_it(desk: StreamDesk) -> None:
    vbucket = desk.bucket.vbuckets[0]
    desk.set(0, "a")
    desk.set(0, "b")
    desk.commit()
    vbucket.set_state(State.REPLICA)
    vbucket.begin_snapshot(2, 6)
    desk.set(0, "a")
    desk.commit()
    reader = Producer(desk, features=AWARE)
    reader.stream()
    assert told(reader.read()) == [
        ("marker", 0, 2, DISK),
        ("mutation", 1, "\0a"),
        ("mutation", 2, "\0b"),
        ("marker", 2, 6, FIRST),
        ("mutation", 3, "\0a"),
    ]
    desk.set(0, "c", seqno=5)
    desk.commit()
    assert told(reader.read()) == [("mutation", 5, "\0c")]
    desk.set(0, "d")
    desk.commit()
    assert told(reader.read()) == [("mutation", 6, "\0d")]
    vbucket.begin_snapshot(6, 7)
    desk.set(0, "e")
    desk.commit()
    assert told(reader.read()) == [("marker", 6, 7, MEMORY), ("mutation", 7, "\0e")]


def test_without_collections_a_replica_sends_whole_snapshots_alone(desk: StreamDesk) -> None:
    """More of a snapshot may be for this reader until it is over, and there is no message that tells it so."""
    vbucket = desk.bucket.vbuckets[0]
    desk.set(0, "a")
    desk.commit()
    vbucket.set_state(State.REPLICA)
    vbucket.begin_snapshot(1, 4)
    desk.set(0, "b")
    desk.set(0, "c", collection=8)
    desk.commit()
    reader = Producer(desk)
    reader.stream()
    assert told(reader.read()) == [("marker", 0, 1, DISK), ("mutation", 1, "a")]
    desk.set(0, "d", collection=8)
    desk.commit()
    assert told(reader.read()) == [("marker", 1, 2, FIRST), ("mutation", 2, "b")]


def test_a_reader_with_collections_is_told_the_end_of_a_snapshot_whose_last_change_so_far_is_not_for_it(
    desk: StreamDesk,
) -> None:
    vbucket = desk.bucket.vbuckets[0]
    desk.become(0, 1, a=8)
    desk.commit()
    vbucket.set_state(State.REPLICA)
    vbucket.begin_snapshot(2, 9)
    desk.set(0, "a")
    desk.set(0, "b", collection=8)
    desk.commit()
    reader = Producer(desk, features=AWARE)
    reader.stream(value=b'{"collections":["0"]}')
    assert told(reader.read())[-2:] == [("marker", 2, 9, FIRST), ("mutation", 3, "\0a")]
    desk.set(0, "c", collection=8, seqno=9)
    desk.commit()
    assert told(reader.read()) == [("advanced", 9)]


@pytest.mark.parametrize("end", [3, 5, 6])
def test_a_stream_of_a_replica_ends_although_the_rest_of_the_snapshot_is_not_shown(desk: StreamDesk, end: int) -> None:
    vbucket = desk.bucket.vbuckets[0]
    desk.set(0, "a")
    desk.commit()
    vbucket.set_state(State.REPLICA)
    vbucket.begin_snapshot(1, 6)
    reader = Producer(desk)
    reader.stream(end_seqno=end)
    for key, collection in (("b", 0), ("c", 0), ("d", 8), ("e", 8), ("f", 8)):
        desk.set(0, key, collection=collection)
        desk.commit()
        frames = reader.read()
    assert told(frames) == [("marker", 1, 3, FIRST), ("mutation", 2, "b"), ("mutation", 3, "c"), ("end", 0)]


def test_a_replica_before_its_first_whole_snapshot_is_not_streamed(desk: StreamDesk) -> None:
    vbucket = desk.bucket.vbuckets[0]
    vbucket.set_state(State.REPLICA)
    vbucket.begin_snapshot(1, 5)
    desk.set(0, "a")
    desk.commit()
    assert Producer(desk).request().status == Status.ETMPFAIL


def test_an_end_inside_a_snapshot_that_is_being_received_waits_for_its_end(desk: StreamDesk) -> None:
    vbucket = desk.bucket.vbuckets[0]
    desk.set(0, "a")
    desk.commit()
    vbucket.set_state(State.REPLICA)
    vbucket.begin_snapshot(1, 3)
    desk.set(0, "b")
    desk.commit()
    plain, aware = Producer(desk), Producer(desk, "aware", features=AWARE)
    for reader in (plain, aware):
        reader.stream(end_seqno=2)
    assert told(aware.read())[-2:] == [("marker", 1, 3, FIRST), ("mutation", 2, "\0b")]
    assert told(plain.read()) == [("marker", 0, 1, DISK), ("mutation", 1, "a")]
    desk.set(0, "c")
    desk.commit()
    assert told(aware.read()) == [("mutation", 3, "\0c"), ("end", 0)]
    assert told(plain.read()) == [("marker", 1, 3, FIRST), ("mutation", 2, "b"), ("mutation", 3, "c"), ("end", 0)]


# --------------------------------------------------------------------------- states that are told whole, and are


def test_who_was_cut_off_inside_a_snapshot_gets_all_that_the_copy_has_which_takes_over(
    desk: StreamDesk, tmp_path: Path
) -> None:
    """The first change behind the state it holds was merged away: it comes again, for it is alive at the new owner."""
    for key in "ab":
        desk.set(0, key)
    desk.commit()
    reader = Producer(desk)
    reader.control("connection_buffer_size", "1")
    reader.stream()
    view = seen(unstalled(reader, 2))
    reader.ack(100)
    for key in ("K", "c", "d", "e", "K"):
        desk.set(0, key)
    desk.commit()
    frames = unstalled(reader, 5)
    view |= seen(frames)
    start, end = int.from_bytes(frames[0].extras[:8]), int.from_bytes(frames[0].extras[8:16])
    with closing(StreamDesk(tmp_path / "other")) as other:
        vbucket = other.bucket.vbuckets[0]
        vbucket.follow(list(desk.bucket.vbuckets[0].failover.entries))
        vbucket.set_state(State.REPLICA)
        for key in "abKcd":
            other.set(0, key)
        vbucket.set_state(State.ACTIVE)
        other.commit()
        again = Producer(other)
        numbers = {"start_seqno": 5, "snap_start_seqno": start, "snap_end_seqno": end, "vb_uuid": uuid(desk)}
        refused = again.request(**numbers)
        assert refused.status == Status.ROLLBACK
        common = int.from_bytes(refused.value)
        view = {key: seqno for key, seqno in view.items() if seqno <= common}
        again.stream(start_seqno=common, vb_uuid=uuid(desk))
        view |= seen(again.read())
        assert view == {"a": 1, "b": 2, "K": 3, "c": 4, "d": 5}


def test_a_snapshot_replaced_before_its_end_goes_on_from_where_it_began(desk: StreamDesk) -> None:
    """The part that came of the first is no state to go back to (failover 2, rule 8)."""
    vbucket = desk.bucket.vbuckets[0]
    desk.set(0, "a")
    desk.commit()
    vbucket.set_state(State.REPLICA)
    vbucket.begin_snapshot(1, 9)
    desk.set(0, "b", seqno=3)
    desk.commit()
    reader = Producer(desk, features=AWARE)
    reader.stream(start_seqno=1, vb_uuid=uuid(desk))
    assert told(reader.read()) == [("marker", 1, 9, DISK), ("mutation", 3, "\0b")]
    vbucket.begin_snapshot(3, 7)
    desk.set(0, "c", seqno=7)
    desk.commit()
    assert told(reader.read()) == [("marker", 1, 7, FIRST), ("mutation", 7, "\0c")]


def test_who_holds_a_part_of_a_snapshot_is_led_to_its_end_though_it_asks_for_less(desk: StreamDesk) -> None:
    """Of `a` it was never sent what is merged into seqno 5."""
    for key in ("a", "b", "c", "d", "a", "e"):
        desk.set(0, key)
    desk.commit()
    reader = Producer(desk)
    for snap_start in (0, 1):  # a marker of another server starts one behind the state before
        reader.stream(start_seqno=2, snap_start_seqno=snap_start, snap_end_seqno=5, end_seqno=3, vb_uuid=uuid(desk))
        rest = [("mutation", 3, "c"), ("mutation", 4, "d"), ("mutation", 5, "a"), ("end", 0)]
        assert told(reader.read()) == [("marker", snap_start, 5, DISK), *rest]


def test_who_claims_a_range_to_have_it_checked_gets_what_it_asks_for(desk: StreamDesk) -> None:
    for key in ("a", "b", "c", "d", "e"):
        desk.set(0, key)
    desk.commit()
    reader = Producer(desk)
    assert reader.control("headwater_claims", "true") == 0
    reader.stream(start_seqno=2, snap_start_seqno=1, snap_end_seqno=5, end_seqno=3, vb_uuid=uuid(desk))
    assert [each[:2] for each in told(reader.read())] == [("marker", 1), ("mutation", 3), ("end", 0)]


@pytest.mark.parametrize("features", [(0x07, 0x08), AWARE], ids=["plain", "aware"])
def test_a_state_inside_of_the_snapshot_that_is_held_in_part_is_not_told_whole_by_a_replica(
    desk: StreamDesk, features: tuple[int, ...]
) -> None:
    for key in ("a", "b", "c", "d", "a"):
        desk.set(0, key)
    desk.commit()
    vbucket = desk.bucket.vbuckets[0]
    vbucket.set_state(State.REPLICA)
    vbucket.roll_back(4)
    vbucket.begin_snapshot(4, 6)  # whole at 4, where the consumer is not
    desk.set(0, "a")
    desk.commit()
    reader = Producer(desk, features=features)
    reader.stream(start_seqno=2, snap_start_seqno=0, snap_end_seqno=5, vb_uuid=uuid(desk))
    markers = [each for each in told(reader.read()) if each[0] == "marker"]
    assert markers == [("marker", 0, 6, 0x26)] * (0x12 in features)
    desk.set(0, "e")
    desk.commit()
    got = told(reader.read())
    assert got[-1][:2] == ("mutation", 6) and len(got) == (1 if 0x12 in features else 5)


def test_documents_of_a_collection_dropped_behind_the_end_asked_for_are_in_the_state_of_that_end(
    desk: StreamDesk,
) -> None:
    desk.become(0, 1, a=8)
    desk.set(0, "a", collection=8)
    desk.commit()
    desk.become(0, 2)
    desk.commit()
    reader = Producer(desk, features=AWARE)
    reader.stream(end_seqno=3)
    assert told(reader.read())[-2:] == [("mutation", 3, "\x08a"), ("end", 0)]
    reader.stream()
    assert [each[0] for each in told(reader.read())].count("mutation") == 0


# --------------------------------------------------------------------------- deletions


def test_deletions_are_left_out_of_a_first_backfill_on_request(desk: StreamDesk) -> None:
    for key in "abcd":
        desk.set(0, key)
    for key in "abd":
        desk.delete(0, key)
    desk.set(0, "e")
    desk.commit()
    reader = Producer(desk, flags=0x201)
    reader.stream()
    assert told(reader.read()) == [("marker", 0, 8, DISK), ("mutation", 3, "c"), ("mutation", 8, "e")]
    desk.delete(0, "c")
    desk.commit()
    assert told(reader.read()) == [("marker", 8, 9, FIRST), ("deletion", 9, "c")]


def test_the_deletion_that_ends_a_backfill_is_sent_for_only_with_it_the_state_is_whole(desk: StreamDesk) -> None:
    """Were the marker to end at `b`, who comes from there to a copy that lacks the deletion would never hear of `a`."""
    desk.set(0, "a")
    desk.set(0, "b")
    desk.delete(0, "a")
    desk.commit()
    reader = Producer(desk, flags=0x201)
    reader.stream(end_seqno=3)
    assert told(reader.read()) == [("marker", 0, 3, DISK), ("mutation", 2, "b"), ("deletion", 3, "a"), ("end", 0)]
    aware = Producer(desk, "aware", flags=0x201, features=AWARE)
    aware.stream(end_seqno=3)
    assert told(aware.read()) == [("marker", 0, 3, DISK), ("mutation", 2, "\0b"), ("advanced", 3), ("end", 0)]


def test_a_range_of_which_nothing_is_for_a_reader_is_passed_over_in_silence(desk: StreamDesk) -> None:
    desk.set(0, "a", collection=8)
    desk.commit()
    reader = Producer(desk)
    reader.stream(end_seqno=1)
    assert told(reader.read()) == [("end", 0)]


@pytest.mark.parametrize(
    ("flags", "control", "expected", "size"),
    [(0x01, False, "deletion", 18), (0x21, False, "deletion", 21), (0x21, True, "expiration", 20)],
)
def test_an_expired_document_as_the_connection_wants_it(
    desk: StreamDesk, flags: int, control: bool, expected: str, size: int
) -> None:
    desk.set(0, "a")
    desk.delete(0, "a", expired=True)
    desk.commit()
    reader = Producer(desk, flags=flags)
    if control:
        assert reader.control("enable_expiry_opcode", "true") == 0
    reader.stream()
    change = reader.read()[-1]
    assert told([change]) == [(expected, 2, "a")]
    assert len(change.extras) == size


@pytest.mark.parametrize(("value", "datatype"), [(b"no Snappy", 2), (b"\0\0\1\0{}", 4)])
def test_a_document_that_can_not_be_read_ends_its_stream_and_no_other(
    desk: StreamDesk, caplog: pytest.LogCaptureFixture, value: bytes, datatype: int
) -> None:
    """Such a document may lie there from before a replica refused it."""
    fill(desk, 1, 2)
    desk.set(0, "before")
    desk.set(0, "poison", value, datatype=datatype)
    desk.commit()
    reader = Producer(desk)
    reader.stream(0, opaque=1)
    reader.stream(1, opaque=2)
    frames = reader.read()
    assert told([frame for frame in frames if frame.opaque == 1])[1:] == [
        ("mutation", 1, "before"),
        ("end", int(EndReason.BACKFILL_FAIL)),
    ]
    assert [each[2] for each in told(frames) if each[0] == "mutation"].count("k1") == 1
    (line,) = [record.getMessage() for record in caplog.records if "can't be read" in record.getMessage()]
    assert line.startswith('vbucket 0: the value of "poison", seqno 2, ')
    assert not reader.connection.is_closed
    able = Producer(desk, "able", flags=5, features=(0x07, 0x08, 0x0A))
    assert able.control("enable_noop", "true") == 0
    able.stream()
    assert able.read()[-1].value == value, "who takes documents as they are gets it"


def test_a_short_backfill_goes_out_in_one_call_with_the_bytes_of_a_long_one(
    desk: StreamDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        desk.set(0, f"key-{number % 4}", b"%d" * number)
    desk.delete(0, "key-2")
    desk.commit()
    reader = Producer(desk, flags=0x21)

    def backfill() -> bytes:
        reader.stream(end_seqno=6)
        reader.session.pump()
        return reader.bytes_sent()

    with monkeypatch.context() as patch:
        patch.setattr(desk.store, "view", lambda *_: pytest.fail("a view was taken"))
        short = backfill()
    monkeypatch.setattr(stream_module, "SHORT_BACKFILL_SEQNOS", 0)
    assert backfill() == short
    assert reader.session.producer.flow.sent_bytes == 2 * len(short)


def test_after_a_short_backfill_a_stream_is_live(desk: StreamDesk) -> None:
    desk.set(0, "a")
    desk.commit()
    reader = Producer(desk)
    reader.stream()
    reader.read()
    (stream,) = reader.session.streams.values()
    assert (stream.phase, stream.position) == (StreamPhase.IN_MEMORY, 1)
    assert (stream.entry.last_seqno, stream.entry.snapshot_end_seqno) == (1, 1)


def test_a_copy_is_complete_up_to_before_its_first_damaged_change(desk: StreamDesk) -> None:
    fill(desk, 0, 3)
    fill(desk, 0, 2)
    found = desk.bucket.vbuckets[0]
    assert (found.readable_seqno, found.damaged_changes) == (5, 0)
    spoil(desk)
    assert (found.complete_durable_seqno, found.readable_seqno, found.damaged_changes) == (5, 3, 2)
