"""The model itself: each promise is kept, and then broken once."""

from __future__ import annotations

import pytest

from harness.simulation.histories import Broken, Change, Histories, Ownership, branch_of, has, upper_of

LOG = ((0xB, 10), (0xA, 0))


def change(key: bytes, value: bytes | None, cas: int = 1) -> Change:
    return Change(key, value, cas, 1)


@pytest.fixture
def histories() -> Histories:
    made = Histories()
    for seqno, key, value in ((1, b"x", b"1"), (2, b"y", b"2"), (3, b"x", b"3")):
        made.sent(0, key, value)
        made.wrote("n0", 0, 0xA, seqno, change(key, value))
    return made


def test_a_branch_ends_where_the_next_one_begins() -> None:
    assert [branch_of(LOG, seqno) for seqno in (1, 10, 11)] == [0xA, 0xA, 0xB]
    assert (upper_of(LOG, 0xA, 20), upper_of(LOG, 0xB, 20), upper_of(LOG, 0xC, 20)) == (10, 20, -1)
    assert has(LOG, 20, 0xA, 10) and not has(LOG, 20, 0xA, 11) and not has(LOG, 20, 0xC, 1)


def test_a_change_is_committed_anew_by_a_later_owner_of_the_same_history_alone(histories: Histories) -> None:
    log = ((0xC, 15), (0xB, 2), (0xA, 0))
    assert not histories.is_committed_anew(0, log, 20, 0xA, 3)
    histories.wrote("n1", 0, 0xB, 16, change(b"x", b"3"))  # behind the end of that branch
    histories.wrote("n1", 0, 0xB, 3, change(b"x", b"3", cas=2))
    histories.wrote("n2", 0, 0xD, 3, change(b"x", b"3"))
    assert not histories.is_committed_anew(0, log, 20, 0xA, 3)
    histories.wrote("n1", 0, 0xB, 4, change(b"x", b"3"))
    assert histories.is_committed_anew(0, log, 20, 0xA, 3)
    assert not histories.is_committed_anew(0, log, 3, 0xA, 3)
    assert not histories.is_committed_anew(0, log[:2], 20, 0xA, 3)
    assert not histories.is_committed_anew(0, log, 20, 0xA, 2) and not histories.is_committed_anew(0, log, 20, 0xA, 9)


def test_a_seqno_has_one_content(histories: Histories) -> None:
    histories.shown("c0", 0, LOG, 3, change(b"x", b"3"))
    with pytest.raises(Broken, match="it was"):
        histories.shown("c0", 0, LOG, 3, change(b"x", b"3", cas=2))
    with pytest.raises(Broken, match="no owner wrote"):
        histories.shown("c0", 0, LOG, 4, change(b"x", b"3"))
    with pytest.raises(Broken, match="nobody sent"):
        histories.wrote("n0", 0, 0xA, 4, change(b"x", b"made up"))


def test_who_is_consistent_lacks_no_key_and_has_no_older_version(histories: Histories) -> None:
    whole = {b"x": (3, change(b"x", b"3")), b"y": (2, change(b"y", b"2"))}
    histories.check_complete("n1", 0, LOG, whole, 3)
    with pytest.raises(Broken, match="nothing for b'y'"):
        histories.check_complete("n1", 0, LOG, {b"x": whole[b"x"]}, 3)
    with pytest.raises(Broken, match="has 1 for b'x'"):
        histories.check_complete("n1", 0, LOG, whole | {b"x": (1, change(b"x", b"1"))}, 3)


def test_a_tombstone_may_be_missing_once_it_is_purged(histories: Histories) -> None:
    histories.wrote("n0", 0, 0xA, 4, change(b"y", None))
    held = {b"x": (3, change(b"x", b"3"))}
    with pytest.raises(Broken, match="complete"):
        histories.check_complete("n1", 0, LOG, held, 4)
    histories.purged(0, 4)
    histories.check_complete("n1", 0, LOG, held, 4)
    assert histories.may_be_missing(0, 4, change(b"y", None))
    assert not histories.may_be_missing(0, 5, change(b"y", None))
    assert not histories.may_be_missing(0, 2, change(b"y", b"2"))


def test_what_a_purged_tombstone_deleted_may_not_be_there(histories: Histories) -> None:
    histories.wrote("n0", 0, 0xA, 4, change(b"y", None))
    histories.purged(0, 4)
    with pytest.raises(Broken, match="has 2 for b'y'"):
        histories.check_complete("n1", 0, LOG, {b"x": (3, change(b"x", b"3")), b"y": (2, change(b"y", b"2"))}, 4)


@pytest.fixture
def owner() -> Ownership:
    made = Ownership(0)
    made.promise("n0")
    made.became_active("n0", ((0xA, 0),), 0, restarted=False)
    made.acked(0xA, 5)
    return made


def test_nobody_makes_himself_the_owner(owner: Ownership) -> None:
    with pytest.raises(Broken, match="made itself active"):
        owner.became_active("n1", ((0xB, 5), (0xA, 0)), 5, restarted=False)


