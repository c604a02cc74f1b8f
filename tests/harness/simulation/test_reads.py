"""Reads beside writes that are on their way to the disk: what was told stays so when the power goes."""

from __future__ import annotations

import pytest

from harness.simulation.histories import Broken
from harness.simulation.reads import Document, play
from headwater.node.committer import Committer
from tests.battery import few_of


@pytest.mark.parametrize("seed", few_of(range(40), 0, 1))
def test_what_was_read_is_there_after_the_power_has_gone(seed: int) -> None:
    play(seed, rounds=6)


def test_the_power_goes_in_the_middle_of_a_batch_nearly_always() -> None:
    assert play(2, rounds=6) >= 4


def test_a_read_that_waits_for_less_than_is_staged_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Committer, "gate", lambda committer: committer._in_flight)
    with pytest.raises(Broken, match="visible: "):
        for seed in range(10):
            play(seed, rounds=6)


def test_a_value_may_be_followed_by_itself_and_by_later_ones() -> None:
    document = Document()
    versions = [document.record(value) for value in (b"1", b"2", None, b"3")]
    assert versions == [1, 2, 3, 4]
    document.check(b"k", b"2", 0)
    document.check(b"k", b"2", document.known)
    document.check(b"k", None, document.known)
    assert document.known == 3
    for value in (b"1", b"2"):
        with pytest.raises(Broken, match="visible"):
            document.check(b"k", value, document.known)


def test_who_asked_before_a_later_version_was_known_may_still_be_told_the_one_before() -> None:
    document = Document()
    document.record(b"1")
    document.known = 1
    document.check(b"k", None, 0)
    assert document.known == 1
