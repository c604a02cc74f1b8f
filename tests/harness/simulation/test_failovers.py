"""Owners that are failed over by maps under durable writes, with any faults before and behind that."""

from __future__ import annotations

import pytest

from harness.simulation.failovers import play, play_handed_over, play_torn
from tests.battery import few_of


@pytest.mark.parametrize("seed", few_of(range(40), 0, 1))
def test_what_was_told_to_have_happened_is_there_after_any_failover(seed: int) -> None:
    play(seed, rounds=4)


@pytest.mark.parametrize("seed", few_of(range(20), 1))
def test_what_was_told_to_have_happened_is_there_though_a_copy_was_amid_a_snapshot(seed: int) -> None:
    play_torn(seed, rounds=4)


@pytest.mark.parametrize("seed", few_of(range(20), 0))
def test_keys_are_free_at_once_where_a_vbucket_changed_hands_under_durable_writes(seed: int) -> None:
    play_handed_over(seed, rounds=4)


def test_an_owner_is_lost_while_a_copy_is_amid_a_snapshot() -> None:
    assert play_torn(7, rounds=4)
