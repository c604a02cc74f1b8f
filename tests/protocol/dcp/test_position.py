"""Positions: what is a place, how it is saved, and where to go back to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import OptionError
from headwater.protocol.dcp.position import (
    ENDLESS,
    Position,
    history_at,
    load_positions,
    older_histories,
    place,
    safe_point,
    save_positions,
    shared_seqno,
)

U64 = st.integers(0, 2**64 - 1)
LOG = ((0xB, 900), (0xA, 0))


@st.composite
def positions(draw: st.DrawFn) -> Position:
    start, seqno, end = sorted(draw(st.tuples(U64, U64, U64)))
    log = draw(st.lists(st.tuples(U64, U64), max_size=3))
    return Position(draw(st.integers(0, 65535)), draw(U64), seqno, start, end, tuple(log))


def test_a_saved_position_is_one_line_that_names_all_five_numbers():
    saved = '{"vbucket":7,"vb_uuid":"00000000feeddeca","seqno":900,"snapshot_start":800,"snapshot_end":1000}'
    position = Position(7, 0xFEEDDECA, 900, 800, 1000)
    assert position.to_json() == saved and Position.from_json(saved) == position


@given(positions())
def test_what_was_saved_is_read_back_with_its_failover_log(position: Position):
    read = Position.from_json(position.to_json())
    assert read == position and read.failover_log == position.failover_log


@given(st.lists(positions(), unique_by=lambda p: p.vbucket, max_size=5))
def test_many_positions_are_saved_together(many: list[Position]):
    by_vbucket = {position.vbucket: position for position in many}
    assert load_positions(save_positions(by_vbucket)) == by_vbucket


def test_the_failover_log_is_no_part_of_the_place():
    assert Position(1, 0xA, 5, 5, 5, LOG) == Position(1, 0xA, 5, 5, 5)


@pytest.mark.parametrize("numbers", [(-1, 0, 0, 0, 0), (0, 2**64, 0, 0, 0), (0, 0, 5, 6, 7), (0, 0, 5, 1, 4)])
def test_numbers_that_are_no_place_are_refused(numbers: tuple[int, ...]):
    with pytest.raises(OptionError):
        Position(*numbers)


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", "7", '{"vbucket":1,"vb_uuid":3,"seqno":0}', "\udc80", '{"vbucket":1']
)
def test_text_that_is_no_position_is_refused(text: str):
    with pytest.raises(OptionError):
        Position.from_json(text)
    with pytest.raises(OptionError):
        load_positions(f"[{text}]" if text else text)


def test_the_uuid_is_that_of_the_history_the_seqno_was_written_in():
    assert [history_at(LOG, seqno) for seqno in (0, 899, 900, 2000)] == [0xA, 0xA, 0xB, 0xB]
    assert history_at((), 5) == 0


def test_inside_a_snapshot_the_history_is_that_of_its_end():
    inside = place(0, 850, 800, 950, LOG)
    assert (inside.vb_uuid, inside.seqno, inside.snapshot_start, inside.snapshot_end) == (0xB, 850, 800, 950)
    assert [place(0, last, 800, 899, LOG).vb_uuid for last in (800, 850, 899)] == [0xA, 0xA, 0xA]
    assert [place(0, last, 800, 950, LOG).vb_uuid for last in (800, 950)] == [0xA, 0xB]


def test_an_entry_that_begins_after_us_is_not_ours_even_if_the_log_is_out_of_order():
    assert history_at(((1, 21554), (2, 20), (3, 25812)), 100) == 2


@pytest.mark.parametrize(
    ("position", "older"),
    [
        (Position(0, 0xB, 900, 900, 900, LOG), [0xA]),
        (Position(0, 0xB, 901, 901, 901, LOG), []),  # 901 is no change of 0xA's
        (Position(0, 0xA, 899, 899, 899, LOG), []),
        (Position(0, 0xD, 900, 900, 900, ((0xD, 900), (0xC, 900), *LOG, (0x9, 0))), [0xC, 0xB, 0xA]),
        (Position(0, 0xC, 900, 900, 900, ((0xD, 950), (0xC, 900), (0xB, 899), (0xA, 0))), [0xB]),
        (Position(0, 0xB, 900, 800, 950, LOG), []),
        (Position(0, 0xE, 900, 900, 900, LOG), []),
        (Position(0), []),
    ],
)
def test_an_older_history_may_be_quoted_if_it_has_all_that_we_hold(position: Position, older: list[int]):
    assert older_histories(position) == older


def test_inside_a_snapshot_the_position_carries_its_range_and_at_either_end_it_does_not():
    assert place(1, 5, 3, 9, LOG) == Position(1, 0xA, 5, 3, 9)
    assert place(1, 9, 3, 9, LOG) == Position(1, 0xA, 9, 9, 9)
    assert place(1, 3, 3, 9, LOG) == Position(1, 0xA, 3, 3, 3)


def test_after_a_rollback_one_goes_on_from_the_newest_consistent_place_below():
    saved = [Position(1, 0xA, seqno, seqno, seqno) for seqno in (100, 800, 950)] + [Position(1, 0xA, 890, 850, 900)]
    saved.append(Position(2, 0xA, 899, 899, 899))
    assert safe_point(saved, 1, 900).seqno == 800
    assert safe_point(saved, 1, 99) == Position.beginning(1)


def test_one_who_holds_everything_up_to_a_seqno_stands_after_it():
    assert Position.after(3, 900, [(0xB, 900), (0xA, 0)]) == Position(3, 0xB, 900, 900, 900)


@pytest.mark.parametrize(
    ("theirs", "seqno"),
    [
        (LOG, ENDLESS),
        (((0xA, 0),), 900),
        (((0xC, 950), *LOG), 950),
        (((0xC, 700), (0xA, 0)), 700),
        (((0xC, 990), (0xA, 0)), 900),
        (((0xC, 0),), 0),
        ((), 0),
    ],
)
def test_two_logs_tell_the_same_history_up_to_where_the_first_of_them_left_a_branch_of_both(theirs, seqno: int):
    assert shared_seqno(LOG, theirs) == shared_seqno(theirs, LOG) == seqno
