"""The table of streams, as Python sees it."""

import pytest

from headwater.kernels.tracker import HELD_END, HELD_START, StreamTable, TrackedState, TrackedStream
from headwater.wire.vbucket import VBUCKET_NUMBERS


def test_a_stream_that_was_asked_for_waits_for_its_first_snapshot() -> None:
    table = StreamTable()
    table.open(3, 77, 5, 2, 9)
    assert table.stream(3) == TrackedStream(TrackedState.OPEN, 77, 5, 2, 9)
    assert table.is_open(3) and not table.takes(3, 6)
    assert table.stream(4).state is TrackedState.NONE and not table.is_open(4)


@pytest.mark.parametrize(("start", "held"), [(2, (2, 9)), (5, (5, 5)), (6, (5, 5))])
def test_what_is_held_of_a_snapshot_is_its_range_only_in_the_middle_of_it(start: int, held: tuple[int, int]) -> None:
    table = StreamTable()
    table.open(3, 77, 5, start, 9)
    assert tuple(table.rows[3, [HELD_START, HELD_END]].tolist()) == held


def test_a_snapshot_takes_the_seqnos_of_its_range_both_ends_included() -> None:
    table = StreamTable()
    table.open(3, 77, 5)
    table.enter(3, 6, 9)
    assert [seqno for seqno in range(12) if table.takes(3, seqno)] == [6, 7, 8, 9]


def test_a_stream_we_asked_to_close_is_neither_open_nor_forgotten() -> None:
    table = StreamTable()
    table.open(3, 77, 5)
    table.enter(3, 6, 9)
    table.drop(3)
    assert not table.is_open(3) and not table.takes(3, 6)
    assert table.stream(3) == TrackedStream(TrackedState.DROPPING, 77, 5, 6, 9)


def test_the_position_stays_readable_after_the_end() -> None:
    table = StreamTable()
    table.open(VBUCKET_NUMBERS - 1, 77, (1 << 64) - 1)
    table.close(VBUCKET_NUMBERS - 1)
    assert table.stream(VBUCKET_NUMBERS - 1).seqno == (1 << 64) - 1
