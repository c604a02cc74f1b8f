"""A place that follows what is handed on stands where the decoder stands when all is."""

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.client.foothold import Foothold
from headwater.protocol.dcp.consumer_stream import ConsumerStream
from headwater.protocol.dcp.events import Advanced, Boundary, Ended, Marked
from headwater.protocol.dcp.position import ENDLESS, Position
from tests.protocol.dcp.drain_talk import accepted, change, feed, marker

HERE = ConsumerStream(0)


def numbers(place: Foothold) -> tuple[int, int, int]:
    return place.last, place.held_start, place.held_end


def test_a_place_begins_where_its_position_is() -> None:
    assert numbers(Foothold(Position(0, 1, 7, 5, 9))) == (7, 5, 9)
    assert numbers(Foothold(Position(0, 1, 5, 5, 9))) == (5, 5, 5), "nothing of the snapshot is held"


def test_a_snapshot_is_entered_and_left() -> None:
    place = Foothold(Position.beginning(0))
    place.apply_event(Marked(HERE, 1, 5, 1))
    place.move(3, 1, 5)
    assert numbers(place) == (3, 0, 5)
    place.move(5, 1, 5)
    place.move(6, 6, 6)
    assert numbers(place) == (6, 5, 6)


def test_a_snapshot_that_was_cut_short_widens_the_range() -> None:
    place = Foothold(Position(0, 1, 3, 1, 5))
    place.move(4, 3, 8)
    assert numbers(place) == (4, 1, 8)


def test_events_without_a_change_move_it_too_and_an_end_does_not() -> None:
    place = Foothold(Position.beginning(0))
    place.apply_event(Advanced(HERE, 4, (1, 4)))
    assert numbers(place) == (4, 0, 4)
    place.apply_event(Advanced(HERE, 6))
    place.apply_event(Ended(HERE, 0))
    assert place.last == 6
    place.apply_event(Boundary(HERE, goes_on=True))
    place.apply_event(Marked(HERE, 0, ENDLESS, 0))
    assert numbers(place) == (6, 6, 6)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.booleans()), max_size=8))
def test_it_stands_where_the_decoder_stands(snapshots) -> None:
    drain, place, seqno = accepted(), Foothold(Position.beginning(0)), 0
    for count, gap, is_told in snapshots:
        start, end = seqno + 1, seqno + count + gap
        feed(drain, marker(start, end))
        if is_told:
            place.apply_event(Marked(HERE, start, end, 1))
        for seqno in range(start, start + count):
            feed(drain, change(seqno))
            place.move(seqno, start, end)
            assert numbers(place) == drain.table.held(0)
