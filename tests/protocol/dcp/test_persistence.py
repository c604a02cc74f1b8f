"""Answers of copies about their disks, put together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import OptionError
from headwater.protocol.dcp.persistence import copies_needed, persisted, persisted_by, read_min_persisted
from headwater.wire.meta import ObserveSeqnoFailedOver, ObserveSeqnoResponse

OURS, THEIRS = 0xA11CE, 0xB0B


def answer(persisted_seqno: int, vb_uuid: int = OURS) -> ObserveSeqnoResponse:
    return ObserveSeqnoResponse(vbucket=1, vb_uuid=vb_uuid, persisted_seqno=persisted_seqno, current_seqno=99)


def failed_over(persisted_seqno: int, last: int, old: int = OURS) -> ObserveSeqnoFailedOver:
    numbers = {"persisted_seqno": persisted_seqno, "current_seqno": 99, "old_vb_uuid": old, "last_received_seqno": last}
    return ObserveSeqnoFailedOver(vbucket=1, vb_uuid=THEIRS, **numbers)


def test_of_the_branch_that_was_asked_for_all_on_disk_counts():
    assert persisted(answer(70), OURS) == 70


def test_of_another_branch_nothing_does():
    assert persisted(answer(70, THEIRS), OURS) == persisted(failed_over(70, 60, old=THEIRS), OURS) == 0


def test_of_a_branch_that_was_left_what_was_received_of_it_and_is_on_disk_counts():
    assert persisted(failed_over(70, last=60), OURS) == 60
    assert persisted(failed_over(50, last=60), OURS) == 50


@pytest.mark.parametrize(
    ("wanted", "named", "configured", "count"),
    [
        ("all", 3, 3, 3),
        ("all", 2, 3, 2),
        ("all", 1, 3, 1),
        ("majority", 3, 3, 2),
        ("majority", 2, 3, 2),
        ("majority", 4, 4, 3),
        ("majority", 1, 1, 1),
        ("majority", 1, 3, 1),
        (2, 3, 3, 2),
        (2, 1, 2, 1),
        (1, 3, 3, 1),
        ("all", 0, 3, 0),
        (1, 0, 3, 0),
    ],
)
def test_copies_that_the_map_does_not_name_are_not_waited_for(wanted, named, configured, count):
    assert copies_needed(wanted, named, configured) == count


def test_so_many_copies_have_what_the_last_of_them_has():
    told = {"a": 90, "b": 70, "c": 80}
    assert [persisted_by(count, "abc", told) for count in (1, 2, 3)] == [90, 80, 70]


def test_who_said_nothing_has_nothing_and_who_is_no_copy_does_not_count():
    assert persisted_by(2, "ab", {"a": 90}) == persisted_by(2, "ab", {"a": 90, "c": 95}) == 0
    assert persisted_by(0, "", {"a": 90}) == persisted_by(3, "ab", {"a": 90, "b": 90}) == 0


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 50)), st.sets(st.sampled_from("abcd")), st.integers(1, 4)
)
def test_at_least_so_many_copies_have_it_and_one_more_is_had_by_fewer(told, copies, count):
    found = persisted_by(count, copies, told)
    if found:
        assert sum(told.get(copy, 0) >= found for copy in copies) >= count
    if count <= len(copies):
        assert sum(told.get(copy, 0) >= found + 1 for copy in copies) < count


@pytest.mark.parametrize(("told", "meant"), [(1, 1), ("3", 3), (4, 4), ("majority", "majority"), ("all", "all")])
def test_a_number_of_copies_is_a_number_or_a_word(told, meant):
    assert read_min_persisted(told) == meant


@pytest.mark.parametrize("told", [0, 5, -1, "0", "most", "", None, True, 2.0, "²"])
def test_anything_else_is_refused_with_what_there_is(told):
    with pytest.raises(OptionError, match='1 to 4, "majority" or "all"'):
        read_min_persisted(told)
