"""Which seqnos a vbucket can be taken back to."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.node.vbucket.history import RANGES_MAX, ConsistentSeqnos


def test_nothing_is_known_but_the_empty_state() -> None:
    assert ConsistentSeqnos().at_or_below(99) == 0


def test_between_two_snapshot_ends_the_older_one_counts() -> None:
    history = ConsistentSeqnos()
    for end in (10, 20):
        history.note(end)
    assert [history.at_or_below(seqno) for seqno in (9, 10, 19, 20, 99)] == [0, 10, 10, 20, 20]


def test_what_was_written_here_can_be_taken_back_to_any_seqno() -> None:
    history = ConsistentSeqnos()
    history.note(10)
    history.note(20, 50)
    assert [history.at_or_below(seqno) for seqno in (15, 20, 33, 50, 60)] == [10, 20, 33, 50, 50]


def test_snapshots_of_one_change_grow_into_one_range() -> None:
    history = ConsistentSeqnos()
    for seqno in range(1, 1000):
        history.note(seqno)
    assert history.ranges == ((1, 999),)


def test_what_was_given_up_is_forgotten() -> None:
    history = ConsistentSeqnos([(5, 5), (10, 20), (30, 30)])
    history.cut(15)
    assert history.ranges == ((5, 5), (10, 15))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=200))
def test_the_list_stays_short_true_and_knows_the_newest_end(steps: list[int]) -> None:
    history, ends, seqno = ConsistentSeqnos(), set(), 0
    for step in steps:
        seqno += step
        ends.add(seqno)
        history.note(seqno)
        assert len(history.ranges) <= RANGES_MAX
        assert history.at_or_below(seqno) == seqno
    for first, last in history.ranges:
        assert {first, last} <= ends
        assert set(range(first, last + 1)) <= ends
    assert ConsistentSeqnos(history.ranges).ranges == history.ranges