def test_each_request_to_become_active_is_obeyed_once(owner: Ownership) -> None:
    first, second = owner.promise("n1"), owner.promise("n1")
    owner.became_active("n1", ((0xB, 5), (0xA, 0)), 5, restarted=False)
    owner.settled("n1", first)
    owner.became_active("n1", ((0xC, 5), (0xA, 0)), 5, restarted=False)  # it was dead in between
    owner.settled("n1", second)
    owner.settled("n1", owner.promise("n1"))  # it was active already
    owner.promise("n1")
    owner.began("n1")  # before it came to that
    with pytest.raises(Broken, match="made itself active"):
        owner.became_active("n1", ((0xD, 5), (0xA, 0)), 5, restarted=False)


def test_a_takeover_leaves_one_owner_who_has_everything(owner: Ownership) -> None:
    with pytest.raises(Broken, match=r"\['n0'\] would still be active"):
        owner.became_active("n1", ((0xA, 0),), 5, restarted=False)
    owner.not_active_on_disk("n0")
    with pytest.raises(Broken, match=r"acknowledged and lost: \[5\]"):
        owner.became_active("n1", ((0xA, 0),), 4, restarted=False)
    owner.became_active("n1", ((0xA, 0),), 5, restarted=False)
    assert owner.holder == "n1"
    with pytest.raises(Broken, match="came back as active"):
        owner.became_active("n0", ((0xC, 5), (0xA, 0)), 5, restarted=True)


def test_a_crash_begins_a_branch_and_loses_nothing(owner: Ownership) -> None:
    with pytest.raises(Broken, match="goes on in branch a"):
        owner.became_active("n0", ((0xA, 0),), 5, restarted=True, clean=False)
    with pytest.raises(Broken, match="kept"):
        owner.became_active("n0", ((0xC, 4), (0xA, 0)), 4, restarted=True, clean=False)


def test_a_promoted_replica_may_lack_what_it_never_had(owner: Ownership) -> None:
    owner.promise("n1")
    owner.became_active("n1", ((0xB, 3), (0xA, 0)), 3, restarted=False)
    owner.acked(0xA, 6)  # by the old owner, who does not know yet
    owner.acked(0xB, 4)
    assert owner.acknowledged == {(0xB, 4)} and owner.discarded == 1


def test_an_owner_that_a_broken_takeover_left_dead_has_lost_nothing(owner: Ownership) -> None:
    owner.not_active_on_disk("n0")
    owner.promise("n0")
    with pytest.raises(Broken, match="kept"):
        owner.became_active("n0", ((0xC, 4), (0xA, 0)), 4, restarted=False)


def test_a_promotion_that_never_came_to_the_disk_gives_up_nothing(owner: Ownership) -> None:
    owner.promise("n1")
    owner.became_active("n1", ((0xB, 3), (0xA, 0)), 3, restarted=False)
    owner.shows("n1", ((0xB, 3), (0xA, 0)))
    assert owner.uuid == 0xB and not owner.is_vacant
    owner.shows("n1", ((0xA, 0),))
    assert owner.is_vacant
    owner.acked(0xA, 6)
    owner.chosen("n0", ((0xA, 0),), 6)  # the operator sees who is active
    assert owner.acknowledged == {(0xA, 5), (0xA, 6)}


def test_a_promotion_that_never_came_to_the_disk_may_be_asked_for_again_with_less(owner: Ownership) -> None:
    """The changes it had received were to be written together with the new branch."""
    owner.promise("n1")
    owner.became_active("n1", ((0xB, 5), (0xA, 0)), 5, restarted=False)
    owner.shows("n1", ((0xA, 0),))
    owner.promise("n1")
    owner.became_active("n1", ((0xC, 4), (0xA, 0)), 4, restarted=False)
    assert owner.holder == "n1" and owner.acknowledged == set()


def test_a_promotion_that_is_on_disk_counts_whatever_is_lost_later(owner: Ownership) -> None:
    owner.promise("n1")
    owner.became_active("n1", ((0xB, 5), (0xA, 0)), 5, restarted=False)
    owner.on_disk("n1", ((0xB, 5), (0xA, 0)))
    owner.shows("n1", ((0xA, 0),))
    assert not owner.is_vacant
    owner.promise("n1")
    with pytest.raises(Broken, match=r"acknowledged and lost: \[5\]"):
        owner.became_active("n1", ((0xC, 4), (0xA, 0)), 4, restarted=False)


def test_what_a_promoted_replica_has_must_stay_though_another_owner_had_given_it_up(owner: Ownership) -> None:
    owner.promise("n1")
    owner.became_active("n1", ((0xB, 3), (0xA, 0)), 3, restarted=False)
    assert owner.acknowledged == set()
    owner.promise("n2")
    owner.became_active("n2", ((0xC, 5), (0xA, 0)), 5, restarted=False)
    assert owner.acknowledged == {(0xA, 5)}
