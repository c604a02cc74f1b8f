"""Refusals: all are told, and only what was accepted by name is passed over."""

import pytest

from headwater.cluster.refusals import FailoverRefusal, judge
from headwater.errors import ClusterError


def refuses(problem):
    def check():
        raise ClusterError(problem, f"mend {problem}")

    return check


def test_checks_that_find_nothing_leave_nothing_to_accept():
    assert judge({FailoverRefusal.PART: lambda: None}, ()) == {}


def test_one_refusal_keeps_its_own_advice():
    with pytest.raises(ClusterError, match=r"^one; mend one$"):
        judge({FailoverRefusal.PART: refuses("one"), FailoverRefusal.BEHIND: refuses("two")}, {FailoverRefusal.BEHIND})


def test_several_are_told_together_with_the_option_for_each():
    with pytest.raises(ClusterError) as refused:
        judge({FailoverRefusal.PART: refuses("one"), FailoverRefusal.LAST_COPY: refuses("two")}, ())
    assert refused.value.problem == "(1) one; (2) two"
    assert refused.value.advice.endswith("in spite of all 2: --accept part --accept last-copy")


def test_what_is_accepted_is_returned_in_its_words():
    assert judge({FailoverRefusal.PART: refuses("one")}, set(FailoverRefusal)) == {FailoverRefusal.PART: "one"}
