"""The checker finds what it is there to find: each promise broken once."""

import pytest

from harness.checker import GONE, Ledger, Operation, Shown, Violation, digest

V1, V2, V3 = digest(b"1"), digest(b"2"), digest(b"3")


def told(*digests: int | None, acknowledged: int) -> Ledger:
    """A ledger of one writer that wrote these values to k, the first of them acknowledged as seqnos 1, 2, ..."""
    ledger = Ledger()
    for number, value in enumerate(digests, 1):
        operation = Operation(number, 0, b"k", value)
        ledger.sent(1, operation)
        if number <= acknowledged:
            ledger.acked(operation, number, cas=100 + number)
    return ledger


def test_what_was_acknowledged_and_is_there_is_right() -> None:
    ledger = told(V1, V2, acknowledged=2)
    ledger.settle([Shown(0, 2, b"k", V2, 102)])
    assert (ledger.acknowledged, ledger.recovered, ledger.lost_unknown) == (2, 0, 0)
    assert ledger.state_of(1) == {(0, b"k"): V2}


@pytest.mark.parametrize("there", [V1, V2, V3])
def test_what_was_not_answered_may_be_there_or_not(there: int) -> None:
    ledger = told(V1, V2, V3, acknowledged=1)
    ledger.settle([Shown(0, 3 if there == V3 else 2 if there == V2 else 1, b"k", there)])
    assert ledger.state_of(1) == {(0, b"k"): there}
    assert ledger.recovered + ledger.lost_unknown == 2


def test_an_acknowledged_write_that_is_gone_is_lost() -> None:
    with pytest.raises(Violation, match="lost"):
        told(V1, acknowledged=1).settle([])


def test_an_older_version_than_the_acknowledged_one_is_a_loss() -> None:
    with pytest.raises(Violation, match="lost"):
        told(V1, V2, acknowledged=2).settle([Shown(0, 1, b"k", V1, 101)])


def test_a_change_that_was_shown_must_stay() -> None:
    ledger = told(V1, V2, acknowledged=1)
    ledger.shown(Shown(0, 2, b"k", V2))
    with pytest.raises(Violation, match="lost"):
        ledger.settle([Shown(0, 1, b"k", V1, 101)])


def test_a_seqno_with_two_contents_is_found_whoever_saw_them() -> None:
    ledger = told(V1, V2, acknowledged=1)
    with pytest.raises(Violation, match="seqno 1 of vbucket 0"):
        ledger.shown(Shown(0, 1, b"k", V2))


def test_a_seqno_with_two_cas_values_is_found() -> None:
    with pytest.raises(Violation, match="seqno 1"):
        told(V1, acknowledged=1).shown(Shown(0, 1, b"k", V1, 999))


def test_a_cas_that_does_not_rise_with_its_seqno_is_found() -> None:
    ledger = told(V1, V2, acknowledged=1)
    with pytest.raises(Violation, match="does not rise"):
        ledger.shown(Shown(0, 2, b"k", V2, cas=100))


def test_a_value_nobody_sent_is_made_up() -> None:
    with pytest.raises(Violation, match="made up"):
        told(V1, acknowledged=1).shown(Shown(0, 2, b"k", V3))


def test_what_did_not_survive_may_not_turn_up_later() -> None:
    ledger = told(V1, V2, acknowledged=1)
    ledger.settle([Shown(0, 1, b"k", V1, 101)])
    with pytest.raises(Violation, match="lost before"):
        ledger.shown(Shown(0, 2, b"k", V2))


def test_a_refused_write_may_not_be_there() -> None:
    ledger, operation = Ledger(), Operation(1, 0, b"k", V1)
    ledger.sent(1, operation)
    ledger.refused(1, operation)
    with pytest.raises(Violation, match="made up"):
        ledger.settle([Shown(0, 1, b"k", V1)])


def test_a_later_operation_without_the_one_before_is_found() -> None:
    ledger = Ledger()
    for number, key in ((1, b"a"), (2, b"b")):
        ledger.sent(1, Operation(number, 0, key, number))
    with pytest.raises(Violation, match="no first n"):
        ledger.settle([Shown(0, 1, b"b", 2)])


def test_a_deleted_document_that_is_back_is_found() -> None:
    with pytest.raises(Violation):
        told(V1, GONE, acknowledged=2).settle([Shown(0, 1, b"k", V1, 101)])


def filled(*digests: int | None) -> Ledger:
    """A ledger of one writer on a small disk that wrote these values to k0, k1, ..., and heard nothing."""
    ledger = Ledger(disk_may_fill=True)
    for number, value in enumerate(digests):
        ledger.sent(1, Operation(number, 0, b"k%d" % number, value))
    return ledger


def test_a_full_disk_may_have_refused_a_document_before_one_that_survived() -> None:
    ledger = filled(V1, V2, V3)
    ledger.settle([Shown(0, 1, b"k0", V1, 101), Shown(0, 2, b"k2", V3, 102)])
    assert (ledger.recovered, ledger.lost_unknown) == (2, 1)
    with pytest.raises(Violation, match="made up, or lost before"):
        ledger.shown(Shown(0, 3, b"k1", V2, 103))


def test_a_full_disk_excuses_no_document_that_was_acknowledged() -> None:
    ledger = filled(V1, V2)
    acknowledged = Operation(9, 0, b"k9", V3)
    ledger.sent(1, acknowledged)
    ledger.acked(acknowledged, 1, cas=101)
    with pytest.raises(Violation, match="is not there"):
        ledger.settle([Shown(0, 2, b"k1", V2, 102)])
