"""Where a bucket has to be, by what nodes said and by what is still on the way to them."""

from __future__ import annotations

import pytest

from harness.simulation.existence import Existence
from harness.simulation.histories import Broken


def one() -> Existence:
    return Existence(["n0"])


def test_a_bucket_that_nobody_asked_for_must_not_be_there() -> None:
    with pytest.raises(Broken, match="on n0 it is there, though it was dropped, or never made"):
        one().check("n0", is_served=True)


def test_from_the_request_to_the_answer_both_are_possible_and_then_one() -> None:
    found = one()
    asked = found.asks("n0", makes=True)
    for is_served in (False, True):
        found.check("n0", is_served=is_served)
    found.answered("n0", asked, done=True)
    found.check("n0", is_served=True)
    with pytest.raises(Broken, match="is not there, though it was made"):
        found.check("n0", is_served=False)


def test_a_node_that_could_not_leaves_both_possible() -> None:
    found = one()
    found.answered("n0", found.asks("n0", makes=True), done=False)
    assert found.must == {"n0": None}


def test_a_request_whose_answer_was_lost_may_be_obeyed_until_its_process_is_gone() -> None:
    found = one()
    found.asks("n0", makes=True)
    dropped = found.asks("n0", makes=False)
    found.answered("n0", dropped, done=True)
    found.check("n0", is_served=True)
    assert not found.is_quiet
    found.began("n0")
    assert found.is_quiet
    found.answered("n0", found.asks("n0", makes=False), done=True)
    with pytest.raises(Broken):
        found.check("n0", is_served=True)


def test_it_is_as_wanted_when_every_node_has_said_so() -> None:
    found = Existence(["n0", "n1"], is_wanted=True)
    for node in found.nodes:
        assert not found.is_as_wanted
        found.answered(node, found.asks(node, makes=True), done=True)
    assert found.is_as_wanted
